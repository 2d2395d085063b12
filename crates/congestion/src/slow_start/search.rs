//! SEARCH: slow start ends when arrived data no longer keeps up with sent data.
//!
//! Source: J. Chung et al., "SEARCH – a New Slow Start Algorithm for TCP and QUIC",
//! draft-chung-ccwg-search-09. Bytes sent and delivered are noted at the edges of bins. While doubling
//! fits the path, a window of time delivers the bytes sent in the window that ended one RTT before it.
//! It uses no RTT rise, so a scheduler's jitter does not end it. After the end the window is
//! drained to the path's capacity in the connection's first RTT.
//!
//! The look back is by the latest RTT, which grows with the queue, as in the draft and in its authors'
//! code; so delivered bytes lag behind sent bytes only by the growth of the RTT within a window
//! of time. By arithmetic that is a quarter when 5.3 bandwidth-delay products are in flight, 4.3 of them in a
//! queue. Where the queue holds less, a loss comes first.
//!
//! Differs: where the window of a round trip ago ends between two edges, the value there comes from
//! the edge before, not the one after, which lies on the wrong side of it. Sent bytes are the bytes
//! delivered or in flight: the first loss ends slow start. The drain lasts a window of
//! acknowledgements, in proportion. Bins are whole numbers of 64 bits; the draft's shifting is not needed.

use super::Verdict;
use crate::{Ack, segments::saturated};
use midhop_units::{Bytes, Duration, Instant};

/// W: bins in a window of time.
const BINS: u64 = 10;
/// How many more bins a look back by one RTT may need.
const BINS_MORE: u64 = 15;
/// A window of time is 3.5 initial RTTs, a bin a tenth of it.
const BIN_PERCENT_OF_RTT: u64 = 35;
/// THRESH: the share by which delivered bytes may lag behind. Unit: percent.
const BEHIND_MAX_PERCENT: u64 = 26;
const EDGES: usize = (BINS + BINS_MORE + 1) as usize;

/// The counts up to the edge of a bin.
#[derive(Debug, Clone, Copy, Default)]
struct Edge {
    sent: u64,
    delivered: u64,
}

/// SEARCH during a connection's first slow start.
#[derive(Debug, Clone)]
pub struct Search {
    total: Edge,
    edges: [Edge; EDGES],
    /// The newest edge's number; `edges` holds the last [`EDGES`] of them.
    newest: u64,
    /// When the current bin ends; `None` before the first RTT.
    bin_ends: Option<Instant>,
    bin: Duration,
    rtt_initial: Duration,
}

impl Default for Search {
    fn default() -> Self {
        Self::new()
    }
}

impl Search {
    /// A new connection.
    pub fn new() -> Self {
        Self {
            total: Edge::default(),
            edges: [Edge::default(); EDGES],
            newest: 0,
            bin_ends: None,
            bin: Duration::ZERO,
            rtt_initial: Duration::ZERO,
        }
    }

    /// An acknowledgement.
    pub fn on_ack(&mut self, mss: Bytes, ack: &Ack) -> Verdict {
        self.total.delivered = self.total.delivered.saturating_add(ack.acked.get());
        self.total.sent = self.total.delivered.saturating_add(ack.in_flight.get());
        let Some(rtt) = ack.rtt.filter(|rtt| !rtt.is_zero()) else { return Verdict::GO_ON };
        let Some(ends) = self.bin_ends else {
            self.begin(ack.now, rtt);
            return Verdict::GO_ON;
        };
        if ack.now < ends {
            return Verdict::GO_ON;
        }
        let passed = ack.now.saturating_since(ends).as_ns() / self.bin.as_ns() + 1;
        if passed > BINS {
            // Nothing arrived for so long that the bins are out of date.
            self.begin(ack.now, rtt);
            return Verdict::GO_ON;
        }
        self.pass(passed, ends);
        if self.is_behind(rtt) { self.exit(mss) } else { Verdict::GO_ON }
    }

    fn begin(&mut self, now: Instant, rtt: Duration) {
        self.rtt_initial = rtt;
        // Never zero, since it is a divisor.
        self.bin = (rtt / 100 * BIN_PERCENT_OF_RTT).max(Duration::from_ns(1));
        self.bin_ends = Some(now + self.bin);
        self.newest = 0;
        self.edges[0] = self.total;
    }

    fn pass(&mut self, passed: u64, ends: Instant) {
        let last = self.edge(self.newest);
        for number in self.newest + 1..self.newest + passed {
            self.edges[slot(number)] = last;
        }
        self.newest += passed;
        self.edges[slot(self.newest)] = self.total;
        self.bin_ends = Some(ends + self.bin * passed);
    }

    fn edge(&self, number: u64) -> Edge {
        self.edges[slot(number)]
    }

    /// Bytes sent in the window of time that ends at an edge.
    fn sent_until(&self, number: u64) -> u64 {
        self.edge(number).sent.saturating_sub(self.edge(number - BINS).sent)
    }

    fn is_behind(&self, rtt: Duration) -> bool {
        let back = rtt.as_ns() / self.bin.as_ns();
        let part = rtt.as_ns() % self.bin.as_ns();
        let Some(then) = self.newest.checked_sub(back) else { return false };
        // One window before `then`, and an edge before that for the interpolation.
        if then <= BINS || back >= BINS_MORE {
            return false;
        }
        let between = |earlier: u64, later: u64| {
            let whole = u128::from(self.bin.as_ns());
            let share = u128::from(part);
            (u128::from(earlier) * share + u128::from(later) * (whole - share)) / whole
        };
        let sent = between(self.sent_until(then - 1), self.sent_until(then));
        let now = self.edge(self.newest).delivered;
        let before = self.edge(self.newest - BINS).delivered;
        let delivered = u128::from(now.saturating_sub(before));
        let behind = sent.saturating_sub(delivered);
        sent > 0 && behind * 100 >= sent * u128::from(BEHIND_MAX_PERCENT)
    }

