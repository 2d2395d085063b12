//! Verdicts as signs and in plain words.

use super::Reproduction;
use crate::escape::html as text;
use midhop_study::{CellValue, Figure, Judgement, Measured, Missed, Study, Verdict, Whose};
use std::fmt::Write as _;

/// All verdicts in the order in which they are listed.
pub(super) const ALL: [Verdict; 5] =
    [Verdict::Holds, Verdict::Fails, Verdict::Departs, Verdict::Open, Verdict::Calibrated];

/// The name for programs, styles and filters.
pub(super) fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "holds",
        Verdict::Fails => "fails",
        Verdict::Departs => "departs",
        Verdict::Open => "open",
        Verdict::Calibrated => "calibrated",
    }
}

/// The sign, which is distinct without colour.
pub(super) fn sign(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "✓",
        Verdict::Fails => "✗",
        Verdict::Departs => "≠",
        Verdict::Open => "?",
        Verdict::Calibrated => "=",
    }
}

/// The name for readers.
pub(super) fn name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "holds",
        Verdict::Fails => "does not hold",
        Verdict::Departs => "does not hold, explained",
        Verdict::Open => "cannot be told",
        Verdict::Calibrated => "calibrated",
    }
}

/// Sign and name, for a page.
pub(super) fn mark(verdict: Verdict) -> String {
    format!(
        "<span class=\"mark {}\"><b aria-hidden=\"true\">{}</b> {}</span>",
        class(verdict),
        sign(verdict),
        name(verdict)
    )
}

/// How many there are of each kind; empty where there are none.
fn counts(verdicts: &[Verdict]) -> String {
    let mut words = String::new();
    for verdict in ALL {
        let count = verdicts.iter().filter(|it| **it == verdict).count();
        if count > 0 {
            let _ = write!(words, "<li><strong>{count}</strong> {}</li>", mark(verdict));
        }
    }
    if words.is_empty() { words } else { format!("<ul class=\"counts\">{words}</ul>\n") }
}

