//! Demand-assigned capacity of DVB-RCS2: a terminal asks for room on the return link and waits for it.

use crate::resolve::{ResolveError, check_rate, check_time_in};
use midhop_units::{Duration, Instant, Rate};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// DAMA as written; each key may be left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DamaSpec {
    /// The period at which capacity is requested and granted. Default 26.5 ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superframe: Option<Duration>,
    /// Delay from the ground to the satellite. Default 125 ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hop_delay: Option<Duration>,
    /// Constant rate assignment: always granted, even without a request. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cra: Option<Rate>,
    /// The highest rate that rate-based requests may request. Default: the link's rate; zero turns
    /// them off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rbdc_max: Option<Rate>,
    /// How long a rate-based request is valid unless it is renewed. Default 16 superframes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rbdc_timeout: Option<Duration>,
    /// Whether the backlog is requested as volume. Default yes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vbdc: Option<bool>,
    /// Free capacity assignment: granted without a request. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fca: Option<Rate>,
}

/// DAMA, resolved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DamaPlan {
    /// The period at which capacity is requested and granted.
    pub superframe: Duration,
    /// Delay from the ground to the satellite.
    pub hop_delay: Duration,
    /// Constant rate assignment.
    pub cra: Rate,
    /// The highest rate that rate-based requests may request.
    pub rbdc_max: Rate,
    /// How long a rate-based request is valid unless it is renewed.
    pub rbdc_timeout: Duration,
    /// Whether the backlog is requested as volume.
    pub vbdc: bool,
    /// Free capacity assignment.
    pub fca: Rate,
}

impl DamaSpec {
    /// `rate` is the highest rate of the carrier, `None` without a limit.
    pub(crate) fn resolve(&self, rate: Option<Rate>) -> Result<DamaPlan, ResolveError> {
        let Some(rate) = rate else {
            let hint = "capacity can only be granted on a link with a rate";
            return Err(ResolveError::missing("rate", hint));
        };
        let superframe = self.superframe.unwrap_or(Duration::from_us(26_500));
        let superframes = Duration::from_ms(1)..=Duration::from_s(10);
        check_time_in("dama.superframe", superframe, superframes)?;
        let plan = DamaPlan {
            superframe,
            hop_delay: self.hop_delay.unwrap_or(Duration::from_ms(125)),
            cra: self.cra.unwrap_or(Rate::ZERO),
            rbdc_max: self.rbdc_max.unwrap_or(rate),
            rbdc_timeout: self.rbdc_timeout.unwrap_or(superframe * 16),
            vbdc: self.vbdc.unwrap_or(true),
            fca: self.fca.unwrap_or(Rate::ZERO),
        };
        let hops = Duration::ZERO..=Duration::from_s(10);
        check_time_in("dama.hop_delay", plan.hop_delay, hops)?;
        let timeouts = Duration::ZERO..=Duration::from_s(60);
        check_time_in("dama.rbdc_timeout", plan.rbdc_timeout, timeouts)?;
        for (key, value) in
            [("dama.cra", plan.cra), ("dama.rbdc_max", plan.rbdc_max), ("dama.fca", plan.fca)]
        {
            check_rate(key, value)?;
        }
        if plan.cra == Rate::ZERO && plan.fca == Rate::ZERO && !plan.vbdc {
            let hint = "a packet at rest would never be granted room: set `cra` or `fca`, or keep \
                        `vbdc`";
            return Err(ResolveError::out_of_range("dama.vbdc", false, hint));
        }
        Ok(plan)
    }
}

/// Measured rates are averaged over about this many superframes.
const RATE_SMOOTHING: u64 = 8;

/// What one plan grants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Grant {
    by_rate: u64,
    by_volume: u64,
}

/// The terminal's requests and what the network's control centre makes of them.
///
/// Time runs in superframes. At the beginning of each, the terminal says what it needs; the request
/// crosses two hops, waits for the next plan, and the plan crosses two hops back. So whatever is asked
/// for in superframe `k` may be sent in superframe `k + latency`, in slots at its beginning. Granted
/// room that is not used is lost.
///
/// All work is counted in nanobits (bits × 10⁹): at `r` bit/s, one nanosecond moves `r` of them.
#[derive(Debug, Clone)]
pub(crate) struct Dama {
    plan: DamaPlan,
    start: Instant,
    /// The superframe that is running.
    superframe: u64,
    /// What may still be sent in it.
    room: u64,
    /// What the plans under way grant: the next superframe first.
    granted: VecDeque<Grant>,
    /// Volume asked for and not yet come.
    asked: u64,
    /// The part of it that no plan has granted yet.
    owed: u64,
    /// What arrived in the running superframe.
    arrived: u64,
    /// Arrivals per superframe, averaged: the rate-based request.
    arriving: u64,
    last_arrival: u64,
}

