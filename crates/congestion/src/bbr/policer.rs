//! Long-term bandwidth: detects a policer by the rate that it lets through.
//!
//! Source: lt_bw in net/ipv4/tcp_bbr.c of Linux 6.12. A policer's bucket lets bursts pass, so the largest
//! measured rate is above the policer's rate, and data sent at that rate is lost. An interval begins and ends
//! with a loss, takes four to sixteen rounds, and loses a fifth of the delivered data. If two intervals
//! deliver at the same rate, that rate is used for 48 rounds.

use midhop_units::{Bytes, Duration, Instant, Rate};

const ROUNDS_MIN: u32 = 4;
const ROUNDS_MAX: u32 = 4 * ROUNDS_MIN;
/// Unit: 1/256 of the delivered data.
const LOSS_MIN: u64 = 50;
/// Two rates are the same within an eighth, or 4 kbit/s.
const DIFFERENCE: u64 = 8;
const DIFFERENCE_BITS: u64 = 4000;
const BELIEVED_ROUNDS: u32 = 48;

/// The losses that an acknowledgement or a timeout reports.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub now: Instant,
    /// Since the connection began.
    pub delivered: u64,
    /// Since the connection began.
    pub lost: u64,
    /// Whether this is about a loss.
    pub loses: bool,
    pub round_start: bool,
    pub app_limited: bool,
    pub probing: bool,
}

#[derive(Debug, Clone, Copy)]
struct Interval {
    began: Instant,
    delivered: u64,
    lost: u64,
    rounds: u32,
}

/// The search for a policer, and its result.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Policer {
    interval: Option<Interval>,
    /// The rate of the previous interval, or the rate in use.
    rate: Option<Rate>,
    /// For how many rounds it has been in use; `None`: it is not.
    believed: Option<u32>,
}

impl Policer {
    /// The policer's rate, while it is in use.
    pub fn rate(&self) -> Option<Rate> {
        self.rate.filter(|_| self.believed.is_some())
    }

    /// Processes an event; returns whether a rate is no longer used, and probing begins anew.
    pub fn look(&mut self, look: Look) -> bool {
        if let Some(rounds) = &mut self.believed {
            *rounds += u32::from(look.probing && look.round_start);
            let over = *rounds >= BELIEVED_ROUNDS;
            if over {
                *self = Self::default();
            }
            return over;
        }
        self.sample(look);
        false
    }

    fn sample(&mut self, look: Look) {
        let fresh =
            Interval { began: look.now, delivered: look.delivered, lost: look.lost, rounds: 0 };
        // Before the first loss the bucket is not empty.
        if self.interval.is_none() && !look.loses {
            return;
        }
        let mut interval = self.interval.unwrap_or(fresh);
        interval.rounds += u32::from(look.round_start);
        self.interval = Some(interval);
        if look.app_limited || interval.rounds > ROUNDS_MAX {
            *self = Self::default();
            return;
        }
        if interval.rounds < ROUNDS_MIN || !look.loses {
            return;
        }
        let delivered = look.delivered.saturating_sub(interval.delivered);
        let lost = look.lost.saturating_sub(interval.lost);
        let lasted = look.now.saturating_since(interval.began);
        let rare = u128::from(lost) * 256 < u128::from(LOSS_MIN) * u128::from(delivered);
        if delivered == 0 || rare || lasted < Duration::from_ms(1) {
            return;
        }
        self.conclude(Rate::of(Bytes::new(delivered), lasted), fresh);
    }

    fn conclude(&mut self, rate: Rate, fresh: Interval) {
        let Some(before) = self.rate else {
            self.rate = Some(rate);
            self.interval = Some(fresh);
            return;
        };
        let (rate, before) = (rate.bits_per_s(), before.bits_per_s());
        let difference = rate.abs_diff(before);
        if difference <= before / DIFFERENCE || difference <= DIFFERENCE_BITS {
            self.rate = Some(Rate::from_bits_per_s(rate / 2 + before / 2));
            self.believed = Some(0);
        } else {
            self.rate = Some(Rate::from_bits_per_s(rate));
        }
        self.interval = Some(fresh);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds of 100 ms in which `delivered` segments of 1000 bytes arrive and `lost` do not; returns in how
    /// many of them a rate is in use.
    fn rounds(policer: &mut Policer, from: u64, count: u64, delivered: u64, lost: u64) -> u64 {
        let mut believed = 0;
        for round in from..from + count {
            policer.look(Look {
                now: Instant::from_ns(round * 100_000_000),
                delivered: round * delivered * 1000,
                lost: round * lost * 1000,
                loses: lost > 0,
                round_start: true,
                app_limited: false,
                probing: true,
            });
            believed += u64::from(policer.rate().is_some());
        }
        believed
    }

    #[test]
    fn two_equal_intervals_with_a_fifth_lost_are_believed_for_48_rounds() {
        let mut policer = Policer::default();
        // The first loss begins the first interval; each takes four rounds.
        assert_eq!(rounds(&mut policer, 1, 7, 100, 20), 0);
        assert_eq!(rounds(&mut policer, 8, 1, 100, 20), 1);
        assert_eq!(policer.rate(), Some(Rate::from_mbit_per_s(8)));
        assert_eq!(rounds(&mut policer, 9, 60, 100, 0), 47);
    }

    #[test]
    fn losses_of_less_than_a_fifth_are_no_policers() {
        // 50 of 256 are the minimum.
        assert_eq!(rounds(&mut Policer::default(), 1, 40, 256, 49), 0);
        assert!(rounds(&mut Policer::default(), 1, 40, 256, 50) > 0);
    }

    #[test]
    fn rates_that_differ_by_more_than_an_eighth_are_two() {
        for (second, same) in [(112, true), (114, false), (88, true), (86, false)] {
            let mut policer = Policer::default();
            let interval = |now_ms: u64, delivered: u64, lost: u64| Look {
                now: Instant::from_ns(now_ms * 1_000_000),
                delivered: delivered * 1000,
                lost: lost * 1000,
                loses: true,
                round_start: true,
                app_limited: false,
                probing: true,
            };
            for round in 0..4 {
                policer.look(interval(round * 100, round * 100, round * 50));
            }
            assert_eq!(policer.rate, Some(Rate::from_mbit_per_s(8)));
            for round in 1..5 {
                let delivered = 300 + round * second;
                policer.look(interval(300 + round * 100, delivered, 150 + round * 50));
            }
            assert_eq!(policer.rate().is_some(), same, "{second}");
        }
    }

    #[test]
    fn a_lack_of_data_and_a_long_silence_of_losses_begin_anew() {
        let mut policer = Policer::default();
        rounds(&mut policer, 1, 5, 100, 20);
        assert!(policer.interval.is_some() && policer.rate.is_some());
        rounds(&mut policer, 6, 17, 100, 0);
        assert!(policer.interval.is_none() && policer.rate.is_none());
    }
}
