//! Links as written: every form is read, every mistake is named.

use super::*;
use crate::aqm::AqmPlan;
use crate::loss::LossPlan;
use crate::queue::QueueLimit;
use midhop_units::{Bytes, Rate};

const RTT: Duration = Duration::from_ms(600);

fn direction(text: &str) -> DirectionSpec {
    toml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn link(text: &str) -> LinkSpec {
    toml::from_str(&format!("between = [\"a\", \"b\"]\n{text}")).expect(text)
}

#[test]
fn every_key_is_read_in_each_of_its_forms() {
    for text in [
        "rate = \"20 Mbit/s\"",
        "rate = \"unlimited\"",
        "rate = { trace = [[\"0 s\", \"20 Mbit/s\"], [\"5 s\", \"10 Mbit/s\"]], repeat = \"9 s\" }",
        "delay = \"300 ms\"",
        "delay = { trace = [[\"0 s\", \"20 ms\"], [\"15 s\", \"35 ms\"]] }",
        "queue = \"36 MB\"",
        "queue = \"100 packets\"",
        "rate = \"1 Mbit/s\"\nqueue = \"1.5 BDP\"",
        "rate = \"1 Mbit/s\"\nqueue = \"200 ms\"",
        "aqm = \"none\"",
        "aqm = \"codel\"",
        "aqm = { kind = \"pie\", target = \"20 ms\", update = \"10 ms\", burst = \"100 ms\" }",
        "loss = 0",
        "loss = 0.01",
        "loss = \"1 %\"",
        "loss = { mean = \"1 %\", burst = \"1.5 packets\" }",
        "loss = { mean = 0.01, burst = \"20 ms\" }",
        "loss = { good_to_bad = 0.001, bad_to_good = 0.1, loss_good = 0, loss_bad = 1 }",
        "loss = { good = \"10 s\", bad = \"100 ms\" }",
        "loss = [0.001, { good = \"120 s\", bad = \"100 ms\" }]",
        "loss = []",
        "bit_error_rate = 1e-7",
        "outages = [{ start = \"5 s\", length = \"1 s\", every = \"10 s\", hold = true }]",
        "jitter = \"2 ms\"",
        "jitter = \"none\"",
        "jitter = { kind = \"normal\", mean = \"2 ms\", deviation = \"1 ms\" }",
        "jitter = { kind = \"exponential\", mean = \"2 ms\" }",
        "reorder = \"1 %\"",
        "reorder = { probability = 0.01, by = \"20 ms\" }",
        "overtaking = \"1 ms\"",
        "duplicate = 0.001",
        "acm = \"none\"",
        "acm = { symbol_rate_baud = 10_000_000, es_n0_db = 12 }",
        "acm = { symbol_rate_baud = 1e7, es_n0_db = { trace = [[\"0 s\", 12], [\"9 s\", -1.5]] } }",
        "rate = \"2 Mbit/s\"\ndama = {}",
        "rate = \"2 Mbit/s\"\ndama = { cra = \"64 kbit/s\", vbdc = false, superframe = \"40 ms\" }",
        "reconfiguration = {}",
        "reconfiguration = { every = \"15 s\", rate_sigma = 0.25, interruption_max = \"150 ms\" }",
    ] {
        let spec = direction(text);
        let plan = spec.resolve(RTT).unwrap_or_else(|error| panic!("{text}: {error}"));
        // Spec and plan are unchanged after a round trip through TOML and JSON.
        let written = toml::to_string(&spec).expect(text);
        assert_eq!(direction(&written), spec, "{text} was written as {written}");
        let json = serde_json::to_string(&plan).expect(text);
        assert_eq!(serde_json::from_str::<DirectionPlan>(&json).expect(&json), plan);
    }
}

#[test]
fn mistakes_are_refused_and_named() {
    for (text, complaint) in [
        ("rat = \"1 Mbit/s\"", "unknown field `rat`, expected one of `rate`, `delay`"),
        ("rate = \"fast\"", "\"fast\" is not a rate such as"),
        (
            "rate = { trace = [[\"0 s\", \"1 Mbit/s\"]], period = \"1 s\" }",
            "unknown field `period`",
        ),
        ("delay = 300", "\"300\" is not a time such as"),
        ("queue = \"many\"", "\"many\" is not a queue such as"),
        ("aqm = \"red\"", "\"red\" is not \"none\", \"codel\""),
        ("aqm = { kind = \"codel\", targt = \"5 ms\" }", "unknown field `targt`, expected one of"),
        ("loss = 1.5", "\"1.5\" is not a probability"),
        ("loss = { mean = 0.01, burts = \"5 packets\" }", "unknown field `burts`"),
        ("loss = [{ mean = 0.01, burts = \"5 packets\" }]", "unknown field `burts`"),
        ("outages = [{ start = \"5 s\" }]", "missing field `length`"),
        ("acm = \"auto\"", "\"auto\" is not \"none\" or a table"),
        ("dama = { superfame = \"1 s\" }", "unknown field `superfame`"),
    ] {
        let error = toml::from_str::<DirectionSpec>(text).expect_err(text).to_string();
        assert!(error.contains(complaint), "{text}: {error}");
        assert!(error.contains("line 1"), "{text}: {error}");
    }
    let text = "between = [\"a\", \"b\"]\npreset = \"geo\"\ndown.rte = \"1 Mbit/s\"";
    let error = toml::from_str::<LinkSpec>(text).expect_err(text).to_string();
    assert!(error.contains("line 3") && error.contains("unknown field `rte`"), "{error}");
}

#[test]
fn impossible_values_are_refused_with_what_to_do() {
    for (text, complaint) in [
        ("rate = \"0 bit/s\"", "use `outages`"),
        ("rate = \"2000 Gbit/s\"", "write \"unlimited\""),
        ("rate = { trace = [] }", "the trace of `rate` has no steps"),
        ("delay = \"2 h\"", "`delay` is 7200 s: at most 3600 s"),
        ("queue = \"1 BDP\"", "`rate` is missing: a queue of 1 BDP has no size"),
        ("rate = \"1 Gbit/s\"\nqueue = \"1000000 BDP\"", "at most"),
        ("queue = \"99999999999 packets\"", "at most 10000000 packets"),
        ("aqm = { kind = \"codel\", burst = \"1 s\" }", "only PIE has a burst allowance"),
        ("aqm = { kind = \"codel\", target = \"0 s\" }", "longer than nothing"),
        ("loss = {}", "`loss.probability` is missing"),
        ("loss = { mean = 0.5 }", "`loss.burst` is missing"),
        ("loss = { mean = 0.9, burst = \"2 packets\" }", "too short for a mean loss"),
        ("loss = { mean = 0.1, burst = \"0.5 packets\" }", "at least one packet"),
        ("loss = { mean = 0.1, good = \"1 s\" }", "exclude each other"),
        ("loss = { good = \"1 ns\", bad = \"1 s\" }", "must be between 100 us and 3600 s"),
        ("loss = { good_to_bad = 0, bad_to_good = 0.1 }", "never change its state"),
        ("bit_error_rate = 2.0", "must be between 0 and 0.5"),
        ("bit_error_rate = nan", "must be between 0 and 0.5"),
        ("outages = [{ start = \"0 s\", length = \"0 s\" }]", "longer than nothing"),
        ("outages = [{ start = \"0 s\", length = \"2 s\", every = \"1 s\" }]", "must be longer"),
        ("jitter = { kind = \"normal\", mean = \"1 ms\" }", "`jitter.deviation` is missing"),
        ("jitter = { kind = \"uniform\", mean = \"1 ms\" }", "exclude each other"),
        ("duplicate = 1", "less than 100 %"),
        ("acm = { symbol_rate_baud = 0, es_n0_db = 1 }", "`acm.symbol_rate_baud` is 0"),
        ("dama = {}", "`rate` is missing"),
        ("rate = \"1 Mbit/s\"\ndama = { vbdc = false }", "set `cra` or `fca`"),
        ("reconfiguration = { every = \"1 ms\" }", "`reconfiguration.every` is 1 ms: must be"),
        ("rate = \"1 Mbit/s\"\ndama = { superframe = \"1 us\" }", "between 1 ms and 10 s"),
        ("aqm = { kind = \"pie\", update = \"1 ns\" }", "between 100 us and 10 s"),
        ("reconfiguration = { interruption_max = \"20 s\" }", "shorter than a slot"),
    ] {
        let error = direction(text).resolve(RTT).expect_err(text).to_string();
        assert!(error.contains(complaint), "{text}: {error}");
    }
}

#[test]
fn the_nearer_layer_wins() {
    let link = link(
        "preset = \"geo\"\nloss = 0.01\ndelay = \"280 ms\"\n\
         down = { rate = \"30 Mbit/s\", queue = \"1.5 BDP\" }\nup = { loss = 0 }",
    );
    let plan = link.resolve(RTT).expect("a link");
    assert_eq!(plan.down.rate, LinkRate::Constant(Rate::from_mbit_per_s(30)));
    assert_eq!(plan.down.delay, LinkDelay::Constant(Duration::from_ms(280)));
    assert_eq!(plan.down.queue, QueueLimit::Bytes(Bytes::new(3_375_000)));
    let probability = Loss::new(0.01).expect("a probability");
    assert_eq!(plan.down.loss, [LossPlan::Bernoulli { probability }]);
    assert_eq!(plan.up.loss, []);
    assert_eq!(plan.up.rate, LinkRate::Constant(Rate::from_mbit_per_s(5)));
    assert_eq!(link.rtt_min(), Ok(Duration::from_ms(560)));
}

#[test]
fn defaults_are_visible() {
    let plan = direction("rate = \"20 Mbit/s\"").resolve(RTT).expect("a plan");
    assert_eq!(plan.queue, QueueLimit::Bytes(Bytes::new(1_500_000)));
    assert_eq!(plan.delay, LinkDelay::Constant(Duration::ZERO));
    assert_eq!(plan.aqm, AqmPlan::None);
    let thin = direction("rate = \"60 kbit/s\"").resolve(Duration::from_ms(254)).expect("a plan");
    assert_eq!(thin.queue, QueueLimit::Bytes(Bytes::new(15_000)));
    let free = direction("").resolve(RTT).expect("a plan");
    assert_eq!(free.rate, LinkRate::Unlimited);
}

#[test]
fn unknown_presets_name_the_nearest() {
    let error = link("preset = \"starlik\"").resolve(RTT).expect_err("unknown").to_string();
    assert!(error.contains("did you mean \"starlink\"?"), "{error}");
    let error = link("preset = \"moonbase\"").resolve(RTT).expect_err("unknown").to_string();
    assert!(error.contains("geo, starlink, starlink-leocc, leo-bent-pipe, ntn-phone"), "{error}");
}
