//! Limits of links that vary: where the variation has no effect, they agree with the formula;
//! otherwise with a count of what passes.

use midhop_experiment::plan::Plan;
use midhop_experiment::record::{FlowResult, TransferResult};
use midhop_experiment::{Scenario, limit::Demand};
use midhop_units::{Bytes, Duration, Instant, Rate};
use proptest::prelude::*;

/// Three hosts, with the links of a test, and a transfer.
fn plan(first: &str, second: &str, transfer: &str) -> Plan {
    let text = format!(
        "title = \"x\"\nduration = \"60 s\"\n[nodes]\na = {{}}\nb = {{}}\nc = {{}}\n\
         [links.ab]\nbetween = [\"a\", \"b\"]\n{first}\n[links.bc]\nbetween = [\"b\", \"c\"]\n{second}\n\
         [transfers.t]\nfrom = \"c\"\nto = \"a\"\n{transfer}\n"
    );
    let plans = Scenario::parse("x", &text).and_then(|scenario| scenario.plans());
    plans.unwrap_or_else(|error| panic!("{error}\n{text}")).swap_remove(0)
}

/// A possible measurement of a transfer of `plan`.
fn measured(plan: &Plan, start: Duration, bytes: u64, took: Duration) -> TransferResult {
    let bytes = Bytes::new(bytes);
    let flow = FlowResult {
        id: 0,
        client_port: 0,
        server_port: 0,
        start,
        end: start + took,
        bytes,
        goodput: Rate::of(bytes, took),
        hash_sent: None,
        hash_received: None,
        retransmissions: 0,
        rtt_min: None,
        congestion: String::new(),
        error: None,
        phases: None,
    };
    TransferResult {
        name: plan.transfers[0].name.clone(),
        complete: true,
        took,
        bytes,
        goodput: Rate::of(bytes, took),
        limit: None,
        restarts: Default::default(),
        flows: vec![flow],
        objects: Vec::new(),
    }
}

/// Rates in milliseconds, as a trace that does not repeat.
fn trace(steps: &[(u64, u64)]) -> String {
    let mut at = 0;
    let steps: Vec<String> = steps
        .iter()
        .map(|(ms, kbit)| {
            let step = format!("[\"{at} ms\", \"{kbit} kbit/s\"]");
            at += ms;
            step
        })
        .collect();
    format!("rate = {{ trace = [{}] }}", steps.join(", "))
}

#[test]
fn a_rate_that_changes_after_the_end_is_the_formula() {
    let steps = "rate = { trace = [[\"0 s\", \"8 Mbit/s\"], [\"59 s\", \"1 Mbit/s\"]] }\ndelay = \"20 ms\"\nloss = \"1 %\"";
    let same = "rate = \"8 Mbit/s\"\ndelay = \"20 ms\"\nloss = \"1 %\"";
    let wide = "rate = \"1 Gbit/s\"\ndelay = \"5 ms\"";
    for (transfer, bytes) in [
        ("bytes = \"3 MB\"", 3_000_000),
        ("bytes = \"3 MB\"\nopens = \"from\"", 3_000_000),
        ("seconds = 10", 2_000_000),
        ("objects = [\"50 kB\", \"817 kB\", \"1 kB\"]", 868_000),
    ] {
        let (varying, constant) = (plan(steps, wide, transfer), plan(same, wide, transfer));
        let took = Duration::from_s(10);
        let result = measured(&varying, Duration::from_ms(700), bytes, took);
        let drawn = varying.limit_of(&result).expect("a limit");
        let known = constant.limit_of(&result).expect("a limit");
        assert!(drawn.drawn.is_some() && known.drawn.is_none());
        let near = |one: f64, other: f64| (one / other - 1.0).abs() < 1e-5;
        assert!(
            near(drawn.time.as_s_f64(), known.time.as_s_f64()),
            "{transfer}: {drawn:?} {known:?}"
        );
        assert!(near(drawn.efficiency, known.efficiency), "{transfer}: {drawn:?} {known:?}");
        let rates = [&drawn, &known].map(|limit| limit.goodput.bits_per_s() as f64);
        assert!(near(rates[0], rates[1]), "{transfer}: {drawn:?} {known:?}");
    }
}

#[test]
fn what_carried_half_stands_beside_half() {
    // 15 s at 20, 15 s at 4 Mbit/s: a run that has all of it has 100 %, at any draw.
    let steps = trace(&[(15_000, 20_000), (15_000, 4_000), (1, 20_000)]);
    let plan = plan(&steps, "", "seconds = 30\nopens = \"from\"");
    let all = 1448.0 / 1500.0 * 12e6 * 30.0 / 8.0;
    let result = measured(&plan, Duration::ZERO, all as u64, Duration::from_s(30));
    let limit = plan.limit_of(&result).expect("a limit");
    assert!((limit.efficiency - 1.0).abs() < 1e-6, "{limit:?}");
    let half = TransferResult { bytes: Bytes::new(all as u64 / 2), ..result };
    let limit = plan.limit_of(&half).expect("a limit");
    assert!((limit.efficiency - 0.5).abs() < 1e-6, "{limit:?}");
    assert!((limit.goodput.mbit_per_s() - 12.0 * 1448.0 / 1500.0).abs() < 1e-5, "{limit:?}");
}

