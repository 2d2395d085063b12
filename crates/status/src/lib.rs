//! The state of a proxy, and how it is shown.
//!
//! The daemon measures itself into a [`snapshot`], and [`health`] collects what fails in it. Of both, [`metrics`] makes the text
//! for Prometheus, [`admin`] the page with its [`history`], and [`control`] the answers for whoever asks over the control socket:
//! the commands of [`console`], or a script.
//!
//! ```text
//! daemon ─► Snapshot, Totals, Health ─► admin: page, metrics ─► browser, Prometheus
//!                                   └─► control ─► console
//! ```
//!
//! Nothing here runs for a byte or a packet of a flow.

pub mod admin;
pub mod console;
pub mod control;
pub mod health;
mod histogram;
pub mod history;
pub mod metrics;
pub mod reloads;
pub mod snapshot;
