//! The configuration as resolved: what the daemon works from, with nothing left to check.

use super::{
    Action, Admin, Assist, ClassPlan, Control, Daemon, Explicit, Intercept, Keepalive, Limits, Log,
    PeerPlan, Sources, Start, TunnelPlan,
};
use crate::policy::{Decision, Policy, Route};
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
    /// How flows that are not split are repaired.
    pub assist: Assist,
    /// Listeners for clients that address the proxy itself.
    pub explicit: Explicit,
    /// Limits of the whole daemon.
    pub limits: Limits,
    /// Which clients are counted, and limited, as one.
    pub sources: Sources,
    /// Metrics and the status page.
    pub admin: Admin,
    /// The socket of commands that query a running daemon.
    pub control: Control,
    /// What is logged, and how.
    pub log: Log,
    /// The process itself.
    pub daemon: Daemon,
    /// The legs by name; the last is [`LegPlan::OTHER`], which takes what no other does.
    pub legs: Vec<LegPlan>,
    /// This daemon's own end of tunnels.
    pub tunnel: TunnelPlan,
    /// The proxies at the other ends of links.
    pub peers: Vec<PeerPlan>,
    /// The classes of flows in tunnels; the last is [`ClassPlan::OTHER`].
    pub classes: Vec<ClassPlan>,
    /// What happens to which flow.
    pub policy: Policy,
    /// The kernel's name of the program by which connections that move here get the congestion windows that they had;
    /// none: they begin as new ones. Found at the start.
    #[serde(skip)]
    pub window_program: Option<String>,
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
    /// Used where `congestion` is not available.
    pub fallback: Option<String>,
    /// Hybla's reference round-trip time.
    pub rtt0: Option<Duration>,
    /// The rate of the link away from this host, where it is configured.
    pub rate: Option<Rate>,
    /// The rate of the link towards this host, where it is configured or assumed to be equal.
    pub rate_in: Option<Rate>,
    /// The round-trip time of the link, where it is configured.
    pub rtt: Option<Duration>,
    /// Whether the flows that send into it share its rate, which is then known.
    pub share: bool,
    /// How a flow begins.
    pub start: Start,
    /// The fastest that one flow may send.
    pub pacing: Option<Rate>,
    /// What a flow may hold for this leg: as written, else from `rate` and `rtt`, never below
    /// `limits.flow_buffer`; none: computed from the measured rate and round-trip time.
    pub buffer: Option<Bytes>,
    /// The largest window that the leg's sockets offer: its buffer as written, else what `rate_in` gives. If both are
    /// left to the kernel, it is the bandwidth-delay product of the largest leg that its data may go to, or twice that
    /// of a tunnel: more bytes would only wait here. None: as the kernel measures.
    pub window: Option<Bytes>,
    /// How a dead far end is found.
    pub keepalive: Keepalive,
    /// How long a far end may leave data unacknowledged, or keep its window closed; none: the
    /// kernel's default.
    pub user_timeout: Option<Duration>,
}

impl LegPlan {
    /// The name of the leg for all addresses that no configured leg covers.
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
    /// Whether sockets of this host use addresses of other hosts, so that packets to those addresses must be
    /// delivered to them.
    pub fn stands_for_others(&self) -> bool {
        let transparent = self.peers.iter().any(|peer| !peer.transparent.is_empty());
        transparent || !self.intercept.interfaces.is_empty()
    }

    /// The leg towards `address` behind `interface`, with what the rule of `decision` overrides.
    pub fn leg(&self, decision: &Decision, address: IpAddr, interface: Option<&str>) -> &LegPlan {
        let leg = self.leg_of(address, interface);
        self.policy.leg_override(decision, &leg.name).unwrap_or(leg)
    }

    /// The tunnel of the flows that `decision` is about; none: they take no tunnel.
    pub fn route(&self, decision: &Decision) -> Option<&Route> {
        self.policy.route(decision)
    }

