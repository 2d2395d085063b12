//! The computed capacity of a link agrees with what a flood of packets gets through it.

use crate::drive::{Driven, ms};
use crate::properties::written;
use midhop_path::queue::QueueSpec;
use midhop_path::rate::LinkRate;
use midhop_path::trace::Trace;
use midhop_path::{Direction, DirectionPlan, DirectionSpec, Drawn, presets};
use midhop_units::{Bytes, Duration, Instant, Rate, Seed};
use proptest::prelude::*;

/// One direction, with an unlimited queue.
fn spec(text: &str) -> DirectionSpec {
    let spec: DirectionSpec =
        toml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    DirectionSpec { queue: Some(QueueSpec::Bytes(Bytes::new(1 << 30))), aqm: None, ..spec }
}

/// Keeps `backlog` packets waiting until `until`. Returns the bytes that were sent, and those that
/// the channel did not lose.
fn flood(plan: &DirectionPlan, seed: u64, backlog: u64, packet: u64, until: Instant) -> [u64; 2] {
    let mut driven = Driven::new(plan, seed);
    while driven.now < until {
        while driven.link.queue_bytes() < Bytes::new(backlog * packet) {
            driven.send(packet);
        }
        let next = driven.link.poll_timeout().unwrap_or(until).min(until);
        driven.run_until(next);
    }
    let counters = driven.link.counters();
    [counters.bytes_sent.get(), (counters.packets_sent - counters.dropped_in_all()) * packet]
}

/// The computed capacity: bytes sent, bytes that arrive, and how often something changed.
fn could(plan: &DirectionPlan, seed: u64, until: Instant) -> (u64, f64, u64) {
    let mut drawn = Drawn::new(plan, Direction::Down, Seed(seed));
    let sent = drawn.clone().sends_until(until).expect("a rate").get();
    let (mut through, mut changes) = (0.0, 0);
    loop {
        let stretch = drawn.advance();
        let end = stretch.end.min(until);
        through += stretch.carries(end.saturating_since(stretch.begin)) / 8.0;
        changes += 1;
        if stretch.end >= until {
            return (sent, through, changes);
        }
    }
}

#[test]
fn a_flood_of_each_kind_of_link_that_varies_finds_its_limit() {
    let delivery: String = (0..4000).map(|at| format!("{}\n", at * at / 4000)).collect();
    let delivery = format!("rate = {{ mahimahi = {delivery:?} }}");
    for (kind, text, backlog) in [
        (
            "steps",
            "rate = { trace = [[\"0 s\", \"20 Mbit/s\"], [\"7 s\", \"8 Mbit/s\"], [\"9 s\", \"0 bit/s\"], [\"11 s\", \"14 Mbit/s\"]] }",
            20,
        ),
        ("a delivery trace", &delivery, 20),
        (
            "rates drawn anew",
            "rate = \"20 Mbit/s\"\nreconfiguration = { every = \"1 s\", rate_sigma = 0.6, rate_factor_min = 0.28, rate_factor_max = 1.7 }",
            20,
        ),
        (
            "breaks",
            "rate = \"20 Mbit/s\"\nreconfiguration = { every = \"5 s\", interruption_min = \"20 ms\", interruption_max = \"150 ms\" }",
            20,
        ),
        (
            "outages that lose",
            "rate = \"20 Mbit/s\"\noutages = [{ start = \"3 s\", length = \"700 ms\", every = \"11 s\" }]",
            20,
        ),
        (
            "outages that hold",
            "rate = \"20 Mbit/s\"\noutages = [{ start = \"3 s\", length = \"700 ms\", every = \"11 s\", hold = true }]",
            20,
        ),
        (
            "fading",
            "acm = { symbol_rate_baud = 5e6, es_n0_db = { trace = [[\"0 s\", 12], [\"10 s\", 9], [\"13 s\", 6], [\"16 s\", 4], [\"19 s\", 8]], repeat = \"25 s\" } }",
            20,
        ),
        (
            "bursts in time",
            "rate = { trace = [[\"0 s\", \"20 Mbit/s\"], [\"7 s\", \"8 Mbit/s\"]] }\nloss = { good = \"4 s\", bad = \"100 ms\" }",
            20,
        ),
        (
            "grants by rate",
            "rate = \"20 Mbit/s\"\ndama = { cra = \"1 Mbit/s\", rbdc_max = \"5 Mbit/s\", vbdc = false }",
            2000,
        ),
    ] {
        let plan = spec(text).resolve(ms(600)).unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert!(plan.varies(), "{kind}");
        for seed in 0..3 {
            let until = Instant::START + Duration::from_s(40);
            let (could_send, could_carry, changes) = could(&plan, seed, until);
            let [sent, carried] = flood(&plan, seed, backlog, 1000, until);
            // A packet whose last bit is sent after the end of a burst or a fade arrives whole.
            let whole = if kind == "bursts in time" || kind == "fading" {
                changes as f64 * 1e3
            } else {
                0.0
            };
            let place =
                format!("{kind}, seed {seed}: {carried} of {could_carry}, {sent} of {could_send}");
            assert!(sent <= could_send && sent + 20_000 >= could_send, "{place}");
            assert!(
                carried as f64 <= could_carry + whole && carried as f64 >= could_carry * 0.999,
                "{place}"
            );
        }
    }
}

