//! Slow starts: how a connection that knows nothing finds out how much its path carries.
//!
//! A controller asks its slow start at every acknowledgement whether to go on, more slowly, or to stop.
//! How much the window grows while it goes on stays the controller's: Reno's and CUBIC's by what was
//! acknowledged, Hybla's by more. After a timeout every slow start is the classic one, up to the
//! threshold that the loss has left.

mod hystart;
mod hystart_plus_plus;

pub use hystart::HyStart;
pub use hystart_plus_plus::HyStartPlusPlus;

use crate::{
    Ack, reno,
    segments::{NO_THRESHOLD, SegmentWindow},
};
use std::fmt;

/// How a connection's first slow start ends, other than by a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SlowStart {
    /// By a loss only (RFC 5681 §3.1).
    Classic,
    /// By a train of acknowledgements or a rise in RTT, as Linux' CUBIC does: [`HyStart`].
    HyStart,
    /// By a rise in RTT that lasts (RFC 9406): [`HyStartPlusPlus`].
    HyStartPlusPlus,
}

impl SlowStart {
    /// Every slow start.
    pub const ALL: [Self; 3] = [Self::Classic, Self::HyStart, Self::HyStartPlusPlus];

    /// The name in scenarios.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::HyStart => "hystart",
            Self::HyStartPlusPlus => "hystart++",
        }
    }

    /// The slow start called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|slow_start| slow_start.name() == name)
    }
}

impl fmt::Display for SlowStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a slow start decides at an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The window grows by so much of what the controller would add: 1 / `divisor`, and by no more
    /// than `segments_max` segments.
    Grow {
        /// Range: ≥ 1.
        divisor: u32,
        /// Unit: segments.
        segments_max: u32,
    },
    /// Slow start is over: the window is the threshold.
    Exit,
}

impl Verdict {
    /// Slow start goes on as if there were nothing to see.
    pub const GO_ON: Self = Self::Grow { divisor: 1, segments_max: u32::MAX };
}

/// A slow start under way.
#[derive(Debug, Clone)]
pub(crate) enum Start {
    Classic,
    HyStart(HyStart),
    HyStartPlusPlus(HyStartPlusPlus),
}

impl Start {
    /// A start of a kind, for a transport that paces or does not.
    pub fn new(kind: SlowStart, paced: bool) -> Self {
        match kind {
            SlowStart::Classic => Self::Classic,
            SlowStart::HyStart => Self::HyStart(HyStart::new(paced)),
            SlowStart::HyStartPlusPlus => Self::HyStartPlusPlus(HyStartPlusPlus::new(paced)),
        }
    }

    /// Looks at an acknowledgement while slow start is on. `ack.phase` is not Recovery.
    pub fn judge(&mut self, window: &SegmentWindow, ack: &Ack) -> Verdict {
        let first = window.ssthresh >= NO_THRESHOLD;
        match self {
            Self::HyStart(hystart) => hystart.on_ack(window.cwnd, ack),
            Self::HyStartPlusPlus(hystart) if first => hystart.on_ack(ack),
            Self::Classic | Self::HyStartPlusPlus(_) => Verdict::GO_ON,
        }
    }

    /// Grows `window` by `segments` as far as slow start goes; returns what is left for avoidance.
    ///
    /// For controllers whose slow start adds what was acknowledged.
    pub fn grow(&mut self, window: &mut SegmentWindow, ack: &Ack, segments: u32) -> u32 {
        if !window.in_slow_start() {
            return segments;
        }
        match self.judge(window, ack) {
            Verdict::Exit => {
                window.ssthresh = window.cwnd;
                segments
            }
            _ if ack.app_limited => segments,
            Verdict::Grow { divisor, segments_max } => {
                let counted = window.divide(segments.min(segments_max), divisor);
                let left;
                (window.cwnd, left) = reno::slow_start(window.cwnd, window.ssthresh, counted);
                left
            }
        }
    }

    /// The window has been cut to a segment: what was measured belongs to another time.
    pub fn on_rto(&mut self) {
        if let Self::HyStart(hystart) = self {
            hystart.restart();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for slow_start in SlowStart::ALL {
            assert_eq!(SlowStart::from_name(&slow_start.to_string()), Some(slow_start));
        }
        assert_eq!(SlowStart::from_name("HyStart"), None);
    }
}
