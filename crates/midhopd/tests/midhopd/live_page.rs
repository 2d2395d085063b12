//! The live page in headless Chromium, on a gateway at work: drawn with axes and units, nothing loaded from elsewhere, nothing in
//! the console, on a desk and on a telephone, by day and by night.
//!
//! The pictures stay in the build directory's `tmp` for a look; `MIDHOP_SCENE_S=120` lets the gateway work for so long before.

use crate::pages::{ADMIN, assert_published, json};
use crate::scene::Scene;
use crate::stage::{PATIENCE, until};
use midhop_testkit::BROWSER_OPTIONS;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// What the browser made of the page.
struct Seen {
    dom: String,
    console: Vec<String>,
    /// Every address that was asked for.
    requested: Vec<String>,
}

fn browser() -> Option<&'static str> {
    let found = BROWSERS.into_iter().find(|name| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    });
    if found.is_none() {
        midhop_testkit::skipped("no Chromium here; install it with: apt-get install chromium");
    }
    found
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// Opens the page in a window whose pixels are so large, beside the daemon.
fn open(scene: &Scene, browser: &str, size: (u32, u32), more: &[String]) -> Seen {
    let profile = tempfile::tempdir().expect("a directory for the profile");
    let log = profile.path().join("net.json");
    let mut command = Command::new(browser);
    command
        .args(BROWSER_OPTIONS)
        .arg("--virtual-time-budget=8000")
        .arg(format!("--log-net-log={}", log.display()))
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--window-size={},{}", size.0, size.1))
        .args(more)
        .arg(format!("http://127.0.0.1:{}/", ADMIN.1));
    let run = || command.output();
    let output = scene.stage.gateway.run(run).expect("entering").expect("the browser starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{browser} failed:\n{errors}");
    Seen {
        dom: String::from_utf8_lossy(&output.stdout).into_owned(),
        console: errors.lines().filter(|it| it.contains(":CONSOLE")).map(str::to_owned).collect(),
        requested: requested(&log),
    }
}

/// What the page asked for, by a log of the browser's network, which also has what the browser asks for on its own.
fn requested(log: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(log).expect("the browser's log");
    let page = format!("http://127.0.0.1:{}\"", ADMIN.1);
    let starts = text.split("\"initiator\":\"").skip(1).filter(|rest| rest.starts_with(&page));
    let urls = starts.filter_map(|rest| rest.split("\"url\":\"").nth(1)?.split('"').next());
    let mut urls: Vec<String> = urls.map(str::to_owned).collect();
    urls.sort();
    urls.dedup();
    urls
}

/// What stands in the elements of a chart that have a class.
fn texts(dom: &str, chart: &str, class: &str) -> Vec<String> {
    let figure = dom.split(&format!("id=\"chart-{chart}\"")).nth(1).unwrap_or_default();
    let figure = figure.split("</figure>").next().unwrap_or_default();
    let start = format!("<text class=\"{class}\"");
    let marked = figure.split(&start).skip(1);
    marked.filter_map(|it| Some(it.split('>').nth(1)?.split('<').next()?.to_owned())).collect()
}

#[test]
fn the_live_page_shows_a_gateway_at_work() {
    let Some(browser) = browser() else { return };
    // What a name may hold is shown as it is, and never read as markup.
    let Some(scene) = Scene::begin("") else { return };
    let json = |path: &str| json(&scene.stage.gateway, path);
    let at_work = |status: &Value| {
        let d = &status["data_plane"];
        let flows = d["busiest"].as_array().is_some_and(|flows| {
            flows.iter().any(|flow| flow["limit_ratio"].as_f64() > Some(0.1))
                && flows.iter().any(|flow| flow["source"]["condition"].is_string())
        });
        flows
            && d["waiting"]["window"].as_u64() > Some(0)
            && d["limits_reached_total"]["source"].as_u64() > Some(0)
    };
    let begun = std::time::Instant::now();
    while !at_work(&json("/status.json")) {
        let late = begun.elapsed() > PATIENCE;
        assert!(!late, "not all that the page shows is there: {:#}", json("/status.json"));
        std::thread::sleep(Duration::from_millis(100));
    }
    until("there is some history", || {
        json("/history.json")["recent"]["at_s"].as_array().is_some_and(|it| it.len() >= 5)
    });
    assert_published("page", &json("/status.json"));
    assert_published("history", &json("/history.json"));
    let longer = std::env::var("MIDHOP_SCENE_S").ok().and_then(|it| it.parse().ok());
    std::thread::sleep(Duration::from_secs(longer.unwrap_or(0)));

    let seen = open(&scene, browser, (1280, 900), &["--dump-dom".to_owned()]);
    assert_eq!(seen.console, Vec::<String>::new());
    let own = format!("http://127.0.0.1:{}/", ADMIN.1);
    for part in ["page.css", "page.js", "status.json", "history.json"] {
        assert!(
            seen.requested.iter().any(|url| url.starts_with(&format!("{own}{part}"))),
            "{part}"
        );
    }
    let elsewhere: Vec<_> = seen.requested.iter().filter(|url| !url.starts_with(&own)).collect();
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
    for (chart, unit) in
        [("throughput", "Mbit/s"), ("used", " %"), ("rtt", " ms"), ("loss", " %"), ("queue", "B")]
    {
        let marks = texts(&seen.dom, chart, "y");
        assert!(
            marks.len() >= 3 && marks.last().is_some_and(|it| it.ends_with(unit)),
            "{chart}: {marks:?}"
        );
        let first = texts(&seen.dom, chart, "first");
        let last = texts(&seen.dom, chart, "last");
        assert_eq!(
            (&first[..], &last[..]),
            (&["−5 min".to_owned()][..], &["now".to_owned()][..]),
            "{chart}"
        );
    }
    for text in [
        "to clients",
        "to servers",
        "of its rate",
        "of its limit",
        "10.7.2.0/24",
        "10.0.1.0/24",
        "limits.flows_per_source",
        "connections: for the far end's window",
        "rejected by a rule",
        "far",
        "certificate ends",
        "round trip",
    ] {
        assert!(seen.dom.contains(text), "the page lacks \"{text}\"");
    }
    assert!(seen.dom.contains("(near-") || seen.dom.contains("(far-"), "no condition of a flow");
    // What is zero is not there.
    for text in ["ended: dead", "Multipath TCP", "TCP-MD5", "waits for memory"] {
        assert!(!seen.dom.contains(text), "\"{text}\" is zero, and shown");
    }
    // Headless windows are never narrower than 500 pixels; larger pixels make them so.
    for (name, size, more) in [
        ("desk", (1280, 2700), &[][..]),
        ("desk-dark", (1280, 2700), &["--blink-settings=preferredColorScheme=0"][..]),
        ("telephone", (520, 3600), &["--force-device-scale-factor=1.3"][..]),
    ] {
        let picture = folder().join(format!("live-page-{name}.png"));
        let mut more: Vec<String> = more.iter().map(|it| (*it).to_owned()).collect();
        more.push(format!("--screenshot={}", picture.display()));
        assert_eq!(open(&scene, browser, size, &more).console, Vec::<String>::new(), "{name}");
        let bytes = std::fs::read(&picture).expect("a picture");
        assert!(bytes.starts_with(b"\x89PNG\r\n\x1a\n"), "{name}");
    }
}
