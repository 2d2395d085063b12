//! The styles that distinguish curves and bars on pages: enough for every picture, without
//! repetitions.

use crate::eyes::{ALL, DICHROMATS, GREY};
use crate::many::Many;
use midhop_study::{Measured, Reading};
use serde_json::Value;

/// The styles of pages.
fn styles() -> Value {
    let text = include_str!("../../assets/styles.js");
    let (_, list) = text.split_once("const styles = ").expect("the list");
    serde_json::from_str(list.trim_end().trim_end_matches(';')).expect("JSON")
}

/// The appearance of a dash: for each pixel of a legend's sample, whether it is drawn.
fn drawn(dash: &Value) -> Vec<bool> {
    let steps: Vec<u64> = match dash.as_array() {
        None => vec![1, 0],
        Some(steps) => steps.iter().map(|it| it.as_u64().expect("a length")).collect(),
    };
    let line = steps.iter().enumerate().cycle();
    let pixels = line.flat_map(|(at, &step)| std::iter::repeat_n(at % 2 == 0, step as usize));
    pixels.take(34).collect()
}

/// Whether the samples of both in a legend look different.
fn dashes_differ(one: &Value, other: &Value) -> bool {
    let (one, other) = (drawn(one), drawn(other));
    one.iter().zip(&other).filter(|(one, other)| one != other).count() >= 8
}

/// All pairs of so many.
fn pairs(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).flat_map(|one| (0..one).map(move |other| (other, one)))
}

/// Colours with a larger distance are distinct without other features, in thin lines too. Unit:
/// ΔE*ab.
const APART: f64 = 10.0;
/// The number of configurations side by side in a picture of several axes.
const FIRST: usize = 7;

/// The paper colour of a theme, as in scripts.
fn paper(theme: &str) -> String {
    let text = include_str!("../../assets/drawing.js");
    let (_, inks) = text.split_once("const INK").expect("inks");
    let (_, ink) = inks.split_once(&format!("{theme}: {{")).expect("a theme");
    let (_, paper) = ink.split_once("paper: \"").expect("paper");
    paper[..7].to_owned()
}

/// Styles that look alike with some kind of vision, or in grey, differ in everything else: dash,
/// marker and pattern. The first colours, which most pictures use, are distinct without these
/// features with every colour vision deficiency.
#[test]
fn what_looks_alike_to_somebody_differs_in_form() {
    let styles = styles();
    let eyes = || DICHROMATS.iter().chain([&ALL, &GREY]);
    let mut alike = 0;
    for theme in ["light", "dark"] {
        let colours: Vec<&str> =
            styles[theme].as_array().expect(theme).iter().filter_map(Value::as_str).collect();
        for (eye, (one, other)) in
            eyes().flat_map(|eye| pairs(colours.len()).map(move |pair| (eye, pair)))
        {
            let apart = eye.apart(colours[one], colours[other]);
            let name =
                format!("{theme}, {}: {} {}: {apart:.1}", eye.name, colours[one], colours[other]);
            let is_grey = eye.name == GREY.name;
            assert!(apart > APART || is_grey || other >= FIRST, "{name}");
            assert!(apart > APART || eye.name != ALL.name, "{name}");
            if apart > APART {
                continue;
            }
            alike += 1;
            let [one, other] = [one, other].map(|at| {
                let of = |kind: &str| styles[kind][at].clone();
                (of("dashes"), of("markers"), of("patterns"))
            });
            assert!(dashes_differ(&one.0, &other.0), "{name}, and their dashes");
            assert!(one.1[1] != other.1[1], "{name}, and their markers");
            assert!(one.2 != other.2, "{name}, and their patterns");
        }
        for (eye, colour) in eyes().flat_map(|eye| colours.iter().map(move |it| (eye, it))) {
            let apart = eye.apart(colour, &paper(theme));
            assert!(apart > 2.0 * APART, "{theme}, {}: {colour} on paper: {apart:.1}", eye.name);
        }
    }
    assert!(alike > 0, "somebody sees some alike, or nothing was looked at");
}

/// The simulation of vision is right: without the middle cones, red and green of one lightness are
/// the same colour; without the short cones, they are not; greys stay grey.
#[test]
fn eyes_see_what_is_published_of_them() {
    let [protan, deutan, tritan] = &DICHROMATS;
    let (red, green) = ("#c00000", "#617a00");
    assert!(ALL.apart(red, green) > 80.0 && tritan.apart(red, green) > 60.0);
    assert!(deutan.apart(red, green) < APART, "{}", deutan.apart(red, green));
    let (blue, teal) = ("#0070c0", "#008080");
    assert!(tritan.apart(blue, teal) < protan.apart(blue, teal));
    for eye in [protan, deutan, tritan, &GREY] {
        assert!(eye.apart("#808080", "#808080") == 0.0);
        assert!((eye.apart("#808080", "#c0c0c0") - ALL.apart("#808080", "#c0c0c0")).abs() < 0.5);
    }
}

/// Colour, dash, marker and pattern each distinguish configurations alone, so that a page can be
/// read in grey and with every colour vision deficiency.
#[test]
fn no_two_styles_share_anything() {
    let styles = styles();
    let count = styles["dashes"].as_array().expect("dashes").len();
    for kind in ["light", "dark", "dashes", "markers", "patterns"] {
        let list = styles[kind].as_array().expect(kind);
        assert_eq!(list.len(), count, "{kind}");
        for (at, one) in list.iter().enumerate() {
            assert!(!list[..at].contains(one), "{kind}: {one} is there twice");
        }
    }
    for (one, other) in pairs(count) {
        let [one, other] = [one, other].map(|at| &styles["dashes"][at]);
        assert!(dashes_differ(one, other), "dashes are alike: {one} {other}");
    }
    // A pattern looks like its angle and its width, whatever its name is.
    for list in [&styles["markers"], &styles["patterns"]] {
        for one in list.as_array().expect("a list") {
            let shape = one.get("symbol").or(one.get(0)).and_then(Value::as_str);
            assert!(shape.is_some(), "{one}");
        }
    }
}

/// The data of a page whose one figure has `setups`, in both cases of a condition.
fn pictures(setups: usize, along: &str) -> Value {
    let many = Many::of(setups, along);
    let mut measured = Measured::default();
    for record in many.records() {
        measured.add(Reading::of("many", &record, &many.study.figures));
    }
    many.data(&measured, &[])
}

#[test]
fn no_picture_has_more_configurations_than_there_are_styles() {
    let styles = styles()["dashes"].as_array().expect("dashes").len();
    let lists = ["\"9 ms\", \"19 ms\"", "\"9 ms\", \"19 ms\", \"29 ms\""];
    for (setups, along) in [8, 12, 13, 30].into_iter().flat_map(|n| lists.map(|it| (n, it))) {
        let data = pictures(setups, along);
        let plots = data["plots"].as_array().expect("pictures");
        let counts: Vec<usize> =
            plots.iter().map(|it| it["series"].as_array().expect("series").len()).collect();
        assert_eq!(counts.iter().sum::<usize>(), setups, "{setups} with {along}: {counts:?}");
        assert_eq!(counts.len(), setups.div_ceil(styles), "{setups} with {along}: {counts:?}");
        assert!(counts.iter().all(|count| *count <= styles), "{setups} with {along}: {counts:?}");
    }
    let data = pictures(13, lists[0]);
    let titles: Vec<&str> = data["plots"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|it| it["title"].as_str())
        .collect();
    assert_eq!(titles, ["File; s0 to s6", "File; s7 to s12"]);
}
