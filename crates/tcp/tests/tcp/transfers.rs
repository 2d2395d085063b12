//! Transfers over good paths, and over a bad one.

use crate::pair::{Pair, Path};
use midhop_tcp::{Event, Settings, State};
use midhop_units::{Duration, Instant, Rate};

fn path(delay_ms: u64) -> Path {
    Path { delay: Duration::from_ms(delay_ms), ..Path::default() }
}

#[test]
fn a_connection_opens_carries_and_closes() {
    let mut pair = Pair::reno(&Settings::default(), path(25), 1);
    pair.transfer([1_000_000, 300_000]);
    assert_eq!(pair.ends.each_ref().map(|end| end.counters().retransmissions), [0, 0]);
    assert_eq!(pair.events[0].first(), Some(&Event::Connected));
    assert!(pair.events.iter().all(|events| events.contains(&Event::PeerClosed)));
    assert!(
        pair.ends.iter().any(|end| end.state() == State::Closed || end.state() == State::TimeWait)
    );
}

#[test]
fn slow_start_takes_its_round_trips() {
    // 10, 20, 40, 80 segments: 150 of them in four round trips after the handshake's one.
    let settings = Settings::default();
    let mut pair = Pair::reno(&settings, path(100), 1);
    pair.transfer([150 * 1448, 0]);
    let ms = pair.now.as_ns() / 1_000_000;
    assert!((900..1300).contains(&ms), "{ms} ms");
}

#[test]
fn losses_are_repaired_without_a_timeout() {
    let settings = Settings::default();
    let mut lossy = path(50);
    lossy.loss_per_mille = 10;
    lossy.rate = Some(Rate::from_mbit_per_s(20));
    let mut pair = Pair::reno(&settings, lossy, 7);
    pair.transfer([5_000_000, 0]);
    let counters = pair.ends[0].counters();
    assert!(counters.retransmissions > 10, "{counters:?}");
    assert!(counters.timeouts <= 1, "{counters:?}");
}

#[test]
fn nothing_arrives_twice_or_out_of_turn_on_a_bad_path() {
    for seed in 0..60 {
        let bad = Path {
            delay: Duration::from_ms(20),
            jitter: Duration::from_ms(30 * (seed % 3)),
            loss_per_mille: [0, 20, 100, 300][seed as usize % 4],
            duplicate_per_mille: [0, 50][seed as usize % 2],
            rate: None,
        };
        let settings = Settings {
            sack: seed % 5 != 0,
            timestamps: seed % 7 != 0,
            time_wait: Duration::from_s(3600),
            ..Settings::default()
        };
        let mut pair = Pair::reno(&settings, bad, seed);
        eprintln!("seed {seed}: {bad:?}");
        pair.keep_seen = true;
        pair.transfer([200_000, 50_000]);
    }
}

#[test]
fn a_reader_that_stops_closes_the_window_and_opens_it_again() {
    let settings =
        Settings { receive_buffer: midhop_units::Bytes::new(20_000), ..Settings::default() };
    let mut pair = Pair::reno(&settings, path(10), 1);
    pair.to_write = [100_000, 0];
    pair.read_limit = [None, Some(0)];
    pair.run(Instant::START + Duration::from_s(30), |_| false);
    assert_eq!(pair.ends[1].readable(), 20_000);
    assert_eq!(pair.ends[0].state(), State::Established);
    pair.read_limit = [None, None];
    pair.close = [true, true];
    let closed = |pair: &Pair| pair.events.iter().all(|events| events.contains(&Event::Closed));
    assert!(pair.run(Instant::START + Duration::from_s(200), closed));
    assert_eq!(pair.read, [0, 100_000]);
}
