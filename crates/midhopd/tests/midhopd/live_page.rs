//! The live page in headless Chromium, on a busy gateway. The charts have axes and units, nothing
//! is loaded from elsewhere, and the browser's console is empty: on a desktop and on a telephone,
//! in light and in dark colours.
//!
//! The pictures stay in the build directory's `tmp`. With `MIDHOP_SCENE_S=120` the gateway works
//! for so long before they are made.

use crate::pages::{ADMIN, assert_published, json};
use crate::scene::Scene;
use crate::stage::{PATIENCE, until};
use midhop_testkit::BROWSER_OPTIONS;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// What the browser shows of the page.
struct Seen {
    dom: String,
    console: Vec<String>,
    /// Every address that was requested.
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

/// Opens the page at a port, in a window of this size, on the daemon's host.
fn open(scene: &Scene, browser: &str, port: u16, size: (u32, u32), more: &[String]) -> Seen {
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
        .arg(format!("http://127.0.0.1:{port}/"));
    let run = || command.output();
    let output = scene.stage.gateway.run(run).expect("entering").expect("the browser starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{browser} failed:\n{errors}");
    Seen {
        dom: String::from_utf8_lossy(&output.stdout).into_owned(),
        console: errors.lines().filter(|it| it.contains(":CONSOLE")).map(str::to_owned).collect(),
        requested: requested(&log, port),
    }
}

/// What the page requested, according to a log of the browser's network, which also contains the
/// browser's own requests.
fn requested(log: &Path, port: u16) -> Vec<String> {
    let text = std::fs::read_to_string(log).expect("the browser's log");
    let page = format!("http://127.0.0.1:{port}\"");
    let starts = text.split("\"initiator\":\"").skip(1).filter(|rest| rest.starts_with(&page));
    let urls = starts.filter_map(|rest| rest.split("\"url\":\"").nth(1)?.split('"').next());
    let mut urls: Vec<String> = urls.map(str::to_owned).collect();
    urls.sort();
    urls.dedup();
    urls
}

/// The texts of a chart's elements with a class.
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
    // Whatever a name contains is shown as text, and never read as markup.
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

    let seen = open(&scene, browser, ADMIN.1, (1280, 900), &["--dump-dom".to_owned()]);
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
        [("throughput", "Mbit/s"), ("used", " %"), ("rtt", "s"), ("loss", " %"), ("queue", "B")]
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
    // Values of zero are not shown.
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
        assert_eq!(
            open(&scene, browser, ADMIN.1, size, &more).console,
            Vec::<String>::new(),
            "{name}"
        );
        let bytes = std::fs::read(&picture).expect("a picture");
        assert!(bytes.starts_with(b"\x89PNG\r\n\x1a\n"), "{name}");
    }
    an_hour(&scene, browser);
}

/// The daemon's page with the history of an hour, as its button shows it.
fn an_hour(scene: &Scene, browser: &str) {
    let status = json(&scene.stage.gateway, "/status.json");
    let own = json(&scene.stage.gateway, "/history.json");
    let recorded = recorded(&status, &own);
    assert_published("history", &recorded);
    let replay = Replay::start(scene, recorded.to_string());
    let dump = "--dump-dom".to_owned();
    let seen = open(scene, browser, replay.0, (1280, 900), &[dump]);
    assert_eq!(seen.console, Vec::<String>::new());
    assert!(seen.dom.contains("data-span=\"hour\" aria-pressed=\"true\""), "it is not pressed");
    for chart in ["throughput", "used", "rtt", "loss", "flows"] {
        let axis = ["first", "x", "last"].map(|class| texts(&seen.dom, chart, class)).concat();
        assert_eq!(axis, ["−60 min", "−48 min", "−36 min", "−24 min", "−12 min", "now"], "{chart}");
    }
    // The maximum is 18 Mbit/s. The line reaches from the left end of the axis to the right, with a
    // gap where the link was away.
    let marks = texts(&seen.dom, "throughput", "y");
    assert_eq!(marks.last().map(String::as_str), Some("20.0 Mbit/s"), "{marks:?}");
    let lines = paths(&seen.dom, "throughput");
    assert_eq!(lines.len(), 2, "{lines:?}");
    let (first, last, points) = reach(&lines[0]);
    let width = last - first;
    assert!(points > 355 && width > 1000.0, "{points} points over {width} pixels");
    let away = paths(&seen.dom, "rtt");
    assert!(away.iter().any(|line| line.matches('M').count() == 2), "{away:?}");
    for (name, size, more) in [
        ("hour", (1280, 1500), &[][..]),
        ("hour-telephone", (520, 2600), &["--force-device-scale-factor=1.3"][..]),
    ] {
        let picture = folder().join(format!("live-page-{name}.png"));
        let mut more: Vec<String> = more.iter().map(|it| (*it).to_owned()).collect();
        more.push(format!("--screenshot={}", picture.display()));
        assert_eq!(open(scene, browser, replay.0, size, &more).console, Vec::<String>::new());
        let bytes = std::fs::read(&picture).expect("a picture");
        assert!(bytes.starts_with(b"\x89PNG\r\n\x1a\n"), "{name}");
    }
}

