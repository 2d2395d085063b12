//! Pages of studies: complete, safe, and in a real browser.
//!
//! The browser needs headless Chromium (Debian package `chromium`); without one its tests are
//! reported as skipped. The figures are synthetic: nothing here was measured.

#![expect(clippy::disallowed_methods, reason = "a test writes the page that the browser opens")]

use crate::chromium::{append, browser, folder, open, open_and_keep};
use crate::drawn::drawn;
use crate::sample::{Ran, STUDY};
use crate::synthetic;
use midhop_report::{Reproduction, overview, study_columns, study_page};
use midhop_study::{Place, Reading};
use midhop_units::Seed;
use serde_json::Value;
use std::path::PathBuf;

/// Pictures of the study's page: one for each figure, one of two of them, and one over time.
const PICTURES: usize = 6;

/// The page without its scripts and styles, whose content is no markup.
fn markup(page: &str) -> String {
    let body = page.find("<body>").expect("a body");
    let end = page.find("<script").expect("scripts");
    page[body..end].to_owned()
}

#[test]
fn verdicts_are_shown_by_signs_and_words_with_their_reasons() {
    let page = markup(&Ran::of(STUDY).page());
    for (class, sign, name) in [
        ("holds", "✓", "holds"),
        ("fails", "✗", "does not hold"),
        ("departs", "≠", "does not hold, explained"),
        ("open", "?", "cannot be told"),
    ] {
        let mark =
            format!("<span class=\"mark {class}\"><b aria-hidden=\"true\">{sign}</b> {name}");
        assert!(page.contains(&mark), "{mark}");
    }
    assert!(page.contains("(Table 1)"));
    assert!(page.contains("it does not &lt;i&gt;know&lt;/i&gt; losses"));
    assert!(page.contains("Nothing of it has run."));
    let untold = page.find("The text does not tell: happiness has no &lt;b&gt;").expect("a reason");
    let folded = page.find("1 claim of which nothing has run").expect("what is folded away");
    assert!(untold < folded, "what no run would tell is not what has not run");
    // One of the study's, and one of ours.
    assert_eq!(page.matches("<li><strong>1</strong> <span class=\"mark open\">").count(), 2);
}

#[test]
fn a_terminal_shows_why_a_claim_cannot_be_decided() {
    let ran = Ran::of(STUDY);
    let text = midhop_report::study(&ran.study, &ran.measured, &ran.judgements, 80);
    let at = text.find("cannot be told  Users are happier (Sec. 7)\n").expect("the claim");
    assert!(text[at..].contains("the text does not tell: happiness has no <b>unit</b>"), "{text}");
}

#[test]
fn tables_read_without_scripts() {
    let page = markup(&Ran::of(STUDY).page());
    for part in ["published", "reproduced", "ours", "limit", "0.5 ± ", "CUBIC end to end"] {
        assert!(page.contains(part), "{part}");
    }
    let command = "midhop reproduce sample --in sim --seeds 3 --cell \
                   &#39;geo-demo:links.satellite.down.loss=1 %,load=file,setup=cubic&#39;";
    assert!(page.contains(command), "no command for a cell");
    assert!(page.contains("nodes.gateway.pep"), "no settings");
    let plan = "<pre class=\"plan\" data-scenario=\"geo-demo\"><code>{\n  &quot;duration&quot;: ";
    assert_eq!(page.split(plan).count(), 2, "a plan of each scenario, once");
}

#[test]
fn pages_lead_to_their_own_files_and_nowhere_else() {
    let ran = Ran::of(STUDY);
    let whole = overview(&[ran.shown()]).expect("a page");
    for page in [ran.page(), whole] {
        assert!(page.contains("default-src 'none'"), "the policy that forbids requests is gone");
        let markup = markup(&page);
        assert!(!markup.contains("http://") && !markup.contains("https://"));
        for target in markup.split(" href=\"").skip(1).filter_map(|it| it.split('"').next()) {
            let known = ["index.html", "sample.html", "sample.csv", "sample.parquet"];
            let inside = target.strip_prefix('#').map(|id| format!(" id=\"{id}\""));
            assert!(
                known.contains(&target) || inside.is_some_and(|id| markup.contains(&id)),
                "{target} leads nowhere"
            );
        }
    }
}