#[test]
fn the_presets_of_constellations_carry_what_was_drawn() {
    let starlink = presets::find("starlink").expect("a preset");
    let down = DirectionSpec {
        rate: Some(LinkRate::Constant(Rate::from_mbit_per_s(20))),
        aqm: None,
        queue: Some(QueueSpec::Packets(1000)),
        ..starlink.down
    };
    let plan = down.resolve(ms(50)).expect("a plan");
    let packets_lost = plan.loss_of_packets(1500).probability();
    assert!((packets_lost - 0.004).abs() < 1e-6, "{packets_lost}");
    for seed in 0..4 {
        let until = Instant::START + Duration::from_s(60);
        let (could_send, could_carry, _) = could(&plan, seed, until);
        let [sent, carried] = flood(&plan, seed, 20, 1500, until);
        assert!(sent <= could_send && sent + 1500 >= could_send, "{sent} of {could_send}");
        // Losses by packets are not included: half a percent, with random variation.
        let share = carried as f64 / could_carry / (1.0 - packets_lost);
        assert!((0.998..1.001).contains(&share), "seed {seed}: {share}");
    }
}

#[test]
fn what_is_constant_is_no_draw() {
    for text in [
        "rate = \"20 Mbit/s\"",
        "rate = \"2 Mbit/s\"\ndama = {}",
        "loss = \"1 %\"",
        "jitter = \"3 ms\"",
    ] {
        assert!(!spec(text).resolve(ms(600)).expect("a plan").varies(), "{text}");
    }
}

#[test]
fn going_to_a_moment_spends_nothing() {
    let text = "rate = \"20 Mbit/s\"\ndama = { cra = \"1 Mbit/s\", vbdc = false, superframe = \"100 ms\" }";
    let plan = spec(text).resolve(ms(600)).expect("a plan");
    let mut drawn = Drawn::new(&plan, Direction::Down, Seed(1));
    drawn.seek(Instant::START + Duration::from_ms(150));
    let stretch = drawn.advance();
    // All grants for this superframe are available: 1 Mbit/s × 100 ms, at 20 Mbit/s, and what rates
    // requested.
    assert_eq!(stretch.begin, Instant::START + Duration::from_ms(150));
    assert!(stretch.carries(stretch.end - stretch.begin) >= 100_000.0, "{stretch:?}");
}

fn steps() -> impl Strategy<Value = LinkRate> {
    let rate = (0u64..30_000_000).prop_map(Rate::from_bits_per_s);
    let steps = prop::collection::vec((1u64..100_000_000, rate), 1..6);
    (steps, 1u64..50_000_000).prop_map(|(steps, rest)| {
        let mut begin = 0;
        let mut trace = Trace { steps: Vec::new(), repeat: None };
        for (length, rate) in steps {
            trace.steps.push((Duration::from_ns(begin), rate));
            begin += length;
        }
        trace.repeat = Some(Duration::from_ns(begin + rest));
        LinkRate::Trace(trace)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever varies, no flood exceeds the drawn capacity, and none falls below it by more than
    /// the packets in flight at changes.
    #[test]
    fn no_flood_is_above_what_was_drawn(
        rate in steps(),
        text in written(),
        packet in 40u64..1500,
        seed: u64,
    ) {
        let spec = DirectionSpec {
            rate: Some(rate), jitter: None, reorder: None, duplicate: None, bit_error_rate: None, ..spec(&text)
        };
        let Ok(plan) = spec.resolve(Duration::from_ms(20)) else { return Ok(()) };
        let until = Instant::START + Duration::from_ms(400);
        let (could_send, could_carry, changes) = could(&plan, seed, until);
        let [sent, carried] = flood(&plan, seed, 64, packet, until);
        prop_assert!(sent <= could_send, "{sent} of {could_send}");
        let grain = (packet * (changes + 1)) as f64;
        prop_assert!(carried as f64 <= could_carry + grain, "{carried} of {could_carry}");
        if plan.dama.is_none() {
            prop_assert!(sent + packet >= could_send, "{sent} of {could_send}");
            prop_assert!(carried as f64 + grain >= could_carry, "{carried} of {could_carry}");
        }
    }
}
