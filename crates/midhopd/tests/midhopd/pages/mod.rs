//! What a daemon's admin page shows.
use crate::program::midhopd;
use crate::stage::{PATIENCE, until};
use midhop_testbed::namespace::Namespace;
use midhop_testkit::{quantities_as_text, refuse_other_keys};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// The address of the page, for every daemon.
pub const ADMIN: ([u8; 4], u16) = ([127, 0, 0, 1], 9310);

/// A page of the daemon in a namespace.
pub fn page(namespace: &Namespace, path: &str) -> String {
    try_page(namespace, path).expect("the daemon answers")
}

/// Waits until the present data plane takes new flows.
pub fn wait_until_served(namespace: &Namespace) {
    until("it serves", || {
        let answer = try_page(namespace, "/healthz");
        answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
    });
}

fn try_page(namespace: &Namespace, path: &str) -> std::io::Result<String> {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(SocketAddr::from(ADMIN))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    namespace.run(ask).expect("entering")
}

/// The JSON of a page.
pub fn json(namespace: &Namespace, path: &str) -> Value {
    let answer = page(namespace, path);
    let body = answer.split("\r\n\r\n").nth(1).expect("a body");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

/// Fails unless `answer` conforms to the schema of `subject`, without other keys, and without a
/// quantity as text.
pub fn assert_published(subject: &str, answer: &Value) {
    let printed = midhopd().args(["schema", "--of", subject]).output().expect("a schema");
    let mut schema: Value = serde_json::from_slice(&printed.stdout).expect("JSON");
    let validator = |schema: &Value| jsonschema::validator_for(schema).expect("a schema");
    assert!(!validator(&schema).is_valid(&serde_json::json!({ "format": "new" })), "{subject}");
    refuse_other_keys(&mut schema);
    let schema = validator(&schema);
    let faults: Vec<_> =
        schema.iter_errors(answer).map(|it| format!("{}: {it}", it.instance_path())).collect();
    assert!(faults.is_empty(), "{faults:?} in {answer}");
    assert_eq!(quantities_as_text(answer, &[]), Vec::<String>::new(), "{subject}");
}

/// A metric without labels.
pub fn metric(page: &str, name: &str) -> u64 {
    let line = page.lines().find(|line| line.starts_with(&format!("{name} ")));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    value.unwrap_or_else(|| panic!("no {name} in {page}")) as u64
}

/// A metric of each worker.
pub fn of_workers(page: &str, name: &str) -> Vec<u64> {
    let start = format!("{name}{{worker=");
    let lines = page.lines().filter(|line| line.starts_with(&start));
    let value = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
    lines.map(|line| value(line).expect("a number") as u64).collect()
}

/// Unit: seconds. The bound below which this part of all samples lies, from a histogram of each
/// worker.
pub fn quantile(page: &str, name: &str, part: f64) -> f64 {
    let mut bounds: Vec<(f64, u64)> = Vec::new();
    let start = format!("{name}_bucket{{");
    for line in page.lines().filter(|line| line.starts_with(&start)) {
        let (labels, count) = line.rsplit_once(' ').expect("a count");
        let bound = labels.split("le=\"").nth(1).and_then(|it| it.split('"').next());
        let bound = match bound.expect("a bound") {
            "+Inf" => f64::INFINITY,
            bound => bound.parse().expect("a number"),
        };
        let count: u64 = count.parse().expect("a count");
        match bounds.iter_mut().find(|(known, _)| *known == bound) {
            Some((_, sum)) => *sum += count,
            None => bounds.push((bound, count)),
        }
    }
    bounds.sort_by(|one, other| one.0.total_cmp(&other.0));
    let all = bounds.last().map_or(0, |(_, count)| *count) as f64;
    let found = bounds.iter().find(|(_, count)| *count as f64 >= part * all);
    found.map_or(0.0, |(bound, _)| *bound)
}
