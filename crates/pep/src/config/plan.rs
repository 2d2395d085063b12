//! The configuration as resolved: what the daemon works from, with nothing left to check.

use super::{Admin, Daemon, Explicit, Intercept, Keepalive, Limits, Log};
use crate::policy::{Decision, Policy};
use ipnet::IpNet;
use midhop_units::{Bytes, Duration, Rate};
use serde::Serialize;
use std::net::IpAddr;

/// A daemon's configuration, checked and complete.
///
/// Made by [`super::Config::resolve`] only.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// Transparent interception.
    pub intercept: Intercept,
    /// Listeners for clients that ask.
    pub explicit: Explicit,
    /// What the whole daemon may hold.
    pub limits: Limits,
    /// Metrics and the status page.
    pub admin: Admin,
    /// What is logged, and how.
    pub log: Log,
    /// The process itself.
    pub daemon: Daemon,
    /// The legs by name; the last is [`LegPlan::OTHER`], which takes what no other does.
    pub legs: Vec<LegPlan>,
    /// What becomes of which flow.
    pub policy: Policy,
}

/// One leg, resolved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LegPlan {
    /// Its name in the configuration, in metrics and in logs.
    pub name: String,
    /// The interface that its packets take; none: any.
    pub interface: Option<String>,
    /// Its far addresses; none: any.
    pub prefixes: Vec<IpNet>,
    /// Congestion control by name; none: the kernel's default.
    pub congestion: Option<String>,
    /// Taken where `congestion` is not to be had.
    pub fallback: Option<String>,
    /// Hybla's reference round-trip time.
    pub rtt0: Option<Duration>,
    /// What the link carries, where it was said.
    pub rate: Option<Rate>,
    /// Its round-trip time, where it was said.
    pub rtt: Option<Duration>,
    /// The fastest that one flow may send.
    pub pacing: Option<Rate>,
    /// What a flow may hold for this leg: as written, else from `rate` and `rtt`, never below
    /// `limits.flow_buffer`; none: to be had from measured rate and round-trip time.
    pub buffer: Option<Bytes>,
    /// How a dead far end is found.
    pub keepalive: Keepalive,
}

impl LegPlan {
    /// The name of the leg of all that no configured leg takes.
    pub const OTHER: &str = "other";

    /// How closely the leg fits a far address behind an interface; none: not at all. A longer
    /// prefix fits closer, and of equal prefixes the leg that names the interface.
    fn closeness(&self, address: IpAddr, interface: Option<&str>) -> Option<(u8, bool)> {
        if self.interface.is_some() && self.interface.as_deref() != interface {
            return None;
        }
        let named = self.interface.is_some();
        if self.prefixes.is_empty() {
            return Some((0, named));
        }
        let within = self.prefixes.iter().filter(|prefix| prefix.contains(&address));
        within.map(|prefix| (prefix.prefix_len() + 1, named)).max()
    }
}

impl Plan {
    /// The leg towards `address` behind `interface`, as `decision` wants it: its own settings with
    /// those that the decision's rule puts in their place.
    pub fn leg(&self, decision: &Decision, address: IpAddr, interface: Option<&str>) -> &LegPlan {
        let leg = self.leg_of(address, interface);
        self.policy.leg_override(decision, &leg.name).unwrap_or(leg)
    }

    /// The leg towards `address` behind `interface`, without regard to any rule.
    pub fn leg_of(&self, address: IpAddr, interface: Option<&str>) -> &LegPlan {
        let address = address.to_canonical();
        let fitting = self
            .legs
            .iter()
            .filter_map(|leg| leg.closeness(address, interface).map(|closeness| (closeness, leg)));
        // The last leg fits everything, so there is always one; of equals the first is taken, and
        // `resolve` lets no equals through but those with the last leg.
        fitting
            .reduce(|best, next| if next.0 > best.0 { next } else { best })
            .map_or(&self.legs[self.legs.len() - 1], |(_, leg)| leg)
    }

    /// Every congestion control that some leg or rule names, each once, with its fallback.
    pub fn congestion_controls(&self) -> Vec<(&str, Option<&str>)> {
        let mut named: Vec<_> = self
            .legs
            .iter()
            .chain(self.policy.overridden_legs())
            .filter_map(|leg| Some((leg.congestion.as_deref()?, leg.fallback.as_deref())))
            .collect();
        named.sort_unstable();
        named.dedup();
        named
    }

    /// What differs in `next` that a running daemon cannot take over, by key.
    pub fn restart_needed(&self, next: &Self) -> Vec<&'static str> {
        let differs = [
            ("intercept.interfaces", self.intercept.interfaces != next.intercept.interfaces),
            ("intercept.instance", self.intercept.instance != next.intercept.instance),
            ("intercept.mark", self.intercept.mark != next.intercept.mark),
            ("intercept.table", self.intercept.table != next.intercept.table),
            ("intercept.queue", self.intercept.queue != next.intercept.queue),
            ("intercept.port", self.intercept.port != next.intercept.port),
            ("explicit.http_connect", self.explicit.http_connect != next.explicit.http_connect),
            ("explicit.socks5", self.explicit.socks5 != next.explicit.socks5),
            ("admin.listen", self.admin.listen != next.admin.listen),
            ("log.format", self.log.format != next.log.format),
            ("daemon.workers", self.daemon.workers != next.daemon.workers),
        ];
        differs.into_iter().filter_map(|(key, differs)| differs.then_some(key)).collect()
    }
}