impl Dama {
    pub(crate) fn new(plan: &DamaPlan, start: Instant) -> Self {
        let superframe_ns = plan.superframe.as_ns();
        let latency = (plan.hop_delay * 4).as_ns().div_ceil(superframe_ns) + 1;
        let mut own = Self {
            plan: plan.clone(),
            start,
            superframe: 0,
            room: 0,
            granted: (0..latency).map(|_| Grant::default()).collect(),
            asked: 0,
            owed: 0,
            arrived: 0,
            arriving: 0,
            last_arrival: 0,
        };
        own.room = own.unasked();
        own
    }

    /// Advances through the superframes that began until `now`. `backlog` waited at the beginning
    /// of each. `carrier` is the rate at which slots are sent.
    pub(crate) fn advance(&mut self, now: Instant, backlog: u64, carrier: u64) {
        let target = now.saturating_since(self.start).as_ns() / self.plan.superframe.as_ns();
        while self.superframe < target {
            if backlog == 0 && self.quiet() {
                self.superframe = target;
                self.room = self.unasked();
                break;
            }
            self.superframe += 1;
            self.begin_superframe(backlog, carrier);
        }
    }

    /// Counts a packet that the terminal received.
    pub(crate) fn arrive(&mut self, work: u64) {
        self.arrived = self.arrived.saturating_add(work);
    }

    /// Counts work that was sent.
    pub(crate) fn spend(&mut self, work: u64) {
        self.room = self.room.saturating_sub(work);
    }

    /// The rate at `now`, and until when it holds.
    pub(crate) fn at(&self, now: Instant, carrier: u64) -> (u64, Instant) {
        let next =
            Duration::from_ns(self.plan.superframe.as_ns().saturating_mul(self.superframe + 1));
        let end = self.start + next;
        if self.room == 0 || carrier == 0 {
            return (0, end);
        }
        (carrier, end.min(now + Duration::from_ns(self.room.div_ceil(carrier))))
    }

    fn begin_superframe(&mut self, backlog: u64, carrier: u64) {
        let grant = self.granted.pop_front().unwrap_or_default();
        self.asked -= grant.by_volume;
        self.room = self.unasked() + grant.by_rate + grant.by_volume;

        let arrived = std::mem::take(&mut self.arrived);
        if arrived > 0 {
            self.last_arrival = self.superframe;
        }
        self.arriving = self.arriving - self.arriving / RATE_SMOOTHING + arrived / RATE_SMOOTHING;
        let silent = (self.superframe - self.last_arrival) * self.plan.superframe.as_ns();
        if silent > self.plan.rbdc_timeout.as_ns() {
            self.arriving = 0;
        }

        let superframe_room = self.in_superframe(carrier).saturating_sub(self.unasked());
        let by_rate = self
            .arriving
            .min(self.in_superframe(self.plan.rbdc_max.bits_per_s()))
            .min(superframe_room);
        if self.plan.vbdc {
            let unasked_till_then = self.unasked().saturating_mul(self.granted.len() as u64 + 1);
            // Capacity by rate is for packets that arrive meanwhile: it does not reduce the
            // backlog.
            let coming = self.room.saturating_add(self.asked).saturating_add(unasked_till_then);
            let request = backlog.saturating_sub(coming);
            self.asked += request;
            self.owed += request;
        }
        let by_volume = self.owed.min(superframe_room - by_rate);
        self.owed -= by_volume;
        self.granted.push_back(Grant { by_rate, by_volume });
    }

    /// Whether only the superframe's number would change.
    fn quiet(&self) -> bool {
        self.asked == 0
            && self.granted.iter().all(|grant| *grant == Grant::default())
            && self.arrived == 0
            && self.arriving < RATE_SMOOTHING * 8_000_000_000
    }

    /// Capacity of each superframe that is granted without a request.
    fn unasked(&self) -> u64 {
        self.in_superframe(self.plan.cra.bits_per_s())
            + self.in_superframe(self.plan.fca.bits_per_s())
    }

    fn in_superframe(&self, bits_per_s: u64) -> u64 {
        // An eighth of the number range: sums of several stay in range, and no queue is that long.
        bits_per_s.saturating_mul(self.plan.superframe.as_ns()).min(u64::MAX / 8)
    }
}
