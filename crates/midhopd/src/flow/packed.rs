//! A flow as it goes from one thread to another: without what belongs to a thread.

use crate::ends::Ends;
use crate::syn_hold::known::Known;
use midhop_pep::config::{LegPlan, Plan};
use std::sync::Arc;

/// A flow on its way from one thread to another.
#[derive(Debug)]
pub struct Packed {
    pub(super) plan: Arc<Plan>,
    pub(super) client: std::net::TcpStream,
    pub(super) ends: Ends,
    pub(super) known: Known,
    pub(super) door: Arc<LegPlan>,
}
