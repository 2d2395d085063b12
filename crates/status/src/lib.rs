//! The state of a proxy, and how it is reported.
//!
//! The daemon measures itself into a [`snapshot`], and [`health`] collects what fails in it. From both, [`metrics`]
//! makes the text for Prometheus, [`admin`] the page with its [`history`], and [`control`] the answers over the
//! control socket, for the commands of [`console`] and for scripts.
//!
//! ```text
//! daemon ─► Snapshot, Totals, Health ─► admin: page, metrics ─► browser, Prometheus
//!                                   └─► control ─► console
//! ```
//!
//! Nothing here runs for each byte or packet of a flow.

pub mod admin;
pub mod console;
pub mod control;
pub mod health;
mod histogram;
pub mod history;
pub mod metrics;
pub mod reloads;
pub mod snapshot;
