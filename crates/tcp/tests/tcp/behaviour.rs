//! Windows, closing, refusing, ECN: what the peer and the application see.

use crate::pair::{Fixed, Pair, Path, PlainReno};
use midhop_tcp::{Autotuning, Cause, Ecn, Endpoint, Event, Flags, Settings, State, refusal};
use midhop_units::{Bytes, Duration, Instant};

const MSS: u64 = 1448;

fn path(ms: u64) -> Path {
    Path { delay: Duration::from_ms(ms), ..Path::default() }
}

fn at(ms: u64) -> Instant {
    Instant::START + Duration::from_ms(ms)
}

#[test]
fn a_lost_window_update_does_not_stall_for_ever() {
    let settings = Settings { receive_buffer: Bytes::new(20_000), ..Settings::default() };
    let mut pair = Pair::reno(&settings, path(10), 1);
    pair.to_write = [100_000, 0];
    pair.read_limit = [None, Some(0)];
    pair.run_to(at(5_000));
    assert_eq!(pair.ends[1].readable(), 20_000);
    // The reader continues, but the window updates are lost.
    pair.read_limit = [None, None];
    let lost_until = pair.now;
    let mut lost = 0;
    pair.touch = Box::new(move |side, segment| {
        let lose = side == 1 && segment.is_pure_ack() && lost == 0;
        lost += u32::from(lose);
        lose
    });
    pair.close = [true, true];
    let closed = |pair: &Pair| pair.events.iter().all(|events| events.contains(&Event::Closed));
    assert!(pair.run(lost_until + Duration::from_s(20), closed));
    assert_eq!(pair.read[1], 100_000);
    assert_eq!(pair.ends[0].counters().timeouts, 0, "a window probe is no timeout");
}

#[test]
fn a_window_that_stays_closed_is_probed_more_and_more_rarely() {
    let settings = Settings { receive_buffer: Bytes::new(20_000), ..Settings::default() };
    let mut pair = Pair::reno(&settings, path(10), 1);
    pair.keep_seen = true;
    pair.to_write = [100_000, 0];
    pair.read_limit = [None, Some(0)];
    pair.run_to(at(60_000));
    let probes: Vec<_> =
        pair.seen.iter().filter(|seen| seen.from == 0 && seen.at > at(1000)).collect();
    assert!((4..12).contains(&probes.len()), "{}", probes.len());
    assert!(probes.iter().all(|probe| probe.segment.length == 0));
    // An endpoint never gives up a peer that answers.
    pair.run_to(at(7_200_000));
    assert_eq!(pair.ends[0].state(), State::Established);
}

#[test]
fn no_silly_windows_are_offered_or_filled() {
    let settings = Settings { receive_buffer: Bytes::new(30_000), ..Settings::default() };
    let mut pair = Pair::reno(&settings, path(10), 1);
    pair.keep_seen = true;
    pair.to_write = [300_000, 0];
    pair.read_limit = [None, Some(100)];
    while pair.read[1] < 250_000 {
        pair.run_to(pair.now + Duration::from_ms(1));
    }
    let sizes: Vec<_> = pair
        .seen
        .iter()
        .filter(|seen| seen.from == 0 && seen.segment.length > 0)
        .map(|seen| seen.segment.length)
        .collect();
    let small = sizes.iter().filter(|&&size| u64::from(size) < MSS).count();
    assert!(small * 20 < sizes.len(), "{small} of {} are small", sizes.len());
}

#[test]
fn the_offered_window_follows_a_reader_and_never_shrinks() {
    let settings = Settings {
        receive_autotuning: Some(Autotuning { initial: Bytes::new(65_535) }),
        ..Settings::default()
    };
    let control = midhop_congestion::Controller::new(Fixed(Bytes::new(4 << 20), None));
    let mut pair = Pair::with(&settings, control, path(50));
    // The scoreboard is long, and many other tests recount theirs.
    pair.check = false;
    pair.to_write = [20_000_000, 0];
    let mut edge = 0;
    while pair.read[1] < 20_000_000 {
        pair.run_to(pair.now + Duration::from_ms(10));
        let now = pair.ends[0].acknowledged() + pair.ends[0].peer_window().get();
        assert!(now >= edge, "the right edge moved back from {edge} to {now}");
        edge = now;
    }
    // The window doubles each round trip from 64 KiB, so 20 MB take far fewer rounds than 20 MB / 64 KiB.
    assert!(pair.now < at(4_000), "{:?}", pair.now);
}

