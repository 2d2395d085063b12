//! The page of one study.

use super::over_time::{self, Traced};
use super::plans::Folds;
use super::plot::{self, Frame, Plot, Scatter};
use super::run_cell::{Again, RunCell};
use super::{Reproduction, beside, table, verdict};
use crate::escape::html as text;
use crate::machine::WriteError;
use crate::phrases::count;
use crate::shell;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write as _;

pub(super) const STYLE: &str = include_str!("../../assets/study.css");
pub(super) const SCRIPT: &str = include_str!("../../assets/study.js");
pub(super) const SCRIPT_OF_SIGNS: &str = include_str!("../../assets/signs.js");
const SCRIPT_OF_TRACES: &str = include_str!("../../assets/trace.js");
const SCRIPT_OF_SCATTERS: &str = include_str!("../../assets/scatter.js");

/// The data for the page's script.
#[derive(Debug, Serialize)]
pub(super) struct Data<'a> {
    pub(super) plots: Vec<Plot>,
    pub(super) scatters: Vec<Scatter>,
    pub(super) cells: Vec<RunCell>,
    pub(super) traces: Vec<Traced<'a>>,
    pub(super) names: Names,
}

/// Names for the script.
#[derive(Debug, Default, Serialize)]
pub(super) struct Names {
    /// The file name without its ending.
    pub(super) file: String,
}

/// The page of a study: its runs, its pictures and tables, the judgements of its claims.
///
/// # Errors
/// When the figures cannot be written as JSON, which finite numbers always can.
pub fn study_page(run: &Reproduction<'_>) -> Result<String, WriteError> {
    let mut cells = Vec::new();
    let mut plots = Vec::new();
    let mut scatters = Vec::new();
    let mut figures = String::new();
    let mut number = 0;
    for figure in &run.study.figures {
        let drawn = plot::plots(run, figure, number, &mut cells);
        if drawn.is_empty() {
            continue;
        }
        number += 1;
        let _ = writeln!(
            figures,
            "<section class=\"figure\" id=\"figure-{number}\">\n<h3>{}</h3>",
            text(&figure.shows)
        );
        let several = drawn.len() > 1;
        for plot in &drawn {
            picture(&mut figures, &plot.frame, several);
        }
        let against = plot::scatters(run, figure, number, &mut cells);
        for scatter in &against {
            picture(&mut figures, &scatter.frame, true);
        }
        figures.push_str(&table::table(run, figure));
        figures.push_str("</section>\n");
        plots.extend(drawn);
        scatters.extend(against);
    }
    let mut page = shell::opened(&run.title(), STYLE);
    let beside = beside::section(run);
    header(&mut page, run, !beside.is_empty());
    claims(&mut page, run);
    page.push_str(&beside);
    let _ = write!(
        page,
        "<section id=\"figures-of-study\">\n<h2>Figures</h2>\n<p class=\"note\">Point at a bar or a point, or \
         touch it, for its settings, its plan and the command that runs it again; a click on a name in a legend hides or \
         shows it. A whisker without an end goes on beyond the picture.</p>\n{figures}</section>\n"
    );
    over_time::section(&mut page, run);
    let folds = Folds::of(run, &mut cells, |cell| cell.title(run));
    each_cell(&mut page, run, &cells, &folds);
    let data = Data {
        plots,
        scatters,
        cells,
        traces: over_time::traced(run),
        names: Names { file: run.file_name() },
    };
    shell::close(
        &mut page,
        &data,
        &[SCRIPT_OF_SIGNS, SCRIPT_OF_TRACES, SCRIPT_OF_SCATTERS, SCRIPT],
    )?;
    Ok(page)
}

