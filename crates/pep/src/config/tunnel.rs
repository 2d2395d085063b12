//! Tunnels to other proxies: this daemon's own identity, its peers, and what they resolve to.

use super::resolve::{check_link, fault, positive};
use super::{Config, LegPlan, Modem, ModemPlan, OneOrMany, ResolveError};
use ipnet::IpNet;
use midhop_config::KeyPath;
use midhop_congestion::Algorithm;
use midhop_units::{Bytes, Duration, Rate};
use serde::{Deserialize, Serialize, Serializer};
use std::{net::SocketAddr, path::PathBuf};

/// How many bytes of a flow may be in flight if the size of its link is not configured: three round trips of 600 ms
/// at 150 Mbit/s.
const WINDOW_UNMEASURED: Bytes = Bytes::new(32 << 20);
/// The smallest window that is worth a tunnel.
const WINDOW_MIN: Bytes = Bytes::new(1 << 20);
/// Bandwidth-delay products that flows may have written and the peer not acknowledged: one, and one more for each
/// time that a packet is lost again, because all data behind it must be kept. On a leg that loses 5 %, three give
/// 80 % of its rate, six 93 %, and eight 96 %.
const SEND_BDPS: f64 = 6.0;
/// Products that the peer may send of one flow beyond what was taken: one, one more while an update of the credit is
/// in transit, and one for bytes that wait on the path. A gap stops no flow: the data behind it is taken.
const FLOW_BDPS: f64 = 3.0;
/// The same where memory is scarce: one, and what is consumed before credit is given again.
const FLOW_BDPS_SCARCE: f64 = 1.25;
/// So many flows whose receivers take nothing do not hold up the others; fewer where memory is scarce.
const STUCK_FLOWS: u64 = 8;
/// The longest name that DNS can hold.
const NAME_BYTES_MAX: usize = 253;
/// How long a flow is kept after its tunnel is gone, if it is not configured; and the most.
const RESUME: Duration = Duration::from_s(300);
const RESUME_MAX: Duration = Duration::from_s(3600);

/// What carries a tunnel if UDP does not pass, or is throttled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Fallback {
    /// TCP: HTTP/2 over TLS.
    #[default]
    Tcp,
    /// Nothing: then there is no tunnel.
    Off,
    /// TCP, and never UDP: for networks that are known to throttle UDP.
    Only,
}

/// This daemon's own end of tunnels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Tunnel {
    /// UDP addresses at which peers may open a tunnel; none: this daemon only opens them.
    #[serde(deserialize_with = "super::written::endpoints")]
    pub listen: OneOrMany<SocketAddr>,
    /// Whether peers may connect to the same addresses over TCP if UDP does not pass. `only`: over
    /// TCP alone.
    pub fallback: Fallback,
    /// This daemon's certificate, and the intermediate certificates up to the authority's: PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// The key of the certificate: PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// The certificates of the authority that signs the peers' certificates: PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authority: Option<PathBuf>,
    /// Whether peers may request targets by name, which this host then resolves.
    pub resolve: bool,
    /// Whether this host's own addresses may be targets: loopback, and those of its interfaces.
    pub local_targets: bool,
    /// Special-purpose addresses (private networks, the link …) that may be targets. An address of
    /// this host may be a target if it is listed alone, as a /32 or /128.
    #[serde(deserialize_with = "super::written::networks")]
    pub targets: OneOrMany<IpNet>,
    /// How long one address of a target may take to answer.
    pub connect_timeout: Duration,
    /// Certificate revocation lists of the authority: PEM. A peer whose certificate is listed gets
    /// no tunnel, and loses an open one.
    pub revoked: OneOrMany<PathBuf>,
}

impl Default for Tunnel {
    fn default() -> Self {
        Self {
            listen: OneOrMany::default(),
            fallback: Fallback::default(),
            certificate: None,
            key: None,
            authority: None,
            resolve: true,
            local_targets: false,
            targets: OneOrMany::default(),
            connect_timeout: super::CONNECT_TIMEOUT,
            revoked: OneOrMany::default(),
        }
    }
}

