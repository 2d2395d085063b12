//! Every scenario in the repository, and properties of its plans.

#![expect(clippy::disallowed_methods, reason = "a test reads the files that the repository holds")]

use midhop_experiment::{
    Plan, Scenario,
    pep::LegCongestion,
    plan::Work,
    record::{Environment, Record, SCHEMA, TransferResult, Validity},
};
use midhop_units::{Bytes, Duration, Rate};
use std::{collections::BTreeSet, path::Path};

fn load(name: &str) -> Scenario {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    Scenario::parse(name, &text).unwrap_or_else(|error| panic!("{error}"))
}

fn plans(name: &str) -> Vec<Plan> {
    load(name).plans().unwrap_or_else(|error| panic!("{error}\n{:?}", error.hint))
}

#[test]
fn every_scenario_resolves_and_can_be_read_back() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut seen = 0;
    for entry in std::fs::read_dir(directory).expect("the repository holds scenarios") {
        let name = entry.expect("readable").file_name().into_string().expect("UTF-8");
        if !name.ends_with(".toml") {
            continue;
        }
        seen += 1;
        let plans = plans(&name);
        // The proxy's own checks, except those that need a host.
        assert_eq!(load(&name).check_peps(LegCongestion::Names), Ok(()), "{name}");
        let labels: BTreeSet<String> = plans.iter().map(Plan::label).collect();
        assert_eq!(labels.len(), plans.len(), "{name}: two plans have one label");
        for (number, plan) in plans.iter().enumerate() {
            assert_eq!(plan.number as usize, number);
            assert!(plan.expected_time() <= plan.duration);
            let json = plan.to_json().expect("a plan has only string keys");
            assert_eq!(&Plan::from_json(&json).expect("it is a plan"), plan, "{name}");
        }
    }
    assert!(seen >= 4, "{seen} scenarios");
}

#[test]
fn the_demo_has_45_cells() {
    let plans = plans("geo-demo.toml");
    assert_eq!(plans.len(), 45);
    assert_eq!(plans[0].label(), "links.satellite.down.loss=0 % load=page setup=cubic");
    assert_eq!(plans[44].label(), "links.satellite.down.loss=1 % load=flows setup=pair");
    for plan in &plans {
        assert_eq!(plan.transfers.len(), 1);
        let transfer = &plan.transfers[0];
        let limit = transfer.limit.as_ref().expect("the satellite has a rate");
        assert_eq!(limit.bottleneck.link, "satellite");
        assert_eq!(limit.rtt, Duration::from_ms(600));
        let (peps, at_gateway) = match plan.cell()["setup"].as_str() {
            "pair" => (2, Some("far")),
            setup if setup.starts_with("midhop") => (1, Some("gw")),
            _ => (0, None),
        };
        assert_eq!(plan.peps.len(), peps);
        assert_eq!(plan.node("gateway").and_then(|node| node.pep.as_deref()), at_gateway);
    }
    let page = plans[0].transfers[0].work.bytes();
    assert_eq!(page, Some(Bytes::new(4_955_000)));
    assert!(matches!(plans[10].transfers[0].work, Work::Time { flows: 4, .. }));
    let leg = |plan: &Plan| plan.peps["gw"].config().legs["satellite"].congestion.clone();
    assert_eq!(leg(&plans[2]).as_deref(), Some("hybla-plus"));
    assert_eq!(leg(&plans[3]).as_deref(), Some("bbr"));
    let needs = |plan: &Plan| plan.congestion_controls().into_iter().collect::<Vec<_>>();
    assert_eq!(needs(&plans[1]), ["bbr"]);
    assert_eq!(needs(&plans[2]), ["cubic", "hybla-plus"]);
    // The queue is one BDP of the whole path: 20 Mb/s times 600 ms.
    let queue = serde_json::to_value(plans[0].link("satellite").expect("it is there").down.queue);
    assert_eq!(queue.expect("a queue has a text"), "1.5 MB");
}

#[test]
fn limits_of_the_demo_and_of_the_phone() {
    let demo = plans("geo-demo.toml");
    let goodput = |plan: &Plan| {
        let limit = plan.transfers[0].limit.as_ref().expect("there is a limit");
        (limit.goodput.mbit_per_s() * 1000.0).round() / 1000.0
    };
    assert_eq!([goodput(&demo[0]), goodput(&demo[43])], [19.307, 19.114]);
    // The page: one request after another takes seven round trips at least.
    let page = &demo[0].transfers[0];
    let ideal = page.limit_result(true, Bytes::new(4_955_000), Duration::from_s(10)).unwrap();
    assert!((ideal.time.as_s_f64() - (4.2 + 4.955 * 8.0 / 19.3067)).abs() < 1e-3, "{ideal:?}");
    assert!((ideal.efficiency - ideal.time.as_s_f64() / 10.0).abs() < 1e-9);
    // Terrestrial loss is before the bottleneck and costs nothing.
    let heavy: Vec<Plan> = plans("onboard.toml")
        .into_iter()
        .filter(|plan| plan.cell()["loss"] == "heavy" && plan.seed.0 == 1)
        .collect();
    assert_eq!(heavy.iter().map(goodput).collect::<Vec<_>>(), [1.921, 1.921, 1.921]);
}

