//! Properties of every link that can be resolved, with any traffic.

use crate::drive::Driven;
use midhop_path::loss::{Burst, LossSpec, LossSpecs};
use midhop_path::queue::QueueSpec;
use midhop_path::rate::LinkRate;
use midhop_path::trace::Trace;
use midhop_path::{Counters, Direction, DirectionPlan, DirectionSpec, Link};
use midhop_units::{Bytes, Duration, Instant, Loss, Rate, Seed};
use proptest::prelude::*;

/// Small, large and extreme times with equal weight.
fn time() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        (1u64..100_000_000).prop_map(Duration::from_ns),
        (1u64..100).prop_map(Duration::from_ms),
        any::<u64>().prop_map(Duration::from_ns),
    ]
}

fn rate() -> impl Strategy<Value = Rate> {
    prop_oneof![
        4 => (10_000u64..100_000_000).prop_map(Rate::from_bits_per_s),
        1 => any::<u64>().prop_map(Rate::from_bits_per_s),
        1 => (0u64..3).prop_map(Rate::from_bits_per_s),
    ]
}

fn trace<T: std::fmt::Debug>(value: impl Strategy<Value = T>) -> impl Strategy<Value = Trace<T>> {
    let steps = prop::collection::vec((1u64..100_000_000, value), 1..6);
    (steps, prop::option::of(1u64..50_000_000)).prop_map(|(steps, rest)| {
        let mut begin = 0;
        let mut trace = Trace { steps: Vec::new(), repeat: None };
        for (length, value) in steps {
            trace.steps.push((Duration::from_ns(begin), value));
            begin += length;
        }
        trace.repeat = rest.map(|rest| Duration::from_ns(begin + rest));
        trace
    })
}

pub fn link_rate() -> impl Strategy<Value = LinkRate> {
    prop_oneof![
        Just(LinkRate::Unlimited),
        rate().prop_map(LinkRate::Constant),
        trace(rate()).prop_map(LinkRate::Trace),
    ]
}

fn queue() -> impl Strategy<Value = QueueSpec> {
    prop_oneof![
        (0u64..200_000).prop_map(|bytes| QueueSpec::Bytes(Bytes::new(bytes))),
        (0u64..200).prop_map(QueueSpec::Packets),
        (0.0..3.0).prop_map(QueueSpec::Bdp),
        time().prop_map(QueueSpec::Time),
    ]
}

fn probability() -> impl Strategy<Value = Loss> {
    prop_oneof![0.0..0.1f64, 0.0..=1.0f64].prop_map(|value| Loss::new(value).unwrap_or(Loss::ALL))
}

fn loss() -> impl Strategy<Value = LossSpecs> {
    let one = prop_oneof![
        probability().prop_map(|loss| LossSpec { probability: Some(loss), ..LossSpec::default() }),
        (probability(), 0.5..20.0f64).prop_map(|(mean, packets)| LossSpec {
            mean: Some(mean),
            burst: Some(Burst::Packets(packets)),
            ..LossSpec::default()
        }),
        (time(), time(), probability()).prop_map(|(good, bad, loss_bad)| LossSpec {
            good: Some(good),
            bad: Some(bad),
            loss_bad: Some(loss_bad),
            ..LossSpec::default()
        }),
    ];
    prop::collection::vec(one, 0..3).prop_map(LossSpecs)
}

