//! The HTML page: complete, well-formed, safe, self-contained.

use crate::synthetic;
use midhop_report::{Options, html};

fn page(records: &[midhop_experiment::Record]) -> String {
    html(records, &Options::default()).expect("a page")
}

/// The page without its scripts and styles, whose content is no markup.
fn markup(page: &str) -> String {
    let mut out = String::new();
    let mut rest = page;
    loop {
        let next = ["<script", "<style"].iter().filter_map(|tag| rest.find(tag)).min();
        let Some(start) = next else { break };
        let end_tag = if rest[start..].starts_with("<script") { "</script>" } else { "</style>" };
        out.push_str(&rest[..start]);
        let end = rest[start..].find(end_tag).expect("an element that ends");
        rest = &rest[start + end + end_tag.len()..];
    }
    out + rest
}

/// The same runs in the simulator and in the laboratory.
fn both(seeds: u64) -> Vec<midhop_experiment::Record> {
    let simulated = synthetic::records(seeds).into_iter().map(|mut record| {
        "sim".clone_into(&mut record.environment.runner);
        record
    });
    simulated.chain(synthetic::records(seeds)).collect()
}

#[test]
fn elements_nest_and_ids_are_unique() {
    is_well_formed(&markup(&page(&synthetic::records(2))));
}

#[test]
fn a_page_of_two_places_keeps_them_apart_and_sets_them_side_by_side() {
    let both = page(&both(1));
    let shown = markup(&both);
    is_well_formed(&shown);
    for heading in ["Side by side", "Simulated: comparison", "Measured: all figures"] {
        assert!(shown.contains(&format!("<h2>{heading}</h2>")), "{heading}");
    }
    let figures = figures(&both);
    let bars = figures["bars"].as_array().expect("bars");
    let ids: Vec<&str> = bars.iter().filter_map(|it| it["id"].as_str()).collect();
    assert_eq!(bars.len(), 6);
    assert!(ids.iter().filter(|id| id.starts_with("sim-bars-")).count() == 3, "{ids:?}");
    for id in ids {
        assert!(shown.contains(&format!("<figure id=\"{id}\"")), "{id}");
    }
    assert!(both.len() < 6_000_000, "{} bytes", both.len());
}

#[test]
fn a_page_names_what_its_figures_are() {
    let mut record = synthetic::one();
    record.cell.clear();
    "sim".clone_into(&mut record.environment.runner);
    let simulated = page(&[record.clone()]);
    assert!(markup(&simulated).contains("<h2>Simulated: comparison</h2>"));
    assert!(!markup(&simulated).to_lowercase().contains("measured"), "nothing was");
    assert_eq!(figures(&simulated)["configurations"], serde_json::json!(["simulated"]));
    "lab".clone_into(&mut record.environment.runner);
    let measured = page(&[record]);
    assert_eq!(figures(&measured)["configurations"], serde_json::json!(["measured"]));
    assert!(markup(&measured).contains("the emulated links kept their time"));
}

#[test]
fn builds_are_named_once_and_plans_not_at_all() {
    let mut records = synthetic::records(1);
    for (number, record) in records.iter_mut().enumerate() {
        let versions = &mut record.environment.versions;
        versions.insert("build".to_owned(), "0f0f0f".to_owned());
        versions.insert("plan".to_owned(), format!("key-of-plan-{number}"));
    }
    let page = markup(&page(&records));
    assert_eq!(page.matches("0f0f0f").count(), 1);
    assert!(!page.contains("key-of-plan"));
}

#[test]
fn goodput_over_time_is_never_above_the_limit() {
    let mut record = synthetic::one();
    let limit = record.transfers[0].limit.as_ref().expect("a limit").goodput.mbit_per_s();
    let name = record.transfers[0].name.clone();
    // A second without arrivals behind a lost segment, then all data at once.
    for series in record.series.iter_mut().filter(|it| it.quantity == "goodput") {
        series.place.clone_from(&name);
        series.time_s = (1..=100).map(|it| f64::from(it) * 0.1).collect();
        series.value = (1..=100)
            .map(|it| match it {
                50..60 => 0.0,
                60 => limit * 11.0,
                _ => limit,
            })
            .collect();
    }
    let figures = figures(&page(&[record]));
    let all = figures["lines"].as_array().expect("figures").iter();
    let goodput = all.filter(|it| it["title"].as_str().is_some_and(|it| it.ends_with(": goodput")));
    let curves = goodput.flat_map(|it| it["curves"].as_array().expect("curves"));
    let points = curves.flat_map(|it| it["points"].as_array().expect("points"));
    let values: Vec<f64> = points.map(|point| point[1].as_f64().expect("a number")).collect();
    assert!(values.len() > 50, "{}", values.len());
    assert!(values.iter().all(|value| *value <= limit * 1.001), "{limit}: {values:?}");
}

fn is_well_formed(markup: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = markup;
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').expect("a tag that ends");
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if tag.starts_with('!') {
            continue;
        }
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed out of order near {:?}", rest.get(..80));
        } else {
            let name = tag.split_whitespace().next().expect("a name");
            if !["meta", "link", "br"].contains(&name) {
                open.push(name);
            }
        }
    }
    assert_eq!(open, Vec::<&str>::new(), "left open");
    let mut ids: Vec<&str> =
        markup.split(" id=\"").skip(1).filter_map(|part| part.split('"').next()).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "an id comes twice");
    for target in markup.split("href=\"#").skip(1).filter_map(|part| part.split('"').next()) {
        assert!(ids.contains(&target), "#{target} leads nowhere");
    }
}