#[test]
fn a_file_stands_beside_its_earliest_end() {
    // An outage from 1 to 3 s: of a file of 2 s at 8 Mbit/s that begins at 0.5 s, half arrives
    // before it.
    let broken = "rate = \"8 Mbit/s\"\ndelay = \"50 ms\"\noutages = [{ start = \"1 s\", length = \"2 s\", hold = true }]";
    let plan = plan(broken, "", "bytes = \"1 MB\"\nopens = \"from\"\nstart = \"500 ms\"");
    let bytes = 8e6 / 8.0 * 1448.0 / 1500.0;
    let result = measured(&plan, Duration::from_ms(500), bytes as u64, Duration::from_s(6));
    let limit = plan.limit_of(&result).expect("a limit");
    assert!((limit.time.as_s_f64() - 3.05).abs() < 1e-4, "{limit:?}");
}

#[test]
fn what_is_beyond_the_draws_is_a_fault() {
    use midhop_experiment::record::{Environment, Record, SCHEMA, Validity};
    let plan = plan(&trace(&[(10_000, 2_000), (20_000, 20_000)]), "", "seconds = 8");
    let record = |bytes: u64| {
        let mut record = Record {
            schema: SCHEMA,
            title: plan.title.clone(),
            cell: plan.cell(),
            seed: plan.seed,
            plan: plan.to_json().expect("a plan is JSON"),
            environment: Environment::default(),
            validity: Validity::default(),
            transfers: vec![measured(&plan, Duration::ZERO, bytes, Duration::from_s(8))],
            links: Vec::new(),
            legs: Vec::new(),
            traffic: Vec::new(),
            nodes: Vec::new(),
            handovers: None,
            series: Vec::new(),
        };
        record.set_limits(&plan);
        record.check_limit()
    };
    // 2 Mbit/s for 8 s; the peak of 20 Mbit/s comes later.
    assert_eq!(record(1_900_000), Vec::<String>::new());
    let faults = record(2_100_000);
    assert!(faults.len() == 1 && faults[0].contains("more than its links carried"), "{faults:?}");
}

fn steps() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((1u64..900, prop_oneof![3 => 100u64..20_000, 1 => Just(0u64)]), 2..8)
        .prop_filter("some rate", |steps| steps.iter().any(|(_, kbit)| *kbit > 0))
}

/// The rate of a trace at a moment. Unit: bit/ms.
fn at(steps: &[(u64, u64)], ms: f64) -> f64 {
    let mut end = 0.0;
    for (length, kbit) in steps {
        end += *length as f64;
        if ms < end {
            return *kbit as f64;
        }
    }
    steps.last().map_or(0.0, |(_, kbit)| *kbit as f64)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Compared with a count in steps of a millisecond, over two links that vary, with a delay
    /// between them.
    #[test]
    fn two_links_in_a_row_are_counted_exactly(far in steps(), near in steps(), delay_ms in 0u64..400) {
        let second = format!("{}\ndelay = \"{delay_ms} ms\"", trace(&far));
        let plan = plan(&trace(&near), &second, "seconds = 5\nopens = \"from\"");
        let Some(path) = plan.drawn_path(&plan.transfers[0]) else { return Ok(()) };
        let until = 5_000u64;
        let (mut waiting, mut passed) = (0.0f64, 0.0f64);
        for ms in 0..until {
            if ms >= delay_ms {
                waiting += at(&far, (ms - delay_ms) as f64);
            }
            let out = waiting.min(at(&near, ms as f64));
            waiting -= out;
            passed += out;
        }
        let share = 1448.0 / 1500.0;
        let found = path.carries(Duration::ZERO, Duration::from_ms(until)).get() as f64 * 8.0;
        prop_assert!((found - passed * share).abs() <= 8.0 + passed * 1e-9, "{found} {}", passed * share);
        // The inverse: these bytes arrive no later, and one packet more arrives only later.
        let bytes = Bytes::new((found / 8.0) as u64);
        let late = Duration::from_s(100);
        if bytes > Bytes::ZERO {
            let arrival = path.earliest(Duration::ZERO, Demand::Bulk(bytes), late);
            prop_assert!(arrival.is_some_and(|at| at <= Duration::from_ms(until)), "{arrival:?}");
        }
        let more = bytes.saturating_add(Bytes::new(1500));
        if let Some(later) = path.earliest(Duration::ZERO, Demand::Bulk(more), late) {
            prop_assert!(later > Duration::from_ms(until), "{later}");
        }
    }

    /// A transfer that a path of one link could have carried does not exceed its limit, and more
    /// time never lowers the limit.
    #[test]
    fn limits_only_grow_with_time(near in steps(), from_ms in 0u64..3000, span_ms in 1u64..4000) {
        let plan = plan(&trace(&near), "", "seconds = 5\nopens = \"from\"");
        let Some(path) = plan.drawn_path(&plan.transfers[0]) else { return Ok(()) };
        let [from, mid, end] = [from_ms, from_ms + span_ms / 2, from_ms + span_ms].map(Duration::from_ms);
        let (whole, half) = (path.carries(from, end), path.carries(from, mid));
        prop_assert!(half <= whole);
        let rest = path.carries(mid, end);
        prop_assert!(whole.get().abs_diff(half.get() + rest.get()) <= 2, "{whole} {half} {rest}");
    }
}

#[test]
fn capacity_is_of_links_that_vary() {
    let plan = plan(&trace(&[(1000, 8_000), (1000, 0)]), "rate = \"1 Gbit/s\"", "seconds = 5");
    let link = |name: &str| plan.link(name).expect("a link");
    let way = midhop_experiment::plan::Direction::Down;
    let two = Duration::from_s(2);
    assert_eq!(plan.capacity(link("ab"), way, two), Some(Bytes::new(1_000_000)));
    assert_eq!(plan.capacity(link("bc"), way, two), None);
    let mut drawn = plan.drawn(link("ab"), way);
    drawn.seek(Instant::START + Duration::from_ms(1500));
    assert_eq!(drawn.advance().rate, Some(Rate::ZERO));
}