/// The receiver learns the round trip from the echoes of its own timestamps. The first window of data takes more than
/// two round trips, and a window that followed that time would slow slow start down.
#[test]
fn the_offered_window_does_not_hold_up_slow_start() {
    let settings = Settings {
        receive_autotuning: Some(Autotuning { initial: Bytes::new(65_535) }),
        ..Settings::default()
    };
    let mut pair = Pair::reno(&settings, path(300), 1);
    pair.check = false;
    pair.to_write = [4_000_000, 0];
    pair.run_to(at(700));
    // The handshake, then rounds of 10, 20, 40, 80, … 640 segments, at whose end most is there.
    let mut widest = 0;
    while pair.now < at(5_300) {
        pair.run_to(pair.now + Duration::from_ms(10));
        let (window, offered) = (pair.ends[0].window(), pair.ends[0].peer_window());
        widest = widest.max(pair.ends[0].in_flight().get());
        let waits = pair.ends[0].acknowledged() < 1_000_000;
        assert!(!waits || offered >= window, "{:?}: {offered} offered, {window} allowed", pair.now);
    }
    assert!(widest >= 600 * MSS, "{} segments at once", widest / MSS);
}

#[test]
fn a_half_closed_connection_carries_the_other_half() {
    let mut pair = Pair::reno(&Settings::default(), path(10), 1);
    pair.to_write = [5000, 0];
    pair.close = [true, false];
    pair.run_to(at(1_000));
    assert_eq!(pair.ends[0].state(), State::FinWait2);
    assert_eq!(pair.ends[1].state(), State::CloseWait);
    pair.to_write = [0, 500_000];
    pair.close = [false, true];
    pair.run_to(at(3_000));
    assert_eq!(pair.read, [500_000, 5000]);
    assert_eq!(pair.ends[0].state(), State::TimeWait);
    assert_eq!(pair.ends[1].state(), State::Closed);
    pair.run_to(at(70_000));
    assert_eq!(pair.ends[0].state(), State::Closed);
    assert_eq!(pair.events[0].last(), Some(&Event::Closed));
}

#[test]
fn an_abort_resets_the_peer() {
    let mut pair = Pair::reno(&Settings::default(), path(10), 1);
    pair.to_write = [1_000_000, 0];
    pair.run_to(at(50));
    pair.ends[0].abort();
    pair.run_to(at(200));
    assert!(pair.events[0].contains(&Event::Reset(Cause::Aborted)));
    assert!(pair.events[1].contains(&Event::Reset(Cause::Peer)));
    assert!(
        pair.ends.iter().all(|end| end.state() == State::Closed && end.poll_timeout().is_none())
    );
}

#[test]
fn a_refused_connection_is_reported() {
    let settings = Settings::default();
    let mut client = Endpoint::connect(settings.clone(), PlainReno::control(&settings, 10), 7);
    let syn = client.poll_transmit(at(0)).expect("a SYN");
    let reset = refusal(&syn).expect("a reset");
    client.handle_segment(at(10), &reset);
    assert_eq!(client.poll_event(), Some(Event::Reset(Cause::Refused)));
    assert_eq!(client.poll_timeout(), None);
}

#[test]
fn a_silent_peer_is_given_up() {
    let settings = Settings { syn_retries: 3, retries: 4, ..Settings::default() };
    let mut pair = Pair::reno(&settings, path(10), 1);
    pair.touch = Box::new(|side, _| side == 0);
    pair.run_to(at(200_000));
    assert_eq!(pair.events[0], [Event::Reset(Cause::TimedOut)]);
    let mut pair = Pair::reno(&settings, path(10), 1);
    pair.run_to(at(100));
    pair.touch = Box::new(|side, _| side == 0);
    pair.to_write = [5000, 0];
    pair.run_to(at(200_000));
    assert_eq!(pair.events[0], [Event::Connected, Event::Reset(Cause::TimedOut)]);
}