/// Whether a peer may move its live flows here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Moves {
    /// It may move none.
    #[default]
    Refuse,
    /// It may move flows that this host's own rules would split. The peer then chooses the state of
    /// connections that this host has with any client and any server.
    Accept,
}

/// A proxy at the other end of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Peer {
    /// Where it listens; unset: it connects to us.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "super::written::endpoint_if_any")]
    pub address: Option<SocketAddr>,
    /// Its name in its certificate; unset: that of its table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Congestion control of the tunnel by name; unset: `cubic` if a rate is committed,
    /// `known-rate` if the rate is set, otherwise `bbr3`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "super::name::read")]
    pub congestion: Option<String>,
    /// Hybla's reference round-trip time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt0: Option<Duration>,
    /// The rate of the link away from this host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Whether `rate` is always right; if not, a link that contradicts it is measured. Unset:
    /// false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
    /// The modem that reports the link's rate at each moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modem: Option<Modem>,
    /// The part of `rate` that this tunnel may always use, on a link that others use too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub committed: Option<Rate>,
    /// The rate of the link towards this host; unset: `rate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_in: Option<Rate>,
    /// The round-trip time of the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt: Option<Duration>,
    /// What one flow may have in flight in each direction; unset: computed from `rate` and `rtt`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Bytes>,
    /// Whether losses are repaired before a retransmission is requested.
    pub repair: Repair,
    /// The form in which flows are requested from it.
    pub request: RequestForm,
    /// Clients whose own addresses are used to connect to servers, if the peer reports that a flow
    /// is theirs.
    #[serde(deserialize_with = "super::written::networks")]
    pub transparent: OneOrMany<IpNet>,
    /// Further clients whose flows the peer may report as theirs. Rules match only the addresses of
    /// these clients and of `transparent` as `source`.
    #[serde(deserialize_with = "super::written::networks")]
    pub clients: OneOrMany<IpNet>,
    /// Special-purpose addresses that this peer may request; unset: those of `tunnel.targets`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "super::written::networks_if_any")]
    pub targets: Option<OneOrMany<IpNet>>,
    /// Flows that the peer may have open at a time, over all of its connections.
    pub flows: u32,
    /// Connections that the peer may have open to us at a time.
    pub connections: u32,
    /// Silence after which this end probes the other. Peers that connect over QUIC are all probed
    /// as often as the shortest of their values demands.
    pub keepalive: Duration,
    /// Silence after which the tunnel counts as broken, and its flows with it.
    pub timeout: Duration,
    /// How long new flows wait for a tunnel that is being opened, before they go on without it.
    pub patience: Duration,
    /// How long a flow is kept after its tunnel is gone, so that it continues in the next tunnel.
    /// This needs both ends to keep flows. 0 s: flows end with their tunnel.
    pub resume: Duration,
    /// What carries the tunnel while UDP does not pass, or is throttled.
    pub fallback: Fallback,
    /// Whether the peer may move its live flows to this host.
    pub moves: Moves,
}

impl Default for Peer {
    fn default() -> Self {
        Self {
            address: None,
            name: None,
            congestion: None,
            rtt0: None,
            rate: None,
            strict: None,
            modem: None,
            committed: None,
            rate_in: None,
            rtt: None,
            window: None,
            repair: Repair::default(),
            request: RequestForm::default(),
            transparent: OneOrMany::default(),
            clients: OneOrMany::default(),
            targets: None,
            flows: 10_000,
            connections: 16,
            keepalive: Duration::from_s(15),
            timeout: Duration::from_s(60),
            patience: Duration::from_s(3),
            resume: RESUME,
            fallback: Fallback::default(),
            moves: Moves::default(),
        }
    }
}

/// Whether repair packets are sent that replace what a link loses: forward error correction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Repair {
    /// Never: repair packets take capacity from bulk transfers.
    #[default]
    Off,
    /// If the peer does so too, something is lost, and the link shows no sign of congestion.
    Auto,
    /// As `auto`, but also on a congested link: only for a link that nobody else uses.
    Always,
}