/// Results from kernels are shown separately from the simulator's, and so are runs that were left
/// out there.
#[test]
fn what_the_laboratory_ran_and_left_out_is_shown() {
    let ran = Ran::of(STUDY);
    let left_out = ["geo-demo proxy=small: 3 runs left out: no kernel has <that>".to_owned()];
    let lab = Reproduction { place: Place::Lab, left_out: &left_out, ..ran.shown() };
    let page = markup(&study_page(&lab).expect("a page"));
    assert!(page.contains("3 runs left out: no kernel has &lt;that&gt;"), "{page}");
    let both = markup(&overview(&[ran.shown(), lab]).expect("a page"));
    for name in ["sample", "sample in the lab"] {
        assert!(both.contains(&format!("<option value=\"{name}\">{name}</option>")), "{name}");
        assert!(both.contains(&format!("data-study=\"{name}\"")), "{name}");
    }
}

#[test]
fn the_laboratory_stands_beside_the_simulator() {
    let ran = Ran::of(STUDY).beside_the_laboratory();
    let page = markup(&ran.page());
    for part in [
        "reproduced<br>simulator",
        "ours<br>simulator",
        "the same<br>laboratory",
        "lab / sim",
        "<a href=\"sample-lab.html\">the laboratory: real kernels on emulated links</a>",
        "midhop reproduce sample --in lab --seeds 2 --cell ",
        "; sets <code>links.internet.rate = 900 Mbit/s</code></p>",
        "✕ the same in the laboratory, with a line of its interval beside it",
    ] {
        assert!(page.contains(part), "{part}");
    }
    let ratios = page.split("<td class=\"n\">0.9").count();
    assert!(ratios > 10, "only {ratios} quotients near 0.9");
    let columns = study_columns(&ran.shown()).csv().expect("CSV");
    let mut lines = columns.lines();
    let header: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let of = |name: &str| header.iter().position(|it| *it == name).expect("a column");
    let (setup, there) = (of("cell.setup"), of("lab_over_sim"));
    for line in lines.filter(|line| line.starts_with("sample,file,") && !line.contains('"')) {
        let row: Vec<&str> = line.split(',').collect();
        assert_eq!(row[there].is_empty(), row[setup] == "bbr", "{line}");
    }
    // Without another place, it is not mentioned.
    let alone = Ran::of(STUDY);
    assert!(!markup(&alone.page()).contains("laboratory"));
    assert!(!study_columns(&alone.shown()).csv().expect("CSV").contains("lab_over_sim"));
}

/// A picture of two figures has both values from the same run. Where one of them is missing in a
/// run, the cell has no points.
#[test]
fn a_figure_over_another_is_drawn_run_by_run() {
    let mut ran = Ran::of(STUDY).beside_the_laboratory();
    let broken = synthetic::records(3)
        .into_iter()
        .find(|it| it.cell["load"] == "file" && it.cell["setup"] == "bbr" && it.seed == Seed(2));
    let mut broken = broken.expect("a record");
    broken.transfers.clear();
    ran.measured.add(Reading::of("geo-demo", &broken, &ran.study.figures));
    let data = drawn(&ran.page());
    let [scatter] = data["scatters"].as_array().expect("pictures").as_slice() else {
        panic!("{}", data["scatters"]);
    };
    assert_eq!(scatter["x"]["axis"], "goodput, Mbit/s");
    assert_eq!(scatter["y"]["axis"], "sent again, %");
    assert_eq!(scatter["beside"], "laboratory");
    assert_eq!(scatter["names"].as_array().expect("names").len(), 3);
    let curves = scatter["series"].as_array().expect("curves");
    assert_eq!(curves.len(), 4);
    let records = synthetic::records(3);
    for (place, curve) in curves.iter().enumerate() {
        let setup = ["cubic", "bbr", "midhop-hybla-plus", "midhop-bbr"][place];
        let first = &curve["points"][0];
        let again = ran.study.figure("again").expect("a figure");
        let wanted: Vec<[f64; 2]> = records
            .iter()
            .filter(|it| it.cell["setup"] == setup && it.cell["load"] == "file")
            .filter(|it| it.cell["links.satellite.down.loss"] == "0 %")
            .map(|it| [it.transfers[0].goodput.mbit_per_s(), again.read(it).expect("a value")])
            .collect();
        let runs = first["runs"].as_array().expect("runs");
        let number = |value: &Value| value.as_f64().expect("a number");
        let got: Vec<[f64; 2]> =
            runs.iter().map(|run| [number(&run[0]), number(&run[1])]).collect();
        if setup == "bbr" {
            assert!(got.is_empty() && first["x"]["value"].is_null(), "{first}");
        } else {
            assert_eq!(got, wanted, "{setup}");
            assert_eq!(first["y"]["runs"], 3);
        }
    }
    let csv = scatter["csv"].as_str().expect("CSV");
    assert_eq!(csv.lines().filter(|line| line.starts_with("sample,file,")).count(), 12);
    assert_eq!(csv.lines().filter(|line| line.starts_with("sample,again,")).count(), 12);
}

