//! The report as one HTML file that needs nothing but a browser.
//!
//! Words and tables are HTML, so they read without scripts; pictures are drawn by `report.js` from
//! the JSON in the page.

use crate::escape::html as text;
use crate::facts;
use crate::figures::{Bars, Figures, Lines, distinct};
use crate::machine::WriteError;
use crate::runs;
use crate::shell;
use midhop_experiment::record::Record;
use std::fmt::Write as _;

const SCRIPT: &str = include_str!("../assets/report.js");

/// How a page is made.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Options {
    /// The heading; the records' own titles where none.
    pub title: Option<String>,
    /// The scenario's file, as the command to run a cell again names it.
    pub scenario: Option<String>,
}

impl Options {
    /// The options with `title` for a heading.
    #[must_use]
    pub fn titled(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// The options with the scenario's file for commands.
    #[must_use]
    pub fn from_scenario(mut self, file: impl Into<String>) -> Self {
        self.scenario = Some(file.into());
        self
    }
}

/// The page.
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
    comparisons(&mut page, &figures.bars);
    over_time(&mut page, &figures.lines);
    runs::table(&mut page, records);
    runs::details(&mut page, records, options);
    shell::close(&mut page, &figures, &[SCRIPT])?;
    Ok(page)
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
    page.push_str(
        "<nav><a href=\"#comparison\">Comparison</a> <a href=\"#time\">Over time</a> \
         <a href=\"#table\">All figures</a> <a href=\"#runs\">Each run</a></nav>\n\
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
        page.push_str(
            "<p class=\"verdict\">All runs are valid: the emulated links kept their time, every \
             byte that was compared arrived as sent, and nothing was faster than physics \
             allows.</p>\n",
        );
    }
}

fn comparisons(page: &mut String, bars: &[Bars]) {
    page.push_str(
        "<section id=\"comparison\">\n<h2>Comparison</h2>\n<p class=\"note\">Touch or point at a \
         picture for its numbers; a click on a name in a legend hides or shows it.</p>\n",
    );
    for figure in bars {
        picture(page, &figure.id, &figure.title, &figure.caption, "bars");
    }
    page.push_str("</section>\n");
}

fn over_time(page: &mut String, lines: &[Lines]) {
    page.push_str("<section id=\"time\">\n<h2>Over time</h2>\n");
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

pub(crate) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
