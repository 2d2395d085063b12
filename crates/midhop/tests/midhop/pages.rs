//! Pages of the built-in studies, made from simulated runs and opened in a browser.
//!
//! The browser needs headless Chromium (Debian package `chromium`); without one the test is
//! reported as skipped. The fastest cells of each study run, so that its pictures have their real
//! names and figures.

#[path = "../../../report/tests/report/chromium/mod.rs"]
mod chromium;

use chromium::{append, browser, folder, open, open_and_keep};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every study for the simulator, and cheap cells of it.
const STUDIES: [(&str, &[&str]); 5] = [
    ("ntn-placement", &["download:reading=b,loss=4", "thin:loss=4"]),
    ("geo-leo-variants", &["pair", "leo:sky=iridium,part=load"]),
    ("geo-onoff", &["download:loss=independent,pep=off,congestion=hybla"]),
    ("far-proxy", &["conditions:satellite=idle"]),
    ("pepsal-multiflow", &["single:reading=each-hop,load=page", "many:flows=1"]),
];

/// The report of a page about itself once everything is drawn: its pictures, those that were drawn,
/// those in which a cell is shown with the command that repeats it, the most curves or bars of one,
/// what looks alike in one, with colours and without, words that are cut off, and whether the page
/// is wider than its window.
const LOOK: &str = "<script>document.addEventListener('drawn', () => {\
    const all = [...document.querySelectorAll('figure[id]')];\
    let told = 0, most = 0;\
    const alike = [], cut = [];\
    for (const figure of all) {\
      const chart = midhopReport.chart(figure.id);\
      if (!chart) continue;\
      const shown = chart.getOption().series;\
      const dataIndex = (shown[0].data || []).findIndex((it) => it !== null);\
      if (dataIndex >= 0) chart.dispatchAction({ type: 'showTip', seriesIndex: 0, dataIndex });\
      if (/--seeds 1 --cell/.test(figure.querySelector('.again')?.textContent)) told += 1;\
      const known = [new Map(), new Map(), new Map()];\
      const own = shown.filter((one) => one.name !== 'physical limit' && (one.type === 'bar' || one.type === 'line'));\
      for (const one of own) {\
        const looks = one.type === 'bar'\
          ? [one.itemStyle.color, JSON.stringify(one.itemStyle.decal), '']\
          : [one.lineStyle.color, JSON.stringify(one.lineStyle.type), one.symbol];\
        looks.forEach((look, at) => {\
          if (look && known[at].has(look) && known[at].get(look) !== one.name) {\
            alike.push(`${figure.id}: ${one.name} as ${known[at].get(look)}`);\
          }\
          known[at].set(look, one.name);\
        });\
      }\
      most = Math.max(most, new Set(own.map((one) => one.name)).size);\
      const edge = figure.querySelector('svg').getBoundingClientRect();\
      for (const text of figure.querySelectorAll('svg text')) {\
        const box = text.getBoundingClientRect();\
        if (box.width > 0 && (box.right > edge.right + 0.5 || box.left < edge.left - 0.5)) cut.push(text.textContent);\
      }\
    }\
    parent.postMessage({\
      page: document.title, pictures: all.length, drawn: all.filter((it) => it.querySelector('svg')).length,\
      told, most, alike, cut, fits: document.documentElement.scrollWidth <= innerWidth,\
    }, '*');\
    })</script>";

/// The page of a study of which only `cells` run, once each.
fn page(place: &Path, study: &str, cells: &[&str]) -> PathBuf {
    let to = place.join(study);
    let mut command = Command::new(env!("CARGO_BIN_EXE_midhop"));
    command.args(["reproduce", study, "--in", "sim", "--seeds", "1", "--report"]).arg(&to);
    let output = command.args(cells.iter().flat_map(|cell| ["--cell", cell])).output();
    let output = output.expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    // One run of a cell decides no claim that depends on chance; the others may be decided either
    // way.
    assert!(matches!(output.status.code(), Some(0 | 2)), "{study}: {errors}");
    to.join(format!("{study}.html"))
}

/// All pages in one window, each in a frame of this width; their reports, in the order of `names`.
fn looked_at(browser: &str, names: &[String], width: u32) -> Vec<Value> {
    let frames: String = names
        .iter()
        .map(|name| {
            format!("<iframe src=\"{name}\" width=\"{width}\" height=\"3000\"></iframe><br>")
        })
        .collect();
    let whole = format!(
        "<!DOCTYPE html><style>body {{ margin: 0 }} iframe {{ border: 0 }}</style><body><script>\
         const frames = {};\
         addEventListener('message', ({{ source, data }}) => {{\
           const at = [...document.querySelectorAll('iframe')].findIndex((it) => it.contentWindow === source);\
           frames[at] = data;\
           document.body.dataset.seen = JSON.stringify(frames);\
         }})</script>{frames}",
        json!(vec![Value::Null; names.len()])
    );
    let outer = folder().join(format!("shipped-{width}.html"));
    fs::write(&outer, whole).expect("writable build directory");
    let height = 3000 * u32::try_from(names.len()).expect("few");
    // Headless windows are never narrower than 500 pixels, so the telephone's pages are in frames.
    let seen = open(browser, &outer, width.max(500), height, &["--dump-dom"]);
    assert_eq!(seen.console, Vec::<String>::new(), "{width} pixels wide");
    let answer = seen.dom.split("data-seen=\"").nth(1).and_then(|it| it.split('"').next());
    let answer = answer.expect("pages that are drawn").replace("&quot;", "\"");
    let answer = answer.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

#[test]
fn pages_of_every_study_are_drawn_on_a_desk_and_on_a_telephone() {
    let Some(browser) = browser() else { return };
    let place = tempfile::tempdir().expect("a directory");
    let mut names = Vec::new();
    for (study, cells) in STUDIES {
        let page = page(place.path(), study, cells);
        let index = page.with_file_name("index.html");
        for (page, name) in
            [(page, format!("{study}.html")), (index, format!("{study}-index.html"))]
        {
            append(&page, &name, LOOK);
            names.push(name);
        }
    }
    for width in [1200, 400] {
        let answers = looked_at(browser, &names, width);
        for (name, page) in names.iter().zip(&answers) {
            let whole = page["pictures"].as_u64().filter(|count| *count > 0);
            assert!(whole.is_some() && page["drawn"] == page["pictures"], "{name}: {page}");
            assert_eq!(page["told"], page["pictures"], "{name} at {width}: {page}");
            assert_eq!((&page["alike"], &page["cut"]), (&json!([]), &json!([])), "{name}: {page}");
            assert_eq!(page["fits"], true, "{name} at {width}: {page}");
        }
        // The most configurations of a built-in study in one picture.
        let most = answers.iter().filter_map(|page| page["most"].as_u64()).max();
        assert!(most >= Some(8), "{answers:?}");
    }
    open_and_keep(browser, &folder().join("far-proxy.html"), (1200, 4000), "shipped.png", &[]);
}
