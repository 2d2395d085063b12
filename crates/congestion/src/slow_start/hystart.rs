//! HyStart as in Linux' CUBIC: a long train of acknowledgements or a rise in RTT ends slow start.
//!
//! Source: S. Ha, I. Rhee, "Taming the elephants: new TCP slow start", Computer Networks 55(9), 2011,
//! with the constants of Linux (net/ipv4/tcp_cubic.c). A rise of an eighth of the smallest RTT, at least
//! 4 and at most 16 ms, ends slow start for good, and so does jitter of 16 ms: on a long path with a scheduler
//! that is early. Differs: Linux adds up to a millisecond to the train's length for segmentation offload;
//! the simulated sender has none, so this is left out.

use super::Verdict;
use crate::Ack;
use midhop_units::{Duration, Instant};

/// Below this nothing is checked. Unit: segments.
const WINDOW_MIN: u32 = 16;
/// Acknowledgements this close belong to one train.
const TRAIN_GAP: Duration = Duration::from_ms(2);
/// A rise of an eighth of the smallest RTT counts, within these bounds.
const RISE_MIN: Duration = Duration::from_ms(4);
const RISE_MAX: Duration = Duration::from_ms(16);
/// Samples before a round's smallest RTT counts.
const SAMPLES_MIN: u32 = 8;

/// HyStart, from the connection's first acknowledgement on.
#[derive(Debug, Clone)]
pub struct HyStart {
    paced: bool,
    round: Option<u64>,
    round_began: Instant,
    last_ack: Instant,
    samples: u32,
    rtt_round: Duration,
    rtt_min: Duration,
    found: bool,
}

impl HyStart {
    /// For a transport that paces, or one that sends in bursts, whose trains are half as long.
    pub fn new(paced: bool) -> Self {
        Self {
            paced,
            round: None,
            round_began: Instant::START,
            last_ack: Instant::START,
            samples: 0,
            rtt_round: Duration::MAX,
            rtt_min: Duration::MAX,
            found: false,
        }
    }

    /// Slow start begins again after a timeout, perhaps over another path.
    pub fn restart(&mut self) {
        *self = Self::new(self.paced);
    }

    /// An acknowledgement while the window is `cwnd` segments.
    pub fn on_ack(&mut self, cwnd: u32, ack: &Ack) -> Verdict {
        let Some(rtt) = ack.rtt else { return Verdict::GO_ON };
        self.rtt_min = self.rtt_min.min(rtt);
        if self.found {
            return Verdict::GO_ON;
        }
        if self.round != Some(ack.round) {
            self.round = Some(ack.round);
            self.round_began = ack.now;
            self.last_ack = ack.now;
            self.samples = 0;
            self.rtt_round = Duration::MAX;
        }
        if cwnd < WINDOW_MIN {
            return Verdict::GO_ON;
        }
        self.found = self.train_is_long(ack.now) || self.round_is_slow(rtt);
        if self.found { Verdict::Exit } else { Verdict::GO_ON }
    }

    fn train_is_long(&mut self, now: Instant) -> bool {
        if now.saturating_since(self.last_ack) > TRAIN_GAP {
            return false;
        }
        self.last_ack = now;
        let enough = if self.paced { self.rtt_min } else { self.rtt_min / 2 };
        now.saturating_since(self.round_began) > enough
    }

    fn round_is_slow(&mut self, rtt: Duration) -> bool {
        self.rtt_round = self.rtt_round.min(rtt);
        self.samples += 1;
        let rise = (self.rtt_min / 8).clamp(RISE_MIN, RISE_MAX);
        self.samples > SAMPLES_MIN && self.rtt_round > self.rtt_min.saturating_add(rise)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ack;

    /// Feeds rounds of `segments` acknowledgements `gap_us` apart; returns the round that ended it.
    fn rounds(paced: bool, gap_us: u64, rtt: impl Fn(u64, u64) -> u64) -> Option<u64> {
        let mut hystart = HyStart::new(paced);
        let mut cwnd = 10;
        for round in 0..8 {
            for n in 0..cwnd {
                let mut ack = ack(round, 1000);
                ack.now = Instant::from_ns(round * 600_000_000 + n * gap_us * 1000);
                ack.rtt = Some(Duration::from_ms(rtt(round, n)));
                if hystart.on_ack(u32::try_from(cwnd + n).expect("small"), &ack) == Verdict::Exit {
                    return Some(round);
                }
            }
            cwnd *= 2;
        }
        None
    }

    #[test]
    fn a_rise_over_sixteen_milliseconds_ends_it_on_a_long_path() {
        assert_eq!(rounds(true, 1, |_, _| 600), None);
        assert_eq!(rounds(true, 1, |round, _| if round < 3 { 600 } else { 616 }), None);
        assert_eq!(rounds(true, 1, |round, _| if round < 3 { 600 } else { 617 }), Some(3));
    }

    #[test]
    fn jitter_of_a_scheduler_on_a_round_with_one_fast_sample_is_no_rise() {
        assert_eq!(rounds(true, 1, |_, n| if n % 8 == 3 { 600 } else { 640 }), None);
    }

    #[test]
    fn a_train_longer_than_half_the_path_ends_it_unless_paced() {
        // 320 acknowledgements at a millisecond: 320 ms of 600.
        assert_eq!(rounds(false, 1000, |_, _| 600), Some(5));
        assert_eq!(rounds(true, 1000, |_, _| 600), Some(6));
        // Gaps break a train.
        assert_eq!(rounds(false, 2001, |_, _| 600), None);
    }

    #[test]
    fn it_ends_once_until_a_timeout() {
        let mut hystart = HyStart::new(true);
        let mut verdicts = Vec::new();
        for n in 0..40 {
            let mut ack = ack(n / 20, 1000);
            ack.rtt = Some(Duration::from_ms(if n < 20 { 100 } else { 200 }));
            verdicts.push(hystart.on_ack(50, &ack));
        }
        assert_eq!(verdicts.iter().filter(|verdict| **verdict == Verdict::Exit).count(), 1);
        hystart.restart();
        let mut after = |round, rtt_ms| {
            let mut ack = ack(round, 1000);
            ack.rtt = Some(Duration::from_ms(rtt_ms));
            (0..9).filter(|_| hystart.on_ack(50, &ack) == Verdict::Exit).count()
        };
        assert_eq!(after(2, 200), 0, "the path may be a longer one");
        assert_eq!(after(3, 220), 1);
    }
}
