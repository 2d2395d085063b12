//! Claims about cells, and studies that refer to missing things.

use super::*;
use crate::statistics::Summary;
use midhop_experiment::Scenario;
use midhop_experiment::record::{
    Environment, FlowResult, LegResult, LimitResult, LinkResult, PhaseTimes, Record, Restarts,
    SCHEMA, Series, TransferResult, Validity,
};
use midhop_units::{Bytes, Duration, Rate};
use std::collections::BTreeMap;

fn cell(text: &str) -> Cell {
    let pairs = text.split_whitespace().map(|pair| pair.split_once('=').expect("axis=label"));
    pairs.map(|(axis, label)| (axis.to_owned(), label.to_owned())).collect()
}

/// A measurement of the figure `goodput`: cell and values.
fn measured(cells: &[(&str, &[f64])]) -> Measured {
    let mut measured = Measured::default();
    for (position, values) in cells {
        for value in *values {
            measured.add(Reading::given(cell(position), "goodput", Some(*value)));
        }
    }
    measured
}

fn claim(text: &str) -> Claim {
    toml::from_str(&format!("says = \"x\"\nfigure = \"goodput\"\n{text}")).expect("a claim")
}

fn verdict(text: &str, measured: &Measured) -> Verdict {
    let claim = claim(text);
    claim.test().expect("a sound claim");
    claim.judge(measured, 0.95).verdict
}

#[test]
fn an_order_holds_fails_or_is_open() {
    let clear = measured(&[
        ("pep=on", &[10.0, 11.0, 10.5]),
        ("pep=off", &[5.0, 5.5, 5.2]),
        ("pep=old", &[4.0, 9.0, 1.0]),
    ]);
    let order = |names: &str| format!("over = \"pep\"\nfalling = {names}");
    assert_eq!(verdict(&order("[\"on\", \"off\"]"), &clear), Verdict::Holds);
    assert_eq!(verdict(&order("[\"off\", \"on\"]"), &clear), Verdict::Fails);
    assert_eq!(verdict(&order("[\"on\", \"off\", \"old\"]"), &clear), Verdict::Open);
    assert_eq!(verdict(&order("[\"off\", \"on\", \"old\"]"), &clear), Verdict::Fails);
    assert_eq!(verdict(&order("[\"on\", \"new\"]"), &clear), Verdict::Open, "has not run");
    assert_eq!(verdict("over = \"pep\"\nrising = [\"off\", \"on\"]", &clear), Verdict::Holds);
}

#[test]
fn a_value_is_judged_with_its_interval() {
    // Mean 10, t(2, 95 %) = 4.303: ± 2.48.
    let three = measured(&[("pep=on", &[9.0, 10.0, 11.0])]);
    assert_eq!(verdict("published = 10\nwithin = 0.3", &three), Verdict::Holds);
    assert_eq!(verdict("published = 10\nwithin = 0.1", &three), Verdict::Open);
    assert_eq!(verdict("published = 20\nwithin = 0.3", &three), Verdict::Fails);
    assert_eq!(verdict("at_least = 7", &three), Verdict::Holds);
    assert_eq!(verdict("at_most = 7", &three), Verdict::Fails);
    assert_eq!(verdict("at_least = 7\nat_most = 11", &three), Verdict::Open);
    let known = verdict("at_most = 7\ndeparts = \"why\"", &three);
    assert_eq!(known, Verdict::Departs);
}

#[test]
fn a_published_mean_may_be_off_by_what_its_runs_deviate() {
    // Mean 10, deviation 1; of five runs at 95 %: 2.776 · 1/√5 = 1.24 either way, and half a digit.
    let many: Vec<f64> = (0..40).map(|run| if run % 2 == 0 { 9.0 } else { 11.0 }).collect();
    let ours = measured(&[("pep=on", &many)]);
    let of = |published: &str| format!("published = {published}\nruns = 5\ndigit = 0.1");
    assert_eq!(verdict(&of("10.0"), &ours), Verdict::Holds);
    assert_eq!(verdict(&of("10.8"), &ours), Verdict::Holds);
    assert_eq!(verdict(&of("11.3"), &ours), Verdict::Open);
    assert_eq!(verdict(&of("12.0"), &ours), Verdict::Fails);
    // Without chance, only the digits that are not printed remain.
    let mut sure = Measured::default();
    sure.add(Reading::certain(cell("pep=on"), "goodput", 10.04));
    assert_eq!(verdict(&of("10.0"), &sure), Verdict::Holds);
    assert_eq!(verdict(&of("10.1"), &sure), Verdict::Fails);
    for (text, why) in [
        ("published = 1\nruns = 5", "belong together"),
        ("published = 1\nruns = 1\ndigit = 1", "2 or more"),
        ("published = 1\nruns = 5\ndigit = 1\nwithin = 0.1", "alone"),
    ] {
        assert!(claim(text).test().expect_err(text).contains(why), "{text}");
    }
}