/// The counts of verdicts on the studies' values, on their claims, and on ours, each separately.
pub(super) fn tally(runs: &[Reproduction<'_>]) -> String {
    let claims = |whose| {
        let judgements = runs.iter().flat_map(|run| run.judgements);
        judgements
            .filter(|it| it.claim.by == whose && it.claim.is_counted())
            .map(|it| it.verdict)
            .collect()
    };
    let groups: [(&str, Vec<Verdict>); 3] = [
        (
            "Numbers that the studies print",
            runs.iter().flat_map(|run| run.study.verdicts(run.measured)).collect(),
        ),
        ("What the studies claim", claims(Whose::Study)),
        ("What we claim", claims(Whose::Ours)),
    ];
    let nonempty = groups.iter().filter(|(_, verdicts)| !verdicts.is_empty());
    nonempty
        .map(|(what, verdicts)| format!("<p class=\"of\">{what}</p>\n{}", counts(verdicts)))
        .collect()
}

/// The levels of a study's verdicts, and why.
pub(super) fn levels(run: &Reproduction<'_>) -> String {
    let percent = |level: f64| format!("{:.2} %", level * 100.0);
    format!(
        "<p class=\"note\">Judged at {} (claims) and {} (numbers): of all that is decided no more than {:.0} % is decided \
         by chance, in the mean (Benjamini and Hochberg). A second reading of a claim is shown and not counted.</p>\n",
        percent(run.study.level_of_claims(run.measured)),
        percent(run.level_of_points()),
        (1.0 - run.study.confidence) * 100.0
    )
}

/// The source of the claim.
pub(super) fn place(judgement: &Judgement) -> String {
    match (&judgement.claim.by, &judgement.claim.place) {
        (Whose::Ours, _) => "ours".to_owned(),
        (Whose::Study, Some(place)) => place.clone(),
        (Whose::Study, None) => "the study".to_owned(),
    }
}

/// The reason for the verdict, in a sentence or two.
pub(super) fn reason(judgement: &Judgement, study: &Study, measured: &Measured) -> String {
    let Judgement { claim, verdict, found, wanted, missed } = judgement;
    if let Some(why) = &claim.untold {
        return format!("The text does not tell: {why}.");
    }
    if *verdict == Verdict::Open && looked_at(judgement, measured).next().is_none() {
        return "Nothing of it has run.".to_owned();
    }
    // A ratio has no unit, and an order names cells.
    let of_value = claim.of.is_none() && claim.over.is_none();
    let unit = study.figure(claim.figure()).filter(|_| of_value).map(Figure::unit);
    let unit = unit.filter(|unit| !unit.is_empty()).map_or(String::new(), |it| format!(" {it}"));
    let wanted = format!("{}{unit}", ordered(claim.over.as_deref(), wanted, study));
    let cases = |it: &Missed| {
        let at: Vec<&str> =
            it.at.iter().map(|(axis, label)| study.label_name(axis, label)).collect();
        format!("{} {} ({})", at.join(", "), it.found, name(it.verdict))
    };
    let cases: Vec<String> = missed.iter().map(cases).collect();
    let cases = if cases.is_empty() { String::new() } else { format!(": {}", cases.join("; ")) };
    let here = format!("Here {found}{unit}{cases}");
    match verdict {
        Verdict::Holds => format!("{here}; asked for {wanted}."),
        Verdict::Fails => format!("{here}, and not {wanted}."),
        Verdict::Calibrated => format!("{here}: a parameter was chosen to meet {wanted}."),
        Verdict::Departs => {
            let why = claim.departs.as_deref().unwrap_or("no reason is given");
            format!("{here}, and not {wanted}: {why}.")
        }
        Verdict::Open if found.contains("have run") => "Not all of its cells have run.".to_owned(),
        Verdict::Open => {
            let single = |it: &CellValue| {
                it.estimate(study.confidence).is_some_and(|it| it.margin.is_none())
            };
            let why = if looked_at(judgement, measured).any(single) {
                "one run in which chance has a part decides nothing: more seeds would tell"
            } else {
                "the interval reaches across a bound: more seeds would tell"
            };
            format!("{here}; asked for {wanted}; {why}.")
        }
    }
}

/// An order of labels with their names for readers.
fn ordered(axis: Option<&str>, wanted: &str, study: &Study) -> String {
    let Some(axis) = axis else { return wanted.to_owned() };
    let labels: Vec<&str> = wanted.split(" > ").map(|it| study.label_name(axis, it)).collect();
    labels.join(" > ")
}

/// Every claim with its verdict and the reason, as a list; claims without any runs are folded.
pub(super) fn list(judgements: &[Judgement], study: &Study, measured: &Measured) -> String {
    let (mut listed, mut idle, mut left_out) = (String::new(), String::new(), 0);
    for judgement in judgements {
        let is_listed =
            judgement.claim.untold.is_some() || looked_at(judgement, measured).next().is_some();
        left_out += usize::from(!is_listed);
        let list = if is_listed { &mut listed } else { &mut idle };
        item(list, judgement, study, measured);
    }
    let mut page = String::new();
    if !listed.is_empty() {
        let _ = write!(page, "<ol class=\"claims\">\n{listed}</ol>\n");
    }
    if !idle.is_empty() {
        let _ = write!(
            page,
            "<details><summary>{} of which nothing has run</summary>\n\
             <ol class=\"claims\">\n{idle}</ol>\n</details>\n",
            crate::phrases::count(left_out, "claim")
        );
    }
    page
}

fn item(page: &mut String, judgement: &Judgement, study: &Study, measured: &Measured) {
    let basis = judgement.claim.basis.as_ref();
    let basis = basis.map_or_else(String::new, |basis| {
        format!("<span class=\"basis\">Bounds: {}.</span>", text(basis))
    });
    let _ = writeln!(
        page,
        "<li class=\"{}\">{}<div><p class=\"says\">{} <span class=\"place\">({})</span></p>\
         <p class=\"why\">{} {basis}</p></div></li>",
        class(judgement.verdict),
        mark(judgement.verdict),
        text(&judgement.claim.says),
        text(&place(judgement)),
        text(&reason(judgement, study, measured)),
    );
}

/// The cells of a claim that have run.
fn looked_at<'m>(
    judgement: &Judgement,
    measured: &'m Measured,
) -> impl Iterator<Item = &'m CellValue> {
    let claim = &judgement.claim;
    let covered =
        move |it: &&CellValue| claim.at.iter().all(|(axis, at)| it.cell.get(axis) == Some(at));
    measured.cells(claim.figure()).iter().filter(covered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_differ_in_sign_and_in_words() {
        for (number, one) in ALL.into_iter().enumerate() {
            for other in ALL.into_iter().skip(number + 1) {
                assert_ne!(sign(one), sign(other));
                assert_ne!(name(one), name(other));
            }
        }
        let marked = mark(Verdict::Fails);
        assert!(marked.contains("✗") && marked.contains("does not hold"), "{marked}");
    }
}
