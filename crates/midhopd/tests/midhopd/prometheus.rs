//! Debian's Prometheus scrapes a busy gateway, evaluates the rules and alerts that are shipped, and
//! answers every query of the dashboard that is shipped.

use crate::scene::{Beside, Scene};
use crate::stage::PATIENCE;
use midhop_testbed::namespace::Namespace;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const DASHBOARD: &str = include_str!("../../../../packaging/grafana/midhopd.json");
/// The address of Prometheus in the gateway's namespace.
const SERVER: ([u8; 4], u16) = ([127, 0, 0, 1], 9090);
/// Panels that may be empty if there is no fault.
const MAY_BE_EMPTY: [&str; 0] = [];

fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/prometheus")
}

/// Whether Prometheus is installed; without it the test is skipped.
fn is_here() -> bool {
    let runs = |program| {
        Command::new(program).arg("--version").output().is_ok_and(|it| it.status.success())
    };
    let here = runs("prometheus") && runs("promtool");
    if !here {
        midhop_testkit::skipped("no Prometheus here; install it with: apt-get install prometheus");
    }
    here
}

#[test]
fn the_rules_are_ones_and_their_tests_pass() {
    if !is_here() {
        return;
    }
    for arguments in [
        &["check", "rules", "--lint-fatal", "midhopd.rules.yml", "midhopd.alerts.yml"][..],
        &["check", "config", "prometheus.yml"],
        &["test", "rules", "tests.yml"],
    ] {
        let output = Command::new("promtool").args(arguments).current_dir(shipped()).output();
        let output = output.expect("promtool starts");
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        // It succeeds although it reports some faults of rules.
        assert!(output.status.success() && !text.contains("FAILED"), "{arguments:?}: {text}");
    }
}

/// Each alert has a test in which it fires and one in which it does not.
#[test]
fn every_alert_is_tested_both_ways() {
    let read = |name: &str| std::fs::read_to_string(shipped().join(name)).expect("a file");
    let (alerts, tests) = (read("midhopd.alerts.yml"), read("tests.yml"));
    let names: Vec<_> =
        alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(names.len() > 8, "{names:?}");
    for name in names {
        let fires = tests.contains(&format!("labels: '{{alertname=\"{name}\"}}'"));
        assert!(fires, "no case in which {name} fires");
        let rests = tests.lines().any(|line| {
            line.contains(&format!("alertname: {name},")) && line.contains("exp_alerts: []")
        });
        assert!(rests, "no case in which {name} does not fire");
    }
}