#[test]
fn what_wins_is_named() {
    let two = measured(&[("pep=on", &[9.0, 9.5, 10.0]), ("pep=off", &[3.0, 3.5, 4.0])]);
    let found = |pick: &str| {
        let text = format!("across = \"pep\"\npick = \"{pick}\"\nat_least = 1");
        claim(&text).judge(&two, 0.95).found
    };
    assert!(found("greatest").ends_with(" at pep on"), "{}", found("greatest"));
    assert!(found("least").ends_with(" at pep off"), "{}", found("least"));
}

#[test]
fn what_was_chosen_to_fit_is_calibrated_and_another_reading_counts_once() {
    let three = measured(&[("pep=on", &[9.0, 10.0, 11.0])]);
    assert_eq!(verdict("at_least = 70\ncalibrates = \"the rate\"", &three), Verdict::Calibrated);
    let study = |repeats: &str| {
        let figure = "[[figures]]\nname = \"goodput\"\nshows = \"x\"\nscenario = \"one\"\nmetric = \"goodput\"";
        let one = "[[claims]]\nfigure = \"goodput\"\nat_least = 1\nsays = ";
        Study::parse(
            "study.toml",
            &format!(
                "title = \"t\"\nsource = \"s\"\nscenarios = [\"one\"]\n{figure}\n\
                 {one}\"first\"\n{one}\"second\"\nrepeats = \"{repeats}\"\n"
            ),
        )
    };
    let counted: Vec<bool> =
        study("first").expect("a study").claims.iter().map(Claim::is_counted).collect();
    assert_eq!(counted, [true, false]);
    for wrong in ["frist", "second"] {
        let error = study(wrong).expect_err(wrong).to_string();
        assert!(error.contains("no claim that is counted says that"), "{error}");
    }
}

#[test]
fn one_random_draw_decides_nothing_and_one_run_without_chance_everything() {
    let drawn = measured(&[("pep=on", &[9.0]), ("pep=off", &[3.0])]);
    let mut sure = Measured::default();
    for (position, value) in [("pep=on", 9.0), ("pep=off", 3.0)] {
        sure.add(Reading::certain(cell(position), "goodput", value));
    }
    let ratio = "of = { pep = \"on\" }\nto = { pep = \"off\" }\n";
    for (text, truth) in [
        ("at = { pep = \"on\" }\nat_least = 1".to_owned(), Verdict::Holds),
        ("at = { pep = \"on\" }\nat_most = 1".to_owned(), Verdict::Fails),
        ("over = \"pep\"\nfalling = [\"on\", \"off\"]".to_owned(), Verdict::Holds),
        ("over = \"pep\"\nrising = [\"on\", \"off\"]".to_owned(), Verdict::Fails),
        (format!("{ratio}published = 3\nwithin = 0.01"), Verdict::Holds),
        (format!("{ratio}at_most = 2"), Verdict::Fails),
    ] {
        assert_eq!(verdict(&text, &drawn), Verdict::Open, "{text}");
        assert_eq!(verdict(&text, &sure), truth, "{text}");
    }
    // One of several runs with chance is enough.
    sure.add(Reading::given(cell("pep=on"), "goodput", Some(9.0)));
    assert!(sure.cells("goodput")[0].chance && !sure.cells("goodput")[1].chance);
}

#[test]
fn margins_of_differences_and_ratios_are_welchs() {
    let (on, off) = ([10.0, 10.5, 11.0], [8.5, 9.0, 9.5]);
    let of = |samples: &[f64]| Estimate::of(samples, 0.95).expect("samples");
    let summary = |samples: &[f64]| Summary::of(samples).expect("samples");
    let difference = of(&on).minus(of(&off));
    let welch = summary(&on).margin_against(&summary(&off), 0.95);
    assert_eq!((difference.mean, difference.margin), (1.5, welch));
    // 1.13; margins added in quadrature would be 1.76, and leave it undecided.
    let both = measured(&[("pep=on", &on), ("pep=off", &off)]);
    assert_eq!(verdict("over = \"pep\"\nfalling = [\"on\", \"off\"]", &both), Verdict::Holds);
    // Nearly the same as by logarithms, with which records are compared.
    let logs = |samples: &[f64]| summary(&samples.iter().map(|it| it.ln()).collect::<Vec<_>>());
    let margin = logs(&on).margin_against(&logs(&off), 0.95).expect("a margin");
    let ratio = of(&on).over(of(&off)).expect("a ratio");
    assert!((ratio.margin.expect("a margin") / ratio.mean - margin).abs() < 0.002, "{ratio:?}");
}

