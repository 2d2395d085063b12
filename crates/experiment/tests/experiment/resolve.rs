//! The values in a plan that its scenario left open.

use midhop_experiment::plan::{Direction, TransferPlan, Work};
use midhop_experiment::spec::Connections;
use midhop_experiment::{Plan, Scenario};
use midhop_units::{Bytes, Duration, Rate};

/// A line a – b – c – d with a narrow link in the middle and loss behind it.
const LINE: &str = r#"
title = "a line"
duration = "30 s"

[nodes]
a = {}
b = {}
c = {}
d = {}

[links.ab]
between = ["a", "b"]
delay = "1 ms"
loss = "10 %"

[links.bc]
between = ["b", "c"]
rate = "2 Mbit/s"
down = { delay = "30 ms" }
up = { delay = "10 ms" }

[links.cd]
between = ["c", "d"]
rate = "1 Gbit/s"
delay = "4 ms"

[peps.p]
"#;

fn plan(more: &str) -> Plan {
    let scenario = Scenario::parse("line.toml", &(LINE.to_owned() + more));
    let plans = scenario.and_then(|scenario| scenario.plans());
    plans.unwrap_or_else(|error| panic!("{error}")).swap_remove(0)
}

fn transfer(keys: &str) -> TransferPlan {
    plan(&format!("[transfers.t]\nfrom = \"d\"\nto = \"a\"\n{keys}")).transfers.swap_remove(0)
}

/// Goodput at the limit. Unit: kbit/s.
fn limit_kbit(plan: &Plan) -> u64 {
    plan.transfers[0].limit.as_ref().expect("the line is narrow").goodput.bits_per_s() / 1000
}

#[test]
fn defaults_become_visible() {
    let page = transfer("objects = [\"1 kB\", \"2 kB\"]");
    assert_eq!(
        page.work,
        Work::Objects {
            sizes: vec![Bytes::new(1000), Bytes::new(2000)],
            connections: Connections::Persistent,
            parallel: 1,
        }
    );
    assert_eq!((page.congestion.as_str(), page.start), ("cubic", Duration::ZERO));
    assert_eq!((page.opener(), page.listening()), ("a", "d"));
    // Links are numbered in the order of their names: ab 0, bc 1, cd 2. The second end has host 2.
    assert_eq!(page.listener.to_string(), "10.0.2.2:7000");
    let bulk = transfer("bytes = \"1 MB\"\nopens = \"from\"\nfamily = \"ipv6\"\nstart = \"2 s\"");
    assert_eq!(bulk.work, Work::Bytes { each: Bytes::new(1_000_000), flows: 1 });
    assert_eq!((bulk.opener(), bulk.listening()), ("d", "a"));
    assert_eq!(bulk.listener.to_string(), "[fd6d:6964:686f::1]:7000");
    assert_eq!(bulk.start, Duration::from_s(2));
    let timed = transfer("seconds = 2.5\nflows = 3");
    assert_eq!(timed.work, Work::Time { span: Duration::from_ms(2500), flows: 3 });
}

#[test]
fn ports_differ_and_stay_when_other_transfers_do_not_run() {
    let both = "[transfers.x]\nfrom = \"a\"\nto = \"b\"\nbytes = \"1 B\"\n\
                [transfers.y]\nfrom = \"a\"\nto = \"b\"\nbytes = \"1 B\"\n";
    let ports = |plan: &Plan| -> Vec<u16> {
        plan.transfers.iter().map(|transfer| transfer.listener.port()).collect()
    };
    assert_eq!(ports(&plan(both)), [7000, 7001]);
    let text = LINE.replacen("duration", "run = [\"y\"]\nduration", 1) + both;
    let plans = Scenario::parse("line.toml", &text).and_then(|scenario| scenario.plans());
    assert_eq!(ports(&plans.expect("it is right")[0]), [7001]);
}

