//! Measurements without a scenario become records. The files in `iperf3/` are output of iperf 3.12
//! in a lab whose link has 20 Mbit/s down and 8 Mbit/s up, 0.3 % loss down, and a round trip of 40
//! ms.

use midhop_experiment::measured::{
    LinkDirection, LinkReport, Measured, MeasuredError, MeterReport, limit_by, number_runs,
};
use midhop_experiment::record::{Record, Runner, Series, TransferResult};
use midhop_experiment::{Plan, Scenario};
use midhop_units::{Bytes, Duration, Rate, Seed};
use serde_json::{Value, json};

fn parse(text: &str) -> Result<Option<Record>, MeasuredError> {
    Measured::parse(text)?.map(Measured::into_record).transpose()
}

fn record(text: &str) -> Record {
    parse(text).unwrap_or_else(|error| panic!("{error}")).expect("a measurement")
}

/// Names, bytes and Mbit/s of the transfers.
fn transfers(record: &Record) -> Vec<(&str, u64, f64)> {
    let figures = |it: &TransferResult| (it.bytes.get(), it.goodput.mbit_per_s());
    record.transfers.iter().map(|it| (it.name.as_str(), figures(it).0, figures(it).1)).collect()
}

fn near(value: f64, expected: f64) {
    assert!((value / expected - 1.0).abs() < 1e-3, "{value} is not {expected}");
}

fn series<'r>(record: &'r Record, quantity: &str, place: &str, flow: Option<u32>) -> &'r Series {
    let fits = |it: &&Series| it.quantity == quantity && it.place == place && it.flow == flow;
    record.series.iter().find(fits).unwrap_or_else(|| panic!("no {quantity} of {place}"))
}

const TCP_UP: &str = include_str!("iperf3/tcp_up.json");

#[test]
fn a_tcp_test_of_iperf3_is_what_arrived() {
    let record = record(TCP_UP);
    assert_eq!(Runner::of(&record), Runner::Iperf3);
    assert!(!Runner::of(&record).runs_plans());
    assert_eq!(record.title, "iperf3 to 10.0.0.2");
    assert_eq!(record.environment.versions["iperf3"], "3.12");
    assert!(record.environment.started_unix_s > 1_700_000_000);
    assert_eq!(record.cell["flows"], "1");
    assert_eq!(record.cell["congestion"], "reno");
    let [transfer] = &record.transfers[..] else { panic!("{:?}", record.transfers) };
    assert_eq!((transfer.name.as_str(), transfer.complete), ("up", true));
    // Not the 3072656 bytes that were sent.
    assert_eq!(transfer.bytes, Bytes::new(2_862_696));
    near(transfer.took.as_s_f64(), 3.056_792);
    near(transfer.goodput.mbit_per_s(), 7.492);
    assert_eq!(transfer.limit, None);
    let [flow] = &transfer.flows[..] else { panic!("{:?}", transfer.flows) };
    assert_eq!((flow.retransmissions, flow.server_port), (57, 5201));
    assert_eq!(flow.rtt_min, Some(Duration::from_us(49_822)));
    // A sender's intervals are what it wrote, not goodput; the state of its connection is kept.
    assert!(record.series.iter().all(|it| it.quantity != "goodput"), "{:?}", record.series);
    let rtt = series(&record, "rtt", "up", Some(0));
    near(rtt.value[2], 54.505);
    near(rtt.time_s[2], 3.000_161);
    let resent = series(&record, "retransmissions", "up", Some(0));
    assert_eq!(resent.value.last(), Some(&57.0));
}