const LINK: &str = r#"
title = "t"
duration = "30 s"
[nodes]
a = {}
b = {}
[links.l]
between = ["a", "b"]
rate = "10 Mbit/s"
delay = "5 ms"
[transfers.t]
from = "b"
to = "a"
seconds = 5
start = "20.01 s"
"#;

#[test]
fn chance_is_seen_wherever_it_is() {
    let has_part = |set: &[&str]| {
        let mut scenario = Scenario::parse("s.toml", LINK).expect("a scenario");
        set.iter().for_each(|set| scenario.set(set).unwrap_or_else(|e| panic!("{set}: {e}")));
        let plans = scenario.plans().unwrap_or_else(|e| panic!("{set:?}: {e}"));
        chance::has_part_in(&plans[0])
    };
    for certain in [
        &[][..],
        &["links.l.loss=0"],
        &["links.l.aqm=codel"],
        &["transfers.t.congestion=hybla"],
        &["links.l.outages=[{ start = \"1 s\", length = \"1 s\" }]"],
    ] {
        assert!(!has_part(certain), "{certain:?}");
    }
    let noise = "traffic.n={ kind = \"web\", from = \"b\", to = \"a\" }";
    for drawn in [
        &["links.l.up.loss=0.01"][..],
        &["links.l.down.bit_error_rate=1e-9"],
        &["links.l.aqm=pie"],
        &["links.l.duplicate=0.01"],
        &["links.l.jitter={ kind = \"uniform\", max = \"1 ms\" }"],
        &["transfers.t.congestion=bbr"],
        &[noise],
    ] {
        assert!(has_part(drawn), "{drawn:?}");
    }
}

/// A record of `LINK`: 10 Mbit/s on average of 9.5 from 20.0 s on, sampled every tenth of a second.
fn late() -> Record {
    let plan = Scenario::parse("s.toml", LINK).and_then(|it| it.plans()).expect("plans").remove(0);
    let time_s: Vec<f64> = (1..=50).map(|tick| 20.0 + f64::from(tick) / 10.0).collect();
    let rate = Rate::from_bits_per_s(9_500_000);
    let (start, end) = (Duration::from_ms(20_010), Duration::from_ms(25_000));
    let bytes = Bytes::new(9_500_000 / 8 * 5);
    let flow = FlowResult {
        id: 0,
        client_port: 1,
        server_port: 2,
        start,
        end,
        bytes,
        goodput: rate,
        hash_sent: None,
        hash_received: None,
        retransmissions: 0,
        rtt_min: None,
        congestion: "cubic".to_owned(),
        error: None,
        phases: None,
    };
    let limit = LimitResult { goodput: rate, time: end - start, efficiency: 1.0, drawn: None };
    Record {
        schema: SCHEMA,
        title: "t".to_owned(),
        cell: Cell::new(),
        seed: plan.seed,
        plan: plan.to_json().expect("JSON"),
        environment: Environment { runner: "sim".to_owned(), ..Environment::default() },
        validity: Validity::default(),
        transfers: vec![TransferResult {
            name: "t".to_owned(),
            complete: true,
            took: end - start,
            bytes,
            goodput: rate,
            limit: Some(limit),
            restarts: Default::default(),
            flows: vec![flow],
            objects: Vec::new(),
        }],
        links: Vec::new(),
        legs: Vec::new(),
        traffic: Vec::new(),
        nodes: Vec::new(),
        handovers: None,
        series: vec![Series {
            quantity: "goodput".to_owned(),
            place: "t".to_owned(),
            flow: None,
            unit: "Mbit/s".to_owned(),
            value: vec![9.5; time_s.len()],
            time_s,
        }],
    }
}

