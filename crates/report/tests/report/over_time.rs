//! Runs over time: those of each choice drawn in one picture, in a real browser.
//!
//! The browser needs headless Chromium (Debian package `chromium`); without one its tests are
//! reported as skipped. The figures are synthetic: nothing here was measured.

#![expect(clippy::disallowed_methods, reason = "a test writes the page that the browser opens")]

use crate::chromium::{append, browser, folder, open_and_keep};
use crate::many::Many;
use crate::sample::{Ran, STUDY};
use midhop_experiment::record::Record;
use midhop_report::Trace;
use midhop_study::Measured;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Draws all setups in one picture and reports the result: names of curves; colours, dashes and
/// markers that two of them share; names in the legend; commands; words that are cut off; whether
/// the page is wider than its window; and for a proxied setup its round trip by each choice of the
/// sender.
const LOOK: &str = "<script>document.addEventListener('drawn', () => {\
    const figure = document.getElementById('trace');\
    const choose = (id, value) => {\
      const select = document.getElementById(id);\
      select.value = value;\
      select.dispatchEvent(new Event('change'));\
    };\
    const lines = () => midhopReport.chart('trace').getOption().series\
      .filter((one) => one.type === 'line' && one.name !== 'physical limit');\
    const trip = () => Math.max(...lines().filter((one) => one.name === 'midhopd, BBR')\
      .filter((one) => one.yAxisIndex === 2).flatMap((one) => one.data.map((point) => point[1])));\
    choose('beside', 'along setup');\
    const longest = trip();\
    choose('sender', 'own');\
    const own = trip();\
    choose('sender', '');\
    const names = [...new Set(lines().map((one) => one.name))];\
    const alike = ['color', 'dash', 'symbol'].filter((what) => {\
      const looks = names.map((name) => lines().find((one) => one.name === name));\
      const of = { color: (it) => it.lineStyle.color, dash: (it) => JSON.stringify(it.lineStyle.type), symbol: (it) => it.symbol };\
      return new Set(looks.map(of[what])).size < names.length;\
    });\
    const edge = figure.querySelector('svg').getBoundingClientRect();\
    const cut = [...figure.querySelectorAll('svg text')].filter((text) => {\
      const box = text.getBoundingClientRect();\
      return box.width > 0 && (box.right > edge.right + 0.5 || box.left < edge.left - 0.5);\
    }).map((text) => text.textContent);\
    const answer = JSON.stringify({\
      names, alike, cut, longer: longest > own,\
      legend: midhopReport.chart('trace').getOption().legend[0].data.map((it) => it.name),\
      title: figure.querySelector('h4').textContent,\
      commands: figure.querySelectorAll('.again').length,\
      saved: midhopReport.picture('trace', 'png').address.length > 20000,\
      fits: document.documentElement.scrollWidth <= innerWidth,\
    });\
    document.body.dataset.seen = answer;\
    parent.postMessage(answer, '*');\
    })</script>";

#[test]
fn all_cells_along_an_axis_are_laid_over_each_other() {
    let Some(browser) = browser() else { return };
    let plain = folder().join("along-plain.html");
    std::fs::write(&plain, Ran::of(STUDY).page()).expect("writable build directory");
    let page = append(&plain, "along.html", LOOK);
    // Headless windows are never narrower than 500 pixels, so the page is in a frame.
    let frame = folder().join("along-telephone.html");
    let framed = "<!DOCTYPE html><body style=\"margin:0\"><script>addEventListener('message', (event) => \
                  document.body.dataset.seen = event.data)</script>\
                  <iframe src=\"along.html\" width=\"400\" height=\"7000\" style=\"border:0\"></iframe>";
    std::fs::write(&frame, framed).expect("writable build directory");
    for (page, width, height) in [(&page, 1200, 4000), (&frame, 500, 7000)] {
        let picture = format!("along-{width}.png");
        let found = open_and_keep(browser, page, (width, height), &picture, &[]);
        assert_eq!(found.console, Vec::<String>::new());
        // The first attribute is taken: that of the page itself, or of the page around the frame.
        let answer = found.dom.split("data-seen=\"").nth(1).and_then(|it| it.split('"').next());
        let answer = answer.expect("an answer").replace("&quot;", "\"").replace("&amp;", "&");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        let names = ["CUBIC end to end", "bbr", "midhop-hybla-plus", "midhopd, BBR"];
        assert_eq!(answer["names"], json!(names), "{answer}");
        for name in names {
            assert!(
                answer["legend"].as_array().is_some_and(|it| it.contains(&json!(name))),
                "{answer}"
            );
        }
        assert_eq!((&answer["alike"], &answer["cut"]), (&json!([]), &json!([])), "{answer}");
        for what in ["longer", "saved", "fits"] {
            assert_eq!(answer[what], true, "{what}: {answer}");
        }
        assert_eq!(answer["commands"], 4, "{answer}");
        let title = answer["title"].as_str().expect("a title");
        assert!(title.ends_with("each configuration, seed 1"), "{title}");
    }
}

/// The runs on the page of a scenario of 9 delays and 12 setups: more than a page can have.
fn runs() -> Vec<Value> {
    let delays: Vec<String> = (1..=9).map(|it| format!("\"{it} ms\"")).collect();
    let many = Many::of(12, &delays.join(", "));
    let trace = |record: Record| Trace::of("many", &record).expect("samples");
    let traces: Vec<Trace> = many.records().map(trace).collect();
    assert_eq!(traces.len(), 108);
    let data = many.data(&Measured::default(), &traces);
    data["traces"].as_array().expect("runs").clone()
}

#[test]
fn of_too_many_runs_those_of_every_choice_stay_together() {
    let mut setups: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for run in runs() {
        let label = |axis: &str| run["cell"][axis].as_str().expect("a label").to_owned();
        setups.entry(label("links.l.delay")).or_default().insert(label("setup"));
    }
    let delays: Vec<&str> = setups.keys().map(String::as_str).collect();
    assert_eq!(delays, ["1 ms", "2 ms", "4 ms", "6 ms", "8 ms"], "spread over all");
    assert!(setups.values().all(|it| it.len() == 12), "{setups:?}");
}
