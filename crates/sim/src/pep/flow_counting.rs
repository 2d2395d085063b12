//! A flow's part of a proxy's limits: it is live, and its client may wait for the far side.

use super::Counts;

/// Whether a flow counts as live, and as one whose client waits.
#[derive(Debug, Default)]
pub(super) struct FlowCounting {
    live: bool,
    pending: bool,
}

impl FlowCounting {
    /// The flow begins.
    pub fn enter(&mut self, counts: &mut Counts) {
        self.live = true;
        counts.live += 1;
    }

    /// Whether it counts as live.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Its client waits.
    pub fn wait(&mut self, counts: &mut Counts) {
        self.pending = true;
        counts.pending += 1;
    }

    /// Its client no longer waits.
    pub fn go_on(&mut self, counts: &mut Counts) {
        counts.pending -= u64::from(std::mem::take(&mut self.pending));
    }

    /// The flow no longer counts.
    pub fn leave(&mut self, counts: &mut Counts) {
        counts.live -= u64::from(std::mem::take(&mut self.live));
    }
}