#[test]
fn what_begins_late_is_measured_from_there() {
    let figure = |more: &str| -> Figure {
        let text = format!("name = \"f\"\nshows = \"x\"\nscenario = \"s\"\n{more}");
        toml::from_str(&text).expect("a figure")
    };
    let record = late();
    let read = |more: &str| figure(more).read(&record).expect("a value");
    let near = |got: f64, wanted: f64| assert!((got - wanted).abs() < 1e-6, "{got}, not {wanted}");
    let bits = record.transfers[0].bytes.get() as f64 * 8.0;
    near(read("metric = \"span\"\nuntil = \"30 s\""), bits / 30e6);
    near(read("metric = \"span\"\nfrom = \"20 s\"\nuntil = \"25 s\""), 9.5);
    near(read("metric = \"span\"\nfrom = \"10 s\"\nuntil = \"20.05 s\""), 9.5 * 0.05 / 10.05);
    near(read("metric = \"start\""), 0.09);
    // A single sample is the mean since the first SYN.
    let mut short = record.clone();
    short.series[0].time_s.truncate(1);
    short.series[0].value.truncate(1);
    let read = figure("metric = \"span\"\nuntil = \"30 s\"").read(&short).expect("a value");
    near(read, 9.5 * 0.09 / 30.0);
    let reading = Reading::of("s", &record, &[figure("metric = \"goodput\"")]);
    let mut measured = Measured::default();
    measured.add(reading);
    let estimate = measured.cells("f")[0].estimate(0.95).expect("an estimate");
    assert_eq!((estimate.mean, estimate.margin), (9.5, Some(0.0)), "nothing here is random");
    let mut on_kernels = record;
    on_kernels.environment.runner = "lab".to_owned();
    let mut measured = Measured::default();
    measured.add(Reading::of("s", &on_kernels, &[figure("metric = \"goodput\"")]));
    assert_eq!(measured.cells("f")[0].estimate(0.95).expect("an estimate").margin, None);
}

#[test]
fn limits_stand_in_the_unit_of_their_figure() {
    let record = late();
    let limit = |metric: &str, more: &str| {
        let text =
            format!("name = \"f\"\nshows = \"x\"\nscenario = \"s\"\nmetric = \"{metric}\"\n{more}");
        toml::from_str::<Figure>(&text).expect("a figure").limit(&record)
    };
    let near = |got: Option<f64>, wanted: f64| {
        let got = got.unwrap_or_else(|| panic!("no limit, but {wanted}"));
        assert!((got - wanted).abs() < 1e-3, "{got}, not {wanted}");
    };
    near(limit("time", ""), 4.99);
    near(limit("goodput", ""), 9.5);
    near(limit("goodput-kb", ""), 1187.5);
    near(limit("efficiency", ""), 100.0);
    near(limit("span", "from = \"1 s\""), 9.5);
    // From 20.01 s to 21.01 s, without the 10 ms in which the sender receives the acknowledgement.
    let payload = 10.0 * 1448.0 / 1500.0 * 0.99;
    near(limit("span", "until = \"21.01 s\""), payload / 21.01);
    assert_eq!(limit("jain", ""), None);
    assert_eq!(limit("span", "until = \"0 s\"").filter(|it| *it > 0.0), None);
    let mut unbounded = record.clone();
    unbounded.transfers[0].limit = None;
    let figure = "name = \"f\"\nshows = \"x\"\nscenario = \"s\"\nmetric = \"time\"";
    assert_eq!(toml::from_str::<Figure>(figure).expect("a figure").limit(&unbounded), None);
}

#[test]
fn what_waits_before_a_link_is_read_on_the_way_of_the_data() {
    let mut record = late();
    let queue = |place: &str, value: f64| Series {
        quantity: "queue".to_owned(),
        place: place.to_owned(),
        flow: None,
        unit: "bytes".to_owned(),
        time_s: vec![1.0, 2.0, 3.0, 4.0],
        value: vec![0.0, value, 3.0 * value, 9.0 * value],
    };
    record.series.extend([queue("l.up", 1.0), queue("l.down", 1000.0)]);
    let read = |more: &str| {
        let text =
            format!("name = \"f\"\nshows = \"x\"\nscenario = \"s\"\nmetric = \"queue\"\n{more}");
        toml::from_str::<Figure>(&text).expect("a figure").read(&record)
    };
    assert_eq!(read("link = \"l\"\nfrom = \"2 s\"\nuntil = \"4 s\""), Some(2.0));
    assert_eq!(read("link = \"l\""), Some(3.25));
    assert_eq!(read("link = \"l\"\nfrom = \"5 s\""), None, "no sample");
    assert_eq!(read("link = \"m\""), None);
    assert_eq!(read(""), None, "of which link?");
}