/// The form of a request for a flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RequestForm {
    /// `template` once the peer has announced that it is a midhopd that serves it, otherwise
    /// `classic`.
    #[default]
    Auto,
    /// The target alone, and the flow's bytes as they are: every proxy supports this.
    Classic,
    /// The default URI template, and the flow's bytes in capsules, once the peer has announced that
    /// it supports such requests; otherwise there is no tunnel to it.
    Template,
}

/// This daemon's own end of tunnels, resolved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TunnelPlan {
    /// UDP addresses at which peers may open a tunnel.
    pub listen: Vec<SocketAddr>,
    /// Whether they may open it over TCP there.
    pub fallback: Fallback,
    /// Files that prove this daemon's identity and verify its peers'; none: there are no tunnels.
    pub credentials: Option<Credentials>,
    /// Whether peers may name their targets.
    pub resolve: bool,
    /// Whether this host's own addresses may be targets.
    pub local_targets: bool,
    /// Special-purpose addresses that may be targets.
    pub targets: Vec<IpNet>,
    /// How long one address of a target may take to answer.
    pub connect_timeout: Duration,
}

/// Files that hold an identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Credentials {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority's certificates.
    pub authority: PathBuf,
    /// The authority's lists of certificates that are revoked.
    pub revoked: Vec<PathBuf>,
}

/// A peer, resolved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PeerPlan {
    /// Its name in the configuration, in metrics and in logs.
    pub name: String,
    /// Where it listens; none: it connects to us.
    pub address: Option<SocketAddr>,
    /// Its name in its certificate.
    pub identity: String,
    /// Congestion control.
    #[serde(serialize_with = "by_name")]
    pub congestion: Algorithm,
    /// Hybla's reference round-trip time.
    pub rtt0: Option<Duration>,
    /// The rate of the link away from this host, where it is configured.
    pub rate: Option<Rate>,
    /// Whether that rate may be wrong.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hint: bool,
    /// The modem that reports the link's rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modem: Option<ModemPlan>,
    /// The part of it that the tunnel may always use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub committed: Option<Rate>,
    /// The rate of the link towards this host, where it is configured or assumed to be equal.
    pub rate_in: Option<Rate>,
    /// The round-trip time of the link, where it is configured.
    pub rtt: Option<Duration>,
    /// What all flows together may have written that the peer has not acknowledged.
    pub send_window: Bytes,
    /// What one flow may have sent to us that has not been passed on.
    pub flow_window: Bytes,
    /// What all flows together may have sent to us that has not been passed on.
    pub receive_window: Bytes,
    /// Whether losses are repaired before a retransmission is requested.
    pub repair: Repair,
    /// The form in which flows are requested from it.
    pub request: RequestForm,
    /// Clients whose own addresses are used to connect to servers, if the peer reports that a flow is theirs.
    pub transparent: Vec<IpNet>,
    /// Further clients whose flows the peer may report as theirs.
    pub clients: Vec<IpNet>,
    /// Special-purpose addresses that it may request; none: those of the tunnel's plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub targets: Option<Vec<IpNet>>,
    /// Flows that the peer may have open at a time, over all of its connections.
    pub flows: u32,
    /// Connections that the peer may have open to us at a time.
    pub connections: u32,
    /// Silence after which this end probes the other. Peers that connect over QUIC are all probed as often as the
    /// shortest of their values demands.
    pub keepalive: Duration,
    /// Silence after which the tunnel counts as broken.
    pub timeout: Duration,
    /// How long new flows wait for a tunnel that is being opened.
    pub patience: Duration,
    /// How long a flow is kept after its tunnel is gone.
    pub resume: Duration,
    /// What carries the tunnel while UDP does not pass, or is throttled.
    pub fallback: Fallback,
    /// Whether the peer may move its live flows to this host.
    pub moves: Moves,
    /// Congestion control of the fallback, by the kernel's name; none: the kernel's default. Found at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_congestion: Option<String>,
    /// Its table as written.
    #[serde(skip)]
    written: Peer,
}

impl PeerPlan {
    /// Whether a server may be connected from the address of a client of this peer.
    pub fn may_stand_for(&self, client: SocketAddr) -> bool {
        client.port() != 0 && is_within(&self.transparent, client)
    }

