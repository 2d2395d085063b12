//! XCP's router: one per output port, beside its queue.
//!
//! Source: Katabi et al. 2002, §3.3 and §3.5. Once per control interval, the mean round-trip time of
//! the traffic, the efficiency controller finds the change of the aggregate from the spare rate and the
//! standing queue: φ = 0.4 d S − 0.226 Q. The fairness controller distributes it over the next
//! interval: a positive change equally to all flows, a negative one in proportion to their rates. In addition it
//! shuffles a tenth of the traffic. What one segment does not take stays in the residue, so
//! that all changes of an interval sum up to φ, whatever h is shuffled in between.
//!
//! It keeps no state per flow. A segment without a round-trip time gets nothing and counts only as
//! traffic.

use super::Header;
use midhop_units::{Bytes, Duration, Instant, Rate};

/// The interval before any round-trip time has been seen, and its bounds.
const INTERVAL_INITIAL: Duration = Duration::from_ms(100);
const INTERVAL_MIN: Duration = Duration::from_ms(1);
const INTERVAL_MAX: Duration = Duration::from_s(10);
/// Larger round-trip times, windows and segments are counted as these, so that no sum overflows.
const RTT_MAX_NS: u128 = 60_000_000_000;
const SIZE_MAX: u64 = 1 << 16;

/// Traffic of an interval.
#[derive(Debug, Clone, Copy, Default)]
struct Traffic {
    bytes: u64,
    /// The part of it with a round-trip time.
    answered_bytes: u64,
    /// Σ rtt · size / window. Unit: ns.
    rtts: u128,
    /// Σ rtt² · size / window. Unit: ns².
    squares: u128,
    /// The shortest queue that a segment has met; `None` without segments.
    queue: Option<Bytes>,
}

/// A change of windows to be distributed: the rest of it, and per unit of a segment's share.
#[derive(Debug, Clone, Copy, Default)]
struct Purse {
    residue_q16: i128,
    /// ξ, with 64 + 16 binary places.
    per_share_q80: u128,
}

impl Purse {
    fn new(residue_q16: i128, shares: u128) -> Self {
        let whole = residue_q16.unsigned_abs();
        let per_share_q80 = (whole << 64).checked_div(shares).unwrap_or(0);
        Self { residue_q16, per_share_q80 }
    }

    /// The change for a segment's share.
    fn offer_q16(&self, share: u128) -> i128 {
        let offer = self.per_share_q80.saturating_mul(share) >> 64;
        i128::try_from(offer).unwrap_or(i128::MAX).min(self.residue_q16)
    }

    fn pay(&mut self, q16: i128) {
        self.residue_q16 -= q16;
        if self.residue_q16 <= 0 {
            *self = Self::default();
        }
    }
}

/// The router's part at one output port.
///
/// The caller gives it each segment twice, when it arrives at the queue and when it leaves, in the
/// order of time; intervals end with the first segment after their time, or at
/// [`handle_timeout`](Self::handle_timeout).
#[derive(Debug, Clone)]
pub struct Router {
    capacity: Rate,
    interval: Duration,
    began: Option<Instant>,
    traffic: Traffic,
    positive: Purse,
    negative: Purse,
}

impl Router {
    /// A port that sends at `capacity`.
    pub fn new(capacity: Rate) -> Self {
        Self {
            capacity,
            interval: INTERVAL_INITIAL,
            began: None,
            traffic: Traffic::default(),
            positive: Purse::default(),
            negative: Purse::default(),
        }
    }

    /// The port has another rate from now on.
    pub fn set_capacity(&mut self, capacity: Rate) {
        self.capacity = capacity;
    }

