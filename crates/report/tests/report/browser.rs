//! The page in a real browser: it draws every picture, logs no errors, and fits a telephone.
//!
//! Needs headless Chromium (Debian package `chromium`); without one the tests are reported as
//! skipped. The pages and pictures stay in the build directory's `tmp` for inspection.

#![expect(clippy::disallowed_methods, reason = "a test writes the page that the browser opens")]

use crate::chromium::{append, browser, folder, open, open_and_keep};
use crate::synthetic;
use midhop_report::{Options, html};
use std::path::PathBuf;

/// Three comparisons, and for each of three loads goodput, window, round trip and busiest queue.
const PICTURES: usize = 15;

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

fn draws_everything(name: &str, seeds: u64, dark: bool) {
    let Some(browser) = browser() else { return };
    let page = write_page(&format!("{name}.html"), seeds);
    let scheme: &[&str] = if dark { &["--blink-settings=preferredColorScheme=0"] } else { &[] };
    let seen = open_and_keep(browser, &page, (1200, 6400), &format!("{name}.png"), scheme);
    assert_eq!(seen.console, Vec::<String>::new());
    assert!(seen.dom.contains(&format!("data-drawn=\"{PICTURES}\"")), "some were not drawn");
    let plots: Vec<&str> = seen.dom.split("<figure ").skip(1).collect();
    let drawn: Vec<&&str> = plots.iter().filter(|plot| plot.contains("<svg")).collect();
    assert_eq!(drawn.len(), PICTURES, "of {} pictures", plots.len());
    for plot in drawn {
        let plot = plot.split("</figure>").next().unwrap_or_default();
        assert!(plot.matches("<path").count() >= 8, "an empty picture: {:?}", plot.get(..80));
        assert!(!plot.contains("NaN"), "a picture with coordinates that are no numbers");
    }
}

#[test]
fn desktop_light_five_seeds() {
    draws_everything("desktop", 5, false);
}

#[test]
fn desktop_dark_one_seed() {
    draws_everything("desktop-dark", 1, true);
}

/// Headless windows are never narrower than 500 pixels, so the page is in a frame of a telephone's
/// width and reports its layout to its parent.
#[test]
fn a_telephone_shows_everything_without_scrolling_sideways() {
    let Some(browser) = browser() else { return };
    let page = append(
        &write_page("telephone-plain.html", 1),
        "telephone-page.html",
        "<script>document.addEventListener('drawn', () => parent.postMessage([\
         document.querySelectorAll('figure svg').length, innerWidth, \
         document.documentElement.scrollWidth].join(' '), '*'))</script>",
    );
    let file = page.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    let frame = folder().join("telephone.html");
    std::fs::write(
        &frame,
        format!(
            "<!DOCTYPE html><body style=\"margin:0\"><script>addEventListener('message', \
             (event) => document.body.dataset.seen = event.data)</script>\
             <iframe src=\"{file}\" width=\"390\" height=\"9000\" style=\"border:0\"></iframe>"
        ),
    )
    .expect("writable build directory");
    let seen = open_and_keep(browser, &frame, (500, 9000), "telephone.png", &[]);
    assert_eq!(seen.console, Vec::<String>::new());
    let expected = format!("data-seen=\"{PICTURES} 390 390\"");
    let found = seen.dom.split("data-seen=").nth(1).and_then(|rest| rest.get(..20));
    assert!(seen.dom.contains(&expected), "pictures, width, width of content: {found:?}");
}

#[test]
fn every_picture_can_be_saved_as_svg_and_png() {
    let Some(browser) = browser() else { return };
    let page = append(
        &write_page("save-plain.html", 1),
        "save.html",
        "<script>document.addEventListener('drawn', () => {\
         const all = [...document.querySelectorAll('figure[id]')].map((figure) => figure.id);\
         const png = all.map((id) => midhopReport.picture(id, 'png'));\
         const svg = all.map((id) => midhopReport.picture(id, 'svg'));\
         const good = png.filter((file) => file.address.startsWith('data:image/png;base64,iVBORw0KGgo') \
         && file.address.length > 20000 && file.name.endsWith('.png')).length;\
         const addresses = svg.filter((file) => file.address.startsWith('blob:')).length;\
         document.body.dataset.saved = [all.length, good, addresses].join(' ');\
         })</script>",
    );
    let seen = open(browser, &page, 1200, 2000, &["--dump-dom"]);
    assert_eq!(seen.console, Vec::<String>::new());
    let found = seen.dom.split("data-saved=\"").nth(1).and_then(|rest| rest.split('"').next());
    let found: Vec<usize> =
        found.expect("an answer").split(' ').map(|n| n.parse().expect("a number")).collect();
    assert!(found[0] > PICTURES, "folded pictures can be saved too");
    assert_eq!(found, [found[0]; 3], "pictures, good PNGs, SVGs");
}

#[test]
fn a_record_that_tries_to_run_scripts_or_to_load_something_does_neither() {
    let Some(browser) = browser() else { return };
    let hostile = "</script><img src=https://example.invalid/x onerror=\"document.title='owned'\">";
    let mut record = synthetic::one();
    record.title = hostile.to_owned();
    record.cell.insert("setup".to_owned(), hostile.to_owned());
    record.transfers[0].name = hostile.to_owned();
    for series in &mut record.series {
        series.place = hostile.to_owned();
    }
    let plain = folder().join("hostile-plain.html");
    let text = html(&[record], &Options::default()).expect("a page");
    std::fs::write(&plain, text).expect("writable build directory");
    let page = append(
        &plain,
        "hostile.html",
        "<script>document.addEventListener('drawn', () => \
         document.body.dataset.images = document.images.length)</script>",
    );
    let seen = open(browser, &page, 1200, 3000, &["--dump-dom"]);
    assert_eq!(seen.console, Vec::<String>::new(), "a refused request is told on the console");
    assert!(!seen.dom.contains("<title>owned"));
    assert!(seen.dom.contains("data-images=\"0\""), "an image came in, or nothing was drawn");
}
