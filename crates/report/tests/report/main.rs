//! Tables, pages and pictures of records.

#[expect(clippy::disallowed_methods, reason = "a browser reads and writes files")]
mod chromium;
mod drawn;
mod eyes;
mod many;
mod sample;
mod synthetic;

mod browser;
mod over_time;
mod page;
mod study;
mod styles;
mod table;
