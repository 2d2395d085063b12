//! Resolves a configuration as written into a plan: checks every number and looks up every name, once.

use super::{
    Action, ClassPlan, Config, Keepalive, Leg, LegPlan, PeerPlan, Plan, Rule, Start, loops,
};
use crate::credit;
use crate::policy::{Policy, PolicyRule, Route};
use ipnet::IpNet;
use midhop_config::{ConfigError, Document, KeyPath};
use midhop_units::{Bytes, Duration, Rate};
use std::{collections::BTreeMap, fmt::Display, net::SocketAddr};

/// The longest name that the kernel gives an interface.
const INTERFACE_BYTES_MAX: usize = 15;
/// The longest name that the kernel gives a congestion control.
const CONGESTION_BYTES_MAX: usize = 15;
/// The congestion control that can begin at a rate.
const CONGESTION_STARTS_AT_RATE: &str = "hybla-plus";
/// The round-trip time of far sources, wherever they are on earth.
const SOURCE_RTT: Duration = Duration::from_ms(250);
/// A socket buffer below one page moves hardly more than a segment at a time.
const BUFFER_MIN: Bytes = Bytes::new(4096);
/// The least leaves time for a retransmission; the most is practically unlimited.
const USER_TIMEOUT_MIN: Duration = Duration::from_s(1);
const USER_TIMEOUT_MAX: Duration = Duration::from_s(24 * 3600);
/// The longest wait for an end that accepts nothing.
const LINGER_MAX: Duration = Duration::from_s(3600);
/// TCP's keep-alive times are whole seconds in 15 bits.
const KEEPALIVE_MAX: Duration = Duration::from_s(32_767);

/// A configuration cannot be read.
pub type ReadError = Box<ConfigError>;

/// A configuration that can be read but makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
#[non_exhaustive]
pub struct ResolveError {
    /// The key at fault.
    pub key: KeyPath,
    /// What is wrong with it.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Plan {
    /// Reads and resolves a configuration file. `file_name` is what errors call it.
    ///
    /// # Errors
    /// When the text is not TOML, has an unknown key, a value of the wrong kind, or one that makes
    /// no sense: the error names file, line and key.
    pub fn read(file_name: &str, text: &str) -> Result<Self, ReadError> {
        let document = Document::parse(file_name, text)?;
        let config: Config = document.read()?;
        config
            .resolve()
            .map_err(|fault| document.fault(&fault.key, fault.message, fault.hint).into())
    }
}

impl Config {
    /// Checks every value and makes the plan that the daemon works from.
    ///
    /// # Errors
    /// The first value that makes no sense, by its key.
    pub fn resolve(self) -> Result<Plan, ResolveError> {
        self.check_intercept()?;
        self.assist.check()?;
        self.check_listeners()?;
        self.check_limits()?;
        self.control.check()?;
        self.sources.check()?;
        let mut legs = Vec::with_capacity(self.legs.len() + 1);
        for (name, leg) in &self.legs {
            let key = KeyPath::of(["legs", name.as_str()]);
            legs.push(resolve_leg(&key, name.clone(), leg.clone(), self.limits.flow_buffer)?);
        }
        check_overlap(&legs)?;
        legs.push(other_leg());
        let (tunnel, peers) = self.resolve_tunnels(&legs)?;
        bound_windows(&mut legs, &peers, self.limits.flow_buffer);
        self.check_peers_are_others()?;
        let classes = self.resolve_classes()?;
        let mut rules = Vec::with_capacity(self.rules.len());
        for (number, rule) in self.rules.into_iter().enumerate() {
            let key = KeyPath::of(["rules".to_owned(), number.to_string()]);
            loops::check_rule(&key, &rule, &peers)?;
            let resolved = resolve_rule(&key, rule, &legs, &peers, &classes)?;
            self.assist.check_rule(&key, resolved.action)?;
            rules.push(resolved);
        }
        let endpoints = peers.iter().filter_map(PeerPlan::tcp_endpoint);
        Ok(Plan {
            policy: Policy::new(rules, self.intercept.accept, endpoints),
            window_program: None,
            intercept: self.intercept,
            assist: self.assist,
            explicit: self.explicit,
            limits: self.limits,
            sources: self.sources,
            admin: self.admin,
            control: self.control,
            log: self.log,
            daemon: self.daemon,
            legs,
            tunnel,
            peers,
            classes,
        })
    }