#[test]
fn what_a_link_drops_counts_on_the_way_of_the_data() {
    let mut record = late();
    let link = |direction: &str, dropped: u64| LinkResult {
        name: "l".to_owned(),
        direction: direction.to_owned(),
        packets_in: 1000,
        drops: [("queue".to_owned(), dropped)].into(),
        ..LinkResult::default()
    };
    record.links = vec![link("up", 500), link("down", 20)];
    let text = "name = \"f\"\nshows = \"x\"\nscenario = \"s\"\nmetric = \"dropped\"\nlink = ";
    let read = |name: &str| {
        toml::from_str::<Figure>(&format!("{text}\"{name}\"")).expect("a figure").read(&record)
    };
    assert_eq!(read("l"), Some(2.0));
    assert_eq!(read("m"), None);
}

#[test]
fn what_is_sent_again_counts_against_all_that_was_carried() {
    let text = "name = \"f\"\nshows = \"x\"\nscenario = \"s\"\nlink = \"l\"\nmetric = ";
    let resent = |record: &Record| {
        let figure: Figure = toml::from_str(&format!("{text}\"resent\"")).expect("a figure");
        figure.read(record).expect("a value")
    };
    let near = |got: f64, wanted: f64| assert!((got - wanted).abs() < 1e-6, "{got}, not {wanted}");
    let mut record = late();
    let bytes = record.transfers[0].bytes;
    let segments = bytes.get() as f64 / 1448.0;
    record.transfers[0].flows[0].retransmissions = 7;
    near(resent(&record), 700.0 / segments);
    // Proxies on the link count instead of the ends, together with their other traffic.
    let leg = |bytes: Bytes| LegResult {
        link: "l".to_owned(),
        bytes,
        retransmissions: 40,
        ..LegResult::default()
    };
    record.legs = vec![leg(bytes), LegResult { link: "m".to_owned(), ..leg(bytes) }];
    near(resent(&record), 4000.0 / segments);
    record.legs[0] = leg(bytes + bytes + bytes);
    near(resent(&record), 4000.0 / (3.0 * segments));
    // Data that was restarted was carried in vain.
    let discarded = Bytes::new(bytes.get() / 2);
    record.transfers[0].restarts = Restarts { count: 1, discarded };
    record.legs[0] = leg(bytes + discarded);
    near(resent(&record), 100.0 * (40.0 + segments / 2.0) / segments);
    let restarts: Figure = toml::from_str(&format!("{text}\"restarts\"")).expect("a figure");
    assert_eq!(restarts.read(&record), Some(1.0));
}

#[test]
fn parts_of_a_shared_link_are_those_of_equal_flows() {
    let read = |record: &Record, metric: &str| {
        let text = format!(
            "name = \"f\"\nshows = \"x\"\nscenario = \"s\"\nlink = \"l\"\nmetric = \"{metric}\""
        );
        toml::from_str::<Figure>(&text).expect("a figure").read(record)
    };
    let near = |got: Option<f64>, wanted: f64| {
        let got = got.unwrap_or_else(|| panic!("nothing, not {wanted}"));
        assert!((got - wanted).abs() < 1e-3, "{got}, not {wanted}");
    };
    let mut record = late();
    let limit = 10.0 * 1448.0 / 1500.0;
    near(read(&record, "share"), 9.5 / limit * 100.0);
    assert_eq!(read(&record, "share-of-others"), None, "there are none");
    // Neither traffic in the other direction nor flows that begin and end have an equal part.
    let traffic = "[traffic.n]\nkind = \"bulk\"\nfrom = \"b\"\nto = \"a\"\nflows = 3\n\
        [traffic.o]\nkind = \"bulk\"\nfrom = \"a\"\nto = \"b\"\nflows = 5\n\
        [traffic.p]\nkind = \"web\"\nfrom = \"b\"\nto = \"a\"\n";
    let scenario = Scenario::parse("s.toml", &format!("{LINK}{traffic}")).expect("a scenario");
    record.plan = scenario.plans().expect("plans")[0].to_json().expect("JSON");
    near(read(&record, "share"), 9.5 / (limit / 4.0) * 100.0);
    assert_eq!(read(&record, "share-of-others"), None, "nobody noted what came when");
    // 6 Mbit/s of others in the half of the transfer's time in which they sent; before that, none.
    record.series.push(Series {
        place: "n".to_owned(),
        time_s: vec![22.505, 30.0],
        value: vec![0.0, 6.0],
        ..record.series[0].clone()
    });
    near(read(&record, "share-of-others"), 3.0 / (3.0 * limit / 4.0) * 100.0);
    near(read(&record, "share-of-others\"\nfrom = \"24 s"), 6.0 / (3.0 * limit / 4.0) * 100.0);
    near(read(&record, "share\"\nfrom = \"24 s"), 9.5 / (limit / 4.0) * 100.0);
    assert_eq!(read(&record, "share\"\nfrom = \"26 s"), None, "it was over by then");

    let drops = BTreeMap::from([("queue".to_owned(), 20)]);
    let link = LinkResult { name: "l".to_owned(), packets_in: 1020, drops, ..Default::default() };
    record.links = vec![
        LinkResult { direction: "up".to_owned(), packets_in: 9, ..link.clone() },
        LinkResult { direction: "down".to_owned(), ..link },
    ];
    let segments = record.transfers[0].bytes.get() as f64 / 1448.0;
    record.transfers[0].flows[0].retransmissions = 100;
    near(read(&record, "excess"), 100.0 * 100.0 / segments - 2.0);
}