#[test]
fn the_way_and_its_round_trip() {
    let plan = plan("[transfers.t]\nfrom = \"d\"\nto = \"a\"\nbytes = \"1 MB\"\n");
    let transfer = &plan.transfers[0];
    let way: Vec<(&str, Direction)> =
        transfer.route.iter().map(|at| (at.link.as_str(), at.direction)).collect();
    assert_eq!(way, [("cd", Direction::Down), ("bc", Direction::Down), ("ab", Direction::Down)]);
    let back: Vec<(&str, Direction)> =
        transfer.route_back.iter().map(|at| (at.link.as_str(), at.direction)).collect();
    assert_eq!(back, [("ab", Direction::Up), ("bc", Direction::Up), ("cd", Direction::Up)]);
    let limit = transfer.limit.as_ref().expect("the line is narrow");
    assert_eq!(limit.rtt, Duration::from_ms(50));
    assert_eq!(limit.bottleneck.link, "bc");
    assert!(plan.links.iter().all(|link| link.path_rtt == Duration::from_ms(50)));
}

#[test]
fn queues_are_reckoned_with_the_longest_round_trip_that_crosses_them() {
    let plan = plan(
        "[transfers.long]\nfrom = \"d\"\nto = \"a\"\nbytes = \"1 MB\"\n\
         [transfers.short]\nfrom = \"c\"\nto = \"b\"\nbytes = \"1 MB\"\n",
    );
    assert_eq!(plan.link("bc").map(|link| link.path_rtt), Some(Duration::from_ms(50)));
}

#[test]
fn a_connection_for_each_object_spares_no_request_but_handshakes_are_not_counted() {
    let time = |keys: &str| {
        let page = transfer(&format!("objects = [\"1 kB\", \"1 kB\", \"1 kB\"]\n{keys}"));
        let result = page.limit_result(true, Bytes::new(3000), Duration::from_s(1));
        result.expect("the line is narrow").time.as_ms_f64()
    };
    // 3 kB at 1.7376 Mb/s take 13.8 ms; each request takes one round trip of 50 ms.
    assert!((time("") - 163.8).abs() < 0.1, "{}", time(""));
    assert_eq!(time("connections = \"new\""), time(""));
    assert!((time("parallel = 3") - 63.8).abs() < 0.1, "{}", time("parallel = 3"));
    // An incomplete page is judged by its bytes.
    let page = transfer("objects = [\"1 kB\", \"1 kB\", \"1 kB\"]");
    let part = page.limit_result(false, Bytes::new(1000), Duration::from_s(1));
    assert!((part.expect("the line is narrow").time.as_ms_f64() - 54.6).abs() < 0.1);
}

#[test]
fn loss_counts_behind_the_narrow_link_until_a_proxy_repairs_it() {
    let download = "[transfers.t]\nfrom = \"d\"\nto = \"a\"\nbytes = \"1 MB\"\n";
    let upload = "[transfers.t]\nfrom = \"a\"\nto = \"d\"\nbytes = \"1 MB\"\n";
    let free = 2_000 * 1448 / 1500;
    // Towards a, the lossy link comes after the narrow one; away from a, before it.
    assert_eq!(limit_kbit(&plan(download)), free * 9 / 10);
    assert_eq!(limit_kbit(&plan(upload)), free);
    let proxied = LINE.replacen("b = {}", "b = { pep = \"p\" }", 1) + download;
    let plans = Scenario::parse("line.toml", &proxied).and_then(|scenario| scenario.plans());
    assert_eq!(limit_kbit(&plans.expect("it is right")[0]), free);
}

#[test]
fn a_changing_rate_counts_with_its_mean_and_is_checked_by_its_peak() {
    let trace = "rate = { trace = [[\"0 s\", \"2 Mbit/s\"], [\"10 s\", \"8 Mbit/s\"]] }";
    let text = LINE.replacen("rate = \"2 Mbit/s\"", trace, 1).replacen("10 %", "0 %", 1)
        + "[transfers.t]\nfrom = \"d\"\nto = \"a\"\nbytes = \"1 MB\"\n";
    let plans = Scenario::parse("line.toml", &text).and_then(|scenario| scenario.plans());
    let plan = plans.expect("it is right").swap_remove(0);
    let limit = plan.transfers[0].limit.as_ref().expect("the line is narrow");
    // 10 s at 2 and 20 s at 8 Mb/s are 6 Mb/s in the mean.
    assert_eq!(limit.goodput.bits_per_s(), 6_000_000 * 1448 / 1500);
    assert_eq!(limit.goodput_peak.bits_per_s(), 8_000_000 * 1448 / 1500);
    // A period of 20 s, half at each rate.
    let repeated = text.replacen("]] }", "]], repeat = \"20 s\" }", 1);
    let plans = Scenario::parse("line.toml", &repeated).and_then(|scenario| scenario.plans());
    let limit = plans.expect("it is right")[0].transfers[0].limit.clone();
    assert_eq!(limit.expect("the line is narrow").goodput.bits_per_s(), 5_000_000 * 1448 / 1500);
}