    fn check_intercept(&self) -> Result<(), ResolveError> {
        self.intercept.check()?;
        let key = KeyPath::of(["intercept", "port"]);
        let port = self.intercept.port;
        if port == 0 {
            return fault(&key, "port 0 cannot be listened on", "take a free port");
        }
        if usize::from(u16::MAX - port) < self.legs.len() {
            return fault(
                &key,
                format!("{port} leaves no room above it for one port per leg"),
                "take a smaller number",
            );
        }
        Ok(())
    }

    fn check_listeners(&self) -> Result<(), ResolveError> {
        let mut taken: BTreeMap<SocketAddr, KeyPath> = BTreeMap::new();
        for (key, addresses) in [
            (KeyPath::of(["explicit", "http_connect"]), &self.explicit.http_connect),
            (KeyPath::of(["explicit", "socks5"]), &self.explicit.socks5),
            (KeyPath::of(["admin", "listen"]), &self.admin.listen),
        ] {
            for &address in addresses.iter().filter(|address| address.port() != 0) {
                if let Some(other) = taken.insert(address, key.clone()) {
                    return fault(
                        &key,
                        format!("{address} is listened on twice (also in {other})"),
                        "give each listener a port of its own",
                    );
                }
            }
        }
        let explicit = !self.explicit.http_connect.is_empty() || !self.explicit.socks5.is_empty();
        if explicit && self.explicit.clients.is_empty() {
            return fault(
                &KeyPath::of(["explicit", "clients"]),
                "no client may use the explicit listeners",
                "list the prefixes of those who may, or take the listeners out",
            );
        }
        for (field, time, hint) in [
            (
                "request_timeout",
                self.explicit.request_timeout,
                "a client needs some time to send its request",
            ),
            (
                "connect_timeout",
                self.explicit.connect_timeout,
                "a server needs some time to answer",
            ),
        ] {
            positive(&KeyPath::of(["explicit", field]), time, Duration::ZERO, hint)?;
        }
        Ok(())
    }

    fn check_limits(&self) -> Result<(), ResolveError> {
        let key = KeyPath::of(["limits"]);
        let limits = &self.limits;
        positive(&key.join("flows"), limits.flows, 0, "to proxy nothing, stop the daemon")?;
        if let Some(flows) = limits.flows_per_source {
            let key = key.join("flows_per_source");
            positive(&key, flows, 0, "leave it out to limit no source")?;
        }
        positive(&key.join("pending"), limits.pending, 0, "every flow waits for its far side")?;
        if limits.linger > LINGER_MAX {
            return fault(
                &key.join("linger"),
                format!("{} is more than {LINGER_MAX}", limits.linger),
                "60 s is usual; 0 s gives up at once what one end is owed when the other breaks",
            );
        }
        if limits.flow_buffer < BUFFER_MIN {
            return too_small(&key.join("flow_buffer"), limits.flow_buffer);
        }
        if limits.memory < limits.flow_buffer + limits.flow_buffer {
            return fault(
                &key.join("memory"),
                format!(
                    "{} does not hold the two directions of one flow, {} each",
                    limits.memory, limits.flow_buffer
                ),
                "raise limits.memory or lower limits.flow_buffer",
            );
        }
        if self.daemon.workers > 1024 {
            return fault(
                &KeyPath::of(["daemon", "workers"]),
                format!("{} threads are more than any machine uses", self.daemon.workers),
                "0 means one per core",
            );
        }
        Ok(())
    }
}