    /// When the running interval ends.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.began.map(|began| began + self.interval)
    }

    /// Ends the running interval, where its time is over.
    pub fn handle_timeout(&mut self, now: Instant) {
        let Some(began) = self.began else { return };
        if now < began + self.interval {
            return;
        }
        self.end_interval();
        self.began = Some(began + self.interval);
        // No segment arrived for longer: it begins anew, with nothing to distribute.
        if now >= began + self.interval + self.interval {
            self.began = None;
            self.positive = Purse::default();
            self.negative = Purse::default();
        }
    }

    /// A segment arrives at a queue that holds `queue` already.
    pub fn on_arrival(&mut self, now: Instant, size: Bytes, header: &Header, queue: Bytes) {
        self.handle_timeout(now);
        self.began.get_or_insert(now);
        let size = size.get().min(SIZE_MAX);
        let traffic = &mut self.traffic;
        traffic.bytes = traffic.bytes.saturating_add(size);
        traffic.queue = Some(traffic.queue.map_or(queue, |least| least.min(queue)));
        let rtt = rtt_ns(header);
        if rtt > 0 {
            traffic.answered_bytes = traffic.answered_bytes.saturating_add(size);
            let share = rtt * u128::from(size) / window(header);
            traffic.rtts += share;
            traffic.squares += share * rtt;
        }
    }

    /// A segment leaves: its feedback becomes this router's allowance, where that is less.
    pub fn on_departure(&mut self, now: Instant, size: Bytes, header: &mut Header) {
        self.handle_timeout(now);
        let rtt = rtt_ns(header);
        if rtt == 0 {
            header.feedback_q16 = header.feedback_q16.min(0);
            return;
        }
        let size = u128::from(size.get().min(SIZE_MAX));
        let share = rtt * size / window(header) * rtt;
        let mut gain = self.positive.offer_q16(share);
        let mut cut = self.negative.offer_q16(rtt * size);
        let allowed = gain - cut;
        let wanted = i128::from(header.feedback_q16);
        if wanted > allowed {
            header.feedback_q16 = i64::try_from(allowed).unwrap_or(i64::MIN);
        } else {
            // A sender requests less: that counts as cut, and only its growth as gain.
            cut = (cut + allowed - wanted).min(self.negative.residue_q16);
            gain = (wanted + cut).max(0);
        }
        self.positive.pay(gain);
        self.negative.pay(cut);
    }

    fn end_interval(&mut self) {
        let traffic = std::mem::take(&mut self.traffic);
        let lasted = self.interval;
        if let Some(mean) = traffic.squares.checked_div(traffic.rtts) {
            let mean = Duration::from_ns(u64::try_from(mean).unwrap_or(u64::MAX));
            self.interval = mean.clamp(INTERVAL_MIN, INTERVAL_MAX);
        }
        let input = scale(traffic.bytes, self.interval, lasted);
        let phi_q16 = aggregate_q16(self.capacity.bytes_in(self.interval), input, traffic.queue);
        let shuffled_q16 = ((i128::from(input) << 16) / 10 - phi_q16.abs()).max(0);
        let interval_ns = u128::from(self.interval.as_ns());
        self.positive = Purse::new(shuffled_q16 + phi_q16.max(0), traffic.rtts * interval_ns);
        let cut_shares = u128::from(traffic.answered_bytes) * interval_ns;
        self.negative = Purse::new(shuffled_q16 - phi_q16.min(0), cut_shares);
    }
}

/// φ: the change of all windows, from what the port could carry in an interval, the traffic, and the
/// standing queue.
fn aggregate_q16(capacity: Bytes, input: u64, queue: Option<Bytes>) -> i128 {
    let spare = i128::from(capacity.get()) - i128::from(input);
    let queue = i128::from(queue.unwrap_or(Bytes::ZERO).get());
    (spare << 16) * 2 / 5 - (queue << 16) * 226 / 1000
}

/// Converts `bytes` of an interval of `lasted` to one of `interval`.
fn scale(bytes: u64, interval: Duration, lasted: Duration) -> u64 {
    let scaled = u128::from(bytes) * u128::from(interval.as_ns()) / u128::from(lasted.as_ns());
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

fn rtt_ns(header: &Header) -> u128 {
    u128::from(header.rtt.as_ns()).min(RTT_MAX_NS)
}

fn window(header: &Header) -> u128 {
    u128::from(header.window.get().max(1))
}

#[cfg(test)]
mod tests;