    /// The address at which it accepts tunnels over TCP, if it does.
    pub(crate) fn tcp_endpoint(&self) -> Option<SocketAddr> {
        self.address.filter(|_| self.fallback != Fallback::Off)
    }

    /// Whether the peer may report that a flow is this client's.
    pub fn may_speak_for(&self, client: SocketAddr) -> bool {
        is_within(&self.transparent, client) || is_within(&self.clients, client)
    }

    /// Whether its table says the same about the tunnel as that of `other`. Values that come from other tables may
    /// differ, and so may the modem.
    pub fn is_written_as(&self, other: &Self) -> bool {
        let of_tunnel = |peer: &Self| Peer { modem: None, ..peer.written.clone() };
        self.name == other.name && of_tunnel(self) == of_tunnel(other)
    }
}

fn is_within(prefixes: &[IpNet], client: SocketAddr) -> bool {
    let ip = client.ip().to_canonical();
    prefixes.iter().any(|prefix| prefix.contains(&ip))
}

impl Config {
    /// Checks everything about tunnels but the rules.
    pub(super) fn resolve_tunnels(
        &self,
        legs: &[LegPlan],
    ) -> Result<(TunnelPlan, Vec<PeerPlan>), ResolveError> {
        let tunnel = &self.tunnel;
        let key = KeyPath::of(["tunnel"]);
        let files = [
            ("certificate", &tunnel.certificate),
            ("key", &tunnel.key),
            ("authority", &tunnel.authority),
        ];
        let wanted = !tunnel.listen.is_empty() || !self.peers.is_empty();
        if let Some((field, _)) = files.iter().find(|(_, file)| file.is_none() && wanted) {
            return fault(
                &key.join(*field),
                "a tunnel takes certificate, key and authority at both of its ends",
                "`midhopd pki` makes them",
            );
        }
        if !tunnel.listen.is_empty() && self.peers.is_empty() {
            return fault(
                &key.join("listen"),
                "no peer may open a tunnel: there are none",
                "add a table [peers.NAME] for each certificate that may",
            );
        }
        let credentials = match files.map(|(_, file)| file.clone()) {
            [Some(certificate), Some(key), Some(authority)] => {
                let revoked = tunnel.revoked.0.clone();
                Some(Credentials { certificate, key, authority, revoked })
            }
            _ => None,
        };
        if credentials.is_none() && !tunnel.revoked.is_empty() {
            return fault(
                &key.join("revoked"),
                "no certificates are verified: this daemon has no tunnels",
                "set tunnel.certificate, key and authority, or take the lists out",
            );
        }
        positive(
            &key.join("connect_timeout"),
            tunnel.connect_timeout,
            Duration::ZERO,
            "a server needs some time to answer",
        )?;
        let mut peers: Vec<PeerPlan> = Vec::with_capacity(self.peers.len());
        for (name, peer) in &self.peers {
            let key = KeyPath::of(["peers", name.as_str()]);
            if legs.iter().any(|leg| leg.name == *name) {
                return fault(
                    &key,
                    format!("there is a leg \"{name}\" already"),
                    "names distinguish legs and peers, also in metrics",
                );
            }
            let peer = resolve_peer(&key, name, peer, self)?;
            if let Some(other) = peers.iter().find(|other| other.identity == peer.identity) {
                return fault(
                    &key.join("name"),
                    format!("\"{}\" is peer \"{}\" already", peer.identity, other.name),
                    "each peer has a certificate of its own",
                );
            }
            peers.push(peer);
        }
        let silent = |peer: &&PeerPlan| !peer.transparent.is_empty() && tunnel.listen.is_empty();
        if let Some(peer) = peers.iter().find(silent) {
            return fault(
                &KeyPath::of(["peers", peer.name.as_str()]).join("transparent"),
                "this end serves no flows of its peers: nothing listens",
                "set it at the end that is near the servers, and tunnel.listen there",
            );
        }
        if let Some(peer) = peers.iter().find(|it| it.address.is_none() && tunnel.listen.is_empty())
        {
            return fault(
                &KeyPath::of(["peers", peer.name.as_str()]),
                "this peer cannot be reached and cannot come: it has no address, and nothing listens",
                "set its `address`, or tunnel.listen",
            );
        }
        let plan = TunnelPlan {
            listen: tunnel.listen.0.clone(),
            fallback: tunnel.fallback,
            credentials,
            resolve: tunnel.resolve,
            local_targets: tunnel.local_targets,
            targets: tunnel.targets.0.clone(),
            connect_timeout: tunnel.connect_timeout,
        };
        Ok((plan, peers))
    }
}

