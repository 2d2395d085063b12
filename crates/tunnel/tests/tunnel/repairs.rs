//! What the shim below QUIC repairs, what that costs, and that no path can break it.

use crate::way::{Faults, Way, left_by_a_block};
use midhop_tunnel::fec::FecSettings;
use midhop_units::{Duration, Rate};
use std::collections::BTreeSet;

/// The seeds of random runs; each failure names its seed.
const SEEDS: std::ops::Range<u64> = 1..5;

fn quic(number: u64, len: usize) -> Vec<u8> {
    let mut datagram = vec![0x40];
    datagram.extend(number.to_be_bytes());
    datagram.resize(9 + len, number as u8);
    datagram
}

fn number(datagram: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(datagram.get(1..9)?.try_into().ok()?))
}

/// Sends so many datagrams at 20 Mbit/s. Returns which ones have arrived, and how many in total.
fn sent_through(way: &mut Way, count: u64, len: usize) -> (BTreeSet<u64>, u64) {
    for sent in 0..count {
        way.send(&quic(sent, len));
    }
    way.run_for(Duration::from_s(5));
    let delivered = way.delivered.iter().filter_map(|datagram| number(datagram));
    let times = delivered.clone().count() as u64;
    (delivered.collect(), times)
}

fn way(faults: Faults, seed: u64) -> Way {
    Way::new(&FecSettings::default(), Some(Rate::from_mbit_per_s(20)), faults, seed)
}

#[test]
fn what_is_left_is_what_the_model_predicts_for_the_redundancy() {
    for (loss, left_max) in [(0.001, 5e-4), (0.01, 1e-3), (0.05, 5e-3)] {
        let mut way = way(Faults { loss, ..Faults::default() }, 1);
        // Lets the sender learn the loss.
        sent_through(&mut way, 20_000, 60);
        way.delivered.clear();
        let (before, lost_before) = (way.near.stats(), way.far.stats());
        let count = 60_000;
        let (come, _) = sent_through(&mut way, count, 60);
        let stats = way.near.stats();
        let left = (count - come.len() as u64) as f64 / count as f64;
        let ratio = (stats.repairs_sent - before.repairs_sent) as f64 / count as f64;
        let repaired = way.far.stats().repaired - lost_before.repaired;
        // A sliding window of 128 does as well as blocks of that size, within a factor for chance.
        let model = left_by_a_block(128, (128.0 * ratio).floor() as u32, loss);
        assert!(left <= 3.0 * model + 1e-4, "{loss}: {left:.6} left, {model:.6} by blocks");
        assert!(left <= left_max, "{loss}: {left} left");
        assert!(ratio < 0.12, "{loss}: {ratio}");
        assert!(repaired as f64 > 0.5 * loss * count as f64, "{loss}: {repaired} repaired");
    }
}

#[test]
fn without_loss_there_is_nothing_but_headers() {
    let mut way = way(Faults::default(), 1);
    let (come, times) = sent_through(&mut way, 10_000, 1000);
    let stats = way.near.stats();
    assert_eq!((come.len(), times, stats.repairs_sent), (10_000, 10_000, 0));
    assert_eq!(stats.source_bytes_sent, 10_000 * (1009 + 3));
    assert_eq!(stats.overhead(), 0.0);
}

#[test]
fn losses_come_back_within_a_part_of_a_round_trip() {
    // The end of a burst: nothing follows, and sometimes half of it is lost.
    for seed in SEEDS {
        let mut way = way(Faults { loss: 0.05, ..Faults::default() }, seed);
        sent_through(&mut way, 2_000, 1000);
        let mut missing = 0;
        for burst in 0..100 {
            way.delivered.clear();
            for sent in 0..10 {
                way.send(&quic(1_000_000 + burst * 10 + sent, 1000));
            }
            // Datagrams that left a tenth of a round trip ago have arrived, or are repaired.
            way.run_for(Duration::from_ms(300 + 60));
            missing += 10 - way.delivered.len().min(10);
            way.run_for(Duration::from_s(2));
        }
        // On average 50 are lost.
        assert!(missing <= 6, "seed {seed}: {missing} of 1000 missing");
    }
}

#[test]
fn bursts_are_repaired_as_far_as_the_overhead_goes() {
    let faults = Faults { loss: 0.001, burst: 5.0, ..Faults::default() };
    let mut way = way(faults, 3);
    sent_through(&mut way, 20_000, 60);
    way.delivered.clear();
    let (come, _) = sent_through(&mut way, 60_000, 60);
    let left = 1.0 - come.len() as f64 / 60_000.0;
    let stats = way.near.stats();
    // Half a percent is lost, in runs of five.
    assert!((0.003..0.008).contains(&way.near.loss()), "{}", way.near.loss());
    // Runs may have any length: half of the losses are in longer runs than 12 % of repairs can cover.
    assert!(left < 0.6 * way.near.loss(), "{left} left");
    assert!((stats.repairs_sent as f64) < 0.08 * stats.sources_sent as f64);
}