/// Labels that a study names are cases side by side, even when they are numbers.
#[test]
fn named_numbers_are_bars_and_others_an_axis() {
    let swept = "\"kind\":\"quantity\",\"name\":\"links.satellite.down.loss";
    assert!(Ran::of(STUDY).page().contains(swept));
    let names = "[axes.\"links.satellite.down.loss\"]\nnames = { \"0 %\" = \"no losses\" }\n";
    let page = Ran::of(&format!("{STUDY}\n{names}")).page();
    assert!(!page.contains("\"kind\":\"quantity\""));
    assert!(page.contains("\"no losses\""));
}

#[test]
fn the_states_of_senders_are_on_the_page() {
    let page = Ran::of(STUDY).page();
    for phase in ["slow start", "avoidance", "fast recovery", "timeout"] {
        assert!(page.contains(&format!("[\"{phase}\",")), "{phase}");
    }
}

#[test]
fn hostile_text_stays_text() {
    let hostile = "</script><img src=x onerror=alert(1)>";
    let text = STUDY
        .replace("A proxy at the gateway", hostile)
        .replace("Synthetic sample", hostile)
        .replace("CUBIC end to end", hostile)
        .replace("File: goodput by loss", hostile)
        .replace("BBR is ahead of CUBIC", hostile)
        .replace("Table 1", hostile)
        .replace("made up", hostile);
    let mut ran = Ran::of(&text);
    ran.name = format!("dir/{hostile}");
    ran.faults = vec![hostile.to_owned()];
    ran.command = hostile.to_owned();
    let file = ran.shown().file_name();
    assert!(file.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)), "{file}");
    for page in [ran.page(), overview(&[ran.shown()]).expect("a page")] {
        let data = page.split("id=\"figures\">").nth(1).and_then(|it| it.split("</script>").next());
        let data = data.expect("data");
        assert!(!data.contains('<') && data.contains("\\u003cimg"), "the data ends early");
        let markup = markup(&page);
        assert!(!markup.contains("<img"), "markup came in");
        assert!(markup.contains("&lt;img"), "the text is gone");
    }
}

#[test]
fn columns_hold_every_figure_and_cell() {
    let ran = Ran::of(STUDY);
    let columns = study_columns(&ran.shown());
    assert_eq!(columns.rows(), 12 + 12 + 4 + 12);
    let csv = columns.csv().expect("CSV");
    let header = csv.lines().next().expect("a header");
    for name in ["figure", "cell.setup", "published", "mean", "margin", "limit", "verdict"] {
        assert!(header.split(',').any(|it| it == name), "{name}: {header}");
    }
    assert!(csv.contains("departs"));
    assert!(columns.parquet().expect("Parquet").starts_with(b"PAR1"));
}

/// Whether both are equal, with any notation of numbers.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(key, one)| other.get(key).is_some_and(|it| same(one, it)))
        }
        _ => one == other,
    }
}

/// Every cell of a picture has its own plan, although only the first cell's is on the page.
#[test]
fn a_picture_has_the_whole_plan_of_each_cell() {
    let Some(browser) = browser() else { return };
    let ran = Ran::of(STUDY);
    let page = append(
        &written("plans-plain.html", &ran.page()),
        "plans.html",
        "<script>document.addEventListener('drawn', () => {\
         const figure = document.querySelector('figure[id]');\
         const chart = midhopReport.chart(figure.id);\
         const plans = {};\
         for (const seriesIndex of [0, 1, 2, 3]) for (const dataIndex of [0, 1, 2]) {\
           chart.dispatchAction({ type: 'showTip', seriesIndex, dataIndex });\
           const fold = figure.querySelector('.tip details');\
           fold.dispatchEvent(new Event('toggle'));\
           plans[figure.querySelector('.again').textContent] = JSON.parse(fold.querySelector('pre').textContent);\
         }\
         document.body.dataset.seen = JSON.stringify(plans);\
         })</script>",
    );
    let found = open(browser, &page, 1200, 2000, &["--dump-dom"]);
    assert_eq!(found.console, Vec::<String>::new());
    let plans = seen(&found.dom).expect("plans").replace("&quot;", "\"").replace("&amp;", "&");
    let plans: Value = serde_json::from_str(&plans).expect("JSON");
    let plans = plans.as_object().expect("plans");
    assert_eq!(plans.len(), 12, "{plans:?}");
    for ((_, cell), plan) in ran.plans.iter().filter(|((_, cell), _)| cell["load"] == "file") {
        let at: Vec<String> = cell.iter().map(|(axis, label)| format!("{axis}={label}")).collect();
        let at = format!("--cell 'geo-demo:{}'", at.join(","));
        let found = plans.iter().find(|(command, _)| command.ends_with(&at));
        let (_, found) = found.unwrap_or_else(|| panic!("{at}: {plans:?}"));
        let mut plan = plan.clone();
        plan.as_object_mut().expect("a plan").remove("seed");
        assert!(same(&plan, found), "{at}: {found}");
    }
}

