//! The capacity of the links of a run as it was drawn, and the limit that follows from it.
//!
//! Where all links of a path are constant, its limit is a formula ([`crate::limit`]). Where one
//! varies, the limit is that of the draws: rates, outages, fading and traces depend only on the
//! seed and the time. They are the same in the simulator and on kernels: the emulator's links are
//! the simulator's, on the clock of the transfers.
//!
//! Payload is modelled as a fluid. At each hop it leaves as fast as the hop carries it, and waits
//! before the next hop where that is slower. Between hops it takes the shortest propagation delay.
//! No packets can be faster.
//!
//! Decision 0048.

use crate::limit::{Demand, Opener};
use crate::plan::{Direction, Plan, PlannedLink, TransferPlan};
use crate::record::{LimitResult, TransferResult};
use crate::route::Crossing;
use midhop_path::{Drawn, Stretch};
use midhop_units::{Bytes, Duration, Instant, Loss, Rate};

/// The assumed rate of an unlimited hop. Unit: bit/ns.
const UNLIMITED: f64 = 1e6;
/// How long after the end of a transfer its earliest possible end is searched: losses that it
/// avoided by chance may have spared it an outage.
const PATIENCE: Duration = Duration::from_s(60);

impl Plan {
    /// The seed of a link's draws.
    pub fn link_seed(&self, link: &PlannedLink) -> midhop_units::Seed {
        self.seed.derive(&link.name)
    }

    /// The capacity of one direction of `link` in this run.
    pub fn drawn(&self, link: &PlannedLink, direction: Direction) -> Drawn {
        Drawn::new(link.direction(direction), direction, self.link_seed(link))
    }

    /// The bytes that one direction of `link` could send within `span` of the run's start; none
    /// where it does not vary or has no limit.
    pub fn capacity(
        &self,
        link: &PlannedLink,
        direction: Direction,
        span: Duration,
    ) -> Option<Bytes> {
        let varies = link.direction(direction).varies();
        varies.then(|| self.drawn(link, direction).sends_until(Instant::START + span))?
    }

    /// The capacity of the path of `transfer` in this run. None where no link of it varies or none
    /// has a limit, and where handovers give it several paths.
    pub fn drawn_path(&self, transfer: &TransferPlan) -> Option<DrawnPath> {
        let limit = transfer.limit.as_ref().filter(|_| self.handovers.is_empty())?;
        let crossed = |crossing: &Crossing| Some((self.link(&crossing.link)?, crossing.direction));
        let route: Vec<_> = transfer.route.iter().filter_map(crossed).collect();
        if !route.iter().any(|(link, direction)| link.direction(*direction).varies()) {
            return None;
        }
        let mut hops = Vec::new();
        let mut ahead = Duration::ZERO;
        for &(link, direction) in &route {
            hops.push(Hop {
                drawn: self.drawn(link, direction),
                ahead,
                share: 0.0,
                rate: 0.0,
                until_ns: 0.0,
                waiting: 0.0,
            });
            ahead += link.direction(direction).delay_min();
        }
        let mut loss = Loss::NONE;
        for (hop, (crossing, (link, direction))) in
            hops.iter_mut().zip(transfer.route.iter().zip(&route)).rev()
        {
            let own = link.direction(*direction).loss_of_packets(u64::from(link.mtu));
            loss = if self.splits_after(crossing) { own } else { own.then(loss) };
            hop.share = limit.framing.efficiency() * (1.0 - loss.probability());
        }
        // A request crosses the path back; a sender that opens the connection waits for no request.
        let requested = match transfer.opens {
            Opener::To => limit.rtt.saturating_sub(ahead),
            Opener::From => Duration::ZERO,
        };
        Some(DrawnPath { hops, requested, propagation: ahead })
    }

    /// Compares the results of a transfer with its limit. Where a link on its path varies, that is
    /// the limit of the draws:
    /// - a complete file or page is compared with the earliest moment at which it could have
    ///   arrived;
    /// - a transfer that is limited in time, or was cut short, with all that the path could have
    ///   carried until its last byte arrived.
    pub fn limit_of(&self, transfer: &TransferResult) -> Option<LimitResult> {
        let planned = self.transfer(&transfer.name)?;
        let Some(path) = self.drawn_path(planned) else {
            return planned.limit_result(transfer.complete, transfer.bytes, transfer.took);
        };
        let begun = transfer.flows.iter().map(|flow| flow.start).min().unwrap_or(planned.start);
        let took = transfer.took;
        let drawn = path.carries(begun, begun.saturating_add(took));
        let wait = path.wait();
        // Where no byte can have arrived yet, the rate is that of the plan.
        let known = planned.limit.as_ref()?.goodput;
        let mean = |carried, time: Duration| match time.saturating_sub(wait) {
            Duration::ZERO => known,
            useful => Rate::of(carried, useful),
        };
        let fixed = transfer.complete && planned.work.bytes().is_some();
        let (goodput, time) = if fixed {
            let until = begun.saturating_add(took * 2).saturating_add(PATIENCE);
            let demand = planned.demand(true, transfer.bytes);
            let time = path.earliest(begun, demand, until).unwrap_or(until).saturating_sub(begun);
            let carried = path.carries(begun, begun.saturating_add(time));
            (mean(carried, time), time)
        } else {
            let goodput = mean(drawn, took);
            (goodput, wait.saturating_add(time_for(goodput, transfer.bytes)))
        };
        let nothing = transfer.bytes == Bytes::ZERO || took.is_zero();
        let efficiency = if nothing { 0.0 } else { time.as_s_f64() / took.as_s_f64() };
        Some(LimitResult { goodput, time, efficiency, drawn: Some(drawn) })
    }
}

