//! The search of a link's rate. Each train has four times the rate of the train before it, until
//! the link is too slow for one. Then a long train follows, slightly faster than that one's
//! arrivals.

use super::estimate::{Arrived, Tail};
use super::train::RATE_MAX;
use midhop_units::{Duration, Rate};

/// The first train's rate.
const BEGIN: Rate = Rate::from_mbit_per_s(1);
/// The slowest train.
const SLOWEST: Rate = Rate::from_bits_per_s(16_000);
/// How long the first train takes: a slow link needs much longer to carry it.
const FIRST: Duration = Duration::from_ms(250);
/// How long the link may take to carry a short train that is repeated.
const AGAIN_DRAINS: f64 = 4.0;
/// The factor from one train's rate to the next. Where a train takes little longer than a round
/// trip, fewer trains matter more than shorter ones.
const STEP: u64 = 4;
/// How long a short train takes.
const SHORT: Duration = Duration::from_ms(500);
/// The duration of a short train that is repeated because too little of it arrived: a burst of
/// losses does not make a link slow.
const AGAIN: Duration = Duration::from_s(1);
/// The rate of the long train, relative to the estimate.
const ABOVE: f64 = 1.15;
/// A link is too slow for a short train when less than this part of it arrives in its time.
const SHORT_PART: f64 = 0.9;
/// A link is too slow for a long train when less than this part of it arrives in its time.
const LONG_PART: f64 = 0.95;
/// A train is stretched when it takes this much longer to arrive than to be sent.
const STRETCHED: f64 = 1.1;
/// A sender that reaches less than this part of a train's rate may itself be the limit.
const SENDER_PART: f64 = 0.9;
/// It is not while it sends so much faster than ever before: it lacked a processor for a part of the time.
const SENDER_STEP: f64 = 1.25;
/// Most long trains.
const LONG_TRAINS: u32 = 3;
/// Most trains.
const TRAINS: u32 = 24;

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Next {
    /// Send a train of this rate for so long.
    Train(Rate, Duration),
    /// The rate is found.
    Found(Found),
    /// Nothing arrives.
    Nothing,
}

/// The result: how the long train arrived.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Found {
    /// Computed from the receiver's times.
    pub(super) tail: Tail,
    /// How many packets of the train arrived.
    pub(super) packets: u64,
    /// Why the link may be faster; none where the link was the bottleneck.
    pub(super) at_least: Option<&'static str>,
}

/// A search that is not complete.
#[derive(Debug)]
pub(super) struct Search {
    /// How long a long train takes.
    long: Duration,
    /// The fastest train.
    rate_max: Rate,
    asked: Rate,
    is_long: bool,
    /// Set while a short train is repeated: the rate at which it arrived before. The longer train
    /// is less affected by the burst of a token bucket. Its rate alone may be too low to empty the
    /// bucket, so both rates count.
    doubted: Option<f64>,
    /// The part that arrives of a train for which the link is fast enough.
    delivered: Option<f64>,
    /// The fastest that the sender has sent. Unit: bits per second.
    sent_max: f64,
    /// The last train that could be evaluated.
    last: Option<Tail>,
    /// How many packets of it arrived.
    packets: u64,
    trains: u32,
    long_trains: u32,
}

impl Search {
    /// A search whose long trains take `long`, none faster than `rate_max`, and its first train.
    pub(super) fn begin(long: Duration, rate_max: Rate) -> (Self, Next) {
        let rate_max = rate_max.min(RATE_MAX).max(SLOWEST);
        let begin = BEGIN.min(rate_max);
        let search = Self {
            long,
            rate_max,
            asked: begin,
            is_long: false,
            doubted: None,
            delivered: None,
            sent_max: 0.0,
            last: None,
            packets: 0,
            trains: 1,
            long_trains: 0,
        };
        (search, Next::Train(begin, FIRST))
    }

    /// The arrival rate of the last train that could be evaluated. Unit: bits per second.
    pub(super) fn arrival_rate(&self) -> Option<f64> {
        self.last.as_ref().map(|tail| tail.rate_bit_per_s)
    }

    /// The result so far, when there is no time to go on; none without any.
    pub(super) fn finish(&self) -> Option<Found> {
        let tail = self.last.clone()?;
        let at_least = (!self.saturated(&tail)).then_some("there was no time for more trains");
        Some(Found { tail, packets: self.packets, at_least })
    }