/// The parts that are easier to write as text than to build.
pub fn written() -> impl Strategy<Value = String> {
    let one_of = |choices: &'static [&'static str]| prop::sample::select(choices);
    let lines = (
        one_of(&[
            "",
            "aqm = \"codel\"",
            "aqm = \"pie\"",
            "aqm = { kind = \"codel\", target = \"1 ns\", interval = \"1 ns\" }",
            "aqm = { kind = \"pie\", update = \"100 us\", burst = \"0 s\", target = \"1 ms\" }",
        ]),
        one_of(&[
            "",
            "jitter = \"3 ms\"",
            "jitter = { kind = \"exponential\", mean = \"1 h\" }",
            "jitter = { kind = \"normal\", mean = \"1 ms\", deviation = \"2 ms\" }",
        ]),
        one_of(&["", "reorder = \"5 %\"", "reorder = { probability = 1, by = \"1 h\" }"]),
        one_of(&["", "duplicate = 0.3"]),
        one_of(&[
            "",
            "outages = [{ start = \"2 ms\", length = \"3 ms\", every = \"7 ms\", hold = true }]",
            "outages = [{ start = \"2 ms\", length = \"1 h\" }, { start = \"0 s\", length = \"1 ns\", every = \"1 ms\" }]",
        ]),
        one_of(&[
            "",
            "acm = { symbol_rate_baud = 1e6, es_n0_db = { trace = [[\"0 s\", 9], [\"5 ms\", -3]], repeat = \"11 ms\" }, loop_delay = \"4 ms\" }",
        ]),
        one_of(&[
            "",
            "",
            "dama = {}",
            "dama = { superframe = \"1 ms\", hop_delay = \"0 s\" }",
            "dama = { cra = \"10 kbit/s\", vbdc = false, superframe = \"10 s\", fca = \"1000 Gbit/s\" }",
        ]),
        one_of(&[
            "",
            "reconfiguration = { every = \"100 ms\", first = \"0 s\", rate_sigma = 3.0, interruption_max = \"900 us\" }",
            "reconfiguration = { every = \"130 ms\", added_delay_max = \"9 ms\", interruption_max = \"5 ms\", lossy_share = 0.3 }",
        ]),
        one_of(&["", "bit_error_rate = 1e-6", "bit_error_rate = 0.5"]),
    );
    lines.prop_map(|(a, b, c, d, e, f, g, h, i)| [a, b, c, d, e, f, g, h, i].join("\n"))
}

fn spec() -> impl Strategy<Value = DirectionSpec> {
    (
        prop::option::of(link_rate()),
        prop::option::of(prop_oneof![
            time().prop_map(midhop_path::delay::LinkDelay::Constant),
            trace((0u64..50).prop_map(Duration::from_ms))
                .prop_map(midhop_path::delay::LinkDelay::Trace),
        ]),
        prop::option::of(queue()),
        prop::option::of(loss()),
        written(),
    )
        .prop_map(|(rate, delay, queue, loss, text)| {
            let rest: DirectionSpec = toml::from_str(&text).expect("written by the test");
            DirectionSpec { rate, delay, queue, loss, ..rest }
        })
}

/// A gap before a packet, and its size.
fn traffic() -> impl Strategy<Value = Vec<(Duration, u64)>> {
    let gap = prop_oneof![
        6 => Just(0u64),
        6 => 0u64..2_000_000,
        2 => 0u64..50_000_000,
        1 => 0u64..2_000_000_000,
    ];
    let size = prop_oneof![9 => 40u64..=1500, 1 => Just(0u64), 1 => any::<u64>()];
    prop::collection::vec((gap.prop_map(Duration::from_ns), size), 1..120)
}

fn keeps_order(plan: &DirectionPlan) -> bool {
    plan.reorder.is_none()
}

/// A quarter of the usual cases: each is a whole run. `PROPTEST_CASES` sets another number.
fn cases() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases.div_ceil(4), ..usual }
}