#[test]
fn losses_in_bursts_count_in_the_mean_and_may_stay_away() {
    let bursts = "{ mean = \"10 %\", burst = \"5 packets\" }";
    let text = LINE.replacen("\"10 %\"", bursts, 1)
        + "[transfers.t]\nfrom = \"d\"\nto = \"a\"\nbytes = \"1 MB\"\n";
    let plans = Scenario::parse("line.toml", &text).and_then(|scenario| scenario.plans());
    let limit = plans.expect("it is right")[0].transfers[0].limit.clone();
    let limit = limit.expect("the line is narrow");
    let free = 2_000_000 * 1448 / 1500;
    assert_eq!(limit.goodput_peak.bits_per_s(), free);
    assert!(limit.goodput.bits_per_s().abs_diff(free * 9 / 10) < 10, "{}", limit.goodput);
}

#[test]
fn a_path_without_any_rate_has_no_limit() {
    let text = LINE.replace("rate = \"2 Mbit/s\"", "").replace("rate = \"1 Gbit/s\"", "")
        + "[transfers.t]\nfrom = \"d\"\nto = \"a\"\nbytes = \"1 MB\"\n";
    let plans = Scenario::parse("line.toml", &text).and_then(|scenario| scenario.plans());
    let plan = plans.expect("it is right").swap_remove(0);
    assert_eq!(plan.transfers[0].limit, None);
    assert_eq!(plan.transfers[0].limit_result(true, Bytes::new(1), Duration::from_s(1)), None);
}

#[test]
fn of_two_links_between_the_same_nodes_the_quicker_is_taken() {
    let plan = plan(
        "[links.bc2]\nbetween = [\"c\", \"b\"]\ndelay = \"5 ms\"\nrate = \"3 Mbit/s\"\n\
         [transfers.t]\nfrom = \"d\"\nto = \"a\"\nbytes = \"1 MB\"\n",
    );
    let transfer = &plan.transfers[0];
    assert_eq!(
        (transfer.route[1].link.as_str(), transfer.route[1].direction),
        ("bc2", Direction::Up)
    );
    assert_eq!(transfer.limit.as_ref().map(|limit| limit.rtt), Some(Duration::from_ms(20)));
    // The other one keeps its own round trip for its queues.
    assert_eq!(plan.link("bc").map(|link| link.path_rtt), Some(Duration::from_ms(40)));
}

#[test]
fn longer_work_is_expected_to_take_longer() {
    let time = |keys: &str| {
        plan(&format!("[transfers.t]\nfrom = \"d\"\nto = \"a\"\n{keys}")).expected_time()
    };
    assert!(time("bytes = \"100 kB\"") < time("bytes = \"1 MB\""));
    assert!(time("seconds = 5") < time("seconds = 6"));
    assert_eq!(time("bytes = \"1 GB\""), Duration::from_s(30));
    // At 10 % loss, the formulas of Reno and CUBIC give longer times than BBR.
    let bbr = time("bytes = \"200 kB\"\ncongestion = \"bbr\"");
    assert!(time("bytes = \"200 kB\"") > bbr);
    assert_eq!(plan("").expected_time(), Duration::from_s(30));
}

#[test]
fn a_small_window_of_a_proxy_is_expected_to_take_its_time() {
    let time = |leg: &str| {
        let line = LINE.replacen("b = {}", "b = { pep = \"p\" }", 1).replacen("10 %", "0 %", 1)
            + leg
            + "[transfers.t]\nfrom = \"d\"\nto = \"a\"\nbytes = \"1 MB\"\n";
        let scenario = Scenario::parse("line.toml", &line).expect("a scenario");
        scenario.plans().expect("its plans").swap_remove(0).expected_time()
    };
    // 4 kB over the 48 ms between proxy and source: 0.67 Mbit/s of 2.
    let small = time("legs.bc = { buffer = \"8 kB\" }\n");
    assert!(small > Duration::from_s(12) && small < Duration::from_s(13), "{small}");
    let others = ["", "legs.bc = { buffer = \"1 MB\" }\n", "legs.ab = { buffer = \"8 kB\" }\n"];
    for other in others.map(time) {
        assert!(other < Duration::from_s(7), "{other}");
    }
}

