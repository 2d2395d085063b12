//! Pages of studies: complete, harmless, and in a real browser.
//!
//! The browser needs headless Chromium (Debian package `chromium`); without one its tests say that they are
//! skipped. The figures are synthetic: nothing here was measured.

#![expect(clippy::disallowed_methods, reason = "a test writes the page that the browser opens")]

mod chromium;
mod synthetic;

use chromium::{append, browser, folder, open, png_size};
use midhop_experiment::Scenario;
use midhop_experiment::record::{Record, Series};
use midhop_experiment::study::{Judgement, Measured, Place, Reading, Study};
use midhop_report::{
    Beside, CellSeeds, Reproduction, Seeds, Trace, overview, study_columns, study_page,
};
use midhop_units::Rate;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

const STUDY: &str = r#"
title = "A proxy at the gateway"
source = "Synthetic sample"
scenarios = ["geo-demo"]

[axes.setup]
shows = "configuration"
names = { cubic = "CUBIC end to end", midhop-bbr = "midhopd, BBR" }
ours = ["midhop-hybla", "midhop-bbr"]

[[figures]]
name = "file"
shows = "File: goodput by loss"
scenario = "geo-demo"
metric = "goodput"
at = { load = "file" }
within = 0.5
tolerance = "made up"
published = [
    { at = { "links.satellite.down.loss" = "1 %", setup = "cubic" }, value = 0.5 },
    { at = { "links.satellite.down.loss" = "0 %", setup = "cubic" }, value = 40, departs = "too much <b>" },
]

[[figures]]
name = "loads"
shows = "All loads at 1 %: share of the limit"
scenario = "geo-demo"
metric = "efficiency"
at = { "links.satellite.down.loss" = "1 %" }

[[figures]]
name = "page"
shows = "Page at 1 %: time"
scenario = "geo-demo"
metric = "time"
at = { "links.satellite.down.loss" = "1 %", load = "page" }

[[claims]]
says = "BBR is ahead of CUBIC"
place = "Table 1"
figure = "file"
at = { "links.satellite.down.loss" = "1 %" }
over = "setup"
falling = ["bbr", "cubic"]

[[claims]]
says = "CUBIC is ahead of BBR"
figure = "file"
at = { "links.satellite.down.loss" = "1 %" }
over = "setup"
rising = ["bbr", "cubic"]

[[claims]]
says = "CUBIC fills the link"
departs = "it does not <i>know</i> losses"
figure = "file"
at = { "links.satellite.down.loss" = "1 %", setup = "cubic" }
at_least = 10

[[claims]]
says = "CUBIC reaches what it reaches"
by = "ours"
figure = "file"
at = { "links.satellite.down.loss" = "9 %", setup = "cubic" }
at_least = 10

[[claims]]
says = "Users are happier"
place = "Sec. 7"
untold = "happiness has no <b>unit</b>"
"#;

/// Pictures of the study's page: one for each figure, and one over time.
const PICTURES: usize = 4;

/// What is needed to make a page.
struct Ran {
    name: String,
    study: Study,
    scenarios: BTreeMap<String, Scenario>,
    measured: Measured,
    judgements: Vec<Judgement>,
    faults: Vec<String>,
    seeds: Seeds,
    traces: Vec<Trace>,
    command: String,
    /// What the laboratory gave, and with which seeds.
    lab: Option<(Measured, Seeds)>,
    /// The scenarios with what the study sets in them there.
    scenarios_of_lab: BTreeMap<String, Scenario>,
}

impl Ran {
    fn of(text: &str) -> Self {
        Self::from(text, synthetic::records(3))
    }

    fn from(text: &str, records: Vec<Record>) -> Self {
        let study = Study::parse("study.toml", text).expect("a study");
        let demo = include_str!("../../../scenarios/geo-demo.toml");
        let demo = Scenario::parse("geo-demo.toml", demo).expect("a scenario");
        let mut ran = Self {
            name: "sample".to_owned(),
            scenarios: BTreeMap::from([("geo-demo".to_owned(), demo)]),
            measured: Measured::default(),
            judgements: Vec::new(),
            faults: Vec::new(),
            seeds: Seeds::new(),
            traces: Vec::new(),
            command: "midhop reproduce sample --in sim".to_owned(),
            lab: None,
            scenarios_of_lab: BTreeMap::new(),
            study,
        };
        for mut record in records {
            // Every state that a sender may be in.
            record.series.push(Series {
                quantity: "phase".to_owned(),
                place: record.transfers[0].name.clone(),
                flow: Some(0),
                unit: String::new(),
                time_s: (1..=40).map(|tenth| f64::from(tenth) / 10.0).collect(),
                value: (0..40).map(|tenth| f64::from(tenth / 10)).collect(),
            });
            ran.measured.add(Reading::of("geo-demo", &record, &ran.study.figures));
            let place = ("geo-demo".to_owned(), record.cell.clone());
            let seeds = ran.seeds.entry(place).or_default();
            if seeds.ran.is_empty() {
                ran.traces.extend(Trace::of("geo-demo", &record));
            }
            seeds.ran.push(record.seed);
            seeds.asked += 1;
        }
        ran.judgements = ran.study.judge(&ran.measured);
        ran
    }

