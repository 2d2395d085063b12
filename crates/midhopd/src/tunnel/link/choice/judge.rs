//! Judges whether UDP is throttled, from the throughput of two carriers of one tunnel.
//!
//! No end can observe a policer. A rate that stays far below the link's, though there is more to
//! send, is only a suspicion: fading, a shared link and a wrong configuration look alike. So the
//! other carrier is tried beside it with a few new flows for a while, and only a clearly higher
//! throughput decides. What a carrier *has carried* is the least that it can carry. So a trial with
//! too little to send proves nothing and moves no flow.
//!
//! Delays of this host are no sign of the path: the time in which QUIC waited for a processor does
//! not count.
//!
//! Invariant: without a configured rate, or a rate that this path has carried before, nothing is suspected.
//!
//! Decision 0023.

use midhop_units::{Bytes, Duration, Rate};
use std::collections::VecDeque;

/// How long a carrier has to be slow before it is suspected. Then the same in round trips, where these are long.
const SUSPICION: Duration = Duration::from_s(10);
const SUSPICION_TRIPS: u64 = 20;
/// A carrier is slow below this part of the expected rate. Unit: percent.
const SLOW_PERCENT: u64 = 50;
/// If less than this part of the time was free of waiting for a processor, nothing is judged. Unit:
/// percent.
const AWAKE_PERCENT: u64 = 25;
/// Time span over which carriers are compared. Then the same in round trips.
const SPAN: Duration = Duration::from_s(5);
const SPAN_TRIPS: u64 = 8;
/// Duration of a trial, from its first flow. Unit: spans.
const TRIAL_SPANS: u64 = 4;
/// TCP is taken if it carries at least this part of what UDP carries. UDP is taken again if it carries at least this
/// part of what it carried before. Unit: percent.
const MORE_PERCENT: u64 = 150;
/// UDP must also carry at least this part of what TCP has carried lately: with half of the rate
/// each, they are equal. Unit: percent.
const ALIKE_PERCENT: u64 = 40;
/// Pause after a trial in vain: at first, and at most.
const PAUSE_FIRST: Duration = Duration::from_s(60);
const PAUSE_MOST: Duration = Duration::from_s(3600);
/// Pause between two attempts to return to UDP: the first, and the maximum.
const RETURN_FIRST: Duration = Duration::from_s(10);
const RETURN_MOST: Duration = Duration::from_s(300);

/// A value for each direction: away from this end, and towards it.
pub type PerDirection<T> = [T; 2];

/// What QUIC has carried in one direction since the last measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuicProgress {
    /// Bytes that have arrived.
    pub bytes: Bytes,
    /// Whether there was more to send all the time.
    pub backlogged: bool,
}

/// Measurements since the last ones.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// Time since the last ones.
    pub passed: Duration,
    /// The part of it in which this host kept QUIC from going on.
    pub delayed: Duration,
    /// Progress of QUIC.
    pub quic: PerDirection<QuicProgress>,
    /// Bytes over TCP.
    pub tcp: PerDirection<Bytes>,
    /// Whether a flow was sent over the carrier on trial.
    pub tried: bool,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Send some new flows over TCP.
    TryTcp,
    /// Send no more of them over TCP: it carries no more than QUIC.
    ForgetTcp,
    /// Send all new flows over TCP: UDP is throttled.
    GoToTcp,
    /// Send some new flows over QUIC.
    TryQuic,
    /// Send no more of them over QUIC: UDP is still throttled.
    ForgetQuic,
    /// Send all new flows over QUIC.
    ReturnToQuic,
}

/// The judge of one tunnel.
#[derive(Debug)]
pub struct Judge {
    /// The configured rate of the link, if any.
    configured: PerDirection<Option<Rate>>,
    /// The highest rate that a carrier was measured to carry.
    most: PerDirection<Option<Rate>>,
    suspicion: Duration,
    span: Duration,
    /// How long suspicions are ignored now, and after the next trial in vain.
    quiet: Duration,
    pause: Duration,
    /// The pause before the next attempt to return.
    return_pause: Duration,
    /// Time since the last return.
    returned: Option<Duration>,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    OnQuic {
        over: PerDirection<Span>,
    },
    TryingTcp {
        /// What QUIC carried where it was slow.
        slow: PerDirection<Option<Rate>>,
        over: Contest,
        ran: Duration,
        /// For how long it has not been slow.
        lapsed: Duration,
    },
    OnTcp {
        slow: PerDirection<Option<Rate>>,
        over: Contest,
        waited: Duration,
    },
    TryingQuic {
        slow: PerDirection<Option<Rate>>,
        over: Contest,
        ran: Duration,
    },
}