fn resolve_leg(
    key: &KeyPath,
    name: String,
    leg: Leg,
    buffer_min: Bytes,
) -> Result<LegPlan, ResolveError> {
    if name == LegPlan::OTHER {
        return fault(
            key,
            format!("\"{name}\" is the name of all that no leg takes"),
            "choose another name; prefixes = [\"0.0.0.0/0\", \"::/0\"] takes everything",
        );
    }
    let (share, start) = resolve_share(key, &leg)?;
    let interface = match (leg.interface, leg.prefixes.is_empty()) {
        (None, true) => {
            check_interface(key, &name).map_err(|error| ResolveError {
                hint: Some(
                    "a leg is an interface unless `interface` or `prefixes` is given".into(),
                ),
                ..error
            })?;
            Some(name.clone())
        }
        (given, _) => given,
    };
    if let Some(interface) = &interface {
        check_interface(&key.join("interface"), interface)?;
    }
    for (field, congestion) in [("congestion", &leg.congestion), ("fallback", &leg.fallback)] {
        if let Some(congestion) = congestion {
            check_congestion(&key.join(field), congestion)?;
        }
    }
    if leg.fallback.is_some() && leg.congestion.is_none() {
        return fault(
            &key.join("fallback"),
            "a fallback from nothing",
            "set `congestion` too, or instead",
        );
    }
    check_link(
        key,
        &[("rate", leg.rate), ("rate_in", leg.rate_in), ("pacing", leg.pacing)],
        "leave it out where it is not known or not wanted",
        &[("rtt", leg.rtt), ("rtt0", leg.rtt0)],
    )?;
    if leg.buffer.is_some_and(|buffer| buffer < BUFFER_MIN) {
        return too_small(&key.join("buffer"), leg.buffer.unwrap_or_default());
    }
    check_keepalive(&key.join("keepalive"), &leg.keepalive)?;
    if leg.user_timeout.is_some_and(|time| time < USER_TIMEOUT_MIN || time > USER_TIMEOUT_MAX) {
        return fault(
            &key.join("user_timeout"),
            format!("it is not between {USER_TIMEOUT_MIN} and {USER_TIMEOUT_MAX}"),
            "leave it out: the kernel gives up after about 15 minutes, as it does without a proxy",
        );
    }
    let rate_in = leg.rate_in.or(leg.rate);
    let buffer_for = |rate: Option<Rate>| {
        rate.zip(leg.rtt).map(|(rate, rtt)| credit::buffer_for(rate, rtt, buffer_min))
    };
    Ok(LegPlan {
        name,
        interface,
        prefixes: leg.prefixes.0,
        congestion: leg.congestion,
        fallback: leg.fallback,
        rtt0: leg.rtt0,
        rate: leg.rate,
        rate_in,
        rtt: leg.rtt,
        share,
        start,
        pacing: leg.pacing,
        buffer: leg.buffer.or_else(|| buffer_for(leg.rate)),
        window: leg.buffer.or_else(|| buffer_for(rate_in)),
        keepalive: leg.keepalive,
        user_timeout: leg.user_timeout,
    })
}

/// Whether a leg's flows divide its rate, and how they begin.
fn resolve_share(key: &KeyPath, leg: &Leg) -> Result<(bool, Start), ResolveError> {
    let share = leg.share.unwrap_or(leg.rate.is_some());
    if share && leg.rate.is_none() {
        return fault(
            &key.join("share"),
            "there is no rate to divide",
            "set `rate` to what the link carries",
        );
    }
    let known = share && leg.rtt.is_some();
    let able = leg.congestion.as_deref() == Some(CONGESTION_STARTS_AT_RATE);
    let start = match leg.start {
        None if known && able => Start::Rate,
        None => Start::Slow,
        Some(Start::Rate) if !known => {
            return fault(
                &key.join("start"),
                "a flow cannot begin at an unknown share",
                "set `rate` and `rtt`, and leave `share` as it is",
            );
        }
        Some(Start::Rate) if !able => {
            return fault(
                &key.join("start"),
                "only hybla-plus begins at a rate",
                format!("set congestion = \"{CONGESTION_STARTS_AT_RATE}\", or start = \"slow\""),
            );
        }
        Some(start) => start,
    };
    Ok((share, start))
}

fn other_leg() -> LegPlan {
    LegPlan {
        name: LegPlan::OTHER.to_owned(),
        interface: None,
        prefixes: Vec::new(),
        congestion: None,
        fallback: None,
        rtt0: None,
        rate: None,
        rate_in: None,
        rtt: None,
        share: false,
        start: Start::Slow,
        pacing: None,
        buffer: None,
        window: None,
        keepalive: Keepalive::default(),
        user_timeout: None,
    }
}

/// Bounds the windows of legs that have none. A source that is nearer than the destination of its bytes needs no
/// larger window than the destination's bandwidth-delay product to keep it full. Tunnels count only if all of them
/// know their rates. A source may be farther away than the other end of a tunnel, so at least its round-trip time
/// counts; the product counts twice, because half of a buffer is the window.
fn bound_windows(legs: &mut [LegPlan], peers: &[PeerPlan], least: Bytes) {
    let measured = legs.iter().filter_map(|leg| Some(leg.rate?.bytes_in(leg.rtt?)));
    let of_peers: Option<Vec<_>> = peers
        .iter()
        .map(|peer| {
            let rate = peer.rate.filter(|_| peer.goes_by_its_rate())?;
            Some(rate.bytes_in(peer.rtt?.max(SOURCE_RTT)).scale(2.0))
        })
        .collect();
    let largest = measured.chain(of_peers.unwrap_or_default()).max();
    let largest = largest.map(|product| product.max(least));
    for leg in legs {
        leg.window = leg.window.or(largest);
    }
}