fn header(page: &mut String, run: &Reproduction<'_>, beside: bool) {
    let study = run.study;
    let _ = write!(
        page,
        "<header>\n<p class=\"up\"><a href=\"index.html\">All studies</a></p>\n<h1>{}</h1>\n\
         <dl class=\"facts\">\n",
        text(&run.title())
    );
    let mut fact = |name: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(page, "<div><dt>{name}</dt><dd>{value}</dd></div>");
        }
    };
    fact("Source", &text(&study.source));
    fact("Ran in", &text(beside::place(run.place)));
    fact("Runs", &text(&runs(run)));
    fact("Time", &text(&took(run)));
    fact("Version", &text(&version(run)));
    fact("Machine", &text(&machine(run)));
    fact("Again", &format!("<code>{}</code>", text(run.command)));
    let file = run.file_name();
    fact(
        "Data",
        &format!(
            "<a href=\"{file}.csv\" download>CSV</a>, <a href=\"{file}.parquet\" download>Parquet</a>: one row \
             for each figure and cell"
        ),
    );
    page.push_str("</dl>\n");
    warnings(page, run);
    page.push_str("<nav><a href=\"#claims\">Claims</a> ");
    if beside {
        page.push_str("<a href=\"#both\">Simulator and laboratory</a> ");
    }
    page.push_str(
        "<a href=\"#figures-of-study\">Figures</a> <a href=\"#time\">Over time</a> \
         <a href=\"#cells\">Each cell</a></nav>\n\
         <noscript><p class=\"warning\">The pictures need JavaScript; words and tables do \
         not.</p></noscript>\n</header>\n",
    );
}

/// The reasons to doubt figures.
pub(super) fn warnings(page: &mut String, run: &Reproduction<'_>) {
    if run.finished < run.runs {
        let _ = writeln!(
            page,
            "<p class=\"warning\"><strong>{} of {} runs gave no record.</strong></p>",
            run.runs - run.finished,
            run.runs
        );
    }
    if !run.left_out.is_empty() {
        page.push_str(
            "<details class=\"note\"><summary>What could not be run there</summary>\n<ul>",
        );
        for left_out in run.left_out {
            let _ = write!(page, "<li>{}</li>", text(left_out));
        }
        page.push_str("</ul>\n</details>\n");
    }
    if !run.faults.is_empty() {
        let _ = write!(
            page,
            "<details class=\"warning\"><summary><strong>{}</strong> say that they are not valid</summary>\n<ul>",
            count(run.faults.len(), "fault")
        );
        for fault in run.faults {
            let _ = write!(page, "<li>{}</li>", text(fault));
        }
        page.push_str("</ul>\n</details>\n");
    }
}

pub(super) fn runs(run: &Reproduction<'_>) -> String {
    let seeds: BTreeSet<String> =
        run.seeds.values().flat_map(|it| &it.ran).map(ToString::to_string).collect();
    let mut seeds: Vec<String> = seeds.into_iter().collect();
    seeds.sort_by_key(|seed| seed.parse::<u64>().unwrap_or(u64::MAX));
    let seeds = match seeds.as_slice() {
        [] => String::new(),
        [one] => format!(", seed {one}"),
        few if few.len() <= 10 => format!(", seeds {}", few.join(", ")),
        many => format!(", {} seeds", many.len()),
    };
    format!("{} of {}{seeds}", count(run.finished, "run"), count(run.seeds.len(), "cell"))
}

fn took(run: &Reproduction<'_>) -> String {
    let s = run.took.as_secs_f64();
    let took = if s < 120.0 { format!("{s:.1} s") } else { format!("{:.0} min", s / 60.0) };
    match run.environment {
        Some(first) => {
            format!("{took} for this report; first run {}", crate::date::utc(first.started_unix_s))
        }
        None => took,
    }
}

pub(super) fn version(run: &Reproduction<'_>) -> String {
    let versions = run.environment.into_iter().flat_map(|it| &it.versions);
    // The hash of the plan is each run's own.
    let parts: Vec<String> = versions
        .filter(|(part, _)| *part != "plan")
        .map(|(part, version)| format!("{part} {version}"))
        .collect();
    parts.join(", ")
}