impl Judge {
    /// Creates the judge of a tunnel whose link has this configured rate.
    pub fn new(configured: PerDirection<Option<Rate>>, rtt: Option<Duration>) -> Self {
        let trips = |least: Duration, trips| rtt.map_or(least, |rtt| least.max(rtt * trips));
        let suspicion = trips(SUSPICION, SUSPICION_TRIPS);
        Self {
            configured,
            most: [None; 2],
            suspicion,
            span: trips(SPAN, SPAN_TRIPS),
            quiet: Duration::ZERO,
            pause: PAUSE_FIRST,
            return_pause: RETURN_FIRST,
            returned: None,
            phase: Phase::OnQuic { over: [Span::new(suspicion), Span::new(suspicion)] },
        }
    }

    /// Notes that all new flows use QUIC, whatever they used before. The measurements are kept.
    pub fn begin_on_quic(&mut self) {
        self.phase = Phase::OnQuic { over: [Span::new(self.suspicion), Span::new(self.suspicion)] };
    }

    /// Notes that the carrier to be tried cannot be opened.
    pub fn fail(&mut self) {
        match &mut self.phase {
            Phase::TryingTcp { .. } => self.forget_tcp(true),
            Phase::TryingQuic { .. } => self.forget_quic(),
            Phase::OnQuic { .. } | Phase::OnTcp { .. } => {}
        }
    }

    /// Returns the advice that follows from the measurements.
    pub fn look(&mut self, seen: &Seen) -> Option<Advice> {
        self.quiet = self.quiet.saturating_sub(seen.passed);
        if let Some(returned) = &mut self.returned {
            *returned = returned.saturating_add(seen.passed);
        }
        match &self.phase {
            Phase::OnQuic { .. } => self.suspect(seen),
            Phase::TryingTcp { .. } => self.compare(seen),
            Phase::OnTcp { .. } | Phase::TryingQuic { .. } => self.long_for_udp(seen),
        }
    }

    fn suspect(&mut self, seen: &Seen) -> Option<Advice> {
        let Phase::OnQuic { over } = &mut self.phase else { return None };
        let mut slow = [None; 2];
        for (at, carried) in seen.quic.iter().enumerate() {
            if !carried.backlogged {
                over[at].clear();
                continue;
            }
            let mean = over[at].push(Look::of_quic(seen, at));
            self.most[at] = self.most[at].max(over[at].carried());
            let Some(mean) = mean else { continue };
            let expected = self.configured[at].or(self.most[at]);
            if expected.is_some_and(|expected| mean < percent(expected, SLOW_PERCENT)) {
                slow[at] = Some(mean);
            } else {
                self.pause = PAUSE_FIRST;
            }
        }
        if slow == [None; 2] || !self.quiet.is_zero() {
            return None;
        }
        let (over, zero) = (Contest::new(self.span), Duration::ZERO);
        self.phase = Phase::TryingTcp { slow, over, ran: zero, lapsed: zero };
        Some(Advice::TryTcp)
    }

    fn compare(&mut self, seen: &Seen) -> Option<Advice> {
        let Phase::TryingTcp { slow, over, ran, lapsed } = &mut self.phase else { return None };
        let stands = slow.iter().zip(&seen.quic).any(|(slow, at)| slow.is_some() && at.backlogged);
        if !seen.tried {
            // No flow has arrived for the trial. The suspicion may end before one does.
            *lapsed = if stands { Duration::ZERO } else { lapsed.saturating_add(seen.passed) };
            if *lapsed >= self.suspicion {
                self.forget_tcp(false);
                return Some(Advice::ForgetTcp);
            }
            return None;
        }
        *ran = ran.saturating_add(seen.passed);
        over.push(seen);
        let is_better = |at: usize| {
            let Some(slow) = slow[at] else { return false };
            let least = percent(slow.max(over.quic[at].best()), MORE_PERCENT);
            over.tcp[at].best() >= least
        };
        if is_better(0) || is_better(1) {
            for (most, tcp) in self.most.iter_mut().zip(&over.tcp) {
                *most = (*most).max(Some(tcp.best()));
            }
            let soon = self.returned.take().is_some_and(|returned| returned < RETURN_MOST);
            self.return_pause =
                if soon { (self.return_pause * 2).min(RETURN_MOST) } else { RETURN_FIRST };
            let (slow, over) = (*slow, over.again());
            self.phase = Phase::OnTcp { slow, over, waited: Duration::ZERO };
            return Some(Advice::GoToTcp);
        }
        if *ran >= self.span * TRIAL_SPANS {
            self.forget_tcp(true);
            return Some(Advice::ForgetTcp);
        }
        None
    }

