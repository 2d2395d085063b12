//! Pairs of proxies with a tunnel between them, from a scenario: on real kernels and in virtual time.
//!
//! Figures are compared with physical limits and with each other, never with this machine's speed.

use midhop_experiment::record::{LegResult, Record};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A lossy link of 20 Mbit/s and 2 × 50 ms between two proxies, and a transfer over it.
fn scenario(near: &str, transfer: &str) -> String {
    format!(
        "title = \"a test\"\nduration = \"60 s\"\n\
         [nodes]\nclient = {{}}\nterminal = {{ pep = \"near\" }}\n\
         gateway = {{ pep = \"far\" }}\nserver = {{}}\n\
         [links.lan]\nbetween = [\"client\", \"terminal\"]\n\
         [links.satellite]\nbetween = [\"terminal\", \"gateway\"]\nrate = \"20 Mbit/s\"\n\
         delay = \"50 ms\"\ndown = {{ loss = 0.02 }}\n\
         [links.internet]\nbetween = [\"gateway\", \"server\"]\nrate = \"1 Gbit/s\"\n\
         delay = \"5 ms\"\n\
         [peps.near]\n{near}\n[peps.far]\n\
         [transfers.file]\nfrom = \"server\"\nto = \"client\"\n{transfer}\n"
    )
}

const PAIR: &str = "peers.gw = { node = \"gateway\" }\nrules = [{ tunnel = \"gw\" }]";

fn midhop(place: &Path, runner: &str, text: &str, more: &[&str]) -> Output {
    let file = place.join("test.toml");
    std::fs::write(&file, text).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_midhop"));
    command.args([runner, "run", "--json"]).args(more).arg(file);
    command.env("MIDHOP_STATE_DIR", place.join("state")).stdin(Stdio::null());
    command.output().expect("midhop runs")
}

/// A run on kernels; none where there is no daemon.
fn run(text: &str) -> Option<(Option<i32>, Option<Record>, String)> {
    let daemon = Path::new(env!("CARGO_BIN_EXE_midhop")).with_file_name("midhopd");
    if !daemon.is_file() {
        midhop_testkit::skipped("there is no midhopd; cargo build -p midhopd");
        return None;
    }
    let place = tempfile::tempdir().expect("a directory");
    // On a busy machine packets are late; these tests also hold for late packets.
    let output = midhop(place.path(), "lab", text, &["--lateness", "10 s"]);
    let record = serde_json::from_slice(&output.stdout).ok();
    if record.is_some() {
        crate::records::assert_published(&String::from_utf8_lossy(&output.stdout));
    }
    let left = std::fs::read_dir(place.path().join("state")).into_iter().flatten().flatten();
    assert_eq!(left.filter(|entry| entry.path().is_dir()).count(), 0, "nothing is left behind");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    Some((output.status.code(), record, errors))
}

fn leg<'r>(record: &'r Record, node: &str, link: &str) -> &'r LegResult {
    let mut found = record.legs.iter().filter(|leg| leg.node == node && leg.link == link);
    let leg = found.next().unwrap_or_else(|| panic!("{node}.{link}: {:?}", record.legs));
    assert!(found.next().is_none(), "{:?}", record.legs);
    leg
}

#[test]
fn a_pair_carries_a_file_and_the_record_shows_it() {
    // Repaired data is not retransmitted.
    let pair = PAIR.replace("gateway\"", "gateway\", repair = \"off\"");
    let Some((code, record, errors)) = run(&scenario(&pair, "bytes = \"1 MB\"")) else { return };
    assert_eq!(code, Some(0), "{errors}");
    let record = record.expect("a record");
    assert_eq!(record.validity.faults, Vec::<String>::new());
    let transfer = &record.transfers[0];
    assert!(transfer.complete && transfer.bytes.get() == 1_000_000, "{:?}", transfer.flows);
    let flow = &transfer.flows[0];
    assert!(flow.hash_sent.is_some() && flow.hash_sent == flow.hash_received, "{flow:?}");
    let limit = transfer.limit.as_ref().expect("this path has a limit");
    assert!(limit.efficiency > 0.0 && limit.efficiency <= 1.0, "{limit:?}");
    // The satellite leg is the tunnel, without any TCP; the other legs are TCP.
    let down = leg(&record, "gateway", "satellite");
    assert_eq!(down.tunnel.as_deref(), Some("terminal"));
    assert!(down.bytes.get() >= 1_000_000, "{down:?}");
    assert!(down.rtt_min >= Some(midhop_units::Duration::from_ms(100)), "{down:?}");
    let up = leg(&record, "terminal", "satellite");
    assert_eq!(up.tunnel.as_deref(), Some("gateway"));
    assert!(up.bytes.get() > 0 && up.bytes.get() < 100_000, "{up:?}");
    for (node, link) in [("terminal", "lan"), ("gateway", "internet")] {
        assert_eq!(leg(&record, node, link).tunnel, None);
    }
    let lost = record.links.iter().find(|it| it.name == "satellite" && it.direction == "down");
    let lost = lost.and_then(|link| link.drops.get("loss").copied()).unwrap_or(0);
    assert!(lost > 0 && down.retransmissions > 0, "{lost} lost: {down:?}");
    // The tunnel existed before the run began: its handshake is not part of any flow.
    assert!(flow.start < midhop_units::Duration::from_s(5), "{flow:?}");
}

