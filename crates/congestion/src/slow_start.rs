//! Slow starts: how a new connection finds the capacity of its path.
//!
//! A controller asks its slow start at every acknowledgement whether to continue, to continue more slowly, or to stop.
//! The growth of the window meanwhile stays the controller's: Reno's and CUBIC's by the acknowledged
//! data, Hybla's by more. After a timeout every slow start is the classic one, up to the
//! threshold that the loss has left.

mod hystart;
mod hystart_plus_plus;
mod search;

pub use hystart::HyStart;
pub use hystart_plus_plus::HyStartPlusPlus;
pub use search::Search;

use crate::{
    Ack, reno,
    segments::{NO_THRESHOLD, SegmentWindow, saturated},
};
use midhop_units::Bytes;
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
    /// When arrived data stays behind sent data: [`Search`].
    Search,
}

impl SlowStart {
    /// Every slow start.
    pub const ALL: [Self; 4] = [Self::Classic, Self::HyStart, Self::HyStartPlusPlus, Self::Search];

    /// The name in scenarios.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::HyStart => "hystart",
            Self::HyStartPlusPlus => "hystart++",
            Self::Search => "search",
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

/// The decision of a slow start at an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The window grows by so much of the controller's own growth: 1 / `divisor`, and by no more
    /// than `segments_max` segments.
    Grow {
        /// Range: ≥ 1.
        divisor: u32,
        /// Unit: segments.
        segments_max: u32,
    },
    /// Slow start is over: the window is the threshold.
    Exit,
    /// Slow start is over, and the window is to shrink to so many segments.
    ExitTo(u32),
}

impl Verdict {
    /// Slow start continues without a finding.
    pub const GO_ON: Self = Self::Grow { divisor: 1, segments_max: u32::MAX };
}

/// A slow start in progress.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    rule: Rule,
    drain: Option<Drain>,
}

/// Slow start has ended above the path's capacity.
#[derive(Debug, Clone, Copy)]
struct Drain {
    /// The window when it ended, and the target of its drain. Unit: segments.
    from: u32,
    to: u32,
    arrived: u32,
}

impl Drain {
    /// The window is `to` once all data in flight has arrived, and in proportion until
    /// then, so that the sender never becomes idle.
    fn window(&mut self, segments: u32) -> u32 {
        self.arrived = self.arrived.saturating_add(segments).min(self.from);
        let less = u64::from(self.from - self.to) * u64::from(self.arrived);
        self.from - saturated(less / u64::from(self.from.max(1)))
    }
}

#[derive(Debug, Clone)]
enum Rule {
    Classic,
    HyStart(HyStart),
    HyStartPlusPlus(HyStartPlusPlus),
    Search(Box<Search>),
}

impl Start {
    /// A slow start of this kind, for a transport that paces or does not.
    pub fn new(kind: SlowStart, paced: bool) -> Self {
        let rule = match kind {
            SlowStart::Classic => Rule::Classic,
            SlowStart::HyStart => Rule::HyStart(HyStart::new(paced)),
            SlowStart::HyStartPlusPlus => Rule::HyStartPlusPlus(HyStartPlusPlus::new(paced)),
            SlowStart::Search => Rule::Search(Box::default()),
        };
        Self { rule, drain: None }
    }

    fn judge(&mut self, window: &SegmentWindow, ack: &Ack) -> Verdict {
        let first = window.ssthresh >= NO_THRESHOLD;
        match &mut self.rule {
            Rule::HyStart(hystart) => hystart.on_ack(window.cwnd, ack),
            Rule::HyStartPlusPlus(hystart) if first => hystart.on_ack(ack),
            Rule::Search(search) if first => search.on_ack(Bytes::new(window.mss().into()), ack),
            Rule::Classic | Rule::HyStartPlusPlus(_) | Rule::Search(_) => Verdict::GO_ON,
        }
    }

    /// Processes an acknowledgement outside recovery. Returns the part of slow start's growth that is
    /// due, as its divisor and bound in segments; `None` where avoidance is due, or a drain
    /// continues.
    ///
    /// For controllers whose slow start grows by a law of its own; the others [`grow`](Self::grow).
    pub fn pace(&mut self, window: &mut SegmentWindow, ack: &Ack) -> Option<(u32, u32)> {
        if !window.in_slow_start() {
            return None;
        }
        match self.judge(window, ack) {
            Verdict::Grow { divisor, segments_max } => Some((divisor, segments_max)),
            Verdict::Exit => {
                window.ssthresh = window.cwnd;
                None
            }
            Verdict::ExitTo(target) => {
                let to = target.max(reno::WINDOW_MIN).min(window.cwnd);
                window.ssthresh = to;
                self.drain = Some(Drain { from: window.cwnd, to, arrived: 0 });
                None
            }
        }
    }

    /// Whether the window is draining to where slow start should have ended; `segments` have arrived.
    pub fn drain(&mut self, window: &mut SegmentWindow, segments: u32) -> bool {
        let Some(drain) = &mut self.drain else { return false };
        window.cwnd = drain.window(segments);
        if window.cwnd == drain.to {
            self.drain = None;
        }
        self.drain.is_some()
    }

    /// Grows `window` by `segments` as far as slow start goes; returns the rest for avoidance,
    /// `None` where avoidance is not due.
    ///
    /// For controllers whose slow start adds the acknowledged segments.
    pub fn grow(&mut self, window: &mut SegmentWindow, ack: &Ack, segments: u32) -> Option<u32> {
        match self.pace(window, ack) {
            None if self.drain(window, segments) => None,
            None => Some(segments),
            Some(_) if ack.app_limited => None,
            Some((divisor, segments_max)) => {
                let counted = window.divide(segments.min(segments_max), divisor);
                let left;
                (window.cwnd, left) = reno::slow_start(window.cwnd, window.ssthresh, counted);
                Some(left).filter(|_| !window.in_slow_start())
            }
        }
    }

    /// A loss sets the window: there is nothing to drain.
    pub fn on_loss(&mut self) {
        self.drain = None;
    }

    /// The window has been cut to a segment: earlier measurements no longer apply.
    pub fn on_rto(&mut self) {
        self.drain = None;
        if let Rule::HyStart(hystart) = &mut self.rule {
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

    #[test]
    fn a_drain_lasts_a_window_and_ends_at_its_target() {
        let mut window = SegmentWindow::new(Bytes::new(1000), 100);
        let mut start = Start::new(SlowStart::Classic, true);
        start.drain = Some(Drain { from: 100, to: 40, arrived: 0 });
        window.ssthresh = 40;
        let ack = crate::testing::ack(1, 0);
        assert_eq!(start.grow(&mut window, &ack, 50), None);
        assert_eq!(window.cwnd, 70);
        assert_eq!(start.grow(&mut window, &ack, 49), None);
        assert_eq!(start.grow(&mut window, &ack, 1), Some(1), "avoidance's turn");
        assert_eq!(window.cwnd, 40);
        start.drain = Some(Drain { from: 40, to: 20, arrived: 0 });
        start.on_loss();
        assert_eq!(start.grow(&mut window, &ack, 2), Some(2));
    }
}
