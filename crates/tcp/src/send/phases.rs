//! How long a sender was in each phase of its congestion control, while it had data in flight.

use midhop_units::{Duration, Instant};

use super::{Mode, Sender};

/// Time with data in flight, by what the sender was doing about its window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PhaseTimes {
    /// Looking for the path's capacity from below.
    pub slow_start: Duration,
    /// Following its law.
    pub avoidance: Duration,
    /// Repairing without a timeout, or reducing for a mark.
    pub recovery: Duration,
    /// After a timeout, until the data then in flight has arrived.
    pub loss: Duration,
}

/// What a sender is doing about its window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SenderPhase {
    /// Looking for the path's capacity from below.
    SlowStart,
    /// Following its law.
    Avoidance,
    /// Repairing without a timeout, or reducing for a mark.
    Recovery,
    /// After a timeout.
    Loss,
}

impl SenderPhase {
    /// Its name in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SlowStart => "slow-start",
            Self::Avoidance => "avoidance",
            Self::Recovery => "recovery",
            Self::Loss => "loss",
        }
    }
}

/// The sum so far, and the current phase with its start.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    times: PhaseTimes,
    now: Option<(SenderPhase, Instant)>,
    seen: Instant,
}

impl Tally {
    /// The current phase; `None` while nothing is in flight.
    pub fn phase(&self) -> Option<SenderPhase> {
        self.now.map(|(phase, _)| phase)
    }

    /// The sum up to `now`.
    pub fn times(&self, now: Instant) -> PhaseTimes {
        let mut times = self.times;
        if let Some((phase, since)) = self.now {
            let time = match phase {
                SenderPhase::SlowStart => &mut times.slow_start,
                SenderPhase::Avoidance => &mut times.avoidance,
                SenderPhase::Recovery => &mut times.recovery,
                SenderPhase::Loss => &mut times.loss,
            };
            *time += now.saturating_since(since);
        }
        times
    }

    /// The sum until the sender last did something.
    pub fn last_times(&self) -> PhaseTimes {
        self.times(self.seen)
    }

    fn enter(&mut self, now: Instant, phase: Option<SenderPhase>) {
        self.seen = now;
        if self.now.map(|(known, _)| known) != phase {
            self.times = self.times(now);
            self.now = phase.map(|phase| (phase, now));
        }
    }
}

impl Sender {
    /// Notes the sender's current phase; nothing counts while nothing is in flight.
    pub(super) fn note_phase(&mut self, now: Instant) {
        let phase = match self.recovery.mode {
            _ if self.board.is_empty() => None,
            Mode::Loss => Some(SenderPhase::Loss),
            Mode::Recovery | Mode::Reduced => Some(SenderPhase::Recovery),
            Mode::Open if self.control.is_in_slow_start() => Some(SenderPhase::SlowStart),
            Mode::Open => Some(SenderPhase::Avoidance),
        };
        self.phases.enter(now, phase);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phase_gets_its_time_and_silence_none() {
        let at = |ms| Instant::START + Duration::from_ms(ms);
        let mut tally = Tally::default();
        tally.enter(at(10), Some(SenderPhase::SlowStart));
        tally.enter(at(15), Some(SenderPhase::SlowStart));
        tally.enter(at(30), Some(SenderPhase::Recovery));
        tally.enter(at(70), None);
        tally.enter(at(100), Some(SenderPhase::Loss));
        tally.enter(at(101), Some(SenderPhase::Avoidance));
        let ms = Duration::from_ms;
        let times =
            PhaseTimes { slow_start: ms(20), avoidance: ms(7), recovery: ms(40), loss: ms(1) };
        assert_eq!(tally.times(at(108)), times);
        assert_eq!(tally.last_times(), PhaseTimes { avoidance: Duration::ZERO, ..times });
    }
}