    /// Handles the arrivals of the current train.
    pub(super) fn judge(&mut self, arrived: &Arrived) -> Next {
        let Some(tail) = arrived.tail.clone() else {
            // Too few arrivals to evaluate: the link is much too slow for the train, or lost it.
            return match &self.last {
                Some(last) if !self.is_long => self.long(last.rate_bit_per_s),
                Some(last) => self.found(last.clone(), Some("most of the last train was lost")),
                None if self.asked > SLOWEST => self.short(self.asked.bits_per_s() / 4),
                None => Next::Nothing,
            };
        };
        let saturated = self.saturated(&tail);
        if !saturated {
            let delivered = self.delivered.unwrap_or(0.0).max(tail.delivered);
            self.delivered = Some(delivered);
        }
        let (asked, sent) = (self.asked.bits_per_s() as f64, tail.sent_bit_per_s);
        let slow_sender = sent < SENDER_PART * asked && sent < SENDER_STEP * self.sent_max;
        let rate = tail.rate_bit_per_s;
        self.sent_max = self.sent_max.max(sent);
        self.last = Some(tail.clone());
        self.packets = arrived.packets;
        if saturated {
            return match (self.is_long, self.doubted) {
                (true, _) => self.found(tail, None),
                (false, Some(before)) => self.long(rate.max(before)),
                (false, None) => self.again(rate),
            };
        }
        if self.is_long && slow_sender && self.may_be_long() && self.sent_max > asked {
            // It has sent faster before. The next train makes up for the time without a processor.
            return self.long(asked * asked / sent / ABOVE);
        }
        let limit = if slow_sender {
            Some("the sending host could not send faster")
        } else if self.asked >= self.rate_max {
            Some("it is the fastest that is tried")
        } else if self.trains >= TRAINS || (self.is_long && !self.may_be_long()) {
            Some("the link was never full for long")
        } else {
            None
        };
        match limit {
            Some(why) if self.is_long => self.found(tail, Some(why)),
            Some(_) => self.long(tail.sent_bit_per_s),
            None => self.short(self.asked.bits_per_s().saturating_mul(STEP)),
        }
    }

    /// Whether one more long train may follow.
    fn may_be_long(&self) -> bool {
        self.long_trains < LONG_TRAINS && self.trains < TRAINS
    }

    fn saturated(&self, tail: &Tail) -> bool {
        let Some(delivered) = self.delivered else {
            return tail.stretch > STRETCHED;
        };
        let part = if self.is_long { LONG_PART } else { SHORT_PART };
        tail.rate_bit_per_s < part * delivered * tail.sent_bit_per_s
    }

    fn short(&mut self, rate_bit_per_s: u64) -> Next {
        self.trains += 1;
        (self.is_long, self.doubted) = (false, None);
        self.asked = Rate::from_bits_per_s(rate_bit_per_s).min(self.rate_max).max(SLOWEST);
        Next::Train(self.asked, SHORT)
    }

    /// Repeats a short train for longer, but no longer than a slow link can carry in some seconds.
    fn again(&mut self, rate_bit_per_s: f64) -> Next {
        self.trains += 1;
        self.doubted = Some(rate_bit_per_s);
        let bits = rate_bit_per_s * AGAIN_DRAINS;
        let time = Duration::from_s_f64(bits / self.asked.bits_per_s().max(1) as f64);
        Next::Train(self.asked, time.min(AGAIN))
    }

    fn long(&mut self, rate_bit_per_s: f64) -> Next {
        self.trains += 1;
        self.long_trains += 1;
        (self.is_long, self.doubted) = (true, None);
        let rate = (rate_bit_per_s * ABOVE) as u64;
        self.asked = Rate::from_bits_per_s(rate).min(self.rate_max).max(SLOWEST);
        Next::Train(self.asked, self.long)
    }

    fn found(&self, tail: Tail, at_least: Option<&'static str>) -> Next {
        Next::Found(Found { tail, packets: self.packets, at_least })
    }
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::Synthetic;
    use super::*;
    use proptest::prelude::*;