    /// What happens to a flow whose tunnel would carry it back to where it comes from. `departure` is the interface by
    /// which it leaves. This host splits it alone only if its server's side is intercepted as well.
    pub fn instead_of_turning_back(&self, route: &Route, departure: &str) -> Action {
        match route.otherwise {
            Action::Split if !self.intercept.interfaces.iter().any(|own| own == departure) => {
                Action::Bypass
            }
            otherwise => otherwise,
        }
    }

    /// The class of a flow that `decision` is about: its rule's, else that of its DSCP, else the class that the
    /// proxy before this one `asked` for, if it is known here.
    pub fn class(&self, decision: &Decision, dscp: Option<u8>, asked: Option<&str>) -> &ClassPlan {
        let marked = || {
            let is = |class: &&ClassPlan| class.dscp.iter().any(|own| Some(own.value()) == dscp);
            self.classes.iter().find(is)
        };
        match self.policy.class(decision) {
            Some(name) => self.class_named(Some(name)),
            None => marked().unwrap_or_else(|| self.class_named(asked)),
        }
    }

    /// The class of a name; if there is none, the class of all other flows.
    pub fn class_named(&self, name: Option<&str>) -> &ClassPlan {
        let found = self.classes.iter().find(|class| Some(class.name.as_str()) == name);
        found.unwrap_or(&self.classes[self.classes.len() - 1])
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

    /// Replaces every congestion control that a leg or a rule names.
    ///
    /// # Errors
    /// The first that `replace` gives; some may have been replaced by then.
    pub fn replace_congestion<E>(
        &mut self,
        mut replace: impl FnMut(&LegPlan) -> Result<Option<String>, E>,
    ) -> Result<(), E> {
        for leg in self.legs.iter_mut().chain(self.policy.overridden_legs_mut()) {
            if leg.congestion.is_some() {
                leg.congestion = replace(leg)?;
            }
        }
        Ok(())
    }

    /// The plan with which a running daemon continues when it is asked to load `next`. It is `next`, except for values
    /// that cannot change at run time. Also returns the keys of those that differ.
    #[must_use]
    pub fn reloaded(&self, mut next: Self) -> (Self, Vec<String>) {
        let mut kept = Vec::new();
        let mut keep = |key: &str, differs: bool| {
            if differs {
                kept.push(key.to_owned());
            }
            differs
        };
        macro_rules! keep {
            ($($table:ident . $field:ident),* $(,)?) => {$(
                let key = concat!(stringify!($table), ".", stringify!($field));
                if keep(key, self.$table.$field != next.$table.$field) {
                    next.$table.$field = self.$table.$field.clone();
                }
            )*};
        }
        keep!(
            intercept.instance,
            intercept.mark,
            intercept.table,
            intercept.preference,
            intercept.zone,
            intercept.queue,
            intercept.port,
            assist.interfaces,
            assist.cache,
            assist.threshold,
            assist.timer_min,
            assist.resends,
            assist.flows,
            assist.idle,
            assist.repair,
            assist.peer,
            assist.ack_decimation,
            assist.ack_spacing,
            explicit.http_connect,
            explicit.socks5,
            admin.listen,
            control.socket,
            control.group,
            admin.names,
            tunnel.listen,
            tunnel.fallback,
            log.format,
            daemon.workers,
        );
        // Whether there is an identity at all is decided at the start; which files hold it may change.
        let [before, after] = [self, &next].map(|plan| plan.tunnel.credentials.is_some());
        if keep("tunnel.certificate", before != after) {
            next.tunnel.credentials.clone_from(&self.tunnel.credentials);
            // Without an identity there are no peers, and those of `next` are removed.
            next.peers.retain(|_| before);
        }
        // Only at the start the host is prepared to receive packets for other hosts' addresses.
        if !self.stands_for_others() {
            for peer in &mut next.peers {
                let key = format!("peers.{}.transparent", peer.name);
                if keep(&key, !peer.transparent.is_empty()) {
                    peer.transparent.clear();
                }
            }
        }
        // Which interfaces may change; whether anything is intercepted at all is decided at the start.
        let [before, after] = [self, &next].map(|plan| plan.intercept.interfaces.is_empty());
        if keep("intercept.interfaces", before != after) {
            next.intercept.interfaces = self.intercept.interfaces.clone();
        }
        (next, kept)
    }
}
