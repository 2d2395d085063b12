//! Limits how fast the flows of a tunnel are read from their senders.
//!
//! A tunnel frees what is acknowledged from the first byte on. A gap of one datagram blocks all behind it for a
//! round trip; once it is filled, megabytes may be written at once. Without shaping, each sender's window would
//! open by as much in one step, and it would send a burst at the rate of its own link. So what enters the tunnel is
//! shaped: somewhat faster than it leaves, so that the tunnel never runs empty.
//!
//! Decision 0022.

use midhop_units::{Bytes, Duration, Instant, Rate};

/// How much may enter, relative to what leaves in the same time. Unit: percent.
const PERCENT: u64 = 125;
/// How much may enter at once, at least.
const AT_ONCE: Bytes = Bytes::new(1 << 20);
/// At high rates: the time that it takes for what enters at once to leave.
const AT_ONCE_TIME: Duration = Duration::from_ms(20);
/// The longest wait until the rate is read again.
const LOOK: Duration = Duration::from_ms(50);
/// Waits for at least what enters in so long, so that pieces are few and large.
const PIECE_TIME: Duration = Duration::from_ms(2);

/// How much the flows of one tunnel may write now.
#[derive(Debug)]
pub struct IngressShaper {
    /// Unit: bytes. Below zero if more was written than allowed.
    credit: i64,
    at: Instant,
}

impl IngressShaper {
    /// For a tunnel whose datagrams leave at `rate`; none: no limit.
    pub fn new(rate: Option<Rate>, now: Instant) -> Self {
        let mut shaper = Self { credit: i64::MAX, at: now };
        shaper.earn(now, rate);
        shaper
    }

    /// How long to wait before the next piece is written, while datagrams leave at `rate`; none: it may be written
    /// now.
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

    /// Credits the time that has passed. Returns how fast flows may be read, if that is limited.
    fn earn(&mut self, now: Instant, rate: Option<Rate>) -> Option<Rate> {
        let Some(rate) = rate else {
            (self.credit, self.at) = (i64::MAX, now);
            return None;
        };
        let rate = Rate::from_bits_per_s(rate.bits_per_s().saturating_mul(PERCENT) / 100);
        let earned = rate.bytes_in(now.saturating_since(self.at)).get();
        // A fraction of a byte is not lost: it is counted with what follows.
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

    /// What is written in a second, in pieces of this size: the first burst, and the total.
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
        // 1,250 bytes a second, checked twenty times per byte.
        for _ in 0..20_000 {
            now = now + Duration::from_us(40);
            shaper.earn(now, Some(rate));
        }
        assert!((995..=1000).contains(&shaper.credit), "{}", shaper.credit);
    }
}