    /// What the path delivers in its RTT without a queue.
    fn exit(&self, mss: Bytes) -> Verdict {
        let bins = self.rtt_initial.as_ns().div_ceil(self.bin.as_ns()).min(BINS);
        let now = self.edge(self.newest).delivered;
        let before = self.edge(self.newest - bins).delivered;
        let span_ns = u128::from(self.bin.as_ns()) * u128::from(bins);
        let carried =
            u128::from(now.saturating_sub(before)) * u128::from(self.rtt_initial.as_ns()) / span_ns;
        let carried = u64::try_from(carried).unwrap_or(u64::MAX);
        Verdict::ExitTo(saturated(carried.div_ceil(mss.get().max(1))))
    }
}

fn slot(number: u64) -> usize {
    (number % EDGES as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ack;

    const MSS: Bytes = Bytes::new(1000);

    /// A sender that doubles into a path of `carries` segments per RTT of 100 ms, in steps of a
    /// millisecond; RTTs differ by `jitter_ms`. Returns the window at the end and the target of the drain.
    fn climb(carries: u64, jitter_ms: u64) -> (u64, u32) {
        let mut search = Search::new();
        let mut now_ms = 0_u64;
        // Arrivals of acknowledgements: segments by millisecond, all as sent plus 100 ms plus queue.
        let mut sent_at = std::collections::VecDeque::from(vec![(0_u64, 10_u64)]);
        let (mut window, mut flight) = (10_u64, 10_u64);
        // The bottleneck serves `carries` per 100 ms.
        let (mut credit, mut queue) = (0_u64, std::collections::VecDeque::new());
        for _ in 0..20_000 {
            now_ms += 1;
            while let Some(&(at, segments)) = sent_at.front()
                && at + 100 <= now_ms
            {
                sent_at.pop_front();
                queue.extend(std::iter::repeat_n(at, segments as usize));
            }
            credit = (credit + carries).min(100.max(carries));
            while credit >= 100
                && let Some(at) = queue.pop_front()
            {
                credit -= 100;
                flight -= 1;
                let jitter = if now_ms.is_multiple_of(3) { jitter_ms } else { 0 };
                let verdict = search.on_ack(
                    MSS,
                    &Ack {
                        now: Instant::from_ns(now_ms * 1_000_000),
                        rtt: Some(Duration::from_ms(now_ms - at + jitter)),
                        in_flight: Bytes::new(flight * MSS.get()),
                        ..ack(0, MSS.get())
                    },
                );
                if let Verdict::ExitTo(target) = verdict {
                    return (window, target);
                }
                window += 1;
                sent_at.push_back((now_ms, window - flight));
                flight = window;
            }
        }
        panic!("it never ended: window {window}");
    }

    #[test]
    fn it_ends_near_five_products_in_an_endless_queue_and_drains_to_one() {
        for carries in [50, 200, 1000] {
            let (window, target) = climb(carries, 0);
            // Sent in the window of time that ended an RTT ago against delivered, t first RTTs after
            // acknowledgements come at the path's rate: 2.46 + 2.29 against 3.5 at t = 3.9.
            let products = window as f64 / carries as f64;
            assert!((4.0..6.0).contains(&products), "{window} of {carries}");
            let off = f64::from(target) / carries as f64;
            assert!((0.9..1.15).contains(&off), "{target} of {carries}");
        }
    }

    #[test]
    fn jitter_does_not_end_it_early() {
        for jitter_ms in [5, 20, 30] {
            let (window, _) = climb(1000, jitter_ms);
            assert!(window >= 1000, "{window} with {jitter_ms} ms");
        }
    }

    #[test]
    fn a_pause_of_more_than_a_window_begins_anew() {
        let mut search = Search::new();
        let mut at = |now_ms: u64| {
            let ack = Ack {
                now: Instant::from_ns(now_ms * 1_000_000),
                rtt: Some(Duration::from_ms(100)),
                in_flight: Bytes::new(10 * MSS.get()),
                ..ack(0, MSS.get())
            };
            (search.on_ack(MSS, &ack), search.newest)
        };
        assert_eq!(at(0).1, 0);
        assert_eq!(at(34).1, 0);
        assert_eq!(at(35).1, 1);
        assert_eq!(at(140).1, 4, "bins without an acknowledgement count");
        assert_eq!(at(140 + 384).1, 14, "ten bins");
        assert_eq!(at(525 + 420).1, 0);
    }

    #[test]
    fn an_rtt_of_more_than_fifteen_bins_decides_nothing() {
        let mut search = Search::new();
        for n in 0..40_u64 {
            let rtt = Duration::from_ms(if n < 30 { 100 } else { 15 * 35 });
            let ack = Ack {
                now: Instant::from_ns(n * 35_000_000),
                rtt: Some(rtt),
                in_flight: Bytes::new(1 << 40),
                ..ack(0, MSS.get() << (40 - n.min(30)))
            };
            let verdict = search.on_ack(MSS, &ack);
            if n >= 30 {
                assert_eq!(verdict, Verdict::GO_ON, "at {n}");
            }
        }
    }
}
