//! The files that are shipped beside the program agree with the program.

use midhop_pep::config::{
    Accept, AckDecimation, AckSpacing, Action, Admin, Assist, AssistPeer, Class, Config, Control,
    Dscp, Keepalive, Leg, LegOverride, Limits, Match, Modem, OneOrMany, Peer, Plan, Ports, Rule,
    Start, Tunnel,
};
use midhop_pep::priority::Priority;
use midhop_units::{Bytes, Duration, Rate};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

const EXAMPLE: &str = include_str!("../../../../packaging/midhopd.toml");
const UNIT: &str = include_str!("../../../../packaging/midhopd.service");

fn read(text: &str) -> Config {
    midhop_config::read_str("packaging/midhopd.toml", text)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The example file with its commented examples enabled. An example below a default replaces it.
fn with_examples() -> String {
    let mut lines: Vec<&str> = Vec::new();
    for line in EXAMPLE.lines() {
        match line.strip_prefix('#') {
            Some(example) if !example.is_empty() && !example.starts_with(' ') => {
                let key = example.split_once(" = ").map(|(key, _)| format!("{key} = "));
                if key.is_some_and(|key| lines.last().is_some_and(|last| last.starts_with(&key))) {
                    lines.pop();
                }
                lines.push(example);
            }
            Some(_) => {}
            None => lines.push(line),
        }
    }
    lines.join("\n")
}

#[test]
fn the_example_as_it_stands_is_the_default() {
    assert_eq!(read(EXAMPLE), Config::default());
}

#[test]
fn the_readme_shows_a_configuration_that_works() {
    let readme = include_str!("../../../../README.md");
    let block = readme
        .split("```toml\n")
        .skip(1)
        .filter_map(|after| after.split("```").next())
        .find(|block| block.contains("[intercept]"))
        .expect("a configuration in the README");
    let plan = Plan::read("README.md", block).unwrap_or_else(|error| panic!("{error}"));
    assert!(!plan.intercept.interfaces.is_empty());
}

#[test]
fn the_examples_in_it_make_sense() {
    let text = with_examples();
    let plan =
        Plan::read("packaging/midhopd.toml", &text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(plan.legs.len(), 2);
    assert_eq!(&plan.intercept.interfaces[..], ["lan0", "sat0"]);
}

/// Every field is written out. A new field does not compile here until it is added, and then it has
/// to be in the example.
#[test]
fn every_key_is_in_the_example() {
    let rate = Some(Rate::from_mbit_per_s(1));
    let time = Some(Duration::from_s(1));
    let name = Some("x".to_owned());
    let one_of = |text: &str| OneOrMany(vec![text.to_owned()]);
    let prefix = OneOrMany(vec!["10.0.0.0/8".parse().expect("a prefix")]);
    let ports = OneOrMany(vec![Ports::new(1, 2).expect("ports")]);
    let leg = Leg {
        interface: name.clone(),
        prefixes: prefix.clone(),
        congestion: name.clone(),
        fallback: name.clone(),
        rtt0: time,
        rate,
        rate_in: rate,
        rtt: time,
        share: Some(true),
        start: Some(Start::Rate),
        pacing: rate,
        buffer: Some(Bytes::new(1)),
        keepalive: Keepalive::default(),
        user_timeout: time,
    };
    let rule = Rule {
        matches: Match {
            source: prefix.clone(),
            destination: prefix,
            source_port: ports.clone(),
            destination_port: ports,
            interface: one_of("x"),
            peer: one_of("x"),
            dscp: OneOrMany(vec![Dscp::new(1).expect("a DSCP")]),
        },
        action: Some(Action::Split),
        tunnel: name.clone(),
        otherwise: Some(Action::Split),
        class: name.clone(),
        accept: Some(Accept::Early),
        legs: BTreeMap::from([("x".to_owned(), LegOverride { congestion: name, pacing: rate })]),
    };
    let file = Some("x".into());
    let address = "192.0.2.1:7007".parse().expect("an address");
    let assist = Assist {
        peer: Some(AssistPeer {
            listen: address,
            address,
            key: "x".into(),
            held: Bytes::new(1),
            hold: Duration::from_s(1),
            requests: 1,
        }),
        ack_decimation: Some(AckDecimation::default()),
        ack_spacing: Some(AckSpacing { rate, rebuild: Some(Bytes::new(1)), ..Default::default() }),
        ..Assist::default()
    };
    let tunnel = Tunnel {
        certificate: file.clone(),
        key: file.clone(),
        authority: file,
        ..Tunnel::default()
    };
    let modem = Modem {
        address: address.into(),
        destination: Some("x".to_owned()),
        file: Some("/x".into()),
        valid: time,
        least: rate,
        most: rate,
    };
    let peer = Peer {
        modem: Some(modem),
        address: "192.0.2.1:443".parse().ok(),
        name: Some("x".to_owned()),
        congestion: Some("x".to_owned()),
        rtt0: time,
        rate,
        strict: Some(true),
        committed: rate,
        rate_in: rate,
        rtt: time,
        window: Some(Bytes::new(1)),
        transparent: OneOrMany(vec!["192.0.2.0/24".parse().expect("a prefix")]),
        targets: Some(OneOrMany(vec!["192.0.2.0/24".parse().expect("a prefix")])),
        ..Peer::default()
    };
    let class = Class {
        weight: Some(1),
        ahead: Some(Priority::Never),
        dscp: Some(OneOrMany(vec![Dscp::new(1).expect("a DSCP")])),
    };
    let limits = Limits { flows_per_source: Some(1), ..Limits::default() };
    let admin = Admin { names: one_of("x"), ..Admin::default() };
    let whole = Config {
        assist,
        limits,
        admin,
        tunnel,
        peers: BTreeMap::from([("x".to_owned(), peer)]),
        classes: BTreeMap::from([("x".to_owned(), class)]),
        legs: BTreeMap::from([("x".to_owned(), leg)]),
        rules: vec![rule],
        control: Control { socket: Some("/x".into()), group: Some("x".to_owned()) },
        ..Config::default()
    };
    let keys = |value: toml::Value| -> BTreeSet<String> {
        let mut keys = BTreeSet::new();
        collect("", &value, &mut keys);
        keys
    };
    // The file as written: the configuration that is read has every default.
    let example = with_examples().parse::<toml::Table>().expect("TOML");
    let whole = toml::Value::try_from(whole).expect("a table");
    let missing: Vec<_> = keys(whole).difference(&keys(example.into())).cloned().collect();
    assert!(missing.is_empty(), "not in packaging/midhopd.toml: {missing:?}");
}

/// The dotted keys below a value. The names of legs, peers and classes are replaced by one name.
fn collect(prefix: &str, value: &toml::Value, keys: &mut BTreeSet<String>) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                let named = prefix.ends_with("legs.") || matches!(prefix, "peers." | "classes.");
                let key = if named { "*" } else { key.as_str() };
                collect(&format!("{prefix}{key}."), value, keys);
            }
        }
        toml::Value::Array(items) if items.iter().any(toml::Value::is_table) => {
            items.iter().for_each(|item| collect(prefix, item, keys));
        }
        _ => {
            keys.insert(prefix.trim_end_matches('.').to_owned());
        }
    }
}

