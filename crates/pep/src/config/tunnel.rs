//! Tunnels to other proxies: this daemon's own identity, its peers, and what they resolve to.

use super::resolve::{check_link, fault, positive};
use super::{Config, LegPlan, OneOrMany, ResolveError};
use ipnet::IpNet;
use midhop_config::KeyPath;
use midhop_congestion::Algorithm;
use midhop_units::{Bytes, Duration, Rate};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use std::{net::SocketAddr, path::PathBuf};

/// What a flow may have under way where nobody said how large its link is: three round trips of 600 ms at
/// 150 Mbit/s.
const WINDOW_UNMEASURED: Bytes = Bytes::new(32 << 20);
/// The smallest window that is worth a tunnel.
const WINDOW_MIN: Bytes = Bytes::new(1 << 20);
/// Bandwidth-delay products that flows may have written and the peer not acknowledged: one, and one more
/// each time that a packet is lost in a row, as all that came behind it stays. Three end a leg that loses
/// 5 % at 80 % of its rate, six at 93 %, eight at 96 %.
const SEND_BDPS: f64 = 6.0;
/// Products that the peer may send of one flow beyond what was taken: one, one more while news of credit
/// are under way, and one for what waits on the way. A gap stops nobody: what is behind it is taken.
const FLOW_BDPS: f64 = 3.0;
/// The same where memory is scarce: one, and what is consumed before credit is given again.
const FLOW_BDPS_SCARCE: f64 = 1.25;
/// Flows whose receivers stand still before these hold up all others; fewer where memory is scarce.
const STUCK_FLOWS: u64 = 8;
/// The longest name that DNS can hold.
const NAME_BYTES_MAX: usize = 253;

/// What carries a tunnel where UDP does not pass, or is throttled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Fallback {
    /// TCP: HTTP/2 over TLS.
    #[default]
    Tcp,
    /// Nothing: there is no tunnel then.
    Off,
    /// TCP, and never UDP: where that is known to be throttled.
    Only,
}

/// This daemon's own end of tunnels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tunnel {
    /// UDP addresses at which peers may open a tunnel; none: this daemon only opens them.
    pub listen: OneOrMany<SocketAddr>,
    /// Whether peers to whom UDP does not pass may come to the same addresses in TCP; `only`: and nobody in UDP.
    pub fallback: Fallback,
    /// This daemon's certificate, with those between it and the authority's: PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// Its key: PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// The certificates of the authority that signs those of the peers: PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authority: Option<PathBuf>,
    /// Whether peers may name their targets, which are then looked up here.
    pub resolve: bool,
    /// Whether this host's loopback and link-local addresses may be targets.
    pub local_targets: bool,
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
        }
    }
}

/// A proxy at the other end of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Peer {
    /// Where it listens; none: it comes to us.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// Its name in its certificate; unset: that of its table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Congestion control of the tunnel by name; unset: `cubic` where a rate is committed, `known-rate` where the
    /// rate is given, else `bbr3`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "super::name::read")]
    pub congestion: Option<String>,
    /// Hybla's reference round-trip time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt0: Option<Duration>,
    /// What the link carries away from this host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// What of it this tunnel may always have, on a link that others use too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub committed: Option<Rate>,
    /// What it carries towards this host; unset: `rate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_in: Option<Rate>,
    /// Its round-trip time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt: Option<Duration>,
    /// What one flow may have under way in each direction; unset: from `rate` and `rtt`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Bytes>,
    /// Whether losses are repaired before anybody asks for what was lost.
    pub repair: Repair,
    /// In which form it is asked for flows.
    pub request: RequestForm,
    /// Clients from whose own addresses servers are connected, where the peer says that a flow is theirs.
    pub transparent: OneOrMany<IpNet>,
    /// Flows that the peer may have open at a time.
    pub flows: u32,
    /// Silence after which this end asks whether the other is still there.
    pub keepalive: Duration,
    /// Silence after which the tunnel is taken for broken, and its flows with it.
    pub timeout: Duration,
    /// How long new flows wait for a tunnel that is being opened, before they go without it.
    pub patience: Duration,
    /// What carries the tunnel while UDP does not pass, or is throttled.
    pub fallback: Fallback,
}