fn check_overlap(legs: &[LegPlan]) -> Result<(), ResolveError> {
    let mut seen: BTreeMap<(Option<&str>, Option<IpNet>), &str> = BTreeMap::new();
    for leg in legs {
        let interface = leg.interface.as_deref();
        let prefixes: Vec<_> = if leg.prefixes.is_empty() {
            vec![None]
        } else {
            leg.prefixes.iter().map(|prefix| Some(prefix.trunc())).collect()
        };
        for prefix in prefixes {
            if let Some(other) = seen.insert((interface, prefix), &leg.name) {
                let key = KeyPath::of(["legs", leg.name.as_str()]);
                let (field, what) = match (prefix, interface) {
                    (Some(prefix), _) => ("prefixes", prefix.to_string()),
                    (None, interface) => ("interface", interface.unwrap_or("any").to_owned()),
                };
                let message = if other == leg.name {
                    format!("{what} is listed twice")
                } else {
                    format!("{what} is taken by leg \"{other}\" already")
                };
                return fault(&key.join(field), message, "a flow's side must be one leg");
            }
        }
    }
    Ok(())
}

fn resolve_rule(
    key: &KeyPath,
    rule: Rule,
    legs: &[LegPlan],
    peers: &[PeerPlan],
    classes: &[ClassPlan],
) -> Result<PolicyRule, ResolveError> {
    let tunnel = resolve_route(key, &rule, peers)?;
    check_class(key, &rule, classes)?;
    let implied = (tunnel.is_some() || rule.class.is_some()).then_some(Action::Split);
    let Some(action) = rule.action.or(implied) else {
        return fault(
            key,
            "the rule has no action for its flows",
            "add action = \"split\", \"bypass\", \"assist\" or \"reject\", or tunnel = \"NAME\"",
        );
    };
    if action != Action::Split {
        let given = [
            ("tunnel", tunnel.is_some()),
            ("class", rule.class.is_some()),
            ("accept", rule.accept.is_some()),
            ("legs", !rule.legs.is_empty()),
        ];
        if let Some((field, _)) = given.into_iter().find(|(_, given)| *given) {
            return fault(
                &key.join(field),
                "only flows that are split have it",
                "take it out, or set action = \"split\"",
            );
        }
    }
    check_interfaces(&key.join("match").join("interface"), &rule.matches.interface)?;
    for peer in rule.matches.peer.iter() {
        check_peer(&key.join("match").join("peer"), peer, peers)?;
    }
    let mut overridden = Vec::new();
    for (name, wanted) in rule.legs {
        let key = key.join("legs").join(name.as_str());
        let Some(leg) = legs.iter().find(|leg| leg.name == name) else {
            let known: Vec<&str> = legs.iter().map(|leg| leg.name.as_str()).collect();
            return fault(
                &key,
                format!("there is no leg \"{name}\""),
                format!("the legs are: {}", known.join(", ")),
            );
        };
        if let Some(congestion) = &wanted.congestion {
            check_congestion(&key.join("congestion"), congestion)?;
        }
        if let Some(pacing) = wanted.pacing {
            positive(&key.join("pacing"), pacing, Rate::ZERO, "leave it out for no cap")?;
        }
        let start = match wanted.congestion.as_deref() {
            Some(CONGESTION_STARTS_AT_RATE) if leg.share && leg.rtt.is_some() => Start::Rate,
            Some(_) => Start::Slow,
            None => leg.start,
        };
        overridden.push(LegPlan {
            start,
            congestion: wanted.congestion.or_else(|| leg.congestion.clone()),
            pacing: wanted.pacing.or(leg.pacing),
            ..leg.clone()
        });
    }
    let Rule { matches, class, accept, .. } = rule;
    Ok(PolicyRule { matches, action, tunnel, class, accept, legs: overridden })
}

/// Checks that the class that a rule names exists.
fn check_class(key: &KeyPath, rule: &Rule, classes: &[ClassPlan]) -> Result<(), ResolveError> {
    let Some(class) = &rule.class else { return Ok(()) };
    if classes.iter().any(|known| known.name == *class) {
        return Ok(());
    }
    let known: Vec<&str> = classes.iter().map(|class| class.name.as_str()).collect();
    fault(
        &key.join("class"),
        format!("there is no class \"{class}\""),
        format!("add a table [classes.{class}]; there are: {}", known.join(", ")),
    )
}