impl PeerPlan {
    /// Whether the rate of its link is known, and determines how fast this end sends.
    pub fn goes_by_its_rate(&self) -> bool {
        self.congestion == Algorithm::KnownRate
    }
}

fn resolve_peer(
    key: &KeyPath,
    name: &str,
    peer: &Peer,
    config: &Config,
) -> Result<PeerPlan, ResolveError> {
    let identity = peer.name.clone().unwrap_or_else(|| name.to_owned());
    check_name(&key.join("name"), &identity)?;
    check_link(
        key,
        &[("rate", peer.rate), ("rate_in", peer.rate_in), ("committed", peer.committed)],
        "leave it out where it is not known",
        &[("rtt", peer.rtt), ("rtt0", peer.rtt0)],
    )?;
    let congestion = congestion_of(&key.join("congestion"), peer)?;
    check_committed(&key.join("committed"), peer, congestion)?;
    positive(&key.join("flows"), peer.flows, 0, "a peer without flows needs no tunnel")?;
    let hint = "one carries all flows; a few more are there while it changes between UDP and TCP";
    positive(&key.join("connections"), peer.connections, 0, hint)?;
    for (field, time) in [("keepalive", peer.keepalive), ("timeout", peer.timeout)] {
        positive(&key.join(field), time, Duration::ZERO, "15 s and 60 s are usual")?;
    }
    if peer.resume > RESUME_MAX {
        return fault(
            &key.join("resume"),
            format!("{} is more than {RESUME_MAX}", peer.resume),
            "each flow holds a connection and memory for so long; 5 min is usual",
        );
    }
    if peer.keepalive >= peer.timeout {
        return fault(
            &key.join("keepalive"),
            format!(
                "the tunnel is closed after {} of silence, before a keep-alive is sent",
                peer.timeout
            ),
            "take a third of the timeout or less",
        );
    }
    if peer.window.is_some_and(|window| window < WINDOW_MIN) {
        return fault(
            &key.join("window"),
            "less than 1 MiB",
            "a window below the bandwidth-delay product slows its flow down",
        );
    }
    let rate_in = peer.rate_in.or(peer.rate);
    let measured = |rate: Option<Rate>, bdps: f64| {
        let product = rate.zip(peer.rtt).map(|(rate, rtt)| rate.bytes_in(rtt));
        product.map(|bytes| bytes.scale(bdps).max(WINDOW_MIN))
    };
    let window = |rate, bdps| peer.window.or(measured(rate, bdps)).unwrap_or(WINDOW_UNMEASURED);
    // Flows whose receivers take nothing must not hold up the others: they may fill half of the memory.
    let share = config.limits.memory.get() / 2 / config.peers.len().max(1) as u64;
    let scarce = peer.window.or(measured(rate_in, FLOW_BDPS_SCARCE)).unwrap_or(WINDOW_MIN);
    let flow_window = window(rate_in, FLOW_BDPS).min(scarce.max(Bytes::new(share / STUCK_FLOWS)));
    Ok(PeerPlan {
        name: name.to_owned(),
        address: peer.address,
        identity,
        congestion,
        rtt0: peer.rtt0,
        rate: peer.rate,
        hint: check_strict(&key.join("strict"), peer, congestion)?,
        modem: resolve_modem(&key.join("modem"), peer, congestion)?,
        committed: peer.committed,
        rate_in,
        rtt: peer.rtt,
        send_window: window(peer.rate, SEND_BDPS),
        flow_window: flow_window.min(Bytes::new(share / 2)),
        receive_window: Bytes::new(share),
        repair: peer.repair,
        request: peer.request,
        transparent: peer.transparent.0.clone(),
        clients: peer.clients.0.clone(),
        targets: peer.targets.as_ref().map(|targets| targets.0.clone()),
        flows: peer.flows,
        connections: peer.connections,
        keepalive: peer.keepalive,
        timeout: peer.timeout,
        patience: peer.patience,
        resume: peer.resume,
        fallback: peer.fallback,
        moves: peer.moves,
        kernel_congestion: None,
        written: peer.clone(),
    })
}