/// The time to send `bytes`; zero bytes take no time, however slow the link.
fn time_for(rate: Rate, bytes: Bytes) -> Duration {
    if bytes == Bytes::ZERO { Duration::ZERO } else { rate.time_for(bytes) }
}

/// The path of a transfer with the capacity of its links over time.
#[derive(Debug, Clone)]
pub struct DrawnPath {
    hops: Vec<Hop>,
    /// From the first SYN until the sender may send.
    requested: Duration,
    propagation: Duration,
}

/// One hop, on the clock of the sender's packets: the propagation delay before it is subtracted.
#[derive(Debug, Clone)]
struct Hop {
    drawn: Drawn,
    ahead: Duration,
    /// The part of the sent payload that is needed further on.
    share: f64,
    /// The rate of payload. Unit: bit/ns.
    rate: f64,
    /// When the rate changes. Unit: ns.
    until_ns: f64,
    /// Payload that waits before it. Unit: bit.
    waiting: f64,
}

impl Hop {
    fn take_up(&mut self, stretch: Stretch) {
        let rate = stretch.rate.map_or(UNLIMITED, |rate| rate.bits_per_s() as f64 / 1e9);
        self.rate = rate * stretch.arrives * self.share;
        self.until_ns = match stretch.end {
            Instant::NEVER => f64::INFINITY,
            end => end.saturating_since(Instant::START + self.ahead).as_ns() as f64,
        };
    }
}

impl DrawnPath {
    /// From the first SYN of a transfer until its first byte can arrive, without a handshake.
    pub fn wait(&self) -> Duration {
        self.requested.saturating_add(self.propagation)
    }

    /// The payload that can arrive by `until` of a transfer whose first SYN left at `begun`, both after the run's start.
    pub fn carries(&self, begun: Duration, until: Duration) -> Bytes {
        let sent = until.saturating_sub(self.propagation);
        let (bits, _) = self.flow(begun.saturating_add(self.requested), sent, f64::INFINITY);
        Bytes::new((bits / 8.0) as u64)
    }

    /// The earliest time at which `demand` can have arrived, if it is before `until`.
    pub fn earliest(
        &self,
        begun: Duration,
        demand: Demand<'_>,
        until: Duration,
    ) -> Option<Duration> {
        let arrival = |from: Duration, bytes: Bytes| {
            let sent = until.saturating_sub(self.propagation);
            let (_, at) = self.flow(from, sent, bytes.get() as f64 * 8.0);
            Some(at?.saturating_add(self.propagation))
        };
        let all = |bytes| arrival(begun.saturating_add(self.requested), bytes);
        match demand {
            Demand::Bulk(bytes) => all(bytes),
            Demand::Page { objects, parallel: 1, .. } => {
                // Each is requested once the one before it has arrived.
                objects
                    .iter()
                    .try_fold(begun, |at, size| arrival(at.saturating_add(self.requested), *size))
            }
            Demand::Page { objects, parallel, .. } => {
                // Either all objects share the path after one wait, or each connection waits once
                // for each of its objects: it has at least this many.
                let lanes = objects.len().min(parallel.max(1) as usize).max(1);
                let waits = u64::try_from(objects.len().div_ceil(lanes)).unwrap_or(u64::MAX);
                let sum = objects.iter().fold(Bytes::ZERO, |sum, &size| sum.saturating_add(size));
                let lane = begun.saturating_add(self.wait() * waits);
                Some(all(sum)?.max(lane))
            }
        }
    }

    /// Lets payload flow from `from` until `until`, or until so many `bits` have passed the last
    /// hop. Returns how many have passed, and when all of them had.
    fn flow(&self, from: Duration, until: Duration, bits: f64) -> (f64, Option<Duration>) {
        let mut hops = self.hops.clone();
        for hop in &mut hops {
            hop.drawn.seek(Instant::START + from.saturating_add(hop.ahead));
            let first = hop.drawn.advance();
            hop.take_up(first);
        }
        let (mut now, until) = (from.as_ns() as f64, until.as_ns() as f64);
        let mut passed = 0.0;
        while now < until && passed < bits {
            // Payload enters the first hop without waiting: the sender always has enough.
            let mut through = f64::INFINITY;
            let mut next = until;
            let mut growth = Vec::with_capacity(hops.len());
            for hop in &hops {
                let out = if hop.waiting > 0.0 { hop.rate } else { hop.rate.min(through) };
                let grows = if through.is_finite() { through - out } else { 0.0 };
                if grows < 0.0 {
                    next = next.min(now - hop.waiting / grows);
                }
                growth.push(grows);
                next = next.min(hop.until_ns);
                through = out;
            }
            if passed + through * (next - now) >= bits {
                let at = now + (bits - passed) / through;
                return (bits, Some(Duration::from_ns(at.ceil() as u64)));
            }
            passed += through * (next - now);
            for (hop, grows) in hops.iter_mut().zip(growth) {
                let emptied = grows < 0.0 && now - hop.waiting / grows <= next;
                hop.waiting = if emptied { 0.0 } else { hop.waiting + grows * (next - now) };
            }
            now = next;
            for hop in &mut hops {
                while hop.until_ns <= now {
                    let stretch = hop.drawn.advance();
                    hop.take_up(stretch);
                }
            }
        }
        let all = passed >= bits;
        (passed, all.then(|| Duration::from_ns(now as u64)))
    }
}