impl Default for Peer {
    fn default() -> Self {
        Self {
            address: None,
            name: None,
            congestion: None,
            rtt0: None,
            rate: None,
            committed: None,
            rate_in: None,
            rtt: None,
            window: None,
            repair: Repair::default(),
            request: RequestForm::default(),
            transparent: OneOrMany::default(),
            flows: 10_000,
            keepalive: Duration::from_s(15),
            timeout: Duration::from_s(60),
            patience: Duration::from_s(3),
            fallback: Fallback::default(),
        }
    }
}

/// Whether what a link loses is repaired by what is sent beside it: forward error correction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Repair {
    /// Never: bulk pays for it.
    #[default]
    Off,
    /// Where the peer does so too, something is lost, and the link shows no sign of congestion.
    Auto,
    /// The same, congested or not: only for a link that nobody else uses.
    Always,
}

/// The form of a request for a flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RequestForm {
    /// By a template once the peer has said that it is another midhopd that serves them, else classic.
    #[default]
    Auto,
    /// The target alone, and the flow's bytes as they are: every proxy serves it.
    Classic,
    /// By the default template, and the bytes in capsules, as soon as the peer has said that it takes such
    /// requests; else there is no tunnel to it.
    Template,
}

/// This daemon's own end of tunnels, resolved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TunnelPlan {
    /// UDP addresses at which peers may open a tunnel.
    pub listen: Vec<SocketAddr>,
    /// Whether they may come there in TCP.
    pub fallback: Fallback,
    /// What proves who this daemon is, and who its peers are; none: there are no tunnels.
    pub credentials: Option<Credentials>,
    /// Whether peers may name their targets.
    pub resolve: bool,
    /// Whether this host's loopback and link-local addresses may be targets.
    pub local_targets: bool,
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
}

/// A peer, resolved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PeerPlan {
    /// Its name in the configuration, in metrics and in logs.
    pub name: String,
    /// Where it listens; none: it comes to us.
    pub address: Option<SocketAddr>,
    /// Its name in its certificate.
    pub identity: String,
    /// Congestion control.
    #[serde(serialize_with = "by_name")]
    pub congestion: Algorithm,
    /// Hybla's reference round-trip time.
    pub rtt0: Option<Duration>,
    /// What the link carries away from this host, where it was said.
    pub rate: Option<Rate>,
    /// What of it the tunnel may always have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub committed: Option<Rate>,
    /// What it carries towards this host, where it was said or is taken for the same.
    pub rate_in: Option<Rate>,
    /// Its round-trip time, where it was said.
    pub rtt: Option<Duration>,
    /// What all flows together may have written that the peer has not acknowledged.
    pub send_window: Bytes,
    /// What one flow may have sent to us that has not been passed on.
    pub flow_window: Bytes,
    /// What all flows together may have sent to us that has not been passed on.
    pub receive_window: Bytes,
    /// Whether losses are repaired before anybody asks for what was lost.
    pub repair: Repair,
    /// In which form it is asked for flows.
    pub request: RequestForm,
    /// Clients from whose own addresses servers are connected, where the peer says that a flow is theirs.
    pub transparent: Vec<IpNet>,
    /// Flows that the peer may have open at a time.
    pub flows: u32,
    /// Silence after which this end asks whether the other is still there.
    pub keepalive: Duration,
    /// Silence after which the tunnel is taken for broken.
    pub timeout: Duration,
    /// How long new flows wait for a tunnel that is being opened.
    pub patience: Duration,
    /// What carries the tunnel while UDP does not pass, or is throttled.
    pub fallback: Fallback,
    /// Congestion control of that, by the kernel's name; none: the kernel's default. Found at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_congestion: Option<String>,
}