#[test]
fn the_unit_grants_what_the_daemon_keeps() {
    let sets: Vec<&str> = UNIT
        .lines()
        .filter(|line| line.contains("Capabilit") && line.contains('='))
        .filter_map(|line| Some(line.split_once('=')?.1))
        .collect();
    assert_eq!(sets.len(), 2);
    for set in sets {
        for capability in
            midhop_process::privileges::KEPT.into_iter().chain(midhop_process::privileges::STARTING)
        {
            assert!(set.contains(&capability.to_string()), "{capability} is not in {set}");
        }
    }
}

/// The rating of `systemd-analyze security`: 0 is nothing exposed, 10 is everything. The rest is
/// what interception requires: the capabilities of the start, `capset` and `bpf` for giving them up
/// and for congestion controls, the host's network with its address families, and `/proc/sys/net`.
const EXPOSURE_MAX: f64 = 1.7;

#[test]
fn the_unit_leaves_little_exposed() {
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/midhopd.service");
    expose_at_most(unit, EXPOSURE_MAX);
}

/// The rating of the data plane alone. systemd rates units and not processes, so the rated unit
/// states what the data plane still has while it serves, as `confinement` finds it.
const DATA_PLANE_EXPOSURE_MAX: f64 = 1.5;

#[test]
fn the_data_plane_leaves_less_exposed() {
    let stated = |line: &str| match line.split_once('=') {
        Some((key @ "CapabilityBoundingSet", _)) => format!("{key}="),
        Some(("AmbientCapabilities", _)) => String::new(),
        // The daemon does not permit itself either of these calls.
        Some(("SystemCallFilter", calls)) if calls.starts_with('@') => {
            "SystemCallFilter=@system-service\nSystemCallFilter=~@privileged bpf capset execve"
                .to_owned()
        }
        _ => line.to_owned(),
    };
    let lines: Vec<String> = UNIT.lines().map(stated).collect();
    let directory = tempfile::TempDir::new().expect("a directory");
    let unit = directory.path().join("midhopd.service");
    std::fs::write(&unit, lines.join("\n") + "\n").expect("a unit");
    expose_at_most(unit.to_str().expect("a name"), DATA_PLANE_EXPOSURE_MAX);
}

/// Compares what `systemd-analyze security` reports of a unit.
fn expose_at_most(unit: &str, most: f64) {
    let mut analyze = Command::new("systemd-analyze");
    let Ok(analyzed) = analyze.args(["security", "--offline=true", "--no-pager", unit]).output()
    else {
        return midhop_testkit::skipped("the exposure of a unit is told by systemd-analyze");
    };
    let table = String::from_utf8_lossy(&analyzed.stdout);
    let Some(score) = table.lines().find_map(|line| line.split_once("exposure level for ")) else {
        let errors = String::from_utf8_lossy(&analyzed.stderr);
        assert!(errors.contains("unrecognized option"), "{table}{errors}");
        return midhop_testkit::skipped("this systemd-analyze rates no files");
    };
    let score = score.1.split_whitespace().nth(1).and_then(|score| score.parse::<f64>().ok());
    let score = score.unwrap_or_else(|| panic!("no score in {table}"));
    println!("exposure of {unit}: {score}, at most {most}");
    assert!(score <= most, "{score} is more than {most}:\n{table}");
}