/// Pictures drawn, pictures whose file has several colours, SVG files, tooltips with a command,
/// words that are cut off at a picture's edge, and whether the page is wider than its window.
const LOOK: &str = "<script>document.addEventListener('drawn', async () => {\
    const sizes = [];\
    const make = URL.createObjectURL;\
    URL.createObjectURL = (blob) => { sizes.push(blob.size); return make.call(URL, blob); };\
    const all = [...document.querySelectorAll('figure[id]')];\
    let inked = 0, tips = 0;\
    for (const figure of all) {\
      midhopReport.picture(figure.id, 'svg');\
      const image = new Image();\
      image.src = midhopReport.picture(figure.id, 'png').address;\
      await new Promise((done) => { image.onload = done; });\
      const canvas = document.createElement('canvas');\
      [canvas.width, canvas.height] = [image.width, image.height];\
      const context = canvas.getContext('2d');\
      context.drawImage(image, 0, 0);\
      const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;\
      const colours = new Map();\
      for (let at = 0; at < pixels.length; at += 16) {\
        const [r, g, b] = [pixels[at], pixels[at + 1], pixels[at + 2]];\
        if (Math.max(r, g, b) - Math.min(r, g, b) > 40) {\
          const key = [r >> 5, g >> 5, b >> 5].join();\
          colours.set(key, (colours.get(key) || 0) + 1);\
        }\
      }\
      if ([...colours.values()].some((count) => count > 300)) inked += 1;\
      const chart = midhopReport.chart(figure.id);\
      const dataIndex = chart.getOption().series[0].data.findIndex((value) => value !== null);\
      chart.dispatchAction({ type: 'showTip', seriesIndex: 0, dataIndex });\
      if (figure.querySelector('.again')?.textContent.includes('--cell')) tips += 1;\
    }\
    const cut = all.flatMap((figure) => {\
      const edge = figure.querySelector('svg').getBoundingClientRect();\
      return [...figure.querySelectorAll('svg text')].filter((text) => {\
        const box = text.getBoundingClientRect();\
        return box.width > 0 && (box.right > edge.right + 0.5 || box.left < edge.left - 0.5);\
      }).map((text) => text.textContent);\
    });\
    const answer = [all.filter((figure) => figure.querySelector('svg')).length, inked, \
      sizes.filter((size) => size > 4000).length, tips, cut.length ? cut.join('|') : 'whole', \
      document.documentElement.scrollWidth > innerWidth ? 'wide' : 'fits'].join(' ');\
    document.body.dataset.seen = answer;\
    parent.postMessage(answer, '*');\
    })</script>";

fn seen(dom: &str) -> Option<&str> {
    dom.split("data-seen=\"").nth(1)?.split('"').next()
}

fn written(name: &str, page: &str) -> PathBuf {
    let path = folder().join(name);
    std::fs::write(&path, page).expect("writable build directory");
    path
}

fn looked_at(name: &str, page: &str, pictures: usize, tips: usize) {
    let Some(browser) = browser() else { return };
    let plain = written(&format!("{name}-plain.html"), page);
    let page = append(&plain, &format!("{name}.html"), LOOK);
    let expected = format!("{pictures} {pictures} {pictures} {tips} whole fits");
    let picture = format!("{name}-1200.png");
    let desktop = open_and_keep(browser, &page, (1200, 4000), &picture, &[]);
    assert_eq!(desktop.console, Vec::<String>::new());
    assert_eq!(seen(&desktop.dom), Some(expected.as_str()), "on a desk");
    // Headless windows are never narrower than 500 pixels, so the page is in a frame.
    let frame = format!(
        "<!DOCTYPE html><body style=\"margin:0\"><script>addEventListener('message', (event) => \
         document.body.dataset.seen = event.data)</script>\
         <iframe src=\"{name}.html\" width=\"400\" height=\"6000\" style=\"border:0\"></iframe>"
    );
    let frame = written(&format!("{name}-telephone.html"), &frame);
    let picture = format!("{name}-500.png");
    let telephone = open_and_keep(browser, &frame, (500, 6000), &picture, &[]);
    assert_eq!(telephone.console, Vec::<String>::new());
    assert_eq!(seen(&telephone.dom), Some(expected.as_str()), "on a telephone");
}