#[test]
fn nothing_is_loaded_from_anywhere() {
    let page = page(&synthetic::records(1));
    let markup = markup(&page);
    for attribute in ["src=", "href=", "action=", "data=", "srcset=", "poster="] {
        for value in markup.split(&format!(" {attribute}\"")).skip(1) {
            assert!(
                value.starts_with('#') || value.starts_with("data:,"),
                "{attribute}{:?}",
                value.get(..60)
            );
        }
    }
    assert!(!markup.contains("http://") && !markup.contains("https://"));
    assert!(page.contains("default-src 'none'"), "the policy that forbids requests is gone");
    let own_style = include_str!("../../assets/report.css");
    let own_script = include_str!("../../assets/report.js");
    let drawing = include_str!("../../assets/drawing.js");
    let study = include_str!("../../assets/study.js");
    for own in [own_style, own_script, drawing, study] {
        assert!(!own.contains("http") && !own.contains("url(") && !own.contains("@import"));
    }
}

#[test]
fn hostile_text_stays_text() {
    let hostile = "</script><script>alert(1)</script><!-- \"'& <img src=x onerror=alert(1)>";
    let mut record = synthetic::one();
    record.title = hostile.to_owned();
    record.cell.insert("setup".to_owned(), hostile.to_owned());
    record.transfers[0].name = hostile.to_owned();
    record.transfers[0].flows[0].congestion = hostile.to_owned();
    record.transfers[0].flows[0].error = Some(hostile.to_owned());
    record.validity.faults = vec![hostile.to_owned()];
    record.links[0].name = hostile.to_owned();
    record.legs = vec![midhop_experiment::record::LegResult {
        node: hostile.to_owned(),
        link: hostile.to_owned(),
        ..Default::default()
    }];
    record.plan = serde_json::json!({ "title": hostile });
    record.environment.versions.insert(hostile.to_owned(), hostile.to_owned());
    for series in &mut record.series {
        series.place = hostile.to_owned();
        series.unit = hostile.to_owned();
    }
    let clean = page(&[synthetic::one()]);
    let page = page(&[record]);
    for opening in ["<script", "</script", "<img", "<!--"] {
        assert_eq!(
            page.matches(opening).count(),
            clean.matches(opening).count(),
            "{opening} came in from a record"
        );
    }
    assert!(page.contains("&lt;/script&gt;&lt;script&gt;alert(1)"), "the text itself is gone");
}

#[test]
fn a_demo_is_a_few_megabytes() {
    let one_seed = page(&synthetic::records(1)).len();
    let five_seeds = page(&synthetic::records(5)).len();
    assert!(one_seed < 4_000_000, "{one_seed} bytes");
    assert!(five_seeds < 5_000_000, "{five_seeds} bytes");
}

/// The data that the page's script draws.
fn figures(page: &str) -> serde_json::Value {
    let start = page.find("id=\"figures\">").expect("the data") + "id=\"figures\">".len();
    let end = start + page[start..].find("</script>").expect("its end");
    serde_json::from_str(&page[start..end]).expect("JSON")
}

#[test]
fn behind_a_proxy_its_longest_leg_stands_beside_the_sender() {
    let figures = figures(&page(&synthetic::records(1)));
    let titled = |title: &str| {
        let all = figures["lines"].as_array().expect("figures");
        all.iter().find(|figure| figure["title"] == title).expect(title).clone()
    };
    for title in ["file: congestion window of the sender", "file: round-trip time at the sender"] {
        let figure = titled(title);
        assert_eq!(figure["extra"], false);
        assert!(figure["caption"].as_str().is_some_and(|text| text.contains("longest round trip")));
        for curve in figure["curves"].as_array().expect("curves") {
            let leg = &curve["leg"];
            assert!(leg.is_null() || leg == "gateway's satellite leg", "{leg}");
        }
        // Two configurations with a proxy, at three losses: the transfers' own senders, and the
        // gateway.
        let count = |proxied: bool, leg: bool| {
            let curves = figure["curves"].as_array().expect("curves").iter();
            curves
                .filter(|curve| (curve["configuration"].as_u64() >= Some(2)) == proxied)
                .filter(|curve| curve["leg"].is_string() == leg)
                .count()
        };
        assert_eq!([count(false, false), count(false, true)], [6, 0]);
        assert_eq!([count(true, false), count(true, true)], [6, 6]);
    }
    assert_eq!(titled("gateway.internet: round-trip time at the sender")["extra"], true);
}

#[test]
fn figures_of_the_page_are_valid_json_and_hold_the_limits() {
    let figures = figures(&page(&synthetic::records(1)));
    let bars = figures["bars"].as_array().expect("bars");
    assert_eq!(bars.len(), 3);
    assert_eq!(bars[0]["unit"], "s", "the page load comes first");
    assert_eq!(bars[0]["conditions"], serde_json::json!(["loss 0 %", "loss 0.1 %", "loss 1 %"]));
    assert!(bars.iter().all(|figure| {
        figure["limits"].as_array().is_some_and(|limits| limits.iter().all(|limit| limit.is_f64()))
    }));
    assert_eq!(
        figures["configurations"],
        serde_json::json!(["cubic", "bbr", "midhop-hybla-plus", "midhop-bbr"])
    );
}

#[test]
fn no_records_and_bare_records_make_a_page() {
    assert!(page(&[]).contains("Midhop report"));
    let mut bare = synthetic::one();
    bare.cell.clear();
    bare.transfers[0].limit = None;
    bare.transfers[0].flows.clear();
    bare.links.clear();
    bare.series.clear();
    bare.plan = serde_json::Value::Null;
    assert!(page(&[bare]).contains("no samples over time"));
}