/// The response of Prometheus to a query.
fn ask(namespace: &Namespace, query: &str) -> Option<Value> {
    let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(SocketAddr::from(SERVER))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        // HTTP/1.0 has no chunks.
        write!(stream, "GET /api/v1/query?query={encoded} HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = namespace.run(ask).expect("entering").ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

/// The number of series of a query's result. Fails if the query has an error.
fn series(namespace: &Namespace, query: &str) -> Option<usize> {
    let answer = ask(namespace, query)?;
    assert_eq!(answer["status"], "success", "{query}: {answer}");
    answer["data"]["result"].as_array().map(Vec::len)
}

/// The queries of a dashboard, each with its panel. Variables are replaced.
fn queries(dashboard: &Value) -> Vec<(String, String)> {
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        let title = panel["title"].as_str().expect("a title");
        for target in panel["targets"].as_array().into_iter().flatten() {
            let text = target["expr"].as_str().expect("a query");
            let mut query = text.to_owned();
            for (variable, value) in [
                ("$__rate_interval", "10s"),
                ("$job", "midhopd"),
                ("$instance", ".*"),
                ("$leg", ".*"),
            ] {
                query = query.replace(variable, value);
            }
            assert!(!query.contains('$'), "{title}: an unknown variable in {text}");
            queries.push((title.to_owned(), query));
        }
    }
    queries
}

#[test]
fn prometheus_scrapes_a_gateway_at_work_and_answers_the_dashboard() {
    if !is_here() {
        return;
    }
    let Some(mut scene) = Scene::begin("") else { return };
    let place = tempfile::tempdir().expect("a directory");
    for rules in ["midhopd.rules.yml", "midhopd.alerts.yml"] {
        std::fs::copy(shipped().join(rules), place.path().join(rules)).expect("a copy");
    }
    let config =
        std::fs::read_to_string(shipped().join("prometheus.yml")).expect("a configuration");
    // The shipped configuration, with shorter intervals.
    let faster = "scrape_interval: 1s\n  evaluation_interval: 1s";
    let config = config.replace("scrape_interval: 15s", faster);
    assert!(config.contains(faster));
    let file = place.path().join("prometheus.yml");
    std::fs::write(&file, config).expect("a configuration");
    let log = std::fs::File::create(place.path().join("log")).expect("a log");
    let mut command = Command::new("prometheus");
    command
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", place.path().join("data").display()))
        .args(["--web.listen-address=127.0.0.1:9090", "--log.level=warn"])
        .stdin(Stdio::null())
        .stderr(log);
    let mut prometheus = Beside::start(&scene.stage.gateway, &mut command);
    let text = || std::fs::read_to_string(place.path().join("log")).unwrap_or_default();
    let mut wait = |scene: &Scene, what: &str, query: &str, least: usize| {
        let begun = Instant::now();
        while series(&scene.stage.gateway, query).is_none_or(|count| count < least) {
            let late = begun.elapsed() > PATIENCE * 2;
            assert!(!late && !prometheus.has_ended(), "waited in vain: {what}\n{}", text());
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    wait(&scene, "it is scraped", "up{job=\"midhopd\"} == 1", 1);
    wait(&scene, "it has counted for a while", "count_over_time(midhop_flows[20s]) >= 6", 1);
    wait(&scene, "flows move", "rate(midhop_relayed_bytes_total[10s]) > 0", 2);
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let queries = queries(&dashboard);
    assert!(queries.len() > 25, "{}", queries.len());
    for (title, query) in &queries {
        let least = usize::from(!MAY_BE_EMPTY.contains(&title.as_str()));
        wait(&scene, &format!("{title}: {query}"), query, least);
    }
    // The rules' results here: the rate of a source that moves bytes.
    wait(&scene, "a leg is used", "midhop:leg_utilisation:ratio{leg=\"wan0\"} > 0.01", 1);
    wait(
        &scene,
        "a source is counted",
        "midhop:source:bits_per_second{source=\"10.7.1.0/24\"} > 0",
        1,
    );
    wait(
        &scene,
        "a limit let flows pass by",
        "midhop_limits_reached_total{limit=\"source\"} > 0",
        1,
    );
    // Only what happens after the first scrape is an increase.
    scene.pass_by();
    wait(
        &scene,
        "the alert for that is on its way",
        "ALERTS{alertname=\"MidhopdBypassByLimit\"}",
        1,
    );
    wait(&scene, "a certificate ends", "midhop_certificate_expires_timestamp_seconds > time()", 2);
    wait(
        &scene,
        "a peer's certificate ends",
        "midhop_peer_certificate_expires_timestamp_seconds > time()",
        1,
    );
    let firing = ask(&scene.stage.gateway, "ALERTS{alertstate=\"firing\"}").expect("an answer");
    assert_eq!(firing["data"]["result"], serde_json::json!([]), "nothing fires at once");
    metrics_are_known(&queries);
}

/// Every metric in the queries is one of the daemon's.
fn metrics_are_known(queries: &[(String, String)]) {
    let page = include_str!("../../../../docs/midhopd.md");
    let known: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `midhop_")?.split_once('`'))
        .map(|(name, _)| name)
        .collect();
    let rules = std::fs::read_to_string(shipped().join("midhopd.rules.yml")).expect("rules");
    let alerts = std::fs::read_to_string(shipped().join("midhopd.alerts.yml")).expect("alerts");
    let texts = queries.iter().map(|(_, query)| query.as_str()).chain([rules.as_str(), &alerts]);
    for text in texts {
        for rest in text.split("midhop_").skip(1) {
            let end = rest.find(|it: char| !it.is_ascii_alphanumeric() && it != '_');
            let name = &rest[..end.unwrap_or(rest.len())];
            assert!(known.contains(name), "midhop_{name} is none of the daemon's");
        }
    }
}
