//! When the next segment may leave, given a rate.
//!
//! Source: Linux' internal pacing (net/ipv4/tcp_output.c): segments leave in bursts of a millisecond's
//! worth, at least two, and the first ten of a connection are not paced.

use midhop_units::{Bytes, Duration, Instant, Rate};

/// Segments of a connection that are not paced.
const UNPACED: u32 = 10;

/// The departures of one connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pacer {
    /// Before this moment only the rest of a burst leaves.
    next: Instant,
    /// The rest of the burst. Unit: bytes.
    burst: u64,
    departed: u32,
}

impl Pacer {
    /// When a segment may leave, if not at once.
    pub fn wait(&self, now: Instant) -> Option<Instant> {
        (self.burst == 0 && now < self.next).then_some(self.next)
    }

    /// A segment of `size` leaves. With `each` every segment keeps the rate, and there are no bursts.
    pub fn on_send(&mut self, now: Instant, size: u64, rate: Option<Rate>, each: bool) {
        if each {
            self.departed = UNPACED;
        }
        if self.departed < UNPACED {
            self.departed += 1;
            return;
        }
        let Some(rate) = rate.filter(|rate| rate.bits_per_s() > 0) else {
            self.burst = 0;
            return;
        };
        if now >= self.next {
            self.next = now;
            self.burst = rate.bytes_in(Duration::from_ms(1)).get().max(2 * size).min(1 << 16);
        }
        self.burst = if each || self.burst < 2 * size { 0 } else { self.burst - size };
        self.next = self.next + rate.time_for(Bytes::new(size));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn departures_keep_the_rate() {
        let mut pacer = Pacer::default();
        let rate = Some(Rate::from_mbit_per_s(12));
        let mut now = Instant::START;
        let mut waits = 0;
        for _ in 0..UNPACED + 1000 {
            while let Some(at) = pacer.wait(now) {
                now = at;
                waits += 1;
            }
            pacer.on_send(now, 1500, rate, false);
        }
        // Two of 1500 bytes each 2 ms; the last burst has not waited yet.
        assert_eq!(waits, 499);
        assert_eq!(now, Instant::START + Duration::from_ms(998));
    }

    #[test]
    fn what_is_spread_leaves_one_by_one_from_the_first_on() {
        let mut pacer = Pacer::default();
        let rate = Some(Rate::from_mbit_per_s(12));
        for number in 0..20 {
            let at = Instant::START + Duration::from_ms(number);
            assert_eq!(pacer.wait(at - Duration::from_ns(1)), Some(at).filter(|_| number > 0));
            assert_eq!(pacer.wait(at), None);
            pacer.on_send(at, 1500, rate, true);
        }
    }
}