    /// The same beside the laboratory, where all is slower by a tenth and one setup has not run.
    fn beside_the_laboratory(mut self) -> Self {
        let (mut measured, mut seeds) = (Measured::default(), Seeds::new());
        for mut record in synthetic::records(2) {
            if record.cell["setup"] == "bbr" {
                continue;
            }
            for transfer in &mut record.transfers {
                let goodput = transfer.goodput.bits_per_s() / 10 * 9;
                transfer.goodput = Rate::from_bits_per_s(goodput);
                transfer.took = transfer.took * 10 / 9;
            }
            measured.add(Reading::of("geo-demo", &record, &self.study.figures));
            let place = ("geo-demo".to_owned(), record.cell.clone());
            let seeds: &mut CellSeeds = seeds.entry(place).or_default();
            seeds.ran.push(record.seed);
            seeds.asked += 1;
        }
        self.scenarios_of_lab = self.scenarios.clone();
        for scenario in self.scenarios_of_lab.values_mut() {
            scenario.set("links.internet.rate=900 Mbit/s").expect("it can be set");
        }
        self.lab = Some((measured, seeds));
        self
    }

    fn shown(&self) -> Reproduction<'_> {
        Reproduction {
            name: &self.name,
            study: &self.study,
            scenarios: &self.scenarios,
            measured: &self.measured,
            judgements: &self.judgements,
            place: Place::Sim,
            quick: false,
            runs: 108,
            finished: 108,
            faults: &self.faults,
            left_out: &[],
            took: Duration::from_secs(8),
            seeds: &self.seeds,
            environment: None,
            traces: &self.traces,
            command: &self.command,
            beside: self.lab.as_ref().map(|(measured, seeds)| Beside {
                place: Place::Lab,
                measured,
                scenarios: &self.scenarios_of_lab,
                seeds,
                page: true,
            }),
        }
    }

    fn page(&self) -> String {
        study_page(&self.shown()).expect("a page")
    }
}

/// The page without its scripts and styles, whose text is no markup.
fn markup(page: &str) -> String {
    let body = page.find("<body>").expect("a body");
    let end = page.find("<script").expect("scripts");
    page[body..end].to_owned()
}

#[test]
fn verdicts_are_told_by_signs_and_words_with_their_reasons() {
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
    assert!(page.contains("<li><strong>2</strong> <span class=\"mark open\">"), "not counted");
}

#[test]
fn a_terminal_tells_why_a_claim_cannot_be_told() {
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

/// What runs on kernels beside the simulator is told apart, and so is what could not run there.
#[test]
fn what_the_laboratory_ran_and_left_out_is_said() {
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
    // Without another place there is no word of one.
    let alone = Ran::of(STUDY);
    assert!(!markup(&alone.page()).contains("laboratory"));
    assert!(!study_columns(&alone.shown()).csv().expect("CSV").contains("lab_over_sim"));
}

/// Labels that a study has names for are cases side by side, though numbers tell them apart.
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
    assert_eq!(columns.rows(), 12 + 12 + 4);
    let csv = columns.csv().expect("CSV");
    let header = csv.lines().next().expect("a header");
    for name in ["figure", "cell.setup", "published", "mean", "margin", "limit", "verdict"] {
        assert!(header.split(',').any(|it| it == name), "{name}: {header}");
    }
    assert!(csv.contains("departs"));
    assert!(columns.parquet().expect("Parquet").starts_with(b"PAR1"));
}

/// Pictures drawn, pictures whose file has ink in several colours, SVG files, tips with a command, words that
/// are cut off at a picture's edge, and whether the page is wider than its window.
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
    let desktop = open(browser, &page, 1200, 4000, &["--dump-dom"]);
    assert_eq!(desktop.console, Vec::<String>::new());
    assert_eq!(seen(&desktop.dom), Some(expected.as_str()), "on a desk");
    // Headless windows are never narrower than 500 pixels, so the page sits in a frame.
    let frame = format!(
        "<!DOCTYPE html><body style=\"margin:0\"><script>addEventListener('message', (event) => \
         document.body.dataset.seen = event.data)</script>\
         <iframe src=\"{name}.html\" width=\"400\" height=\"6000\" style=\"border:0\"></iframe>"
    );
    let frame = written(&format!("{name}-telephone.html"), &frame);
    let telephone = open(browser, &frame, 500, 6000, &["--dump-dom"]);
    assert_eq!(telephone.console, Vec::<String>::new());
    assert_eq!(seen(&telephone.dom), Some(expected.as_str()), "on a telephone");
    for (page, width, height) in [(&plain, 1200, 4000), (&frame, 500, 6000)] {
        let picture = folder().join(format!("{name}-{width}.png"));
        let shot = format!("--screenshot={}", picture.display());
        open(browser, page, width, height, &[&shot]);
        assert_eq!(png_size(&picture), (width, height));
    }
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

/// Bars that reach the end of their axis have their values beyond it.
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
        // Nothing here waits: what a promise brings may come after the page has been taken down.
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
