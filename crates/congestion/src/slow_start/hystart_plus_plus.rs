//! HyStart++: a rise in RTT first slows slow start down, and ends it only when it lasts.
//!
//! Source: RFC 9406 §4.2 and §4.3.

use super::Verdict;
use crate::{Ack, hybla::queue_seen, segments::us};
use midhop_units::Duration;

/// N_RTT_SAMPLE.
const SAMPLES_MIN: u32 = 8;
/// CSS_GROWTH_DIVISOR.
const GROWTH_DIVISOR: u32 = 4;
/// CSS_ROUNDS.
const CONSERVATIVE_ROUNDS: u32 = 5;
/// L: how much one acknowledgement may add without pacing. Unit: segments.
const SEGMENTS_MAX_UNPACED: u32 = 8;

/// Conservative Slow Start.
#[derive(Debug, Clone, Copy)]
struct Conservative {
    /// cssBaselineMinRtt.
    baseline: Duration,
    /// Rounds that it has covered, including the one in which it began.
    rounds: u32,
}

/// HyStart++ during a connection's first slow start.
#[derive(Debug, Clone)]
pub struct HyStartPlusPlus {
    segments_max: u32,
    round: Option<u64>,
    samples: u32,
    last_round_min: Option<Duration>,
    this_round_min: Option<Duration>,
    conservative: Option<Conservative>,
}

impl HyStartPlusPlus {
    /// For a transport that paces, or one that does not and must not send large bursts.
    pub fn new(paced: bool) -> Self {
        Self {
            segments_max: if paced { u32::MAX } else { SEGMENTS_MAX_UNPACED },
            round: None,
            samples: 0,
            last_round_min: None,
            this_round_min: None,
            conservative: None,
        }
    }

    /// An acknowledgement.
    pub fn on_ack(&mut self, ack: &Ack) -> Verdict {
        if self.round != Some(ack.round) && self.begin_round(ack.round) {
            return Verdict::Exit;
        }
        if let Some(rtt) = ack.rtt {
            self.this_round_min = Some(self.this_round_min.map_or(rtt, |least| least.min(rtt)));
            self.samples += 1;
            self.look();
        }
        let divisor = if self.conservative.is_some() { GROWTH_DIVISOR } else { 1 };
        Verdict::Grow { divisor, segments_max: self.segments_max }
    }

    /// Returns whether Conservative Slow Start has lasted its rounds.
    fn begin_round(&mut self, round: u64) -> bool {
        self.round = Some(round);
        self.last_round_min = self.this_round_min.take();
        self.samples = 0;
        self.conservative.as_mut().is_some_and(|conservative| {
            conservative.rounds += 1;
            conservative.rounds > CONSERVATIVE_ROUNDS
        })
    }

    fn look(&mut self) {
        if self.samples < SAMPLES_MIN {
            return;
        }
        let (Some(last), Some(this)) = (self.last_round_min, self.this_round_min) else { return };
        match self.conservative {
            None if queue_seen(us(last), us(this)) => {
                self.conservative = Some(Conservative { baseline: this, rounds: 1 });
            }
            // The rise was jitter: slow start as before.
            Some(Conservative { baseline, .. }) if this < baseline => self.conservative = None,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ack;

    fn sample(hystart: &mut HyStartPlusPlus, round: u64, rtt_ms: u64) -> Verdict {
        let mut ack = ack(round, 1000);
        ack.rtt = Some(Duration::from_ms(rtt_ms));
        hystart.on_ack(&ack)
    }

    fn round(hystart: &mut HyStartPlusPlus, number: u64, rtt_ms: u64) -> Verdict {
        (0..8).map(|_| sample(hystart, number, rtt_ms)).last().expect("eight")
    }

    const SLOW: Verdict = Verdict::Grow { divisor: 4, segments_max: u32::MAX };

    #[test]
    fn the_threshold_is_an_eighth_within_four_and_sixteen_milliseconds() {
        for (rtt_ms, threshold_ms) in [(10, 4), (32, 4), (104, 13), (128, 16), (600, 16)] {
            let after = |rise_ms: u64| {
                let mut hystart = HyStartPlusPlus::new(true);
                round(&mut hystart, 0, rtt_ms);
                round(&mut hystart, 1, rtt_ms + rise_ms)
            };
            assert_eq!(after(threshold_ms - 1), Verdict::GO_ON, "{rtt_ms} ms");
            assert_eq!(after(threshold_ms), SLOW, "{rtt_ms} ms");
        }
    }

    #[test]
    fn five_conservative_rounds_end_it() {
        let mut hystart = HyStartPlusPlus::new(true);
        round(&mut hystart, 0, 600);
        for number in 1..=5 {
            assert_eq!(round(&mut hystart, number, 620), SLOW, "round {number}");
        }
        assert_eq!(sample(&mut hystart, 6, 620), Verdict::Exit);
    }

    #[test]
    fn a_rise_that_goes_away_was_none() {
        let mut hystart = HyStartPlusPlus::new(true);
        round(&mut hystart, 0, 600);
        assert_eq!(round(&mut hystart, 1, 620), SLOW);
        for n in 0..7 {
            assert_eq!(sample(&mut hystart, 2, 610), SLOW, "sample {n} is too few");
        }
        assert_eq!(sample(&mut hystart, 2, 610), Verdict::GO_ON);
    }

    #[test]
    fn seven_samples_show_nothing_and_bursts_are_bounded_without_pacing() {
        let mut hystart = HyStartPlusPlus::new(false);
        round(&mut hystart, 0, 600);
        for _ in 0..7 {
            let verdict = sample(&mut hystart, 1, 700);
            assert_eq!(verdict, Verdict::Grow { divisor: 1, segments_max: 8 });
        }
        let verdict = sample(&mut hystart, 1, 700);
        assert_eq!(verdict, Verdict::Grow { divisor: 4, segments_max: 8 });
    }
}