/// The tunnel of a rule's flows, and what happens to them without it.
fn resolve_route(
    key: &KeyPath,
    rule: &Rule,
    peers: &[PeerPlan],
) -> Result<Option<Route>, ResolveError> {
    let Some(peer) = &rule.tunnel else {
        return match rule.otherwise {
            None => Ok(None),
            Some(_) => fault(
                &key.join("otherwise"),
                "the rule has no tunnel that might be unavailable",
                "set `tunnel` too, or take it out",
            ),
        };
    };
    check_peer(&key.join("tunnel"), peer, peers)?;
    let otherwise = rule.otherwise.unwrap_or(Action::Split);
    if otherwise == Action::Assist {
        return fault(
            &key.join("otherwise"),
            "whether a flow is assisted is decided when it begins",
            "take \"split\", \"bypass\" or \"reject\"",
        );
    }
    Ok(Some(Route { peer: peer.clone(), otherwise }))
}

/// Checks that the peer that a rule names exists.
fn check_peer(key: &KeyPath, peer: &str, peers: &[PeerPlan]) -> Result<(), ResolveError> {
    let known: Vec<&str> = peers.iter().map(|peer| peer.name.as_str()).collect();
    if known.contains(&peer) {
        return Ok(());
    }
    let hint = if known.is_empty() {
        "add a table [peers.NAME]".to_owned()
    } else {
        format!("the peers are: {}", known.join(", "))
    };
    fault(key, format!("there is no peer \"{peer}\""), hint)
}

fn check_keepalive(key: &KeyPath, keepalive: &Keepalive) -> Result<(), ResolveError> {
    for (field, time) in [("idle", keepalive.idle), ("interval", keepalive.interval)] {
        if time < Duration::from_s(1) || time > KEEPALIVE_MAX {
            return fault(
                &key.join(field),
                format!("{time} is not between 1 s and {KEEPALIVE_MAX}"),
                "set keepalive.count = 0 for no keep-alive",
            );
        }
    }
    if keepalive.count > 127 {
        return fault(
            &key.join("count"),
            format!("{} probes are more than the kernel's 127", keepalive.count),
            "5 is usual",
        );
    }
    Ok(())
}

pub(super) fn check_interfaces(key: &KeyPath, names: &[String]) -> Result<(), ResolveError> {
    names.iter().try_for_each(|name| check_interface(key, name))
}

/// A name that an interface may have and that an nftables statement may quote.
fn check_interface(key: &KeyPath, name: &str) -> Result<(), ResolveError> {
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '/' | '*' | ';');
    let fits = !name.is_empty() && name.len() <= INTERFACE_BYTES_MAX && name.chars().all(plain);
    if fits && name != "." && name != ".." {
        return Ok(());
    }
    fault(
        key,
        format!("\"{name}\" cannot be the name of an interface"),
        format!("names have 1 to {INTERFACE_BYTES_MAX} characters; see `ip link`"),
    )
}

fn check_congestion(key: &KeyPath, name: &str) -> Result<(), ResolveError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '+');
    if !name.is_empty() && name.len() <= CONGESTION_BYTES_MAX && name.chars().all(plain) {
        return Ok(());
    }
    fault(
        key,
        format!("\"{name}\" cannot be the name of a congestion control"),
        "`midhopd doctor` lists those of this host",
    )
}

/// Checks the rates and times of a link, as far as they are configured.
pub(super) fn check_link(
    key: &KeyPath,
    rates: &[(&str, Option<Rate>)],
    rate_hint: &str,
    times: &[(&str, Option<Duration>)],
) -> Result<(), ResolveError> {
    for (field, rate) in rates {
        rate.map_or(Ok(()), |rate| positive(&key.join(*field), rate, Rate::ZERO, rate_hint))?;
    }
    for (field, time) in times {
        let hint = "leave it out where it is not known";
        time.map_or(Ok(()), |time| positive(&key.join(*field), time, Duration::ZERO, hint))?;
        if time.is_some_and(|time| time > Duration::from_s(60)) {
            return fault(
                &key.join(*field),
                "no round trip takes longer than a minute",
                "write 600 ms for a geostationary satellite",
            );
        }
    }
    Ok(())
}

pub(super) fn positive<T: PartialOrd + Display>(
    key: &KeyPath,
    value: T,
    zero: T,
    hint: &str,
) -> Result<(), ResolveError> {
    if value > zero { Ok(()) } else { fault(key, format!("{value} is not above zero"), hint) }
}

fn too_small<T>(key: &KeyPath, buffer: Bytes) -> Result<T, ResolveError> {
    fault(
        key,
        format!("{buffer} is less than {} bytes", BUFFER_MIN.get()),
        "a buffer below the bandwidth-delay product slows its flow down; write \"256 KiB\" or more",
    )
}

pub(super) fn fault<T>(
    key: &KeyPath,
    message: impl Into<String>,
    hint: impl Into<String>,
) -> Result<T, ResolveError> {
    Err(ResolveError { key: key.clone(), message: message.into(), hint: Some(hint.into()) })
}
