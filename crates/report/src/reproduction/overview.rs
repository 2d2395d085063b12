//! The page with links to those of all studies.

use super::page::{Data, Names, SCRIPT, SCRIPT_OF_SIGNS, STYLE};
use super::plot::{self, Plot};
use super::run_cell::RunCell;
use super::{Reproduction, beside, page, verdict};
use crate::escape::html as text;
use crate::machine::WriteError;
use crate::phrases::count;
use crate::phrases::distinct;
use crate::shell;
use midhop_study::{Figure, Whose};
use std::fmt::Write as _;

const SCRIPT_OF_OVERVIEW: &str = include_str!("../../assets/overview.js");

/// The page of all studies: the question of each, its runs, the judgements of its claims, and a
/// link to it.
///
/// # Errors
/// When the figures cannot be written as JSON, which finite numbers always can.
pub fn overview(runs: &[Reproduction<'_>]) -> Result<String, WriteError> {
    let title = "Published studies, run again";
    let mut page = shell::opened(title, STYLE);
    let mut cells = Vec::new();
    let mut plots = Vec::new();
    let mut cards = String::new();
    for (number, run) in runs.iter().enumerate() {
        card(&mut cards, run, number, &mut plots, &mut cells);
    }
    header(&mut page, title, runs);
    let _ = write!(page, "<section id=\"studies\">\n<h2>Studies</h2>\n{cards}</section>\n");
    claims(&mut page, runs);
    let data = Data {
        plots,
        scatters: Vec::new(),
        cells,
        traces: Vec::new(),
        names: Names { file: "studies".to_owned() },
    };
    shell::close(&mut page, &data, &[SCRIPT_OF_SIGNS, SCRIPT, SCRIPT_OF_OVERVIEW])?;
    Ok(page)
}

fn header(page: &mut String, title: &str, runs: &[Reproduction<'_>]) {
    let _ = write!(page, "<header>\n<h1>{title}</h1>\n<dl class=\"facts\">\n");
    let mut fact = |name: &str, values: Vec<String>| {
        let values = distinct(values.into_iter().filter(|it| !it.is_empty()));
        if !values.is_empty() {
            let values = values.join(" / ");
            let _ = writeln!(page, "<div><dt>{name}</dt><dd>{}</dd></div>", text(&values));
        }
    };
    let total: usize = runs.iter().map(|run| run.finished).sum();
    let took: f64 = runs.iter().map(|run| run.took.as_secs_f64()).sum();
    fact(
        "Runs",
        vec![format!(
            "{} of {} in {took:.0} s",
            count(total, "run"),
            studies(distinct(runs.iter().map(|run| run.name.to_owned())).len())
        )],
    );
    fact("Ran in", runs.iter().map(|run| beside::place(run.place).to_owned()).collect());
    fact("Version", runs.iter().map(page::version).collect());
    fact("Machine", runs.iter().map(page::machine).take(1).collect());
    page.push_str("</dl>\n");
    page.push_str(&verdict::tally(runs));
    page.push_str(
        "<nav><a href=\"#studies\">Studies</a> <a href=\"#claims\">Every claim</a></nav>\n\
         <noscript><p class=\"warning\">The pictures need JavaScript; words and tables do \
         not.</p></noscript>\n</header>\n",
    );
}

fn studies(number: usize) -> String {
    if number == 1 { "one study".to_owned() } else { format!("{number} studies") }
}

fn card(
    page: &mut String,
    run: &Reproduction<'_>,
    number: usize,
    plots: &mut Vec<Plot>,
    cells: &mut Vec<RunCell>,
) {
    let file = run.file_name();
    let _ = write!(
        page,
        "<article class=\"card\" id=\"study-{number}\">\n<h3><a href=\"{file}.html\">{}</a></h3>\n\
         <p class=\"source\">{}</p>\n<p class=\"note\">{}; {}.</p>\n{}",
        text(&run.title()),
        text(&run.study.source),
        text(&page::runs(run)),
        text(beside::place(run.place)),
        verdict::tally(std::slice::from_ref(run))
    );
    page::warnings(page, run);
    if let Some(figure) = telling(run) {
        // The first of several pictures; each study has numbers of its own.
        if let Some(plot) = plot::plots(run, figure, number, cells).into_iter().next() {
            page::picture(page, &plot.frame, true);
            plots.push(plot);
        }
    }
    let _ = write!(
        page,
        "<p><a href=\"{file}.html\">All of {}</a>; <a href=\"{file}.csv\" download>CSV</a>, \
         <a href=\"{file}.parquet\" download>Parquet</a></p>\n</article>\n",
        text(&run.label())
    );
}

/// The most informative figure: with our values beside others, then with most published values and
/// claims about it.
fn telling<'a>(run: &Reproduction<'a>) -> Option<&'a Figure> {
    let weight = |figure: &&Figure| {
        let claims = run.judgements.iter().filter(|it| it.claim.figure() == figure.name);
        let claims = claims.filter(|it| it.claim.by == Whose::Study || run.study.goals);
        let ours = run.measured.cells(&figure.name).iter().filter(|it| run.study.is_ours(&it.cell));
        let ours = ours.count();
        let beside = ours > 0 && ours < run.measured.cells(&figure.name).len();
        (beside && claims.clone().count() > 0, figure.published.len() + claims.count())
    };
    let there = |figure: &&Figure| !run.measured.cells(&figure.name).is_empty();
    // Of equal ones, the first.
    run.study.figures.iter().filter(there).rev().max_by_key(weight)
}

fn claims(page: &mut String, runs: &[Reproduction<'_>]) {
    page.push_str(
        "<section id=\"claims\">\n<h2>Every claim</h2>\n<div class=\"choose\" hidden>\
         <label>Study <select id=\"of-study\"><option value=\"\">all</option>",
    );
    for run in runs {
        let name = text(&run.label());
        let _ = write!(page, "<option value=\"{name}\">{name}</option>");
    }
    page.push_str(
        "</select></label> <label>Verdict <select id=\"of-verdict\"><option value=\"\">all</option>",
    );
    for it in verdict::ALL {
        let (class, sign, name) = (verdict::class(it), verdict::sign(it), verdict::name(it));
        let _ = write!(page, "<option value=\"{class}\">{sign} {name}</option>");
    }
    page.push_str(
        "</select></label> <label>Whose <select id=\"of-whom\"><option value=\"\">all</option>\
         <option value=\"study\">the study's</option><option value=\"ours\">ours</option></select>\
         </label> <output id=\"shown\"></output></div>\n\
         <div class=\"scroll\"><table class=\"claims-table\">\n<thead><tr><th>study</th><th>claim</th>\
         <th>where</th><th>verdict</th><th>why</th></tr></thead>\n<tbody>\n",
    );
    for run in runs {
        for judgement in run.judgements {
            let whose = match judgement.claim.by {
                Whose::Study => "study",
                Whose::Ours => "ours",
            };
            let _ = writeln!(
                page,
                "<tr data-study=\"{}\" data-verdict=\"{}\" data-whose=\"{whose}\"><td>{}</td>\
                 <td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                text(&run.label()),
                verdict::class(judgement.verdict),
                text(&run.label()),
                text(&judgement.claim.says),
                text(&verdict::place(judgement)),
                verdict::mark(judgement.verdict),
                text(&verdict::reason(judgement, run.study, run.measured)),
            );
        }
    }
    page.push_str("</tbody></table></div>\n</section>\n");
}
