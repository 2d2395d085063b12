//! The HTML page: complete, well-formed, harmless, self-contained.

use crate::synthetic;
use midhop_report::{Options, html};

fn page(records: &[midhop_experiment::Record]) -> String {
    html(records, &Options::default()).expect("a page")
}

/// The page without its scripts and styles, whose text is no markup.
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

#[test]
fn elements_nest_and_ids_are_unique() {
    let page = page(&synthetic::records(2));
    let markup = markup(&page);
    let mut open: Vec<&str> = Vec::new();
    let mut rest = markup.as_str();
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

/// What the page's script draws.
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
        // Two configurations with a proxy, at three losses: their own senders, and the gateway.
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