    /// The result of a search over `link`, and the rates that it tried.
    fn search(link: &mut Synthetic) -> (Next, Vec<f64>) {
        let (mut search, mut next) = Search::begin(Duration::from_s(4), RATE_MAX);
        let mut asked = Vec::new();
        while let Next::Train(rate, time) = next {
            asked.push(rate.mbit_per_s());
            let (train, arrivals) = link.carry(rate, time);
            next = search.judge(&Arrived::of(&arrivals, train.packets, 0));
            assert!(asked.len() <= 24, "{asked:?}");
        }
        (next, asked)
    }

    fn found(link: &mut Synthetic) -> (f64, Option<&'static str>) {
        match search(link) {
            (Next::Found(found), _) => (found.tail.rate_bit_per_s, found.at_least),
            (other, asked) => panic!("{other:?} after {asked:?}"),
        }
    }

    #[test]
    fn rates_rise_until_one_is_too_fast() {
        let (next, asked) = search(&mut Synthetic::new(|_| 5e6));
        let Next::Found(found) = next else { panic!("{next:?}") };
        assert_eq!(asked[..4], [1.0, 4.0, 16.0, 16.0]);
        assert!(asked.len() == 5 && (asked[4] / 5.75 - 1.0).abs() < 0.02, "{asked:?}");
        assert!((found.tail.rate_bit_per_s / 5e6 - 1.0).abs() < 0.01, "{found:?}");
        assert_eq!(found.at_least, None);
    }

    #[test]
    fn a_link_slower_than_the_first_train_is_found() {
        let (rate, at_least) = found(&mut Synthetic { queue: 5e5, ..Synthetic::new(|_| 256e3) });
        assert!((rate / 256e3 - 1.0).abs() < 0.02, "{rate}");
        assert_eq!(at_least, None);
    }

    #[test]
    fn a_bucket_that_a_short_train_fits_into_does_not_deceive() {
        let (rate, at_least) = found(&mut Synthetic { bucket: 8e6, ..Synthetic::new(|_| 5e6) });
        assert!((rate / 5e6 - 1.0).abs() < 0.05, "{rate}");
        assert_eq!(at_least, None);
    }

    #[test]
    fn a_slow_sender_is_reported() {
        let (rate, at_least) =
            found(&mut Synthetic { sender_max: 10e6, ..Synthetic::new(|_| 50e6) });
        assert!((rate / 10e6 - 1.0).abs() < 0.05, "{rate}");
        assert_eq!(at_least, Some("the sending host could not send faster"));
    }

    /// A host that others load sends the long train too slowly for the link, not for good.
    #[test]
    fn a_sender_without_a_processor_for_a_part_of_the_time_does_not_hide_the_rate() {
        for (part, trains) in [(1.0, 5), (0.86, 6), (0.7, 6)] {
            let mut link = Synthetic { sender_part: part, ..Synthetic::new(|_| 8e6) };
            let (next, asked) = search(&mut link);
            let Next::Found(found) = next else { panic!("{next:?} after {asked:?}") };
            assert_eq!((found.at_least, asked.len()), (None, trains), "{asked:?}");
            assert!((found.tail.rate_bit_per_s / 8e6 - 1.0).abs() < 0.01, "{found:?}");
        }
    }

    #[test]
    fn the_fastest_train_bounds_what_is_found() {
        let (rate, at_least) = found(&mut Synthetic::new(|_| 50e9));
        assert!(rate > 1.8e9, "{rate}");
        assert!(at_least.is_some());
    }

    #[test]
    fn where_nothing_arrives_nothing_is_found() {
        let mut link = Synthetic { loss: (1.0, f64::INFINITY), ..Synthetic::new(|_| 5e6) };
        assert_eq!(search(&mut link).0, Next::Nothing);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_lossy_link_is_found(
            begins in 0.0f64..0.01,
            burst in 1.0f64..4.0,
            queue in 1e5f64..2e7,
            seed: u64,
        ) {
            let mut link = Synthetic { loss: (begins, burst), queue, seed, ..Synthetic::new(|_| 20e6) };
            let (rate, at_least) = found(&mut link);
            let delivered = 1.0 - begins / (begins + 1.0 / burst);
            prop_assert!((rate / delivered / 20e6 - 1.0).abs() < 0.05, "{rate}");
            prop_assert_eq!(at_least, None);
        }
    }
}
