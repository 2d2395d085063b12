//! CUBIC: after a loss the window returns to its earlier size, quickly, then slowly, then grows beyond.
//!
//! Source: RFC 9438, integers throughout. Multiplicative decrease from the window, not from the data in
//! flight (§4.6 allows it: a window that is not used does not grow). Linux' CUBIC is the same curve
//! (β 717/1024, C 410/1024). Two of its habits are taken over. While the window has no maximum to aim
//! at, before the first loss and after a timeout, it grows by a twentieth per round at least. Its
//! slow start is HyStart where RFC 9438 §4.10 recommends HyStart++.

mod law;

pub use law::{
    ALPHA_Q20, ONE_Q20, after_loss, cube_root_q16, curve_q20, friendly_step_q20, maximum_q20,
    period_q16,
};

use crate::common::Common;
use crate::description::{Description, FirstSlowStart, InKernel};
use crate::{
    Ack, CongestionControl, Controller, Established, Handover, Loss, Phase, Restart, Rto,
    SlowStart, Spurious,
    segments::{INITIAL_WINDOW, SegmentWindow, Segmented, saturated},
    slow_start::Start,
};
use midhop_units::{Bytes, Duration, Instant, Rate};

/// A congestion avoidance phase from its beginning to the next loss.
#[derive(Debug, Clone, Copy)]
struct Epoch {
    /// Its beginning, moved later by all the time in which the window was not used.
    began: Instant,
    /// The last event.
    last: Instant,
    /// W_max of the curve.
    origin_q20: u64,
    /// K.
    period_q16: u64,
    /// W_est.
    friendly_q20: u64,
}

impl Epoch {
    /// Time passes; it does not count where the window was not used.
    fn pass(&mut self, now: Instant, used: bool) {
        if !used {
            self.began = self.began + now.saturating_since(self.last);
        }
        self.last = now;
    }
}

/// The state that a loss changes, and that a spurious loss restores.
#[derive(Debug, Clone, Copy, Default)]
struct Memory {
    epoch: Option<Epoch>,
    /// W_max; zero before the first loss and after a timeout.
    maximum_q20: u64,
    /// cwnd_prior: the window before the last reduction.
    prior_q20: u64,
    /// The part of a segment the window has grown beyond the whole ones.
    fraction_q20: u32,
    /// The next avoidance aims at no maximum: it begins after a timeout or at a slow start's own end.
    afresh: bool,
}

/// CUBIC as a controller: a slow start × the larger of the cubic curve and Reno's × 0.7.
#[derive(Debug, Clone)]
pub struct Cubic {
    window: SegmentWindow,
    start: Start,
    memory: Memory,
    /// The state before the reductions that may still be undone; its memory is kept for the next one. Boxed,
    /// since few of many connections lose anything.
    before: Option<Box<Memory>>,
    undoable: bool,
}

impl Cubic {
    /// A new connection with segments of `mss`, over a transport that paces or does not.
    pub fn new(mss: Bytes, slow_start: SlowStart, paced: bool) -> Self {
        Self {
            window: SegmentWindow::new(mss, INITIAL_WINDOW),
            start: Start::new(slow_start, paced),
            memory: Memory { afresh: true, ..Memory::default() },
            before: None,
            undoable: false,
        }
    }

    fn window_q20(&self) -> u64 {
        (u64::from(self.window.cwnd) << 20) + u64::from(self.memory.fraction_q20)
    }

    fn begin_epoch(&mut self, now: Instant) -> Epoch {
        let window_q20 = self.window_q20();
        let memory = &mut self.memory;
        let origin_q20 =
            if memory.afresh { window_q20 } else { memory.maximum_q20.max(window_q20) };
        memory.afresh = false;
        Epoch {
            began: now,
            last: now,
            origin_q20,
            period_q16: period_q16(origin_q20 - window_q20),
            friendly_q20: window_q20,
        }
    }

    fn avoid(&mut self, ack: &Ack, segments: u32) {
        let mut epoch = self.memory.epoch.unwrap_or_else(|| self.begin_epoch(ack.now));
        epoch.pass(ack.now, !ack.app_limited);
        if segments > 0 && !ack.app_limited {
            let grown = self.grown(&mut epoch, ack.now, u64::from(segments));
            self.window.cwnd = saturated(grown >> 20);
            self.memory.fraction_q20 = saturated(grown & (ONE_Q20 - 1));
        }
        self.memory.epoch = Some(epoch);
    }