    fn long_for_udp(&mut self, seen: &Seen) -> Option<Advice> {
        let trial_most = self.span * TRIAL_SPANS;
        let (Phase::OnTcp { slow, over, .. } | Phase::TryingQuic { slow, over, .. }) =
            &mut self.phase
        else {
            return None;
        };
        over.push(seen);
        let is_free = |at: usize| {
            let Some(slow) = slow[at] else { return false };
            let quic = over.quic[at].mean();
            let alike = percent(over.tcp[at].best(), ALIKE_PERCENT);
            quic.is_some_and(|quic| quic >= percent(slow, MORE_PERCENT) && quic >= alike)
        };
        if is_free(0) || is_free(1) {
            self.returned = Some(Duration::ZERO);
            self.begin_on_quic();
            return Some(Advice::ReturnToQuic);
        }
        let slow = *slow;
        match &mut self.phase {
            Phase::OnTcp { waited, over, .. } => {
                *waited = waited.saturating_add(seen.passed);
                if *waited < self.return_pause {
                    return None;
                }
                let over = over.clone();
                self.phase = Phase::TryingQuic { slow, over, ran: Duration::ZERO };
                Some(Advice::TryQuic)
            }
            Phase::TryingQuic { ran, .. } if seen.tried => {
                *ran = ran.saturating_add(seen.passed);
                if *ran < trial_most {
                    return None;
                }
                self.forget_quic();
                Some(Advice::ForgetQuic)
            }
            _ => None,
        }
    }

    fn forget_tcp(&mut self, in_vain: bool) {
        if in_vain {
            self.quiet = self.pause;
            self.pause = (self.pause * 2).min(PAUSE_MOST);
        }
        self.begin_on_quic();
    }

    fn forget_quic(&mut self) {
        let Phase::TryingQuic { slow, over, .. } = &self.phase else { return };
        let (slow, over) = (*slow, over.again());
        self.return_pause = (self.return_pause * 2).min(RETURN_MOST);
        self.phase = Phase::OnTcp { slow, over, waited: Duration::ZERO };
    }
}

fn percent(rate: Rate, percent: u64) -> Rate {
    Rate::from_bits_per_s(rate.bits_per_s() / 100 * percent)
}

/// What both carriers have carried lately.
#[derive(Debug, Clone)]
struct Contest {
    quic: PerDirection<Span>,
    tcp: PerDirection<Span>,
}

impl Contest {
    fn new(length: Duration) -> Self {
        let both = || [Span::new(length), Span::new(length)];
        Self { quic: both(), tcp: both() }
    }

    /// Starts anew, but keeps TCP's last span.
    fn again(&self) -> Self {
        let mut new = Self::new(self.quic[0].length);
        new.tcp = self.tcp.clone();
        for tcp in &mut new.tcp {
            tcp.best = tcp.mean();
        }
        new
    }

    fn push(&mut self, seen: &Seen) {
        for at in 0..2 {
            self.quic[at].push(Look::of_quic(seen, at));
            // The kernel's TCP does not wait for this thread.
            let (passed, bytes) = (seen.passed, seen.tcp[at]);
            self.tcp[at].push(Look { passed, delayed: Duration::ZERO, bytes });
        }
    }
}

/// What a carrier has carried between two measurements.
#[derive(Debug, Clone, Copy)]
struct Look {
    passed: Duration,
    delayed: Duration,
    bytes: Bytes,
}

impl Look {
    fn of_quic(seen: &Seen, at: usize) -> Self {
        let delayed = seen.delayed.min(seen.passed);
        Self { passed: seen.passed, delayed, bytes: seen.quic[at].bytes }
    }
}

/// Bytes carried in the last interval of a given length.
#[derive(Debug, Clone)]
struct Span {
    length: Duration,
    looks: VecDeque<Look>,
    best: Option<Rate>,
}

impl Span {
    fn new(length: Duration) -> Self {
        Self { length, looks: VecDeque::new(), best: None }
    }

    fn clear(&mut self) {
        self.looks.clear();
    }

    /// Returns the [mean](Self::mean) rate over the whole length, once that has passed.
    fn push(&mut self, look: Look) -> Option<Rate> {
        self.looks.push_back(look);
        while let Some(first) = self.looks.front()
            && self.time().saturating_sub(first.passed) >= self.length
        {
            self.looks.pop_front();
        }
        let mean = self.mean();
        self.best = self.best.max(mean);
        mean
    }

    /// The rate, without the time in which this host delayed the carrier; none if little time
    /// remains.
    fn mean(&self) -> Option<Rate> {
        let awake = self.time().saturating_sub(self.sum(|look| look.delayed));
        let enough = self.time() >= self.length && awake * 100 >= self.time() * AWAKE_PERCENT;
        (enough && !awake.is_zero()).then(|| Rate::of(self.bytes(), awake))
    }

    /// The rate that was carried, all delays included.
    fn carried(&self) -> Option<Rate> {
        (self.time() >= self.length).then(|| Rate::of(self.bytes(), self.time()))
    }

    /// The highest mean; zero before there is one.
    fn best(&self) -> Rate {
        self.best.unwrap_or(Rate::ZERO)
    }

    fn bytes(&self) -> Bytes {
        Bytes::new(self.looks.iter().map(|look| look.bytes.get()).sum())
    }

    fn time(&self) -> Duration {
        self.sum(|look| look.passed)
    }

    fn sum(&self, part: fn(&Look) -> Duration) -> Duration {
        self.looks.iter().fold(Duration::ZERO, |sum, look| sum.saturating_add(part(look)))
    }
}

#[cfg(test)]
mod tests;
