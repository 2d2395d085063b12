//! What the links of a run could carry as they were drawn, and the limit that follows from it.
//!
//! Where all links of a path are constant, its limit is a formula ([`crate::limit`]). Where one varies, the limit is that
//! of what was drawn: rates, breaks, fades and traces depend on the seed and the time alone, and are the same in the
//! simulator and on kernels, where the emulator's links are the simulator's, on the clock from which transfers count.
//!
//! Payload is taken for a fluid. Hop by hop it leaves as fast as the hop carries it, and waits before the next where that
//! is slower; between them it takes the shortest propagation. Nothing that packets do is faster.

use crate::limit::{Demand, Opener};
use crate::plan::{Direction, Plan, PlannedLink, TransferPlan};
use crate::record::{LimitResult, TransferResult};
use crate::route::Crossing;
use midhop_path::{Drawn, Stretch};
use midhop_units::{Bytes, Duration, Instant, Loss, Rate};

/// What an unlimited hop is taken to carry. Unit: bit/ns.
const UNLIMITED: f64 = 1e6;
/// How long after the end of a transfer its earliest end is looked for: losses that chance spared it may cost a break.
const PATIENCE: Duration = Duration::from_s(60);

impl Plan {
    /// The seed of a link's draws.
    pub fn link_seed(&self, link: &PlannedLink) -> midhop_units::Seed {
        self.seed.derive(&link.name)
    }

    /// What one direction of `link` could carry in this run.
    pub fn drawn(&self, link: &PlannedLink, direction: Direction) -> Drawn {
        Drawn::new(link.direction(direction), direction, self.link_seed(link))
    }

    /// The bytes that one direction of `link` could send within `span` of the run's start; none where it does not vary,
    /// or has no limit.
    pub fn capacity(
        &self,
        link: &PlannedLink,
        direction: Direction,
        span: Duration,
    ) -> Option<Bytes> {
        let varies = link.direction(direction).varies();
        varies.then(|| self.drawn(link, direction).sends_until(Instant::START + span))?
    }

    /// What the path of `transfer` could carry in this run; none where no link of it varies, or none has a limit; and none
    /// where handovers give it several paths.
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
        // A request crosses the way back, or the sender opens and waits for nobody.
        let requested = match transfer.opens {
            Opener::To => limit.rtt.saturating_sub(ahead),
            Opener::From => Duration::ZERO,
        };
        Some(DrawnPath { hops, requested, propagation: ahead })
    }

    /// Sets what a run measured of a transfer beside its limit. Where a link on its way varies, that is the limit of what
    /// was drawn:
    /// - a complete file or page is set beside the earliest moment at which it could have arrived;
    /// - what sends for a time, or was cut short, beside all that the path could have carried until its last byte came.
    pub fn limit_of(&self, transfer: &TransferResult) -> Option<LimitResult> {
        let planned = self.transfer(&transfer.name)?;
        let Some(path) = self.drawn_path(planned) else {
            return planned.limit_result(transfer.complete, transfer.bytes, transfer.took);
        };
        let begun = transfer.flows.iter().map(|flow| flow.start).min().unwrap_or(planned.start);
        let took = transfer.took;
        let drawn = path.carries(begun, begun.saturating_add(took));
        let wait = path.wait();
        // Where no byte can have come yet, the rate is that of the plan.
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

/// The time that `bytes` take; nothing takes none, however slow the link.
fn time_for(rate: Rate, bytes: Bytes) -> Duration {
    if bytes == Bytes::ZERO { Duration::ZERO } else { rate.time_for(bytes) }
}

/// The path of a transfer with what its links could carry over time.
#[derive(Debug, Clone)]
pub struct DrawnPath {
    hops: Vec<Hop>,
    /// From the first SYN until the sender may send.
    requested: Duration,
    propagation: Duration,
}

/// One hop, on the clock of the sender's packets: the propagation before it is taken off.
#[derive(Debug, Clone)]
struct Hop {
    drawn: Drawn,
    ahead: Duration,
    /// Payload that is needed further on, of what is sent.
    share: f64,
    /// Payload that it carries. Unit: bit/ns.
    rate: f64,
    /// Until when. Unit: ns.
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

    /// When `demand` can be there at the earliest, if by `until`.
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
                // Each is asked for when the one before is there.
                objects
                    .iter()
                    .try_fold(begun, |at, size| arrival(at.saturating_add(self.requested), *size))
            }
            Demand::Page { objects, parallel, .. } => {
                // Either all share the path after one wait, or a lane waits once for each of its own: it has no fewer
                // than this many.
                let lanes = objects.len().min(parallel.max(1) as usize).max(1);
                let waits = u64::try_from(objects.len().div_ceil(lanes)).unwrap_or(u64::MAX);
                let sum = objects.iter().fold(Bytes::ZERO, |sum, &size| sum.saturating_add(size));
                let lane = begun.saturating_add(self.wait() * waits);
                Some(all(sum)?.max(lane))
            }
        }
    }

    /// Lets payload flow from `from` until `until`, or until so many `bits` have passed the last hop: how many have, and
    /// when all had.
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
            // What enters the first hop waits for nothing: the sender has as much as anybody can take.
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
