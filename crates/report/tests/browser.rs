//! The page in a real browser: it draws every picture, complains about nothing, fits a telephone.
//!
//! Needs headless Chromium (Debian package `chromium`); without one the tests say that they are
//! skipped. The pages and pictures stay in the build directory's `tmp` for a look.

#![expect(clippy::disallowed_methods, reason = "a test writes the page that the browser opens")]

mod synthetic;

use midhop_report::{Options, html};
use std::path::{Path, PathBuf};
use std::process::Command;

const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// What the browser made of a page.
struct Seen {
    /// The document after its scripts have run.
    dom: String,
    /// Lines that the page wrote to the console, errors and warnings among them.
    console: Vec<String>,
}

/// The browser, or none with a line that says so.
fn browser(test: &str) -> Option<&'static str> {
    let found = BROWSERS.into_iter().find(|name| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    });
    if found.is_none() {
        println!("skipped: {test}: no Chromium here; install it with: apt-get install chromium");
    }
    found
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

fn write_page(name: &str, seeds: u64) -> PathBuf {
    let mut records = synthetic::records(seeds);
    if seeds == 1 {
        records[5]
            .validity
            .faults
            .push("link satellite: p99 lateness 4.1 ms, bound 1 ms".to_owned());
    }
    let options = Options::default().from_scenario("scenarios/geo-demo.toml");
    let page = html(&records, &options).expect("a page");
    let path = folder().join(name);
    std::fs::write(&path, page).expect("writable build directory");
    path
}

/// Opens `page` in a window of `width` × `height`, `dark` or light.
fn open(browser: &str, page: &Path, width: u32, height: u32, more: &[&str]) -> Seen {
    let profile = tempfile::tempdir().expect("a directory for the profile");
    let output = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            "--enable-logging=stderr",
            "--virtual-time-budget=20000",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--window-size={width},{height}"))
        .args(more)
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("the browser starts");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{browser} failed:\n{log}");
    Seen {
        dom: String::from_utf8_lossy(&output.stdout).into_owned(),
        console: log.lines().filter(|line| line.contains(":CONSOLE")).map(str::to_owned).collect(),
    }
}

/// Width and height of a PNG file, after its signature was checked.
fn png_size(path: &Path) -> (u32, u32) {
    let bytes = std::fs::read(path).expect("a screenshot");
    assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n");
    let number =
        |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    (number(16), number(20))
}

fn draws_everything(name: &str, seeds: u64, width: u32, height: u32, dark: bool) {
    let Some(browser) = browser(name) else { return };
    let page = write_page(&format!("{name}.html"), seeds);
    let scheme: &[&str] = if dark { &["--blink-settings=preferredColorScheme=0"] } else { &[] };
    let seen = open(browser, &page, width, height, &[scheme, &["--dump-dom"]].concat());
    assert!(seen.console.is_empty(), "the console says:\n{}", seen.console.join("\n"));
    // 3 comparisons, and per load goodput, window, round trip and the busiest queue.
    assert!(seen.dom.contains("data-drawn=\"15\""), "not every picture was drawn");
    let plots: Vec<&str> = seen.dom.split("<figure ").skip(1).collect();
    let drawn = plots.iter().filter(|plot| plot.contains("<svg")).count();
    assert_eq!(drawn, 15, "of {} pictures", plots.len());
    for plot in plots.iter().filter(|plot| plot.contains("<svg")) {
        let plot = plot.split("</figure>").next().unwrap_or_default();
        assert!(plot.matches("<path").count() >= 8, "an empty picture: {:?}", plot.get(..80));
        assert!(!plot.contains("NaN"), "a picture with coordinates that are no numbers");
    }
    let picture = folder().join(format!("{name}.png"));
    let shot = format!("--screenshot={}", picture.display());
    open(browser, &page, width, height, &[scheme, &[shot.as_str()]].concat());
    assert_eq!(png_size(&picture), (width, height));
}

#[test]
fn desktop() {
    draws_everything("desktop", 5, 1200, 6400, false);
}

#[test]
fn desktop_dark_single_seed() {
    draws_everything("desktop-dark", 1, 1200, 6400, true);
}

#[test]
fn telephone() {
    draws_everything("telephone", 1, 500, 9000, false);
}
