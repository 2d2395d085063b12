//! Settings that all algorithms share.

use crate::committed::CommittedSettings;
use crate::description::Description;
use crate::{Opening, SlowStart};
use midhop_units::{Bytes, Seed};

/// [`Settings`](crate::Settings) without the law.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Common<'s> {
    pub mss: Bytes,
    pub initial_window: u32,
    pub threshold: Option<u32>,
    pub slow_start: Option<SlowStart>,
    pub opening: &'s Opening,
    pub paced: bool,
    pub committed: Option<CommittedSettings>,
    pub seed: Seed,
}

impl Common<'_> {
    /// How the first slow start of an algorithm with this description ends.
    pub fn slow_start_by(&self, description: &Description) -> SlowStart {
        self.slow_start.or(description.slow_start.usual()).unwrap_or(SlowStart::Classic)
    }
}
