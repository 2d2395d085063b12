//! How fast the flows of a tunnel are taken from their senders.
//!
//! A tunnel lets go of what is acknowledged from the first byte on: a gap of one datagram holds up all behind it
//! for a round trip, and once that is filled, megabytes may be written at once. Were they, each sender's window
//! would open by as much in one step, and it would send a burst at the rate of its own link. So what enters
//! the tunnel is shaped: somewhat faster than it leaves, so that it never runs empty.

use midhop_units::{Bytes, Duration, Instant, Rate};

/// What enters of what leaves in the same time. Unit: percent.
const PERCENT: u64 = 125;
/// What may enter at once, if the rate does not ask for more.
const AT_ONCE: Bytes = Bytes::new(1 << 20);
/// And how long what enters at once takes to leave, if that is more.
const AT_ONCE_TIME: Duration = Duration::from_ms(20);
/// How long to wait at most until the rate is read again.
const LOOK: Duration = Duration::from_ms(50);
/// What is waited for, so that few pieces come large: what enters in so long.
const PIECE_TIME: Duration = Duration::from_ms(2);

/// What the flows of one tunnel may write now.
#[derive(Debug)]
pub struct IngressShaper {
    /// Unit: bytes. Below zero where more was written than might have been.
    credit: i64,
    at: Instant,
}

impl IngressShaper {
    /// Of a tunnel whose datagrams leave at `rate`; none: at whatever rate they come.
    pub fn new(rate: Option<Rate>, now: Instant) -> Self {
        let mut shaper = Self { credit: i64::MAX, at: now };
        shaper.earn(now, rate);
        shaper
    }

    /// How long to wait before the next piece is written, while datagrams leave at `rate`; none: it may be written now.
    pub fn wait(&mut self, now: Instant, rate: Option<Rate>) -> Option<Duration> {
        let rate = self.earn(now, rate)?;
        if self.credit > 0 {
            return None;
        }
        let missing = rate.bytes_in(PIECE_TIME).get() + self.credit.unsigned_abs();
        Some(rate.time_for(Bytes::new(missing)).min(LOOK))
    }

    /// Books what was written.
    pub fn spend(&mut self, bytes: usize) {
        self.credit = self.credit.saturating_sub_unsigned(bytes as u64);
    }

    /// Counts the time that has passed; gives how fast flows are taken, where that is bounded.
    fn earn(&mut self, now: Instant, rate: Option<Rate>) -> Option<Rate> {
        let Some(rate) = rate else {
            (self.credit, self.at) = (i64::MAX, now);
            return None;
        };
        let rate = Rate::from_bits_per_s(rate.bits_per_s().saturating_mul(PERCENT) / 100);
        let earned = rate.bytes_in(now.saturating_since(self.at)).get();
        // Less than a byte is not lost: it is counted with what follows.
        if earned > 0 {
            self.at = now;
        }
        let most = AT_ONCE.max(rate.bytes_in(AT_ONCE_TIME)).get();
        self.credit = self.credit.saturating_add_unsigned(earned).min(most.cast_signed());
        Some(rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written in a second, in pieces of so many bytes, whenever they may be.
    fn written(rate: Option<Rate>, piece: usize) -> (u64, u64) {
        let mut now = Instant::START;
        let mut shaper = IngressShaper::new(rate, now);
        let (mut written, mut first) = (0, 0);
        while now < Instant::START + Duration::from_s(1) && written < 1_000_000_000 {
            match shaper.wait(now, rate) {
                None => {
                    shaper.spend(piece);
                    written += piece as u64;
                }
                Some(wait) => {
                    first = if first == 0 { written } else { first };
                    now = now + wait;
                }
            }
        }
        (first, written)
    }

    #[test]
    fn more_enters_than_leaves_and_little_of_it_at_once() {
        for (mbit, piece) in [(2, 1448), (140, 1448), (140, 65_536), (1000, 65_536)] {
            let rate = Rate::from_mbit_per_s(mbit);
            let (first, written) = written(Some(rate), piece);
            let more = rate.bytes_in(Duration::from_ms(1250)).get();
            let at_once = (1 << 20).max(rate.bytes_in(Duration::from_ms(25)).get());
            assert!(first.abs_diff(at_once) <= piece as u64, "{mbit}: {first} at once");
            let slack = 2 * piece as u64 + more / 100;
            assert!(written.abs_diff(at_once + more) <= slack, "{mbit}: {written}");
        }
    }

    #[test]
    fn where_no_rate_is_known_nothing_waits() {
        let (_, written) = written(None, 65_536);
        assert!(written >= 1_000_000_000);
    }

    #[test]
    fn slow_times_count_to_the_last_bit() {
        let rate = Rate::from_bits_per_s(8000);
        let mut shaper = IngressShaper::new(Some(rate), Instant::START);
        shaper.spend(1 << 20);
        let mut now = Instant::START;
        // 1,250 bytes a second, looked at twenty times for each.
        for _ in 0..20_000 {
            now = now + Duration::from_us(40);
            shaper.earn(now, Some(rate));
        }
        assert!((995..=1000).contains(&shaper.credit), "{}", shaper.credit);
    }
}