proptest! {
    #![proptest_config(cases())]

    /// The driver checks after each call that the counts add up (no packet is lost or invented),
    /// that limits and order inside hold, and that no call is requested for the past.
    #[test]
    fn no_resolved_link_breaks_its_promises(
        spec in spec(),
        traffic in traffic(),
        path_rtt in time(),
        seed: u64,
    ) {
        let Ok(plan) = spec.resolve(path_rtt) else { return Ok(()) };
        let mut driven = Driven::new(&plan, seed);
        let mut sent = Vec::new();
        for (gap, bytes) in traffic {
            let wakes = driven.run_at_most(driven.now + gap, 2_000);
            prop_assert!(wakes <= 2_000);
            sent.push(driven.now);
            driven.send(bytes);
        }
        driven.run_at_most(Instant::from_ns(u64::MAX), 2_000);

        let counters: &Counters = driven.link.counters();
        prop_assert!(counters.packets_out <= counters.packets_in + counters.duplicates);
        prop_assert!(counters.duplicates == 0 || plan.duplicate.probability() > 0.0);
        prop_assert!(counters.packets_sent <= counters.packets_in);
        prop_assert!(driven.came.is_sorted_by_key(|(_, due)| *due));
        if keeps_order(&plan) {
            prop_assert!(driven.came.is_sorted_by_key(|(number, _)| *number));
        }
        for (number, due) in &driven.came {
            let flight = due.saturating_since(sent[usize::try_from(*number)?]);
            prop_assert!(flight >= plan.delay_min(), "packet {number} took {flight}");
        }
    }

    /// Between the first bit of any packet and the last bit of any later one, no more passes than
    /// the highest rate allows.
    #[test]
    fn never_faster_than_its_rate(
        rate in link_rate(),
        text in written(),
        sizes in prop::collection::vec(40u64..1500, 2..100),
        gaps in prop::collection::vec(0u64..3_000_000, 100),
        seed: u64,
    ) {
        let spec: DirectionSpec = toml::from_str(&text).expect("written by the test");
        // Only a constant delay follows the sender, so that arrivals show when packets were sent.
        let spec = DirectionSpec {
            rate: Some(rate), jitter: None, reorder: None, duplicate: None, loss: None, ..spec
        };
        let Ok(mut plan) = spec.resolve(Duration::from_ms(20)) else { return Ok(()) };
        if let Some(slots) = &mut plan.reconfiguration {
            slots.added_delay_max = Duration::ZERO;
        }
        let Some(highest) = plan.rate_max() else { return Ok(()) };
        let mut driven = Driven::new(&plan, seed);
        for (bytes, gap) in sizes.iter().zip(gaps) {
            driven.send(*bytes);
            driven.run_at_most(driven.now + Duration::from_ns(gap), 2_000);
        }
        driven.run_at_most(Instant::from_ns(u64::MAX), 2_000);
        for first in 0..driven.came.len() {
            let mut bytes = 0;
            for (number, due) in &driven.came[first + 1..] {
                bytes += sizes[usize::try_from(*number)?];
                let took = due.saturating_since(driven.came[first].1) + Duration::from_ns(1);
                prop_assert!(
                    highest.time_for(Bytes::new(bytes)) <= took,
                    "{bytes} B in {took} at {highest}"
                );
            }
        }
    }

    /// How often and how late a link is called only changes when its packets are fetched.
    #[test]
    fn lateness_changes_nothing(spec in spec(), traffic in traffic(), seed: u64) {
        let Ok(plan) = spec.resolve(Duration::from_ms(20)) else { return Ok(()) };
        let end = Instant::from_ns(20_000_000_000);
        let run = |wake_between: bool| {
            let mut link = Link::new(&plan, Direction::Up, Seed(seed), Instant::START);
            let mut came = Vec::new();
            let mut now = Instant::START;
            let mut wakes = 0;
            for (number, (gap, bytes)) in traffic.iter().enumerate() {
                let next = now + *gap;
                while let Some(wake) = link.poll_timeout().filter(|_| wake_between && wakes < 2_000) {
                    if wake > next {
                        break;
                    }
                    wakes += 1;
                    link.handle_timeout(wake);
                    while let Some(arrival) = link.poll_output(wake) {
                        came.push((arrival.packet, arrival.due));
                    }
                }
                now = next;
                link.handle_input(now, Bytes::new(*bytes), number);
            }
            link.handle_timeout(end);
            while let Some(arrival) = link.poll_output(end) {
                came.push((arrival.packet, arrival.due));
            }
            (came, link.counters().dropped_in_all())
        };
        prop_assert_eq!(run(true), run(false));
    }

    /// A caller that calls only when a packet may leave gets each packet at the moment at which it
    /// is due, and gets all that were dropped.
    #[test]
    fn nothing_comes_out_before_its_announced_time(
        spec in spec(),
        traffic in traffic(),
        seed: u64,
    ) {
        let Ok(plan) = spec.resolve(Duration::from_ms(20)) else { return Ok(()) };
        let mut link =
            Link::new(&plan, Direction::Up, Seed(seed), Instant::START).keeping_dropped();
        let mut arrivals = traffic.iter().enumerate();
        let mut input = Some((Instant::START, 0, 40));
        let (mut wakes, mut dropped) = (0, 0);
        loop {
            let output = link.poll_output_time().unwrap_or(Instant::NEVER);
            let now = match input {
                Some((at, number, bytes)) if at <= output => {
                    link.handle_input(at, Bytes::new(bytes), number);
                    input = arrivals.next().map(|(number, (gap, bytes))| (at + *gap, number, *bytes));
                    at
                }
                _ if output == Instant::NEVER || wakes > 2_000 => break,
                _ => {
                    wakes += 1;
                    link.handle_timeout(output);
                    output
                }
            };
            while let Some(arrival) = link.poll_output(now) {
                prop_assert!(arrival.due == now, "due at {:?}, there at {now:?}", arrival.due);
            }
            dropped += std::iter::from_fn(|| link.poll_dropped()).count() as u64;
            prop_assert_eq!(dropped, link.counters().dropped_in_all());
            link.check_invariants();
        }
    }
}