pub(super) fn machine(run: &Reproduction<'_>) -> String {
    run.environment.map_or_else(String::new, |first| {
        format!(
            "{}, load average {:.1} at the first run",
            count(first.processors as usize, "processor"),
            first.load
        )
    })
}

fn claims(page: &mut String, run: &Reproduction<'_>) {
    page.push_str("<section id=\"claims\">\n<h2>Claims</h2>\n");
    page.push_str(&verdict::tally(std::slice::from_ref(run)));
    page.push_str(&verdict::levels(run));
    if run.judgements.is_empty() {
        page.push_str("<p>The study's file judges no claim.</p>\n");
    }
    page.push_str(&verdict::list(run.judgements, run.study, run.measured));
    page.push_str("</section>\n");
}

/// The frame of a picture; `titled` where the heading above is not its title.
pub(super) fn picture(page: &mut String, frame: &Frame, titled: bool) {
    let title = if titled { text(&frame.title) } else { String::new() };
    let _ = write!(
        page,
        "<figure id=\"{}\" class=\"study\">\n<div class=\"head\"><h4>{title}</h4>\
         <span class=\"save\">Save as <button type=\"button\" data-save=\"svg\">SVG</button>\
         <button type=\"button\" data-save=\"png\">PNG</button>\
         <button type=\"button\" data-csv>CSV</button></span></div>\n\
         <div class=\"plot\" role=\"img\" aria-label=\"{}\"></div>\n\
         <div class=\"picked\" aria-live=\"polite\"></div>\n\
         <figcaption>{}</figcaption>\n</figure>\n",
        text(&frame.id),
        text(&frame.title),
        text(&frame.caption),
    );
}

/// Each cell and how to repeat it, also for readers without scripts.
fn each_cell(page: &mut String, run: &Reproduction<'_>, cells: &[RunCell], folds: &Folds) {
    page.push_str("<section id=\"cells\">\n<h2>Each cell</h2>\n");
    for scenario in &run.study.scenarios {
        let here: Vec<&RunCell> = cells.iter().filter(|it| it.scenario == *scenario).collect();
        if here.is_empty() {
            continue;
        }
        let _ = writeln!(
            page,
            "<details><summary>{} of scenario {}</summary>\n{}<ul class=\"cells\">",
            count(here.len(), "cell"),
            text(scenario),
            folds.fold(scenario)
        );
        for cell in here {
            let settings: Vec<String> =
                cell.settings.iter().map(|it| format!("<code>{}</code>", text(it))).collect();
            let settings = match settings.as_slice() {
                [] => "<p class=\"note\">As the scenario's file says.</p>".to_owned(),
                some => format!("<p class=\"note\">Sets {}.</p>", some.join(", ")),
            };
            let _ = writeln!(
                page,
                "<li><p>{}; {}</p>{settings}<pre><code>{}</code></pre>{}</li>",
                text(&cell.title(run)),
                text(&seeds(&cell.seeds)),
                text(&cell.command),
                cell.beside.as_ref().map_or_else(String::new, again)
            );
        }
        page.push_str("</ul>\n</details>\n");
    }
    page.push_str("</section>\n");
}

/// A cell in the other place.
fn again(beside: &Again) -> String {
    let settings: Vec<String> =
        beside.settings.iter().map(|it| format!("<code>{}</code>", text(it))).collect();
    let settings = match settings.as_slice() {
        [] => String::new(),
        some => format!("; sets {}", some.join(", ")),
    };
    format!(
        "<p class=\"note\">{}: {}{settings}</p><pre><code>{}</code></pre>",
        beside.place,
        text(&seeds(&beside.seeds)),
        text(&beside.command)
    )
}

fn seeds(seeds: &[String]) -> String {
    format!("{} {}", if seeds.len() == 1 { "seed" } else { "seeds" }, seeds.join(", "))
}
