//! Whether a segment that is lost behind an agent found no room in a queue there, which the agent does not see: by how long
//! segments take, and by what gets lost while nothing waits.

mod queue;
mod radio;

pub(crate) use queue::{Queue, Waits};
pub(crate) use radio::Radio;

/// Whether what was lost, when so much waited, may have found no room in a queue: where that loses nothing while it is empty, all
/// that is lost.
pub(crate) fn may_be_congestion(waits: Option<Waits>, radio: &Radio) -> bool {
    waits.is_none_or(|waits| waits == Waits::Full) || !radio.loses()
}