#[test]
fn time_in_phases_is_that_of_the_sender_on_the_link() {
    let times = |slow_start, avoidance, recovery, loss| {
        let [slow_start, avoidance, recovery, loss] =
            [slow_start, avoidance, recovery, loss].map(Duration::from_ms);
        Some(PhaseTimes { slow_start, avoidance, recovery, loss })
    };
    let leg =
        |link: &str, phases| LegResult { link: link.to_owned(), phases, ..LegResult::default() };
    let read = |record: &Record, metric: &str, more: &str| {
        let text =
            format!("name = \"f\"\nshows = \"x\"\nscenario = \"s\"\nmetric = \"{metric}\"\n{more}");
        toml::from_str::<Figure>(&text).expect("a figure").read(record)
    };
    let mut record = late();
    assert_eq!(read(&record, "recovery", ""), None, "nobody watched");
    record.transfers[0].flows[0].phases = times(500, 1500, 0, 0);
    // Two proxies on one link count by their time; a proxy that sent nothing there does not count.
    record.legs = vec![
        leg("user", times(10, 40, 20, 30)),
        leg("user", times(20, 60, 220, 0)),
        leg("user", times(0, 0, 0, 0)),
        leg("feeder", times(0, 0, 0, 0)),
        leg("isl", None),
    ];
    let phases = ["slow-start", "avoidance", "recovery", "timeout"];
    for (more, shares) in [
        ("", [Some(25.0), Some(75.0), Some(0.0), Some(0.0)]),
        ("link = \"user\"", [Some(7.5), Some(25.0), Some(60.0), Some(7.5)]),
        ("link = \"feeder\"", [None; 4]),
        ("link = \"isl\"", [None; 4]),
        ("link = \"none\"", [None; 4]),
    ] {
        for (phase, share) in phases.into_iter().zip(shares) {
            assert_eq!(read(&record, phase, more), share, "{phase} {more}");
        }
    }
}

#[test]
fn a_ratio_looks_across_an_axis() {
    let grid = measured(&[
        ("loss=none pep=on", &[10.0, 10.0]),
        ("loss=none pep=off", &[10.0, 10.0]),
        ("loss=high pep=on", &[9.0, 9.0]),
        ("loss=high pep=off", &[6.0, 6.0]),
    ]);
    let ratio = "of = { pep = \"on\" }\nto = { pep = \"off\" }\nacross = \"loss\"\n";
    let with = |more: &str| verdict(&format!("{ratio}{more}"), &grid);
    assert_eq!(with("pick = \"greatest\"\npublished = 1.5\nwithin = 0.01"), Verdict::Holds);
    assert_eq!(with("pick = \"least\"\nat_most = 1.0"), Verdict::Holds);
    assert_eq!(with("at_least = 1.0"), Verdict::Holds);
    assert_eq!(with("at_least = 1.2"), Verdict::Fails);
}

#[test]
fn a_run_without_the_figure_leaves_its_claims_open() {
    let mut partly = measured(&[("pep=on", &[9.0, 9.0])]);
    partly.add(Reading::given(cell("pep=on"), "goodput", None));
    assert_eq!(verdict("at_least = 1", &partly), Verdict::Open);
    assert_eq!(partly.cells("goodput")[0].missing, 1);
}

#[test]
fn what_states_too_little_is_refused() {
    for bad in [
        "",
        "published = 3",
        "within = 0.1",
        "over = \"pep\"",
        "over = \"pep\"\nfalling = [\"on\"]",
        "over = \"pep\"\nfalling = [\"on\", \"off\"]\nat_least = 1",
        "of = { pep = \"on\" }\nat_least = 1",
        "at_least = 2\nat_most = 1",
    ] {
        assert!(claim(bad).test().is_err(), "{bad}");
    }
}

