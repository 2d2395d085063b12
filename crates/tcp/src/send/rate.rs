//! Delivery-rate samples: how fast data has recently arrived.
//!
//! Source: draft-ietf-ccwg-bbr, delivery rate estimation; counted in positions of the sequence space.

use midhop_units::{Bytes, Duration, Instant, Rate};

/// The state that a segment records when it leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Snapshot {
    /// Delivered by then. Unit: bytes.
    pub delivered: u64,
    pub delivered_at: Instant,
    /// When the measured flight began to leave.
    pub first_sent_at: Instant,
    /// Found lost by then. Unit: bytes.
    pub lost: u64,
    /// In flight, itself included: less than the sequence space. Unit: bytes.
    pub in_flight: u32,
    pub app_limited: bool,
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    /// `None` where the time is too short to measure anything.
    pub rate: Option<Rate>,
    /// Data that arrived during it. Unit: bytes.
    pub delivered: u64,
    /// Its duration.
    pub interval: Duration,
    /// The record of the newest segment that arrived.
    pub snapshot: Snapshot,
    /// When that segment left.
    pub sent: Instant,
}

/// The counts of one connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sampler {
    pub delivered: u64,
    pub lost: u64,
    /// The position after the segment that was found lost last.
    pub lost_end: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    /// Samples of segments sent before more than this is delivered are limited by the application;
    /// zero: none are.
    app_limited_until: u64,
    next_round: u64,
    pub round: u64,
    /// The last rate that measures the path.
    pub latest: Option<Rate>,
}

impl Sampler {
    /// A segment of `length` leaves while `in_flight` bytes are in flight.
    pub fn on_send(&mut self, now: Instant, in_flight: u64, length: u32) -> Snapshot {
        if in_flight == 0 {
            self.first_sent_at = now;
            self.delivered_at = now;
        }
        Snapshot {
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            lost: self.lost,
            in_flight: u32::try_from(in_flight).unwrap_or(u32::MAX).saturating_add(length),
            app_limited: self.is_app_limited(),
        }
    }

    /// The application has nothing to send though the window would allow it.
    pub fn on_app_limited(&mut self, in_flight: u64) {
        self.app_limited_until = (self.delivered + in_flight).max(1);
    }

    /// Whether the sender has run out of data.
    ///
    /// Also after an idle period, until data sent after it has arrived.
    pub fn is_app_limited(&self) -> bool {
        self.app_limited_until > 0
    }

    /// `bytes` have arrived; the newest of the segments left at `sent_at` and recorded `snapshot`.
    pub fn on_delivery(
        &mut self,
        now: Instant,
        bytes: u64,
        newest: Option<(Instant, Snapshot)>,
        rtt_min: Option<Duration>,
    ) -> Option<Sample> {
        self.delivered += bytes;
        self.delivered_at = now;
        if self.app_limited_until < self.delivered {
            self.app_limited_until = 0;
        }
        let (sent_at, snapshot) = newest?;
        if snapshot.delivered >= self.next_round {
            self.next_round = self.delivered;
            self.round += 1;
        }
        self.first_sent_at = sent_at;
        let sending = sent_at.saturating_since(snapshot.first_sent_at);
        let acking = now.saturating_since(snapshot.delivered_at);
        let interval = sending.max(acking);
        let delivered = self.delivered - snapshot.delivered;
        // Shorter than any round trip: the acknowledgements were compressed.
        let valid = !interval.is_zero() && rtt_min.is_none_or(|rtt_min| interval >= rtt_min);
        let rate = valid.then(|| Rate::of(Bytes::new(delivered), interval));
        // A low rate of a sender that had too little data shows nothing, as in Linux (net/ipv4/tcp_rate.c).
        if rate.is_some() && (!snapshot.app_limited || rate > self.latest) {
            self.latest = rate;
        }
        Some(Sample { rate, delivered, interval, snapshot, sent: sent_at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_link_is_measured_as_it_is() {
        // A segment of 1000 bytes each 1 ms, acknowledged 100 ms later.
        let mut sampler = Sampler::default();
        let mut snapshots = Vec::new();
        let rtt = Duration::from_ms(100);
        let mut samples = Vec::new();
        for ms in 0..400_u64 {
            let now = Instant::START + Duration::from_ms(ms);
            if ms >= 100 {
                let at = (ms - 100) as usize;
                let newest = Some((Instant::START + Duration::from_ms(ms - 100), snapshots[at]));
                let sample = sampler.on_delivery(now, 1000, newest, Some(rtt)).unwrap();
                samples.push((ms, sample));
            }
            let in_flight = ms.min(99) * 1000;
            snapshots.push(sampler.on_send(now, in_flight, 1000));
        }
        for (ms, sample) in samples.iter().filter(|(ms, _)| *ms >= 250) {
            assert_eq!(sample.rate, Some(Rate::from_mbit_per_s(8)), "at {ms} ms");
        }
        // One round per round trip.
        assert_eq!(sampler.round, 3);
    }

    #[test]
    fn squeezed_acknowledgements_do_not_raise_the_rate() {
        let mut sampler = Sampler::default();
        let mut snapshots = Vec::new();
        for ms in 0..100 {
            let now = Instant::START + Duration::from_ms(ms);
            snapshots.push((now, sampler.on_send(now, ms * 1000, 1000)));
        }
        let now = Instant::START + Duration::from_ms(200);
        let rtt = Some(Duration::from_ms(100));
        for (nth, &(sent_at, snapshot)) in snapshots.iter().enumerate() {
            let sample = sampler.on_delivery(now, 1000, Some((sent_at, snapshot)), rtt).unwrap();
            let bound = Rate::of(Bytes::new(1000 * (nth as u64 + 1)), Duration::from_ms(200));
            assert_eq!(sample.rate, Some(bound));
        }
    }

    #[test]
    fn an_idle_application_marks_what_it_sends_next() {
        let mut sampler = Sampler::default();
        let now = Instant::START + Duration::from_ms(1);
        assert!(!sampler.on_send(now, 0, 1000).app_limited);
        sampler.on_app_limited(1000);
        let marked = sampler.on_send(now, 1000, 1000);
        assert!(marked.app_limited);
        sampler.on_delivery(now, 2000, Some((now, marked)), None);
        assert!(!sampler.on_send(now, 0, 1000).app_limited);
        // Idle, with nothing in flight: the first flight after that is marked.
        sampler.on_app_limited(0);
        let first = sampler.on_send(now, 0, 1000);
        assert!(first.app_limited && sampler.on_send(now, 1000, 1000).app_limited);
        sampler.on_delivery(now, 1000, Some((now, first)), None);
        assert!(!sampler.on_send(now, 1000, 1000).app_limited);
    }
}