#[test]
fn a_study_is_drawn_on_a_desk_and_on_a_telephone() {
    looked_at("study", &Ran::of(STUDY).page(), PICTURES, PICTURES);
}

#[test]
fn a_study_in_both_places_is_drawn_on_a_desk_and_on_a_telephone() {
    let ran = Ran::of(STUDY).beside_the_laboratory();
    looked_at("beside-lab", &ran.page(), PICTURES, PICTURES);
}

/// Bars that reach the end of their axis have their values beside them, beyond the axis.
#[test]
fn values_of_the_longest_bars_are_whole() {
    let mut records = synthetic::records(1);
    for limit in
        records.iter_mut().flat_map(|it| &mut it.transfers).filter_map(|it| it.limit.as_mut())
    {
        limit.efficiency = 0.998;
    }
    let ran = Ran::from(STUDY, records);
    looked_at("edge", &ran.page(), PICTURES, PICTURES);
}

#[test]
fn the_overview_is_drawn_on_a_desk_and_on_a_telephone() {
    let ran = Ran::of(STUDY);
    let page = overview(&[ran.shown(), ran.shown()]).expect("a page");
    looked_at("overview", &page, 2, 2);
}

#[test]
fn claims_are_filtered_and_a_second_run_stands_beside_the_first() {
    let Some(browser) = browser() else { return };
    let ran = Ran::of(STUDY);
    let page = written("filter-plain.html", &overview(&[ran.shown()]).expect("a page"));
    let page = append(
        &page,
        "filter.html",
        "<script>document.addEventListener('drawn', () => {\
         const verdict = document.getElementById('of-verdict');\
         verdict.value = 'fails';\
         verdict.dispatchEvent(new Event('change'));\
         const rows = [...document.querySelectorAll('.claims-table tbody tr')];\
         document.body.dataset.seen = rows.filter((row) => !row.hidden).length + ' ' + \
         document.getElementById('shown').textContent;\
         })</script>",
    );
    let found = open(browser, &page, 1200, 2000, &["--dump-dom"]);
    assert_eq!(seen(&found.dom), Some("1 1 of 5 claims"));
    let page = written("beside-plain.html", &ran.page());
    let page = append(
        &page,
        "beside.html",
        "<script>document.addEventListener('drawn', () => {\
         const curves = () => midhopReport.chart('trace').getOption().series.length;\
         const before = curves();\
         const beside = document.getElementById('beside');\
         beside.value = '5';\
         beside.dispatchEvent(new Event('change'));\
         document.body.dataset.seen = curves() > before && \
         document.querySelector('#trace h4').textContent.includes('B: geo-demo');\
         })</script>",
    );
    let found = open(browser, &page, 1200, 2000, &["--dump-dom"]);
    assert_eq!(found.console, Vec::<String>::new());
    assert_eq!(seen(&found.dom), Some("true"));
}

#[test]
fn the_numbers_behind_each_picture_can_be_saved_as_csv() {
    let Some(browser) = browser() else { return };
    let page = append(
        &written("csv-plain.html", &Ran::of(STUDY).page()),
        "csv.html",
        // No promises here: the page may be closed before one is resolved.
        "<script>document.addEventListener('drawn', () => {\
         const texts = [], names = [];\
         window.Blob = class { constructor(parts) { texts.push(parts.join('')); } };\
         URL.createObjectURL = () => 'blob:kept';\
         HTMLAnchorElement.prototype.click = function () { names.push(this.download); };\
         const buttons = [...document.querySelectorAll('[data-csv]')];\
         for (const button of buttons) button.click();\
         const good = texts.filter((text) => {\
         const [header, ...rows] = text.trimEnd().split('\\n');\
         const columns = header.split(',').length;\
         return columns > 3 && rows.length > 0 && rows.every((row) => row.split(',').length >= columns);\
         }).length;\
         const own = new Set(names.filter((name) => name.endsWith('.csv'))).size;\
         document.body.dataset.seen = [buttons.length, good, own].join(' ');\
         })</script>",
    );
    let found = open(browser, &page, 1200, 4000, &["--dump-dom"]);
    assert_eq!(found.console, Vec::<String>::new());
    let expected = format!("{PICTURES} {PICTURES} {PICTURES}");
    assert_eq!(seen(&found.dom), Some(expected.as_str()), "buttons, good tables, names");
}