    /// The window after `segments` more have arrived.
    fn grown(&self, epoch: &mut Epoch, now: Instant, segments: u64) -> u64 {
        let window_q20 = self.window_q20();
        let per = u64::from(self.window.cwnd.max(1));
        let elapsed = now.saturating_since(epoch.began);
        let ahead = elapsed.saturating_add(self.window.srtt().unwrap_or(Duration::ZERO));
        let curve = |time| curve_q20(time, epoch.period_q16, epoch.origin_q20);
        let floor_q20 = if self.memory.maximum_q20 == 0 { window_q20 / 20 } else { 0 };
        let target_q20 = curve(ahead).clamp(window_q20 + floor_q20, window_q20 + window_q20 / 2);
        let step_q20 = (target_q20 - window_q20).saturating_mul(segments) / per;
        let cubic_q20 = (window_q20 + step_q20).min(target_q20.max(window_q20));
        epoch.friendly_q20 +=
            friendly_step_q20(epoch.friendly_q20, self.memory.prior_q20, segments, per);
        if curve(elapsed) < epoch.friendly_q20 {
            cubic_q20.max(epoch.friendly_q20)
        } else {
            cubic_q20
        }
    }

    /// Remembers the current window; returns the threshold.
    fn fall(&mut self) -> u32 {
        if !self.undoable {
            **self.before.get_or_insert_default() = self.memory;
            self.undoable = true;
        }
        let window_q20 = self.window_q20();
        self.memory = Memory {
            epoch: None,
            maximum_q20: maximum_q20(window_q20, self.memory.maximum_q20),
            prior_q20: window_q20,
            fraction_q20: 0,
            afresh: false,
        };
        after_loss(self.window.cwnd)
    }
}

impl Cubic {
    pub(crate) const DESCRIPTION: Description = Description {
        name: "cubic",
        kernel: InKernel::Native,
        slow_start: FirstSlowStart::Chosen(SlowStart::HyStart),
        ..Description::WINDOW
    };

    pub(crate) fn controller(common: &Common<'_>) -> Controller {
        Controller::windowed(
            Self::new(common.mss, common.slow_start_by(&Self::DESCRIPTION), common.paced),
            common,
        )
    }
}

impl Segmented for Cubic {
    fn segments(&mut self) -> &mut SegmentWindow {
        &mut self.window
    }
}

impl CongestionControl for Cubic {
    fn on_established(&mut self, established: &Established) {
        self.window.establish(established);
    }

    fn on_ack(&mut self, ack: &Ack) {
        self.window.measure(ack);
        if ack.phase == Phase::Open {
            self.undoable = false;
        }
        let segments = self.window.segments(ack.acked);
        if ack.phase == Phase::Recovery {
            return;
        }
        if let Some(left) = self.start.grow(&mut self.window, ack, segments) {
            self.avoid(ack, left);
        }
    }

    fn on_loss(&mut self, _loss: &Loss) {
        let threshold = self.fall();
        self.window.reduce(threshold, threshold);
        self.start.on_loss();
    }

    fn on_rto(&mut self, _rto: &Rto) {
        let threshold = self.fall();
        self.memory.afresh = true;
        // After a timeout the earlier window proves nothing about the path.
        self.memory.maximum_q20 = 0;
        self.window.reduce(1, threshold);
        self.start.on_rto();
    }

    fn on_spurious(&mut self, _spurious: &Spurious) {
        self.window.restore();
        if let Some(before) = self.before.as_deref().filter(|_| self.undoable) {
            self.memory = *before;
        }
        self.undoable = false;
    }

    fn on_restart(&mut self, restart: &Restart) {
        if let Some(epoch) = &mut self.memory.epoch {
            epoch.pass(restart.now, false);
        }
    }

    /// CUBIC ignores handovers.
    fn on_handover(&mut self, _handover: &Handover) {}

    fn is_in_slow_start(&self) -> bool {
        self.window.in_slow_start()
    }

    fn slow_start_threshold(&self) -> Option<Bytes> {
        self.window.threshold()
    }

    fn window(&self) -> Bytes {
        self.window.bytes()
    }

    fn pacing_rate(&self) -> Option<Rate> {
        self.window.pacing_rate()
    }
}

#[cfg(test)]
mod tests;
