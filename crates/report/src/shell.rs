//! The frame of every page: the head with its policy, and the data and scripts at the end.
//!
//! The policy forbids every request, so that a page cannot send any, even through a malicious
//! record.

use crate::escape::{html as text, script_json};
use crate::machine::WriteError;
use serde::Serialize;
use std::fmt::Write as _;

const STYLE: &str = include_str!("../assets/report.css");
const STYLES: &str = include_str!("../assets/styles.js");
const DRAWING: &str = include_str!("../assets/drawing.js");
const CHARTS: &str = include_str!("../assets/echarts/echarts.min.js");

/// The reserved size of a page: the drawing library, and the text around it.
const PAGE_BYTES: usize = CHARTS.len() + 512 * 1024;

/// The beginning of a page up to its text; `style` follows the style of all pages.
pub(crate) fn opened(title: &str, style: &str) -> String {
    let mut page = String::with_capacity(PAGE_BYTES);
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <title>{}</title>\n<style>\n{STYLE}{style}</style>\n</head>\n<body>\n",
        text(title)
    );
    page
}

/// The end of a page, with `data` for its `scripts`.
///
/// # Errors
/// When the data cannot be written as JSON, which finite numbers always can.
pub(crate) fn close<T: Serialize>(
    page: &mut String,
    data: &T,
    scripts: &[&str],
) -> Result<(), WriteError> {
    let _ = write!(
        page,
        "<footer><p>Made by midhop {}. Pictures: Apache ECharts 6.1.0 (Apache-2.0).</p></footer>\n\
         <script type=\"application/json\" id=\"figures\">{}</script>\n\
         <script>{CHARTS}</script>\n",
        env!("CARGO_PKG_VERSION"),
        script_json(data)?
    );
    for script in [&STYLES, &DRAWING].into_iter().chain(scripts) {
        let _ = write!(page, "<script>\n{script}</script>\n");
    }
    page.push_str("</body>\n</html>\n");
    Ok(())
}
