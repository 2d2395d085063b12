//! Pages in headless Chromium: opened and inspected, after changes by the test.
//!
//! The pages and pictures stay in the build directory's `tmp` for inspection.

use midhop_testkit::BROWSER_OPTIONS;
use std::path::{Path, PathBuf};
use std::process::Command;

const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// The result of opening a page.
pub struct Seen {
    /// The document after its scripts have run.
    pub dom: String,
    /// The lines that the page wrote to the console, including errors and warnings.
    pub console: Vec<String>,
}

/// The browser; without one the test is skipped.
pub fn browser() -> Option<&'static str> {
    let found = BROWSERS.into_iter().find(|name| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    });
    if found.is_none() {
        midhop_testkit::skipped("no Chromium here; install it with: apt-get install chromium");
    }
    found
}

pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// Opens `page` in a window of `width` × `height` pixels.
pub fn open(browser: &str, page: &Path, width: u32, height: u32, more: &[&str]) -> Seen {
    let profile = tempfile::tempdir().expect("a directory for the profile");
    let output = Command::new(browser)
        .args(BROWSER_OPTIONS)
        .arg("--virtual-time-budget=20000")
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

/// Opens `page` as [`open`] does, and keeps a picture of this name of the whole window.
pub fn open_and_keep(
    browser: &str,
    page: &Path,
    (width, height): (u32, u32),
    picture: &str,
    more: &[&str],
) -> Seen {
    let picture = folder().join(picture);
    let shot = format!("--screenshot={}", picture.display());
    // One start of the browser does both.
    let seen = open(browser, page, width, height, &[&["--dump-dom", &shot], more].concat());
    assert_eq!(png_size(&picture), (width, height));
    seen
}

/// Width and height of a PNG file, after its signature was checked.
fn png_size(path: &Path) -> (u32, u32) {
    let bytes = std::fs::read(path).expect("a screenshot");
    assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n");
    let number =
        |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    (number(16), number(20))
}

/// A copy of a page with additions, which a test then opens.
pub fn append(page: &Path, name: &str, more: &str) -> PathBuf {
    let text = std::fs::read_to_string(page).expect("the page") + more;
    let path = folder().join(name);
    std::fs::write(&path, text).expect("writable build directory");
    path
}