impl PeerPlan {
    /// Whether a server may be connected from the address of a client of this peer.
    pub fn may_stand_for(&self, client: SocketAddr) -> bool {
        let ip = client.ip().to_canonical();
        client.port() != 0 && self.transparent.iter().any(|prefix| prefix.contains(&ip))
    }
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
                "nobody may open a tunnel: there are no peers",
                "add a table [peers.NAME] for each certificate that may",
            );
        }
        let credentials = match files.map(|(_, file)| file.clone()) {
            [Some(certificate), Some(key), Some(authority)] => {
                Some(Credentials { certificate, key, authority })
            }
            _ => None,
        };
        let mut peers: Vec<PeerPlan> = Vec::with_capacity(self.peers.len());
        for (name, peer) in &self.peers {
            let key = KeyPath::of(["peers", name.as_str()]);
            if legs.iter().any(|leg| leg.name == *name) {
                return fault(
                    &key,
                    format!("there is a leg \"{name}\" already"),
                    "legs and peers are told apart by their names, in metrics as well",
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
        };
        Ok((plan, peers))
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
    for (field, time) in [("keepalive", peer.keepalive), ("timeout", peer.timeout)] {
        positive(&key.join(field), time, Duration::ZERO, "15 s and 60 s are usual")?;
    }
    if peer.keepalive >= peer.timeout {
        return fault(
            &key.join("keepalive"),
            format!("the tunnel is given up after {} of silence, before anyone asks", peer.timeout),
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
    // Flows whose receivers stand still must not hold up the others: they may fill half of the memory.
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
        committed: peer.committed,
        rate_in,
        rtt: peer.rtt,
        send_window: window(peer.rate, SEND_BDPS),
        flow_window: flow_window.min(Bytes::new(share / 2)),
        receive_window: Bytes::new(share),
        repair: peer.repair,
        request: peer.request,
        transparent: peer.transparent.0.clone(),
        flows: peer.flows,
        keepalive: peer.keepalive,
        timeout: peer.timeout,
        patience: peer.patience,
        fallback: peer.fallback,
        kernel_congestion: None,
    })
}

/// What is committed is a part of the link, and stands beneath a window.
fn check_committed(key: &KeyPath, peer: &Peer, congestion: Algorithm) -> Result<(), ResolveError> {
    let Some(committed) = peer.committed else { return Ok(()) };
    if !congestion.takes_committed_rate() {
        return fault(
            key,
            format!("{congestion} goes by a rate of its own"),
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

/// A tunnel's congestion control, which is ours and no kernel's.
fn congestion_of(key: &KeyPath, peer: &Peer) -> Result<Algorithm, ResolveError> {
    let Some(name) = &peer.congestion else {
        if peer.committed.is_some() {
            return Ok(Algorithm::Cubic);
        }
        let known = peer.rate.is_some();
        return Ok(if known { Algorithm::KnownRate } else { Algorithm::BbrV3 });
    };
    // Its routers are in simulations only.
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
mod tests {
    use super::*;
    use crate::config::{Action, Plan};
    use crate::policy::FlowKey;

    const OWN: &str =
        "[tunnel]\ncertificate = \"own.pem\"\nkey = \"own.key\"\nauthority = \"ca.pem\"\n";

    fn plan(text: &str) -> Plan {
        Plan::read("test.toml", text).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn windows_hold_some_round_trips_of_the_link() {
        let text = format!(
            "{OWN}[peers.ground]\naddress = \"192.0.2.1:443\"\nrate = \"20 Mbit/s\"\n\
             rate_in = \"150 Mbit/s\"\nrtt = \"600 ms\"\n[peers.second]\naddress = \"192.0.2.2:443\"\n"
        );
        let plan = plan(&text);
        let [ground, second] = plan.peers.as_slice() else { panic!("{:?}", plan.peers) };
        assert_eq!(ground.identity, "ground");
        assert_eq!(ground.send_window, Bytes::new(9_000_000));
        assert_eq!(ground.flow_window, Bytes::new((1 << 28) / STUCK_FLOWS));
        assert_eq!(ground.receive_window, Bytes::new(1 << 28));
        assert!(second.flow_window >= Bytes::new(2 * 10_500_000));
    }

    #[test]
    fn scarce_memory_makes_windows_small_but_not_slow() {
        let link = "address = \"192.0.2.1:443\"\nrate = \"10 Mbit/s\"\nrtt = \"600 ms\"\n";
        for (memory, window) in [("1 GiB", 2_250_000), ("8 MiB", 1 << 20), ("2 MiB", 1 << 19)] {
            let limits = format!("[limits]\nmemory = \"{memory}\"\n");
            let ground = &plan(&format!("{limits}{OWN}[peers.ground]\n{link}")).peers[0];
            assert_eq!(ground.flow_window, Bytes::new(window), "{memory}");
            assert_eq!(ground.send_window, Bytes::new(4_500_000), "{memory}");
        }
    }

    #[test]
    fn a_rate_that_is_known_is_kept_and_any_other_searched() {
        for (keys, algorithm) in [
            ("", Algorithm::BbrV3),
            ("rate_in = \"20 Mbit/s\"\n", Algorithm::BbrV3),
            ("rate = \"20 Mbit/s\"\n", Algorithm::KnownRate),
            ("rate = \"20 Mbit/s\"\ncongestion = \"hybla\"\n", Algorithm::Hybla),
            ("rate = \"20 Mbit/s\"\ncommitted = \"5 Mbit/s\"\n", Algorithm::Cubic),
            ("committed = \"5 Mbit/s\"\ncongestion = \"reno\"\n", Algorithm::Reno),
        ] {
            let plan = plan(&format!("{OWN}[peers.ground]\naddress = \"192.0.2.1:443\"\n{keys}"));
            assert_eq!(plan.peers[0].congestion, algorithm, "{keys}");
        }
    }

    #[test]
    fn a_peer_stands_for_the_clients_that_are_its_own() {
        let text = format!(
            "{OWN}listen = \"0.0.0.0:443\"\n[peers.ground]\n\
             transparent = [\"10.1.0.0/16\", \"2001:db8::/32\"]\n[peers.second]\n"
        );
        let plan = plan(&text);
        let [ground, other] = plan.peers.as_slice() else { panic!("{:?}", plan.peers) };
        for (client, may) in [
            ("10.1.2.3:4", true),
            ("[::ffff:10.1.2.3]:4", true),
            ("[2001:db8::7]:65535", true),
            ("10.2.0.1:4", false),
            ("[2001:db9::7]:4", false),
            ("10.1.2.3:0", false),
        ] {
            let client = client.parse().expect("an address");
            assert_eq!(ground.may_stand_for(client), may, "{client}");
            assert!(!other.may_stand_for(client));
        }
    }

    #[test]
    fn a_tunnel_falls_back_unless_told_otherwise() {
        let peer = "[peers.ground]\naddress = \"192.0.2.1:443\"\n";
        for (own, keys, meant) in [
            ("", "", [Fallback::Tcp, Fallback::Tcp]),
            ("fallback = \"off\"\n", "", [Fallback::Off, Fallback::Tcp]),
            ("fallback = \"tcp\"\n", "fallback = \"off\"\n", [Fallback::Tcp, Fallback::Off]),
            ("fallback = \"only\"\n", "fallback = \"only\"\n", [Fallback::Only; 2]),
        ] {
            let plan = plan(&format!("{OWN}{own}{peer}{keys}"));
            assert_eq!([plan.tunnel.fallback, plan.peers[0].fallback], meant, "{own}{keys}");
        }
    }

    #[test]
    fn losses_are_repaired_where_it_is_said() {
        for (keys, repair) in [
            ("", Repair::Off),
            ("repair = \"auto\"\n", Repair::Auto),
            ("repair = \"always\"\n", Repair::Always),
            ("repair = \"off\"\n", Repair::Off),
        ] {
            let plan = plan(&format!("{OWN}[peers.ground]\naddress = \"192.0.2.1:443\"\n{keys}"));
            assert_eq!(plan.peers[0].repair, repair, "{keys}");
        }
        let text = format!("{OWN}[peers.ground]\naddress = \"192.0.2.1:443\"\nrepair = \"on\"\n");
        let error = Plan::read("test.toml", &text).expect_err("no such word");
        assert_eq!(error.key.as_deref(), Some("peers.ground.repair"), "{error}");
    }

    #[test]
    fn flows_are_asked_for_as_the_peer_serves_them_unless_it_is_said_otherwise() {
        for (keys, form) in [
            ("", RequestForm::Auto),
            ("request = \"classic\"\n", RequestForm::Classic),
            ("request = \"template\"\n", RequestForm::Template),
        ] {
            let plan = plan(&format!("{OWN}[peers.ground]\naddress = \"192.0.2.1:443\"\n{keys}"));
            assert_eq!(plan.peers[0].request, form, "{keys}");
        }
        let text =
            format!("{OWN}[peers.ground]\naddress = \"192.0.2.1:443\"\nrequest = \"post\"\n");
        let error = Plan::read("test.toml", &text).expect_err("no such form");
        assert_eq!(error.key.as_deref(), Some("peers.ground.request"), "{error}");
    }

    #[test]
    fn rules_name_peers_and_what_comes_instead() {
        let text = format!(
            "{OWN}[peers.ground]\naddress = \"192.0.2.1:443\"\n\
             [[rules]]\nmatch.destination_port = 80\ntunnel = \"ground\"\naccept = \"early\"\n\
             [[rules]]\ntunnel = \"ground\"\notherwise = \"bypass\"\n"
        );
        let plan = plan(&text);
        for (port, otherwise) in [(80, Action::Split), (81, Action::Bypass)] {
            let decision = plan.policy.decide(&FlowKey {
                source: ([10, 0, 0, 1], 1000).into(),
                destination: ([10, 0, 0, 2], port).into(),
                interface: None,
                dscp: 0,
            });
            assert_eq!(decision.action, Action::Split);
            let route = plan.route(&decision).expect("a tunnel");
            assert_eq!((route.peer.as_str(), route.otherwise), ("ground", otherwise));
        }
    }

    #[test]
    fn what_makes_no_tunnel_is_refused_by_its_key() {
        let peer = "[peers.ground]\naddress = \"192.0.2.1:443\"\n";
        for (text, key) in [
            (peer.to_owned(), "tunnel.certificate"),
            (format!("{OWN}listen = \"0.0.0.0:443\"\n"), "tunnel.listen"),
            (format!("{OWN}[peers.ground]\n"), "peers.ground"),
            (format!("{OWN}{peer}name = \"-x\"\n"), "peers.ground.name"),
            (format!("{OWN}{peer}name = \"192.0.2.1\"\n"), "peers.ground.name"),
            (
                format!("{OWN}{peer}[peers.b]\nname = \"ground\"\naddress = \"[::1]:1\"\n"),
                "peers.ground.name",
            ),
            (format!("{OWN}{peer}[legs.ground]\n"), "peers.ground"),
            (format!("{OWN}{peer}window = \"64 KiB\"\n"), "peers.ground.window"),
            (format!("{OWN}{peer}keepalive = \"60 s\"\n"), "peers.ground.keepalive"),
            (format!("{OWN}{peer}rtt = \"61 s\"\n"), "peers.ground.rtt"),
            (format!("{OWN}{peer}flows = 0\n"), "peers.ground.flows"),
            (format!("{OWN}{peer}transparent = \"10.0.0.0/8\"\n"), "peers.ground.transparent"),
            (format!("{OWN}{peer}fallback = \"udp\"\n"), "peers.ground.fallback"),
            (format!("{OWN}fallback = \"on\"\n{peer}"), "tunnel.fallback"),
            (format!("{OWN}{peer}committed = \"0 bit/s\"\n"), "peers.ground.committed"),
            (
                format!("{OWN}{peer}rate = \"1 Mbit/s\"\ncommitted = \"2 Mbit/s\"\n"),
                "peers.ground.committed",
            ),
            (
                format!("{OWN}{peer}committed = \"2 Mbit/s\"\ncongestion = \"bbr3\"\n"),
                "peers.ground.committed",
            ),
            (format!("{OWN}{peer}congestion = \"fast\"\n"), "peers.ground.congestion"),
            (format!("{OWN}{peer}congestion = \"xcp\"\n"), "peers.ground.congestion"),
            (format!("{OWN}{peer}congestion = \"known-rate\"\n"), "peers.ground.congestion"),
            (format!("{OWN}{peer}[[rules]]\ntunnel = \"hub\"\n"), "rules.0.tunnel"),
            (
                format!("{OWN}{peer}[[rules]]\naction = \"split\"\notherwise = \"bypass\"\n"),
                "rules.0.otherwise",
            ),
            (
                format!("{OWN}{peer}[[rules]]\naction = \"bypass\"\ntunnel = \"ground\"\n"),
                "rules.0.tunnel",
            ),
        ] {
            let error = Plan::read("test.toml", &text).expect_err(&text);
            let said = error.key.clone().unwrap_or_default();
            let either = said == key || (key == "peers.ground.name" && said == "peers.b.name");
            assert!(either && error.hint.is_some(), "{key}: {error}");
        }
    }
}
