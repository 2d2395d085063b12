//! Whether a segment that was lost behind an agent was dropped by a queue there. The agent does not see the queue. It
//! goes by the transit times of segments, and by what is lost while nothing waits.
//!
//! Decision 0035.

mod queue;
mod radio;

pub(crate) use queue::{Queue, Waits};
pub(crate) use radio::Radio;

/// Whether a queue may have dropped a segment that was lost while `waits` waited. If the path loses nothing while the
/// queue is empty, the queue may have dropped every lost segment.
pub(crate) fn may_be_congestion(waits: Option<Waits>, radio: &Radio) -> bool {
    waits.is_none_or(|waits| waits == Waits::Full) || !radio.loses()
}