/// A history of one hour over a link with flows that begin and end, which was away for four
/// minutes. It has the form of the daemon's `own`, and its last sample is the daemon's present one.
fn recorded(status: &Value, own: &Value) -> Value {
    const SAMPLES: usize = 360;
    // The page takes a time later than the daemon's present one for that of an earlier daemon.
    let now = status["uptime_s"].as_f64().expect("a time");
    let age = |at: usize| (SAMPLES - 1 - at) as f64 * 10.0;
    let away = |at: usize| (200..224).contains(&at);
    let whole = |of: &dyn Fn(usize) -> u64| Value::from((0..SAMPLES).map(of).collect::<Vec<_>>());
    let part = |of: &dyn Fn(usize) -> Option<f64>| -> Value {
        (0..SAMPLES).map(of).collect::<Vec<_>>().into()
    };
    // Between 2 and 18 Mbit/s.
    let down = |at: usize| {
        let wave = (at as f64 / 28.0).sin() * (at as f64 / 91.0).cos();
        if away(at) { 0 } else { (10e6 + 8e6 * wave) as u64 }
    };
    let mut hour = serde_json::json!({
        "age_s": part(&|at| Some(age(at))),
        "at_s": part(&|at| Some(now - age(at))),
        "up_bit_per_s": whole(&|at| down(at) / 20),
        "down_bit_per_s": whole(&down),
        "flows": whole(&|at| if away(at) { 3 } else { 8 + (at as u64 / 15) % 9 }),
        "held_syns": whole(&|at| u64::from(away(at))),
        "buffered_bytes": whole(&|at| down(at) / 90),
        "legs": {},
    });
    for (number, name) in own["recent"]["legs"].as_object().expect("legs").keys().enumerate() {
        let rtt = if number == 0 { 0.004 } else { 0.56 };
        let here = |at: usize, value: f64| (!away(at)).then_some(value);
        hour["legs"][name.as_str()] = serde_json::json!({
            "sent_bit_per_s": whole(&down),
            "received_bit_per_s": whole(&|at| down(at) / 20),
            "rtt_s": part(&|at| here(at, rtt * (1.0 + 0.2 * (at as f64 / 11.0).sin().abs()))),
            "loss_ratio": part(&|at| here(at, 0.002 + 0.01 * (at as f64 / 40.0).cos().abs())),
            "out_of_order_ratio": part(&|at| here(at, 0.001)),
            "queued_bytes": whole(&|at| down(at) / 200),
        });
    }
    let mut recent = hour.clone();
    last_of(&mut recent, 30);
    serde_json::json!({ "recent": recent, "hour": hour })
}

/// Keeps the last samples of columns.
fn last_of(columns: &mut Value, samples: usize) {
    match columns {
        Value::Array(list) => drop(list.drain(..list.len() - samples)),
        Value::Object(keys) => keys.values_mut().for_each(|it| last_of(it, samples)),
        _ => {}
    }
}

/// The lines of a chart.
fn paths(dom: &str, chart: &str) -> Vec<String> {
    let figure = dom.split(&format!("id=\"chart-{chart}\"")).nth(1).unwrap_or_default();
    let figure = figure.split("</figure>").next().unwrap_or_default();
    let marked = figure.split("<path ").skip(1);
    marked.filter_map(|it| Some(it.split(" d=\"").nth(1)?.split('"').next()?.to_owned())).collect()
}

/// The position of a line's first point and last point, and the number of points.
fn reach(line: &str) -> (f64, f64, usize) {
    let points = line.split(['M', 'L']).filter(|it| !it.is_empty());
    let across: Vec<f64> = points.filter_map(|it| it.split(' ').next()?.parse().ok()).collect();
    (across[0], across[across.len() - 1], across.len())
}

/// Serves the daemon's page with another history, at a port of its own on the gateway, and presses
/// the button for the hour.
struct Replay(u16);

impl Replay {
    fn start(scene: &Scene, history: String) -> Self {
        let bind = || TcpListener::bind("127.0.0.1:0");
        let listener = scene.stage.gateway.run(bind).expect("entering").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let gateway = scene.stage.gateway.clone();
        // It ends with the test's process.
        std::thread::spawn(move || {
            gateway.enter().expect("entering");
            for stream in listener.incoming().flatten() {
                // A browser may leave at any time.
                let _ = answer(stream, &history);
            }
        });
        Self(port)
    }
}

/// Answers one request with the daemon's response.
fn answer(mut stream: TcpStream, history: &str) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut head = String::new();
    BufReader::new(&stream).read_line(&mut head)?;
    let path = head.split(' ').nth(1).unwrap_or("/").to_owned();
    let mut daemon = TcpStream::connect(SocketAddr::from(ADMIN))?;
    write!(daemon, "GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")?;
    let mut whole = String::new();
    daemon.read_to_string(&mut whole)?;
    let (head, body) = whole.split_once("\r\n\r\n").unwrap_or((&whole, ""));
    let press = "document.querySelector('[data-span=hour]').click();";
    let body = match path.split('?').next() {
        Some("/history.json") => history.to_owned(),
        Some("/page.js") => format!("{body}\n{press}\n"),
        _ => body.to_owned(),
    };
    let kept = head.lines().filter(|line| !line.to_lowercase().starts_with("content-length:"));
    let head = kept.collect::<Vec<_>>().join("\r\n");
    write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}