const STUDY: &str = r#"
title = "A study"
source = "Somebody"
scenarios = ["one"]
[[figures]]
name = "goodput"
shows = "Goodput"
scenario = "one"
metric = "goodput"
published = [{ at = { pep = "on" }, value = 3 }]
[[claims]]
says = "it helps"
figure = "goodput"
over = "pep"
falling = ["on", "off"]
"#;

#[test]
fn cells_that_are_none_are_refused() {
    let study = Study::parse("study.toml", STUDY).expect("sound");
    let cells = |names: &[&str]| {
        BTreeMap::from([("one".to_owned(), names.iter().map(|name| cell(name)).collect())])
    };
    assert_eq!(study.check(&cells(&["pep=on", "pep=off"])), Ok(()));
    let unknown = study.check(&cells(&["pep=on", "pep=none"])).unwrap_err();
    assert!(unknown.contains("it helps") && unknown.contains("off"), "{unknown}");
    let twice = study.check(&cells(&["pep=on loss=0", "pep=on loss=1", "pep=off loss=0"]));
    assert!(twice.unwrap_err().contains("more than one"));
    let columns = STUDY.replace("metric = ", "columns = \"loss\"\nmetric = ");
    let columns = Study::parse("study.toml", &columns).expect("sound");
    assert!(columns.check(&cells(&["pep=on", "pep=off"])).unwrap_err().contains("`loss`"));
    // The cell to which others are relative must exist, and a claim cannot be about its own value.
    let over = |label: &str, cells: &BTreeMap<String, Vec<Cell>>| {
        let text = format!("relative_to = {{ pep = \"{label}\" }}\nmetric = ");
        let study = Study::parse("study.toml", &STUDY.replace("metric = ", &text)).expect("sound");
        study.check(cells)
    };
    let three = cells(&["pep=on", "pep=off", "pep=none"]);
    assert_eq!(over("none", &three), Ok(()));
    assert!(over("of", &three).unwrap_err().contains("relative_to: no cell is at"));
    assert!(over("off", &three).unwrap_err().contains("it helps"));
}