#[test]
fn congestion_is_not_hidden_unless_it_is_configured() {
    let faults = Faults { loss: 0.01, mark: 0.01, ..Faults::default() };
    for despite_congestion in [false, true] {
        let settings = FecSettings { despite_congestion, ..FecSettings::default() };
        let mut way = Way::new(&settings, Some(Rate::from_mbit_per_s(20)), faults, 1);
        sent_through(&mut way, 10_000, 1000);
        let repairs = way.near.stats().repairs_sent;
        assert_eq!(repairs > 200, despite_congestion, "{repairs} repairs");
    }
}

#[test]
fn reports_fit_a_narrow_return_leg() {
    let mut way = way(Faults { loss: 0.01, ..Faults::default() }, 1);
    let began = way.now;
    sent_through(&mut way, 20_000, 1400);
    let span = (way.now - began).as_s_f64();
    let stats = way.far.stats();
    let bits = 8.0 * (stats.extra_bytes_sent + 28 * stats.reports_sent) as f64 / span;
    assert!(stats.reports_sent > 20 && bits < 1500.0, "{bits:.0} bit/s of reports");
    assert_eq!(stats.repairs_sent, 0);
    // Reports end soon after the datagrams that they report.
    let before = way.far.stats().reports_sent;
    way.run_for(Duration::from_s(600));
    assert!(way.far.stats().reports_sent <= before + 1);
}

/// Acknowledgements come one by one, 32 times per round trip: each would be the end of a burst.
#[test]
fn acknowledgements_are_not_doubled() {
    let mut way = way(Faults { loss: 0.02, ..Faults::default() }, 1);
    sent_through(&mut way, 3_000, 60);
    let before = way.near.stats();
    for sent in 0..2_000 {
        way.send(&quic(sent, 50));
        way.run_for(Duration::from_us(18_750));
    }
    let stats = way.near.stats();
    let extra = (stats.extra_bytes_sent - before.extra_bytes_sent) as f64;
    let own = (stats.source_bytes_sent - before.source_bytes_sent) as f64;
    assert!(extra < 0.2 * own, "{extra} beside {own}");
}

/// Whatever a path does, nothing comes out that was not sent, and without corruption everything comes out unchanged.
#[test]
fn no_path_makes_it_give_what_was_not_sent() {
    for seed in SEEDS {
        let faults = Faults {
            loss: 0.005,
            burst: 1.0 + seed as f64 % 4.0,
            duplicate: 0.05,
            late: 0.1,
            late_ms: 5 + 20 * (seed % 3),
            ..Faults::default()
        };
        let mut way = way(faults, seed);
        let (come, times) = sent_through(&mut way, 8_000, 400);
        let all = way
            .delivered
            .iter()
            .all(|datagram| number(datagram).is_some_and(|number| *datagram == quic(number, 400)));
        assert!(all, "seed {seed}: something else has come");
        assert!(come.len() > 7_800 && times < 9_000, "seed {seed}: {} {times}", come.len());
        assert!(way.far.stats().repaired > 0, "seed {seed}");
    }
}

/// Garbage and changed bits: QUIC detects false datagrams, but the true ones must still be repaired.
#[test]
fn garbage_and_changed_bits_do_no_lasting_harm() {
    for seed in SEEDS {
        let faults = Faults {
            loss: 0.02,
            corrupt: 0.002,
            garbage: 0.02,
            late: 0.02,
            late_ms: 20,
            duplicate: 0.02,
            ..Faults::default()
        };
        let mut way = way(faults, seed);
        sent_through(&mut way, 8_000, 40);
        way.faults = Faults { loss: 0.02, ..Faults::default() };
        sent_through(&mut way, 2_000, 40);
        way.delivered.clear();
        let (come, _) = sent_through(&mut way, 8_000, 40);
        let left = 1.0 - come.len() as f64 / 8_000.0;
        assert!(left < 0.003, "seed {seed}: {left} left");
    }
}

/// For a peer that has not agreed, there is no shim.
#[test]
fn who_has_not_agreed_sees_quic_alone() {
    let mut way = way(Faults::default(), 1);
    way.near.agree(0);
    way.near.push(way.now, quic(1, 100).into(), 7);
    let (datagram, tag) = way.near.poll_output(way.now).expect("a datagram");
    assert_eq!((datagram.as_ref(), tag), (quic(1, 100).as_slice(), 7));
    assert_eq!(way.near.poll_output(way.now), None);
    assert_eq!(way.near.poll_timeout(), None);
}