#[test]
fn a_chain_of_links_shares_one_way_through_the_sky() {
    const CHAIN: &str = r#"
title = "phone, satellites, gateway"
duration = "60 s"

[nodes]
phone = {}
first = {}
last = {}
gateway = {}

[links.user]
between = ["phone", "first"]
orbit = { constellation = "iridium", from = [51.4, 10.5], to = [40.8, -74.0], part = "user" }

[links.isl]
between = ["first", "last"]
orbit = { constellation = "iridium", from = [51.4, 10.5], to = [40.8, -74.0], part = "isl" }

[links.feeder]
between = ["last", "gateway"]
orbit = { constellation = "iridium", from = [51.4, 10.5], to = [40.8, -74.0], part = "feeder" }

[transfers.t]
from = "gateway"
to = "phone"
bytes = "1 MB"
"#;
    let plans = Scenario::parse("chain.toml", CHAIN).and_then(|scenario| scenario.plans());
    let plan = plans.unwrap_or_else(|error| panic!("{error}")).swap_remove(0);
    for link in &plan.links {
        let orbit = link.orbit.as_ref().expect("an orbit");
        assert_eq!((orbit.part.name(), orbit.satellites), (link.name.as_str(), 66));
        assert!(link.down.delay_min() > Duration::from_ms(2), "{}", link.name);
    }
    // The limit uses the propagation delay both ways: at least that along the ground, 6200 km.
    let path_rtt = plan.links[0].path_rtt;
    assert!((41.0..400.0).contains(&path_rtt.as_ms_f64()), "{path_rtt}");
    let text = serde_json::to_string(&plan).expect("text");
    assert_eq!(serde_json::from_str::<Plan>(&text).expect("a plan"), plan);
}

#[test]
fn files_that_links_name_are_asked_for_and_put_in_their_place() {
    const FILES: &str = r#"
title = "files"
duration = "10 s"

[nodes]
a = {}
b = {}

[links.ab]
between = ["a", "b"]
rate = { mahimahi_file = "lte.trace" }

[vary]
"links.ab.up" = [{ rate = "1 Mbit/s" }, { rate = { mahimahi_file = "up.trace" } }]
"#;
    let mut scenario = Scenario::parse("files.toml", FILES).expect("a scenario");
    let names: Vec<String> = scenario.files().expect("names").into_iter().collect();
    assert_eq!(names, ["lte.trace", "up.trace"]);
    let error = scenario.plans().expect_err("they are not there").to_string();
    assert!(error.contains("the file lte.trace has not been read"), "{error}");
    scenario.supply("lte.trace", "1\n2\n3\n".to_owned());
    scenario.supply("up.trace", "1\n2\nx\n".to_owned());
    let error = scenario.plans().expect_err("one is wrong").to_string();
    assert!(error.starts_with("files.toml:14:") && error.contains("line 3"), "{error}");
    scenario.supply("up.trace", "10\n20\n".to_owned());
    let plans = scenario.plans().unwrap_or_else(|error| panic!("{error}"));
    let highest = |plan: &Plan| {
        let link = &plan.links[0];
        [&link.down, &link.up].map(|direction| direction.rate.highest().map(|r| r.bits_per_s()))
    };
    assert_eq!(highest(&plans[0]), [Some(12_032_000), Some(1_000_000)]);
    assert_eq!(highest(&plans[1]), [Some(12_032_000), Some(1_203_200)]);
}

