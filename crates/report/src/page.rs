//! The report as one HTML file that needs only a browser.
//!
//! Text and tables are HTML, so they can be read without scripts; `report.js` draws the pictures
//! from the JSON in the page.

use crate::beside;
use crate::escape::html as text;
use crate::facts;
use crate::figures::{Bars, Figures, Lines};
use crate::machine::WriteError;
use crate::phrases::{count, distinct};
use crate::runs;
use crate::shell;
use midhop_experiment::record::{Record, Runner};
use std::fmt::Write as _;

const SCRIPT: &str = include_str!("../assets/report.js");

/// Options of a page.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Options {
    /// The heading; the records' own titles where none.
    pub title: Option<String>,
    /// The scenario's file, for the command that repeats a cell.
    pub scenario: Option<String>,
}

impl Options {
    /// The options with `title` as the heading.
    #[must_use]
    pub fn titled(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// The options with the scenario's file, for commands.
    #[must_use]
    pub fn from_scenario(mut self, file: impl Into<String>) -> Self {
        self.scenario = Some(file.into());
        self
    }
}

/// The page. Where records are from several places, as from the simulator and real kernels, each
/// place has its own pictures and its own table, and a table before them compares all places.
///
/// # Errors
/// When the figures cannot be written as JSON, which finite numbers always can.
pub fn html(records: &[Record], options: &Options) -> Result<String, WriteError> {
    let figures = Figures::of(records);
    let titles = distinct(records.iter().map(|record| record.title.clone()));
    let title = options.title.clone().unwrap_or_else(|| titles.join(" / "));
    let title = if title.is_empty() { "Midhop report".to_owned() } else { title };
    let mut page = shell::opened(&title, "");
    header(&mut page, &title, records);
    let places = beside::places(records);
    if places.len() > 1 {
        beside::section(&mut page, records);
    }
    // A page without records has the same sections.
    let parts = if places.is_empty() { vec![Runner::default()] } else { places.clone() };
    for &place in &parts {
        let part = Part { place, alone: parts.len() == 1 };
        let here: Vec<Record> =
            records.iter().filter(|record| Runner::of(record) == place).cloned().collect();
        let bars: Vec<&Bars> = figures.bars.iter().filter(|it| it.place == place).collect();
        let lines: Vec<&Lines> = figures.lines.iter().filter(|it| it.place == place).collect();
        comparisons(&mut page, part, &bars);
        over_time(&mut page, part, &lines);
        runs::table(&mut page, &part.id("table"), &part.heading("all figures"), &here);
    }
    runs::details(&mut page, records, options);
    shell::close(&mut page, &figures, &[SCRIPT])?;
    Ok(page)
}

/// The part of the page about one place.
#[derive(Debug, Clone, Copy)]
struct Part {
    place: Runner,
    /// Whether it is the only one.
    alone: bool,
}

impl Part {
    fn id(self, section: &str) -> String {
        if self.alone { section.to_owned() } else { format!("{}-{section}", self.place.name()) }
    }

    fn heading(self, section: &str) -> String {
        format!("{}: {section}", beside::title(self.place))
    }
}

fn header(page: &mut String, title: &str, records: &[Record]) {
    let _ = write!(page, "<header>\n<h1>{}</h1>\n", text(title));
    let facts = facts::of(records);
    page.push_str("<dl class=\"facts\">\n");
    for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(page, "<div><dt>{}</dt><dd>{}</dd></div>", text(name), text(value));
    }
    page.push_str("</dl>\n");
    verdict(page, records);
    if let Some(gaps) = crate::summary::gaps(records) {
        let _ = writeln!(page, "<p class=\"warning\">{}</p>", text(&gaps));
    }
    page.push_str("<nav>");
    let places = beside::places(records);
    if places.len() > 1 {
        page.push_str("<a href=\"#beside\">Side by side</a> ");
    }
    let parts = if places.is_empty() { vec![Runner::default()] } else { places.clone() };
    for &place in &parts {
        let part = Part { place, alone: parts.len() == 1 };
        for (section, name) in
            [("comparison", "comparison"), ("time", "over time"), ("table", "all figures")]
        {
            let name = if part.alone { upper(name) } else { part.heading(name) };
            let _ = write!(page, "<a href=\"#{}\">{}</a> ", part.id(section), text(&name));
        }
    }
    page.push_str(
        "<a href=\"#runs\">Each run</a></nav>\n\
         <noscript><p class=\"warning\">The pictures need JavaScript; the tables below do \
         not.</p></noscript>\n</header>\n",
    );
}