#[test]
fn what_cannot_be_drawn_against_another_figure_is_refused() {
    let more = |first: &str, against: &str, second: &str| {
        let figure = format!(
            "name = \"resent\"\nshows = \"x\"\nscenario = \"one\"\nmetric = \"resent\"\n{second}\n\
             against = \"{against}\"\n[[claims]]"
        );
        let text = STUDY.replace("metric = ", &format!("{first}\nmetric = "));
        Study::parse("study.toml", &text.replace("[[claims]]", &format!("[[figures]]\n{figure}")))
    };
    let cells =
        BTreeMap::from([("one".to_owned(), vec![cell("pep=on"), cell("pep=off"), cell("pep=no")])]);
    assert_eq!(more("", "goodput", "").expect("sound").check(&cells), Ok(()));
    for (first, against, second, what) in [
        ("", "goodputs", "", "no other figure of one is called `goodputs`"),
        ("", "resent", "", "no other figure of one is called `resent`"),
        ("take = \"greatest\"", "goodput", "", "`goodput` do not stand for themselves"),
        ("", "goodput", "relative_to = { pep = \"no\" }", "`resent` do not stand for themselves"),
    ] {
        let error = more(first, against, second).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
    // Both exist, but they have no cell in common.
    let apart = more("at = { pep = \"no\" }", "goodput", "at = { pep = \"on\" }");
    let apart = apart.map(|it| Study { claims: Vec::new(), ..it }).expect("sound");
    let apart = Study { figures: unpublished(&apart.figures), ..apart };
    let refused = apart.check(&cells).unwrap_err();
    assert_eq!(refused, "figure resent: `goodput` has none of its cells");
}

fn unpublished(figures: &[Figure]) -> Vec<Figure> {
    figures.iter().map(|it| Figure { published: Vec::new(), ..it.clone() }).collect()
}

#[test]
fn words_of_axes_and_labels_that_are_none_are_refused() {
    let cells = BTreeMap::from([("one".to_owned(), vec![cell("pep=on"), cell("pep=off")])]);
    let with = |words: &str| {
        let text = STUDY.replace("[[figures]]", &format!("{words}\n[[figures]]"));
        Study::parse("study.toml", &text).map(|study| study.check(&cells).map(|()| study))
    };
    let study =
        with("[axes.pep]\nshows = \"the proxy\"\nnames = { off = \"none\" }\nours = [\"on\"]");
    let study = study.expect("parses").expect("sound");
    assert_eq!((study.axis_name("pep"), study.axis_name("loss")), ("the proxy", "loss"));
    assert_eq!((study.label_name("pep", "off"), study.label_name("pep", "on")), ("none", "on"));
    assert!(study.is_ours(&cell("pep=on")) && !study.is_ours(&cell("pep=off")));
    for (words, what) in [
        ("[axes.pop]\nshows = \"x\"", "no scenario has an axis `pop`"),
        ("[axes.pep]\nours = [\"of\"]", "`of` is no case of `pep`"),
        ("[axes.pep]\nnames = { of = \"x\" }", "`of` is no case of `pep`"),
    ] {
        let refused = with(words).expect("parses").expect_err("refused");
        assert!(refused.contains(what), "{refused}");
    }
    assert!(with("[axes.pep]\nshow = \"x\"").is_err(), "an unknown key");
}

#[test]
fn names_that_are_none_are_refused_on_their_line() {
    for (from, to, line) in [
        ("scenario = \"one\"", "scenario = \"ones\"", 8),
        ("figure = \"goodput\"", "figure = \"goodputs\"", 13),
        ("metric", "metrics", 9),
        ("scenarios = [\"one\"]", "scenarios = []", 4),
        ("scenarios = [\"one\"]", "scenarios = [\"one\", \"one\"]", 4),
        ("[[figures]]", "[quick]\nwithout = [\"two\"]\n[[figures]]", 6),
        ("[[figures]]", "[quick]\nset.two = [\"seeds=1\"]\n[[figures]]", 6),
    ] {
        let error = Study::parse("study.toml", &STUDY.replace(from, to)).unwrap_err();
        assert_eq!(error.line, line, "{error}");
    }
}

#[test]
fn a_ratio_may_be_above_another() {
    let runs = measured(&[
        ("sky=leo variant=westwood", &[9.0, 9.1, 8.9]),
        ("sky=leo variant=hybla", &[10.0, 10.1, 9.9]),
        ("sky=geo variant=westwood", &[2.0, 2.1, 1.9]),
        ("sky=geo variant=hybla", &[10.0, 10.1, 9.9]),
    ]);
    let nearer = |sky: &str, other: &str| {
        let ends = "of = { variant = \"westwood\" }\nto = { variant = \"hybla\" }";
        let there = "of = { variant = \"westwood\" }, to = { variant = \"hybla\" }";
        let than = format!("than = {{ at = {{ sky = \"{other}\" }}, {there} }}");
        verdict(&format!("at = {{ sky = \"{sky}\" }}\n{ends}\n{than}"), &runs)
    };
    assert_eq!(nearer("leo", "geo"), Verdict::Holds);
    assert_eq!(nearer("geo", "leo"), Verdict::Fails);
    assert_eq!(nearer("leo", "meo"), Verdict::Open, "has not run");
    let two = claim("of = {}\nto = {}\nat_least = 1\nthan = { of = {}, to = {} }");
    assert!(two.test().is_err(), "two bounds");
}

#[test]
fn what_is_published_is_judged_cell_by_cell() {
    let runs = measured(&[("pep=on", &[9.0, 10.0, 11.0]), ("pep=off", &[1.0, 1.0, 1.0])]);
    let figure = |tolerance: &str, published: &str| -> Figure {
        let text = format!(
            "name = \"goodput\"\nshows = \"x\"\nscenario = \"s\"\nmetric = \"goodput\"\n{tolerance}\n\
             published = [{{ at = {{ pep = \"on\" }}, {published} }}]"
        );
        toml::from_str(&text).expect("a figure")
    };
    let verdict = |tolerance: &str, published: &str| {
        let figure = figure(tolerance, published);
        figure.judge(&figure.published[0], &runs, 0.95)
    };
    assert_eq!(verdict("within = 0.3", "value = 10"), Some(Verdict::Holds));
    assert_eq!(verdict("off = 1", "value = 10"), Some(Verdict::Open));
    assert_eq!(verdict("within = 0.1", "value = 20"), Some(Verdict::Fails));
    let known = "value = 20, departs = \"why\"";
    assert_eq!(verdict("within = 0.1", known), Some(Verdict::Departs));
    let chosen = "value = 10, calibrates = \"the window\"";
    assert_eq!(verdict("within = 0.1", chosen), Some(Verdict::Calibrated));
    assert_eq!(verdict("", "value = 10"), None, "only shown");
}
