//! Claims over cells, and studies that name what is not there.

use super::*;

fn cell(text: &str) -> Cell {
    let pairs = text.split_whitespace().map(|pair| pair.split_once('=').expect("axis=label"));
    pairs.map(|(axis, label)| (axis.to_owned(), label.to_owned())).collect()
}

/// A measurement of the figure `goodput`: cell and values.
fn measured(cells: &[(&str, &[f64])]) -> Measured {
    let mut measured = Measured::default();
    for (position, values) in cells {
        for value in *values {
            measured.add(Reading::given(cell(position), "goodput", Some(*value)));
        }
    }
    measured
}

fn claim(text: &str) -> Claim {
    toml::from_str(&format!("says = \"x\"\nfigure = \"goodput\"\n{text}")).expect("a claim")
}

fn verdict(text: &str, measured: &Measured) -> Verdict {
    let claim = claim(text);
    claim.test().expect("a sound claim");
    claim.judge(measured, 0.95).verdict
}

#[test]
fn an_order_holds_fails_or_is_open() {
    let clear = measured(&[
        ("pep=on", &[10.0, 11.0, 10.5]),
        ("pep=off", &[5.0, 5.5, 5.2]),
        ("pep=old", &[4.0, 9.0, 1.0]),
    ]);
    let order = |names: &str| format!("over = \"pep\"\nfalling = {names}");
    assert_eq!(verdict(&order("[\"on\", \"off\"]"), &clear), Verdict::Holds);
    assert_eq!(verdict(&order("[\"off\", \"on\"]"), &clear), Verdict::Fails);
    assert_eq!(verdict(&order("[\"on\", \"off\", \"old\"]"), &clear), Verdict::Open);
    assert_eq!(verdict(&order("[\"off\", \"on\", \"old\"]"), &clear), Verdict::Fails);
    assert_eq!(verdict(&order("[\"on\", \"new\"]"), &clear), Verdict::Open, "has not run");
    assert_eq!(verdict("over = \"pep\"\nrising = [\"off\", \"on\"]", &clear), Verdict::Holds);
}

#[test]
fn a_value_is_judged_with_its_interval() {
    // Mean 10, t(2, 95 %) = 4.303: ± 2.48.
    let three = measured(&[("pep=on", &[9.0, 10.0, 11.0])]);
    assert_eq!(verdict("published = 10\nwithin = 0.3", &three), Verdict::Holds);
    assert_eq!(verdict("published = 10\nwithin = 0.1", &three), Verdict::Open);
    assert_eq!(verdict("published = 20\nwithin = 0.3", &three), Verdict::Fails);
    assert_eq!(verdict("at_least = 7", &three), Verdict::Holds);
    assert_eq!(verdict("at_most = 7", &three), Verdict::Fails);
    assert_eq!(verdict("at_least = 7\nat_most = 11", &three), Verdict::Open);
    let known = verdict("at_most = 7\ndeparts = \"why\"", &three);
    assert_eq!(known, Verdict::Departs);
}

#[test]
fn a_ratio_looks_across_an_axis() {
    let grid = measured(&[
        ("loss=none pep=on", &[10.0, 10.0]),
        ("loss=none pep=off", &[10.0, 10.0]),
        ("loss=high pep=on", &[9.0, 9.0]),
        ("loss=high pep=off", &[6.0, 6.0]),
    ]);
    let ratio = "of = { pep = \"on\" }\nto = { pep = \"off\" }\nacross = \"loss\"\n";
    let with = |more: &str| verdict(&format!("{ratio}{more}"), &grid);
    assert_eq!(with("pick = \"greatest\"\npublished = 1.5\nwithin = 0.01"), Verdict::Holds);
    assert_eq!(with("pick = \"least\"\nat_most = 1.0"), Verdict::Holds);
    assert_eq!(with("at_least = 1.0"), Verdict::Holds);
    assert_eq!(with("at_least = 1.2"), Verdict::Fails);
}

#[test]
fn a_run_without_the_figure_leaves_its_claims_open() {
    let mut partly = measured(&[("pep=on", &[9.0, 9.0])]);
    partly.add(Reading::given(cell("pep=on"), "goodput", None));
    assert_eq!(verdict("at_least = 1", &partly), Verdict::Open);
    assert_eq!(partly.cells("goodput")[0].missing, 1);
}

#[test]
fn what_says_too_little_is_refused() {
    for bad in [
        "",
        "published = 3",
        "within = 0.1",
        "over = \"pep\"",
        "over = \"pep\"\nfalling = [\"on\"]",
        "over = \"pep\"\nfalling = [\"on\", \"off\"]\nat_least = 1",
        "of = { pep = \"on\" }\nat_least = 1",
        "at_least = 2\nat_most = 1",
    ] {
        assert!(claim(bad).test().is_err(), "{bad}");
    }
}

const STUDY: &str = r#"
title = "A study"
source = "Somebody"
scenarios = ["one"]
[[figures]]
name = "goodput"
shows = "Goodput"
scenario = "one"
metric = "goodput"
published = [{ at = { pep = "on" }, value = 3 }]
[[claims]]
says = "it helps"
figure = "goodput"
over = "pep"
falling = ["on", "off"]
"#;

#[test]
fn cells_that_are_none_are_refused() {
    let study = Study::parse("study.toml", STUDY).expect("sound");
    let cells = |names: &[&str]| {
        BTreeMap::from([("one".to_owned(), names.iter().map(|name| cell(name)).collect())])
    };
    assert_eq!(study.check(&cells(&["pep=on", "pep=off"])), Ok(()));
    let unknown = study.check(&cells(&["pep=on", "pep=none"])).unwrap_err();
    assert!(unknown.contains("it helps") && unknown.contains("off"), "{unknown}");
    let twice = study.check(&cells(&["pep=on loss=0", "pep=on loss=1", "pep=off loss=0"]));
    assert!(twice.unwrap_err().contains("more than one"));
}

#[test]
fn names_that_are_none_are_refused_on_their_line() {
    for (from, to, line) in [
        ("scenario = \"one\"", "scenario = \"ones\"", 8),
        ("figure = \"goodput\"", "figure = \"goodputs\"", 13),
        ("metric", "metrics", 9),
    ] {
        let error = Study::parse("study.toml", &STUDY.replace(from, to)).unwrap_err();
        assert_eq!(error.line, line, "{error}");
    }
}