#[test]
fn a_recorded_delay_is_read_from_a_file_beside_the_scenario() {
    const RECORDED: &str = r#"
title = "recorded"
duration = "5 s"

[nodes]
a = {}
b = {}

[links.ab]
between = ["a", "b"]
delay = { csv_file = "pass.csv", repeat = "2 s" }
down = { delay = { csv_file = "down.csv" } }
"#;
    let mut scenario = Scenario::parse("recorded.toml", RECORDED).expect("a scenario");
    let names: Vec<String> = scenario.files().expect("names").into_iter().collect();
    assert_eq!(names, ["down.csv", "pass.csv"]);
    let error = scenario.plans().expect_err("they are not there").to_string();
    assert!(error.contains("csv has not been read"), "{error}");
    let refused = |text: &str, scenario: &mut Scenario| {
        scenario.supply("down.csv", text.to_owned());
        scenario.plans().expect_err("it is wrong").to_string()
    };
    scenario.supply("pass.csv", "time_s,rtt_ms\n7.5,40\n8,50\n".to_owned());
    let error = refused("0,20\n1,30\n0.5,20\n", &mut scenario);
    assert!(
        error.starts_with("recorded.toml:12:") && error.contains("down.csv, line 3"),
        "{error}"
    );
    let error = refused("t,d\n0,20\n", &mut scenario);
    assert!(error.contains("down.csv, line 1: \"t,d\""), "{error}");
    let hash = |scenario: &Scenario| {
        let plan = &scenario.plans().unwrap_or_else(|error| panic!("{error}"))[0];
        plan.to_json().expect("JSON").to_string()
    };
    scenario.supply("down.csv", "0,20\n1,30\n".to_owned());
    let plan = &scenario.plans().unwrap_or_else(|error| panic!("{error}"))[0];
    let inline = RECORDED
        .replace(
            "{ csv_file = \"down.csv\" }",
            "{ trace = [[\"0 s\", \"20 ms\"], [\"1 s\", \"30 ms\"]] }",
        )
        .replace(
            "{ csv_file = \"pass.csv\",",
            "{ trace = [[\"0 s\", \"20 ms\"], [\"500 ms\", \"25 ms\"]],",
        );
    let inline = Scenario::parse("recorded.toml", &inline).expect("a scenario");
    assert_eq!(plan.links, inline.plans().expect("plans")[0].links);
    // A plan's hash covers the contents of files.
    let before = hash(&scenario);
    scenario.supply("down.csv", "0,20\n1,31\n".to_owned());
    assert_ne!(before, hash(&scenario));
}

/// A recording that is shorter than the run does not repeat unless the scenario says so.
#[test]
fn a_recording_lasts_as_long_as_the_run() {
    const RECORDED: &str = r#"
title = "recorded"
duration = "2 s"

[nodes]
a = {}
b = {}

[links.ab]
between = ["a", "b"]
rate = "10 Mbit/s"
delay = { recorded_file = "delay.txt" }
down = { rate = { recorded_file = "rate.csv", from = "1 s" } }
"#;
    let delays = "12\n11\n".repeat(100);
    let rates = "time_s,rate_mbit_per_s\n0,8\n1,6\n2,7\n3,9\n";
    let plans = |text: &str, delays: &str| {
        let mut scenario = Scenario::parse("recorded.toml", text).expect("a scenario");
        scenario.supply("delay.txt", delays.to_owned());
        scenario.supply("rate.csv", rates.to_owned());
        let with_hint = |error: midhop_config::ConfigError| {
            format!("{error}\nhint: {}", error.hint.clone().unwrap_or_default())
        };
        scenario.plans().map_err(with_hint)
    };
    let plan = &plans(RECORDED, &delays).unwrap_or_else(|error| panic!("{error}"))[0];
    assert_eq!(plan.links[0].down.rate.highest(), Some(Rate::from_mbit_per_s(9)));
    assert_eq!(plan.links[0].up.rate.highest(), Some(Rate::from_mbit_per_s(10)));
    let error = plans(RECORDED, "12\n11\n").expect_err("20 ms are no run");
    assert!(error.starts_with("recorded.toml:12:"), "{error}");
    assert!(error.contains("this recording lasts 20 ms, a run up to 2 s"), "{error}");
    assert!(error.contains("hint: ") && error.contains("repeat = \"20 ms\""), "{error}");
    let later = RECORDED.replace("\"1 s\"", "\"2500 ms\"");
    let error = plans(&later, &delays).expect_err("less is left of the rate");
    assert!(error.starts_with("recorded.toml:13:") && error.contains("a run up to 2 s"), "{error}");
    let asked = later.replace("\"2500 ms\"", "\"2500 ms\", repeat = \"2 s\"");
    assert!(plans(&asked, &delays).is_ok(), "{:?}", plans(&asked, &delays));
    let gone = RECORDED.replace("\"1 s\"", "\"1 min\"");
    let error = plans(&gone, &delays).expect_err("it is over by then");
    assert!(error.contains("rate.csv, it lasts 4 s"), "{error}");
    let error = plans(RECORDED, "").expect_err("nothing is in it");
    assert!(error.starts_with("recorded.toml:12:") && error.contains("delay.txt"), "{error}");
}