#[test]
fn a_tunnel_that_carries_nothing_makes_a_run_invalid() {
    let elsewhere = PAIR.replace("tunnel", "match.destination_port = 1, tunnel");
    let Some((code, record, errors)) = run(&scenario(&elsewhere, "bytes = \"10 kB\"")) else {
        return;
    };
    assert_eq!(code, Some(1), "{errors}");
    let faults = record.expect("a record").validity.faults;
    assert!(faults.iter().any(|it| it.contains("no flow went by the tunnel")), "{faults:?}");
}

/// Three proxies in a row that only split, from the shipped scenario: each has its two legs.
#[test]
fn proxies_in_a_row_each_split() {
    let chain = include_str!("../../../../scenarios/chain.toml");
    let short = chain.replace("270 ms", "27 ms").replace("100 ms", "10 ms");
    let file = short.replace("bytes = \"20 MB\"", "bytes = \"500 kB\"");
    let text = file[..file.find("[vary.setup]").expect("an axis")]
        .replace("terminal = {}", "terminal = { pep = \"user\" }")
        .replace("gateway = {}", "gateway = { pep = \"air\" }")
        .replace("exchange = {}", "exchange = { pep = \"edge\" }");
    let Some((code, record, errors)) = run(&text) else { return };
    assert_eq!(code, Some(0), "{errors}");
    let record = record.expect("a record");
    assert!(record.transfers[0].complete, "{:?}", record.transfers[0].flows);
    for (node, link) in [("terminal", "lan"), ("gateway", "satellite"), ("exchange", "haul")] {
        let leg = leg(&record, node, link);
        assert!(leg.bytes.get() >= 500_000, "{leg:?}");
    }
}

/// The same file in virtual time: a record with the same tunnels. The error for a peer that is no
/// node names its key.
#[test]
fn a_pair_runs_in_virtual_time_by_the_same_file() {
    let place = tempfile::tempdir().expect("a directory");
    let output = midhop(place.path(), "sim", &scenario(PAIR, "bytes = \"1 MB\""), &[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let record: Record = serde_json::from_slice(&output.stdout).expect("a record");
    assert!(record.transfers[0].complete, "{:?}", record.transfers[0]);
    let tunnel = |leg: &&LegResult| leg.node == "gateway" && leg.tunnel.is_some();
    let down = record.legs.iter().find(tunnel).expect("a tunnel");
    assert!(down.bytes.get() >= 1_000_000 && down.retransmissions > 0, "{down:?}");

    let elsewhere = "peers.gw = { address = \"192.0.2.1:443\" }\nrules = [{ tunnel = \"gw\" }]\n\
        tunnel = { certificate = \"/c\", key = \"/k\", authority = \"/a\" }";
    let output = midhop(place.path(), "sim", &scenario(elsewhere, "bytes = \"1 MB\""), &[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{errors}");
    assert!(errors.contains("test.toml:20:7: peps.near.peers.gw"), "{errors}");
    assert!(errors.contains("hint: run it with `midhop lab run`"), "{errors}");
}

#[test]
fn what_the_daemon_would_refuse_of_a_tunnel_is_reported_before_anything_starts() {
    let place = tempfile::tempdir().expect("a directory");
    for (near, key) in [
        (PAIR.replace("gateway\"", "gateway\", window = \"1 B\""), "peps.near.peers.gw.window"),
        (PAIR.replace("rules = [", "rules = [{ tunnel = \"wg\" }, "), "peps.near.rules.0.tunnel"),
        (PAIR.replace("node =", "nodes ="), "peps.near.peers.gw.nodes"),
    ] {
        let text = scenario(&near, "bytes = \"1 MB\"");
        let output = midhop(place.path(), "lab", &text, &[]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{errors}");
        assert!(errors.contains(key) && errors.contains("test.toml:2"), "{errors}");
        assert!(!place.path().join("state").exists(), "nothing was to start");
    }
}