#[test]
fn flows_towards_the_client_have_their_goodput_over_time() {
    let record = record(include_str!("iperf3/tcp_down_three.json"));
    assert_eq!(record.cell["flows"], "3");
    let [transfer] = &record.transfers[..] else { panic!("{:?}", record.transfers) };
    assert_eq!((transfer.name.as_str(), transfer.flows.len()), ("down", 3));
    let sum: u64 = transfer.flows.iter().map(|flow| flow.bytes.get()).sum();
    assert_eq!(sum, transfer.bytes.get());
    assert!((5.0..20.0).contains(&transfer.goodput.mbit_per_s()), "{transfer:?}");
    let whole = series(&record, "goodput", "down", None);
    assert_eq!(whole.time_s.len(), 3);
    let parts: f64 =
        (0..3).map(|flow| series(&record, "goodput", "down", Some(flow)).value[1]).sum();
    near(parts, whole.value[1]);
}

#[test]
fn both_directions_of_a_test_are_transfers() {
    let record = record(include_str!("iperf3/tcp_bidir.json"));
    let found = transfers(&record);
    assert_eq!(found.iter().map(|it| it.0).collect::<Vec<_>>(), ["up", "down"]);
    assert_eq!((found[0].1, found[1].1), (1_770_904, 2_373_272));
    near(found[0].2, 6.9003);
    near(found[1].2, 9.2474);
    assert_eq!(record.transfers.iter().map(|it| it.flows.len()).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(record.transfers[1].flows[0].retransmissions, 26);
    assert_eq!(series(&record, "goodput", "down", None).time_s.len(), 2);
}

#[test]
fn datagrams_are_counted() {
    let record_up = record(include_str!("iperf3/udp_up.json"));
    let found = transfers(&record_up);
    assert_eq!((found[0].0, found[0].1), ("datagrams up", 1_249_624));
    assert_eq!(record_up.cell["rate of each"], "5 Mbit/s");
    assert!(!record_up.cell.contains_key("congestion"));
    let down = record(include_str!("iperf3/udp_down.json"));
    let found = transfers(&down);
    assert_eq!((found[0].0, found[0].1), ("datagrams down", 4_888_448));
    near(found[0].2, 19.553);
    let link = &down.links[0];
    assert_eq!((link.direction.as_str(), link.packets_in, link.drops["loss"]), ("down", 3876, 347));
    assert_eq!(down.transfers[0].flows.len(), 2);
    let both = record(include_str!("iperf3/udp_bidir.json"));
    assert_eq!(
        transfers(&both).iter().map(|it| (it.0, it.1)).collect::<Vec<_>>(),
        [("datagrams up", 1_249_624), ("datagrams down", 1_248_176)]
    );
    assert_eq!(both.links[1].drops["loss"], 1);
    // Versions before 3.8 have only one sum.
    let mut old: Value = serde_json::from_str(include_str!("iperf3/udp_down.json")).expect("JSON");
    let end = old["end"].as_object_mut().expect("an object");
    end.remove("sum_sent");
    end.remove("sum_received");
    let found = record(&old.to_string());
    let arrived = 5_612_448.0 * (1.0 - 347.0 / 3876.0);
    near(found.transfers[0].bytes.get() as f64, arrived);
}

#[test]
fn what_iperf3_was_asked_to_omit_is_left_out_and_its_title_is_kept() {
    let record = record(include_str!("iperf3/tcp_bytes.json"));
    assert_eq!(record.title, "own");
    assert_eq!(record.transfers[0].bytes, Bytes::new(2_258_880));
    let times = &series(&record, "cwnd", "up", Some(0)).time_s;
    assert!(times.is_sorted_by(|a, b| a < b), "{times:?}");
}

#[test]
fn what_is_no_whole_test_is_refused_with_a_hint() {
    let failed = |text: &str| parse(text).expect_err("refused");
    let refused = failed(include_str!("iperf3/refused.json"));
    assert_eq!(
        refused.to_string(),
        "an iperf3 test that ended in an error: unable to connect to server: Connection refused"
    );
    assert!(refused.hint().contains("run iperf3 again"));
    // The output of an interrupted test: it has intervals, and an end.
    let interrupted = TCP_UP.trim_end().trim_end_matches('}').to_owned()
        + ", \"error\": \"interrupt - the client has terminated\"}";
    assert!(failed(&interrupted).to_string().contains("interrupt - the client"));
    let server = failed(include_str!("iperf3/server_down.json"));
    assert!(server.hint().contains("the client's output"), "{server}");
    let stream = failed(r#"{"event":"start","data":{"connected":[]}}"#);
    assert!(stream.hint().contains("--json instead of --json-stream"), "{stream}");
    let none = failed(r#"{"start":{"connected":[]},"intervals":[],"end":{}}"#);
    assert_eq!(none.to_string(), "an iperf3 test without results");
    let damaged =
        failed(r#"{"start":{"connected":[]},"intervals":[{"streams":[{"socket":"x"}]}]}"#);
    assert!(damaged.to_string().starts_with("damaged output of iperf3: "), "{damaged}");
    for numbers in [r#""end": 3.056792"#, r#""bytes": 2862696"#] {
        let numbers = numbers.replace(": ", ":\t");
        assert!(TCP_UP.contains(&numbers), "{numbers}");
        let key = numbers.split(':').next().expect("a key");
        for absurd in ["-1", "1e300", "0"] {
            // No number may cause a panic.
            let text = TCP_UP.replace(&numbers, &format!("{key}:{absurd}"));
            let _ = parse(&text);
        }
    }
}

#[test]
fn other_json_is_no_measurement() {
    for text in ["{}", "[]", "3", "null", r#"{"schema":2}"#, r#"{"start":1}"#, "{", ""] {
        assert!(matches!(parse(text), Ok(None)), "{text}");
    }
}

fn way(rate: f64, loss: (u64, u64)) -> LinkDirection {
    LinkDirection {
        rate_bit_per_s: rate,
        rate_packets: 3_000,
        loss_at_bit_per_s: Some(0.8 * rate),
        packets_sent: loss.1,
        packets_lost: loss.0,
        loss_ratio: loss.0 as f64 / loss.1 as f64,
        tcp_goodput_bit_per_s: Some(0.5 * rate),
        tcp_bytes: Some((0.5 * rate * 4.0 / 8.0) as u64),
        tcp_took_s: Some(4.0),
        tcp_congestion: Some("cubic".to_owned()),
        ..LinkDirection::default()
    }
}

fn link() -> LinkReport {
    LinkReport {
        host: "192.0.2.1".to_owned(),
        port: 5201,
        took_s: 42.0,
        time_s_max: 60.0,
        rtt_min_s: 0.6,
        rtt_median_s: 0.61,
        rtt_p95_s: 0.65,
        pings: 40,
        pings_lost: 0,
        down: way(8e6, (20, 2000)),
        up: way(2e6, (0, 500)),
        warnings: vec!["measure again at another hour".to_owned()],
    }
}

#[test]
fn a_measured_link_is_its_own_limit() {
    let text = serde_json::to_string(&link()).expect("JSON");
    let measured = Measured::parse(&text).expect("read").expect("a measurement");
    assert_eq!(measured.warnings(), ["measure again at another hour"]);
    let record = measured.into_record().expect("a record");
    assert_eq!((record.title.as_str(), Runner::of(&record)), ("link to 192.0.2.1", Runner::Meter));
    let names: Vec<&str> = record.transfers.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["down", "up", "datagrams down", "datagrams up"]);
    let limit = record.transfers[0].limit.as_ref().expect("a limit");
    // 1448 of 1500 bytes, of which 1 % is lost.
    near(limit.goodput.mbit_per_s(), 8.0 * 1448.0 / 1500.0 * 0.99);
    assert!((0.5..0.7).contains(&limit.efficiency), "{limit:?}");
    near(record.transfers[2].goodput.mbit_per_s(), 8.0 * 0.99);
    assert_eq!(record.transfers[2].bytes, Bytes::new(3_750_000));
    assert_eq!(record.links[0].drops["loss"], 20);
    let plan = Plan::from_json(&record.plan).expect("a plan");
    assert_eq!(plan.links[0].down.delay_min(), Duration::from_ms(300));
    // A direction for which there was no time has no row, instead of one with 0 Mbit/s.
    let half = LinkReport { up: LinkDirection::default(), ..link() };
    let record = half.into_record().expect("a record");
    let names: Vec<&str> = record.transfers.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["down", "datagrams down"]);
}

/// A report in the meter's form.
fn run(name: &str, bytes: u64, took: Duration) -> MeterReport {
    let bytes = Bytes::new(bytes);
    MeterReport {
        host: Some("192.0.2.1".to_owned()),
        port: Some(5201),
        direction: None,
        transfer: TransferResult {
            name: name.to_owned(),
            complete: true,
            took,
            bytes,
            goodput: Rate::of(bytes, took),
            limit: None,
            restarts: Default::default(),
            flows: Vec::new(),
            objects: Vec::new(),
        },
        series: Vec::new(),
        gaps: Vec::new(),
        clock_shared: false,
        warnings: Vec::new(),
    }
}

#[test]
fn a_run_of_the_meter_is_set_beside_the_limit_of_a_scenario() {
    const SCENARIO: &str = r#"
title = "own"
duration = "60 s"
[nodes]
client = {}
server = {}
[links.link]
between = ["client", "server"]
delay = "20 ms"
rate = "20 Mbit/s"
[transfers.file]
from = "server"
to = "client"
bytes = "5 MB"
"#;
    let text = serde_json::to_string(&run("meter", 5_000_000, Duration::from_s(4))).expect("JSON");
    let mut records = vec![record(&text), record(&text), record(TCP_UP)];
    number_runs(&mut records);
    assert_eq!(records.iter().map(|it| it.seed).collect::<Vec<_>>(), [Seed(1), Seed(2), Seed(1)]);
    assert_eq!(records[0].title, "midhop meter run to 192.0.2.1");
    let plan =
        Scenario::parse("s.toml", SCENARIO).and_then(|it| it.plans()).expect("plans").remove(0);
    // Its only transfer matches any name except those of directions: iperf3's is not downwards.
    assert_eq!(limit_by(&plan, &mut records), Err(vec!["up".to_owned()]));
    let limit = records[0].transfers[0].limit.as_ref().expect("a limit");
    near(limit.goodput.mbit_per_s(), 20.0 * 1448.0 / 1500.0);
    assert!((0.5..0.54).contains(&limit.efficiency), "{limit:?}");
    // A measured link applies to both directions.
    let mut records = vec![record(TCP_UP)];
    assert_eq!(limit_by(&link().plan().expect("a plan"), &mut records), Ok(()));
    assert!(records[0].transfers[0].limit.is_some());
}

#[cfg(feature = "schema")]
#[test]
fn schemas_name_every_key() {
    let holds = |schema: &Value, written: &Value| {
        let properties = schema["properties"].as_object().expect("properties");
        for (key, value) in written.as_object().expect("an object") {
            let property = properties.get(key).unwrap_or_else(|| panic!("{key} is missing"));
            let described = property["description"].is_string() || property["$ref"].is_string();
            assert!(described, "{key} of {value} has no description: {property}");
        }
    };
    let written = serde_json::to_value(link()).expect("JSON");
    let schema = LinkReport::schema().to_value();
    holds(&schema, &written);
    holds(&schema["$defs"]["LinkDirection"], &written["down"]);
    let written = serde_json::to_value(run("x", 1, Duration::from_s(1))).expect("JSON");
    let schema = MeterReport::schema().to_value();
    holds(&schema, &written);
    holds(&schema["$defs"]["TransferResult"], &written["transfer"]);
    assert_eq!(schema["$defs"]["TransferResult"]["properties"]["bytes"]["minimum"], json!(0));
}