fn verdict(page: &mut String, records: &[Record]) {
    let bad = records.iter().filter(|record| {
        !record.validity.is_valid()
            || record
                .transfers
                .iter()
                .any(|transfer| !crate::summary::faults(record, transfer).is_empty())
    });
    let bad = bad.count();
    if bad > 0 {
        let _ = writeln!(
            page,
            "<p class=\"warning\"><strong>{} of {} invalid:</strong> their figures are marked \
             and must not be used; the reasons stand below the table.</p>",
            bad,
            count(records.len(), "run")
        );
    } else if !records.is_empty() {
        // The simulator has no real clock that could be late, and no payload bytes to compare.
        let places = beside::places(records);
        if places.iter().all(|place| !place.runs_plans()) {
            page.push_str(
                "<p class=\"verdict\">Measured between two hosts, without a scenario: nothing here knows what the path \
                 could carry, unless a limit is shown.</p>\n",
            );
            return;
        }
        let kept = if places.contains(&Runner::Lab) {
            "the emulated links kept their time, every byte that was compared arrived as sent, and nothing"
        } else {
            "everything that was sent is accounted for, and nothing"
        };
        let _ = writeln!(
            page,
            "<p class=\"verdict\">All runs are valid: {kept} was faster than physics allows.</p>"
        );
    }
}

/// `name` with a capital first letter.
fn upper(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn comparisons(page: &mut String, part: Part, bars: &[&Bars]) {
    let _ = writeln!(
        page,
        "<section id=\"{}\">\n<h2>{}</h2>\n<p class=\"note\">Touch or point at a \
         picture for its numbers; a click on a name in a legend hides or shows it.</p>",
        part.id("comparison"),
        text(&part.heading("comparison")),
    );
    for figure in bars {
        picture(page, &figure.id, &figure.title, &figure.caption, "bars");
    }
    page.push_str("</section>\n");
}

fn over_time(page: &mut String, part: Part, lines: &[&Lines]) {
    let heading = part.heading("over time");
    let _ = writeln!(page, "<section id=\"{}\">\n<h2>{}</h2>", part.id("time"), text(&heading));
    if lines.is_empty() {
        page.push_str("<p>These records hold no samples over time.</p>\n");
    }
    for section in distinct(lines.iter().map(|figure| figure.section.clone())) {
        let here = || lines.iter().filter(|figure| figure.section == section);
        let _ = writeln!(page, "<h3>{}</h3>", text(&section));
        for figure in here().filter(|figure| !figure.extra) {
            picture(page, &figure.id, &figure.title, &figure.caption, "lines");
        }
        let more = here().filter(|figure| figure.extra).count();
        if more > 0 {
            let _ = writeln!(
                page,
                "<details class=\"more\"><summary>{} of {}</summary>",
                count(more, "more picture"),
                text(&section)
            );
            for figure in here().filter(|figure| figure.extra) {
                picture(page, &figure.id, &figure.title, &figure.caption, "lines");
            }
            page.push_str("</details>\n");
        }
    }
    page.push_str("</section>\n");
}

fn picture(page: &mut String, id: &str, title: &str, caption: &str, kind: &str) {
    // A number and its unit stay on one line.
    let caption = text(caption).replace(" %", "&nbsp;%").replace(" s;", "&nbsp;s;");
    let _ = write!(
        page,
        "<figure id=\"{id}\" class=\"{kind}\">\n<div class=\"head\"><h4>{title}</h4>\
         <span class=\"save\">Save as <button type=\"button\" data-save=\"svg\">SVG</button>\
         <button type=\"button\" data-save=\"png\">PNG</button></span></div>\n\
         <div class=\"plot\" role=\"img\" aria-label=\"{title}\"></div>\n\
         <figcaption>{caption}</figcaption>\n</figure>\n",
        id = text(id),
        title = text(title),
    );
}
