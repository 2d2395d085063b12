//! Links of a network path as sans-IO state machines: rate, delay, loss, queues, access schemes.

pub mod acm;
pub mod aqm;
pub mod codel;
pub mod dama;
pub mod delay;
pub mod jitter;
pub mod loss;
pub mod outage;
pub mod pie;
pub mod plan;
pub mod presets;
pub mod queue;
pub mod rate;
pub mod reconfiguration;
pub mod resolve;
pub mod spec;
pub mod switch;
pub mod trace;
mod written;

pub use plan::{DirectionPlan, LinkPlan};
pub use resolve::ResolveError;
pub use spec::{DirectionSpec, LinkError, LinkSpec};