#[test]
fn lost_syns_are_sent_again() {
    for lost in [0, 1] {
        let mut pair = Pair::reno(&Settings::default(), path(10), 1);
        let mut times = 0;
        pair.touch = Box::new(move |side, segment| {
            let syn = side == lost && segment.flags.contains(Flags::SYN);
            times += u32::from(syn);
            syn && times <= 2
        });
        pair.transfer([10_000, 10_000]);
        assert!(pair.now > at(3_000), "after 1 s and 2 s: {:?}", pair.now);
    }
}

#[test]
fn both_may_open_at_once() {
    let settings = Settings::default();
    let ends = [5, 6].map(|initial| {
        Endpoint::connect(settings.clone(), PlainReno::control(&settings, 10), initial)
    });
    let [one, other] = ends;
    let mut pair = Pair::new(one, other, path(10), 1);
    pair.transfer([30_000, 20_000]);
}

#[test]
fn a_marked_path_slows_the_sender_once_a_round_trip() {
    let settings = Settings { ecn: true, ..Settings::default() };
    let control = PlainReno::with_threshold(&settings, 40, 40);
    let mut pair = Pair::with(&settings, control, path(50));
    pair.to_write = [5_000_000, 0];
    pair.run_to(at(250));
    assert!(pair.seen.iter().any(|seen| seen.segment.ecn == Ecn::Capable));
    let mut marks = 0;
    pair.touch = Box::new(move |side, segment| {
        if side == 0 && segment.ecn == Ecn::Capable && marks < 5 {
            segment.ecn = Ecn::Congested;
            marks += 1;
        }
        false
    });
    pair.run_to(at(1_000));
    let counters = pair.ends[0].counters();
    assert_eq!(counters.marked_rounds, 1, "{counters:?}");
    assert_eq!(counters.retransmissions, 0);
    let reduced = pair.seen.iter().filter(|seen| seen.segment.flags.contains(Flags::CWR)).count();
    assert!(reduced >= 2, "the SYN and the first segment after the reduction");
    let echoed =
        pair.seen.iter().filter(|seen| seen.from == 1 && seen.segment.flags.contains(Flags::ECE));
    assert!(echoed.count() >= 2);
    assert!(pair.ends[0].window() < Bytes::new(40 * MSS));
}

#[test]
fn an_idle_sender_starts_over_where_it_is_configured_to() {
    for slow_start_after_idle in [true, false] {
        let settings = Settings { slow_start_after_idle, ..Settings::default() };
        let mut pair = Pair::with(&settings, PlainReno::control(&settings, 10), path(50));
        pair.to_write = [2_000_000, 0];
        pair.run_to(at(5_000));
        let before = pair.data(0).len();
        pair.to_write = [2_000_000, 0];
        pair.run_to(at(10_000));
        assert_eq!(pair.read[1], 4_000_000, "the cap of the start goes as data arrives");
        let data = pair.data(0);
        let burst = data[before..].iter().filter(|(sent, ..)| *sent == data[before].0).count();
        if slow_start_after_idle {
            assert_eq!(burst, 10);
        } else {
            assert!(burst > 500, "{burst}");
        }
    }
}

#[test]
fn an_idle_connection_is_small() {
    let mut pair = Pair::reno(&Settings::default(), path(50), 1);
    pair.to_write = [3_000_000, 3_000_000];
    pair.run_to(at(600));
    let most = pair.ends[0].memory();
    assert!(most > 20_000, "{most}");
    pair.run_to(at(20_000));
    assert_eq!(pair.read, [3_000_000, 3_000_000]);
    for end in &pair.ends {
        assert!(end.memory() <= 2048, "{} B", end.memory());
    }
}