#[test]
fn every_plan_has_ways_for_its_transfers() {
    for name in ["geo-demo.toml", "far-server.toml", "onboard.toml", "quick.toml"] {
        let plan = plans(name).swap_remove(0);
        for transfer in &plan.transfers {
            walk(&plan, transfer.opener(), transfer.listening());
            walk(&plan, transfer.listening(), transfer.opener());
        }
    }
}

/// Follows the routing tables of the plan from `start` to each address of `end`.
fn walk(plan: &Plan, start: &str, end: &str) {
    let owner = |address| {
        plan.nodes.iter().find(|node| node.interfaces.iter().any(|own| own.ipv4 == address))
    };
    for target in &plan.node(end).expect("the end exists").interfaces {
        let mut node = plan.node(start).expect("the start exists");
        for _ in 0..plan.nodes.len() {
            if node.name == end {
                break;
            }
            let attached = node.interfaces.iter().any(|own| own.link == target.link);
            let next = if attached {
                target.ipv4.into()
            } else {
                let to = std::net::IpAddr::from(target.ipv4);
                node.routes.iter().find(|route| route.to == to).expect("there is a route").via
            };
            let std::net::IpAddr::V4(next) = next else { panic!("{next} is not IPv4") };
            node = owner(next).expect("somebody has the address");
        }
        assert_eq!(node.name, end);
    }
}

fn record(plan: &Plan, bytes: u64, took: Duration) -> Record {
    let planned = &plan.transfers[0];
    let bytes = Bytes::new(bytes);
    Record {
        schema: SCHEMA,
        title: plan.title.clone(),
        cell: plan.cell(),
        seed: plan.seed,
        plan: plan.to_json().expect("a plan is JSON"),
        environment: Environment::default(),
        validity: Validity::default(),
        transfers: vec![TransferResult {
            name: planned.name.clone(),
            complete: true,
            took,
            bytes,
            goodput: Rate::of(bytes, took),
            limit: planned.limit_result(true, bytes, took),
            restarts: Default::default(),
            flows: Vec::new(),
            objects: Vec::new(),
        }],
        links: Vec::new(),
        legs: Vec::new(),
        traffic: Vec::new(),
        nodes: Vec::new(),
        handovers: None,
        series: Vec::new(),
    }
}

#[test]
fn a_result_above_the_limit_is_a_fault() {
    let plan = plans("quick.toml").swap_remove(0);
    let fair = plan.transfers[0].limit_result(true, Bytes::new(500_000), Duration::from_s(1));
    let ideal = fair.expect("there is a limit").time;
    // 500 kB at 19.307 Mb/s and one round trip of 20 ms.
    assert!((ideal.as_s_f64() - 0.22718).abs() < 1e-4, "{ideal}");
    let check = |took: Duration| record(&plan, 500_000, took).check_limit();
    assert_eq!(check(ideal), Vec::<String>::new());
    assert_eq!(check(ideal.scale(0.996)), Vec::<String>::new());
    let faults = check(ideal.scale(0.98));
    assert!(faults.len() == 1 && faults[0].contains("less time than"), "{faults:?}");
    let faults = check(ideal.scale(0.5));
    assert!(faults.len() == 1 && faults[0].contains("more than the path can carry"), "{faults:?}");
    // At 1 % loss a small object may be lucky, a large one not.
    let lossy = plans("geo-demo.toml").swap_remove(35);
    assert_eq!(lossy.cell()["load"], "file");
    let ideal = lossy.transfers[0].limit_result(true, Bytes::new(5_000_000), Duration::from_s(1));
    let ideal = ideal.expect("there is a limit").time;
    assert!(record(&lossy, 5_000_000, ideal.scale(0.993)).check_limit().is_empty());
    assert!(!record(&lossy, 5_000_000, ideal.scale(0.97)).check_limit().is_empty());
}

#[test]
fn a_record_reads_back_and_another_shape_is_refused() {
    let plan = plans("quick.toml").swap_remove(0);
    let record = record(&plan, 500_000, Duration::from_s(1));
    let text = record.to_json().expect("a record is JSON");
    assert_eq!(Record::from_json(&text).expect("it reads back"), record);
    // Version 1 had text such as "1 s".
    let older = text.replacen("\"schema\":2", "\"schema\":1", 1);
    let error = Record::from_json(&older).expect_err("an older version");
    assert_eq!(error.to_string(), "the record has version 1, this release reads version 2");
    assert!(error.hint().starts_with("run the scenario again"));
    assert!(Record::from_json("{}").is_err());
}

#[test]
fn the_example_in_the_guide_is_a_scenario() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scenarios.md");
    let guide = std::fs::read_to_string(path).expect("the guide is there");
    let example = guide
        .split_once("```toml\n")
        .and_then(|(_, rest)| rest.split_once("```"))
        .map(|(example, _)| example)
        .expect("the guide has an example");
    let scenario = Scenario::parse("scenarios.md", example).expect("it is TOML");
    let plans = scenario.plans().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(plans.len(), 3 * 2 * 2 * 5);
}
