//! Access to the satellite: MODCODs that follow the signal, capacity that must be requested.

use crate::drive::{Driven, at_ms, ms, plan};
use midhop_path::Cause;
use midhop_units::Duration;

/// Two hops of 125 ms, OpenSAND's superframe, no capacity without a request.
const DAMA: &str = "rate = \"2 Mbit/s\"\ndelay = \"250 ms\"\nqueue = \"1 MB\"\ndama = {}";

/// How long a single packet, sent `after_us` from the start, waits in addition to its 250 ms of
/// propagation.
fn first_packet_wait_ms(text: &str, after_us: u64, bytes: u64) -> f64 {
    let mut driven = Driven::new(&plan(text), 1);
    driven.run_until(midhop_units::Instant::from_ns(after_us * 1000));
    driven.send(bytes);
    driven.run_dry();
    let [(_, due)] = driven.came[..] else { panic!("{:?}", driven.came) };
    (due.as_ns() - after_us * 1000) as f64 / 1e6 - 250.0
}

#[test]
fn the_first_packet_waits_half_a_second_for_its_slot() {
    let waits: Vec<_> =
        (0..200).map(|step| first_packet_wait_ms(DAMA, 1_000_000 + step * 397, 1500)).collect();
    let least = waits.iter().copied().fold(f64::MAX, f64::min);
    let most = waits.iter().copied().fold(0.0, f64::max);
    // Up to a superframe for the request, 20 superframes until the plan holds, 6 ms to send.
    assert!((520.0..545.0).contains(&least), "{least}");
    assert!((545.0..600.0).contains(&most), "{most}");
}

#[test]
fn constant_assignment_serves_small_packets_at_once() {
    let text = DAMA.replace("dama = {}", "dama = { cra = \"64 kbit/s\" }");
    // 64 kbit/s × 26.5 ms = 212 bytes in each superframe.
    let wait = first_packet_wait_ms(&text, 1_000_000, 100);
    assert!(wait < 27.0, "{wait}");
    let wait = first_packet_wait_ms(&text, 1_000_000, 1500);
    assert!((150.0..240.0).contains(&wait), "{wait}");
}

#[test]
fn a_steady_stream_is_granted_in_advance() {
    let mut driven = Driven::new(&plan(DAMA), 1);
    // 1 Mbit/s of packets of 1250 bytes.
    for _ in 0..2000 {
        driven.send(1250);
        driven.run_until(driven.now + ms(10));
    }
    driven.run_dry();
    let wait =
        |number: usize| (driven.came[number].1 - at_ms(10 * number as u64)).as_ms_f64() - 250.0;
    assert!(wait(0) > 500.0, "{}", wait(0));
    let late: Vec<_> = (1000..2000).map(wait).collect();
    let mean = late.iter().sum::<f64>() / 1000.0;
    assert!(mean < 60.0, "{mean}");
}

#[test]
fn after_silence_the_wait_is_back() {
    let mut driven = Driven::new(&plan(DAMA), 1);
    for _ in 0..500 {
        driven.send(1250);
        driven.run_until(driven.now + ms(10));
    }
    driven.run_until(driven.now + Duration::from_s(5));
    let before = driven.now;
    driven.send(1250);
    driven.run_dry();
    let wait = (driven.came.last().expect("packets").1 - before).as_ms_f64() - 250.0;
    assert!((520.0..600.0).contains(&wait), "{wait}");
}

#[test]
fn under_full_load_the_carrier_is_full_and_no_more() {
    let mut driven = Driven::new(&plan(DAMA), 1);
    for _ in 0..2000 {
        driven.send(1500);
        driven.run_until(driven.now + ms(5));
    }
    // The second half of ten seconds, with 2.4 Mbit/s offered to 2 Mbit/s.
    let sent = driven.came.iter().filter(|(_, due)| *due >= at_ms(5000)).count() as f64;
    let rate = sent * 1500.0 * 8.0 / 5.0;
    assert!((1.98e6..=2.0e6 * 1.001).contains(&rate), "{rate}");
    driven.run_dry();
}

#[test]
fn a_volume_is_asked_for_once() {
    // 30 kB at 2 Mbit/s fill 120 ms of slots. Grants beyond the need would show as a second packet
    // that follows soon and does not wait.
    let text = DAMA.replace("dama = {}", "dama = { rbdc_max = \"0 bit/s\" }");
    let mut driven = Driven::new(&plan(&text), 1);
    for _ in 0..20 {
        driven.send(1500);
    }
    driven.run_dry();
    let last = driven.came.last().expect("packets").1.as_ns() as f64 / 1e6 - 250.0;
    assert!((640.0..700.0).contains(&last), "{last}");
    let now = driven.now;
    driven.send(1500);
    driven.run_dry();
    let wait = (driven.came.last().expect("packets").1 - now).as_ms_f64() - 250.0;
    assert!(wait > 500.0, "{wait}");
}

#[test]
fn modcods_set_the_rate_and_fail_in_a_fade() {
    // 10 Msymbol/s. At 10 dB: 16APSK 2/3, 26.37 Mbit/s. From 2 s on 4 dB: QPSK 2/3, 13.22 Mbit/s,
    // half a second later; until then everything is lost.
    let text = "queue = \"100 MB\"\nacm = { symbol_rate_baud = 1e7, \
                es_n0_db = { trace = [[\"0 s\", 10], [\"2 s\", 4]] } }";
    let mut driven = Driven::new(&plan(text), 1);
    for _ in 0..10_000 {
        driven.send(1500);
    }
    driven.run_until(at_ms(5_000));
    let between = |from: u64, to: u64| {
        let count = driven.came.iter().filter(|(_, due)| (at_ms(from)..at_ms(to)).contains(due));
        count.count() as f64 * 1500.0 * 8.0 / ((to - from) as f64 / 1e3)
    };
    assert!((between(0, 2000) / 26.37e6 - 1.0).abs() < 0.001, "{}", between(0, 2000));
    assert_eq!(between(2000, 2500), 0.0);
    assert!((between(2501, 4501) / 13.22e6 - 1.0).abs() < 0.001, "{}", between(2501, 4501));
    let lost = driven.link.counters().dropped(Cause::Acm) as f64 * 1500.0 * 8.0;
    assert!((lost / (0.5 * 26.37e6) - 1.0).abs() < 0.002, "{lost}");
}

#[test]
fn the_carrier_caps_what_modcods_allow() {
    let text =
        "rate = \"20 Mbit/s\"\nqueue = \"100 MB\"\nacm = { symbol_rate_baud = 1e7, es_n0_db = 20 }";
    let mut driven = Driven::new(&plan(text), 1);
    for _ in 0..1000 {
        driven.send(1250);
    }
    driven.run_dry();
    assert_eq!(driven.came.last(), Some(&(999, at_ms(500))));
}