/// The committed rate is a part of the link's rate, and needs an algorithm with a window.
fn check_committed(key: &KeyPath, peer: &Peer, congestion: Algorithm) -> Result<(), ResolveError> {
    let Some(committed) = peer.committed else { return Ok(()) };
    if !congestion.description().committed {
        return fault(
            key,
            format!("{congestion} derives its own rate"),
            "take congestion = \"cubic\", or leave `committed` out",
        );
    }
    if peer.rate.is_some_and(|rate| committed > rate) {
        return fault(
            key,
            "more than the link carries",
            "if all of the link is yours, leave `committed` out: `rate` is enough",
        );
    }
    Ok(())
}

/// Whether the rate is a hint. The key needs a rate, and an algorithm that uses it.
fn check_strict(key: &KeyPath, peer: &Peer, congestion: Algorithm) -> Result<bool, ResolveError> {
    let Some(strict) = peer.strict else { return Ok(congestion == Algorithm::KnownRate) };
    if peer.rate.is_none() {
        return fault(
            key,
            "there is no rate",
            "set `rate` to what the link carries away from this host",
        );
    }
    if congestion != Algorithm::KnownRate {
        return fault(
            key,
            format!("{congestion} does not use a known rate"),
            "leave `congestion` out, or `strict`",
        );
    }
    Ok(!strict)
}

fn resolve_modem(
    key: &KeyPath,
    peer: &Peer,
    congestion: Algorithm,
) -> Result<Option<ModemPlan>, ResolveError> {
    let resolve = |modem: &Modem| modem.resolve(key, congestion == Algorithm::KnownRate);
    peer.modem.as_ref().map(resolve).transpose()
}

/// A tunnel's congestion control, which is one of ours and not the kernel's.
fn congestion_of(key: &KeyPath, peer: &Peer) -> Result<Algorithm, ResolveError> {
    let Some(name) = &peer.congestion else {
        if peer.committed.is_some() {
            return Ok(Algorithm::Cubic);
        }
        let known = peer.rate.is_some();
        return Ok(if known { Algorithm::KnownRate } else { Algorithm::BbrV3 });
    };
    // XCP's routers exist in simulations only.
    let able = |algorithm: &Algorithm| *algorithm != Algorithm::Xcp;
    let Some(algorithm) = Algorithm::from_name(name).filter(able) else {
        let names: Vec<&str> =
            Algorithm::ALL.iter().filter(|it| able(it)).map(|it| it.name()).collect();
        return fault(
            key,
            format!("no tunnel has a congestion control \"{name}\""),
            format!("take one of {}", names.join(", ")),
        );
    };
    if algorithm == Algorithm::KnownRate && peer.rate.is_none() {
        return fault(
            key,
            "the rate is not known",
            "set `rate` to what the link carries away from this host, or take bbr3",
        );
    }
    Ok(algorithm)
}

fn by_name<S: Serializer>(algorithm: &Algorithm, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(algorithm.name())
}

/// A name that a certificate may have: a DNS name.
fn check_name(key: &KeyPath, name: &str) -> Result<(), ResolveError> {
    let label = |label: &str| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let numbers = name.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if name.len() <= NAME_BYTES_MAX && name.split('.').all(label) && !numbers {
        return Ok(());
    }
    fault(
        key,
        format!("\"{name}\" cannot be the name in a certificate"),
        "take letters, digits and hyphens, in parts divided by dots",
    )
}

#[cfg(test)]
mod tests;
