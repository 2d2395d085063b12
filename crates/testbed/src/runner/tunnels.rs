//! Tunnels between the proxies of a run: their certificates, and what they carried.
//!
//! A proxy reports the state of its tunnels at its admin listener, which is queried from inside its
//! node. A tunnel uses no TCP connection, so the probe does not see it.

use super::RunError;
use super::fault::io_error;
use crate::lab::{Network, find_daemon};
use crate::namespace::Namespace;
use midhop_experiment::plan::{Plan, PlannedNode};
use midhop_experiment::record::LegResult;
use midhop_experiment::tunnel::{NodeTunnels, TunnelPeer};
use midhop_units::{Bytes, Duration, Number};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{self, Instant};

/// Where a proxy reports its status when its table names no other place.
const ADMIN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9310);
/// How long a proxy may take to answer. Generous: machines may be busy.
const ANSWER_WITHIN: time::Duration = time::Duration::from_secs(10);
/// How long a tunnel may take to open: several attempts over a lossy link.
const OPEN_WITHIN: time::Duration = time::Duration::from_secs(60);
/// The carrier over UDP, as a proxy reports it.
const QUIC: &str = "quic";
/// Interval at which that is checked.
const LOOK_EVERY: time::Duration = time::Duration::from_millis(100);
/// Round trips that an open tunnel gets to discover its path MTU.
const SETTLE_RTTS: u64 = 6;
/// The interval at which a proxy updates QUIC's counters, and a little more.
const BOOKED_WITHIN: time::Duration = time::Duration::from_millis(1100);
/// The validity of certificates. Unit: days.
const DAYS: &str = "2";

/// Makes an authority in `directory` with a certificate for each node that has tunnels, and returns
/// its path.
pub(super) fn authority(plan: &Plan, directory: &Path) -> Result<String, RunError> {
    let place = directory.join("authority");
    let names: Vec<&str> = tunnels(plan).map(|(_, tunnels)| tunnels.identity.as_str()).collect();
    if !names.is_empty() {
        let daemon = find_daemon()?;
        let pki = |arguments: &[&str]| {
            let mut command = Command::new(&daemon);
            command.arg("pki").args(arguments).arg("--directory").arg(&place);
            done(command).map_err(io_error("make certificates for tunnels"))
        };
        pki(&["init", "--name", "a laboratory's authority"])?;
        for name in names {
            pki(&["issue", name, "--days", DAYS])?;
        }
    }
    Ok(place.display().to_string())
}

fn done(mut command: Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// Retransmissions before the run began: by node and peer.
pub(super) type Before = BTreeMap<(String, String), u64>;

/// Opens all tunnels before the run begins, as they are in normal operation.
pub(super) fn open(
    plan: &Plan,
    network: &Network,
    interrupted: &AtomicBool,
) -> Result<Before, RunError> {
    let mut waited: Vec<(&PlannedNode, &TunnelPeer)> = Vec::new();
    for (node, tunnels) in tunnels(plan) {
        waited.extend(tunnels.peers.iter().filter(|it| it.address.is_some()).map(|it| (node, it)));
    }
    if waited.is_empty() {
        return Ok(Before::new());
    }
    let settle = waited.iter().filter_map(|(_, peer)| peer.rtt).max().unwrap_or_default();
    network.rehearse(plan.seed.derive("rehearsal"), || {
        let deadline = Instant::now() + OPEN_WITHIN;
        for (node, peer) in waited {
            while !reported_by(plan, network, node)?.has_tunnel_to(peer) {
                pause(LOOK_EVERY, interrupted)?;
                if Instant::now() > deadline {
                    let by = if peer.moves { " over UDP" } else { "" };
                    let what = format!("has no tunnel to {}{by} after {OPEN_WITHIN:?}", peer.node);
                    return Err(RunError::Tunnel { node: node.name.clone(), what });
                }
            }
        }
        pause(BOOKED_WITHIN.max((settle * SETTLE_RTTS).into()), interrupted)
    })?;
    let mut before = Before::new();
    for (node, _) in tunnels(plan) {
        let legs = legs_of(plan, network, node)?.into_iter();
        before
            .extend(legs.map(|(name, leg)| ((node.name.clone(), name), leg.retransmissions_total)));
    }
    Ok(before)
}

fn pause(length: time::Duration, interrupted: &AtomicBool) -> Result<(), RunError> {
    let end = Instant::now() + length;
    loop {
        if interrupted.load(Ordering::Relaxed) {
            return Err(RunError::Interrupted);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(LOOK_EVERY));
    }
}

/// What each end of each tunnel sent since `before`; the other end reports what arrived of it.
pub(super) fn legs(
    plan: &Plan,
    network: &Network,
    before: &Before,
) -> Result<Vec<LegResult>, RunError> {
    if tunnels(plan).next().is_some() {
        // By then, the counters include the losses at the very end.
        std::thread::sleep(BOOKED_WITHIN);
    }
    let mut reported = BTreeMap::new();
    for (node, _) in tunnels(plan) {
        reported.insert(node.name.as_str(), legs_of(plan, network, node)?);
    }
    let mut legs = Vec::new();
    for (node, tunnels) in tunnels(plan) {
        for peer in tunnels.peers.iter().filter(|peer| !peer.moves) {
            let Some(own) = reported[node.name.as_str()].get(&peer.name) else { continue };
            let early = before.get(&(node.name.clone(), peer.name.clone())).copied();
            let far = plan.node(&peer.node).and_then(|far| far.tunnels.as_ref());
            let back = far.and_then(|far| far.peers.iter().find(|it| it.node == node.name));
            let arrived = back.and_then(|back| reported.get(peer.node.as_str())?.get(&back.name));
            legs.push(LegResult {
                node: node.name.clone(),
                link: peer.link.clone(),
                tunnel: Some(peer.node.clone()),
                // All of its flows share one connection.
                connections: u64::from(
                    own.sent_total > Bytes::ZERO || own.received_total > Bytes::ZERO,
                ),
                bytes: arrived.map_or(own.sent_total, |far| far.received_total.min(own.sent_total)),
                retransmissions: own.retransmissions_total.saturating_sub(early.unwrap_or(0)),
                rtt_min: own.rtt_min,
                phases: None,
            });
        }
    }
    Ok(legs)
}

fn tunnels(plan: &Plan) -> impl Iterator<Item = (&PlannedNode, &NodeTunnels)> {
    plan.nodes.iter().filter_map(|node| Some((node, node.tunnels.as_ref()?)))
}

/// The part of a proxy's status that is needed here.
#[derive(Debug, Deserialize)]
struct Status {
    data_plane: DataPlane,
}

#[derive(Debug, Deserialize)]
struct DataPlane {
    legs: BTreeMap<String, LegStatus>,
    #[serde(default)]
    peers: BTreeMap<String, PeerStatus>,
}

impl DataPlane {
    /// Whether the tunnel that this end opens to `peer` is open. Where both ends open one, that of the other end gives
    /// the leg a round trip, too.
    fn has_tunnel_to(&self, peer: &TunnelPeer) -> bool {
        let is_measured = self.legs.get(&peer.name).is_some_and(|leg| leg.rtt.is_some());
        let carrier = self.peers.get(&peer.name).and_then(|own| own.carrier.as_deref());
        // Flows do not move over TCP.
        is_measured && carrier.is_some_and(|carrier| !peer.moves || carrier == QUIC)
    }
}

/// Its tunnels to a peer.
#[derive(Debug, Deserialize)]
struct PeerStatus {
    /// The carrier of new flows in the tunnel that this end opened; none: it has opened none.
    carrier: Option<String>,
}

/// Its part on a leg or a tunnel.
#[derive(Debug, Deserialize)]
struct LegStatus {
    #[serde(rename = "sent_bytes_total", with = "Number::<Bytes>")]
    sent_total: Bytes,
    #[serde(rename = "received_bytes_total", with = "Number::<Bytes>")]
    received_total: Bytes,
    retransmissions_total: u64,
    #[serde(rename = "rtt_s", with = "Number::<Option<Duration>>")]
    rtt: Option<Duration>,
    #[serde(rename = "rtt_min_s", with = "Number::<Option<Duration>>")]
    rtt_min: Option<Duration>,
}

fn legs_of(
    plan: &Plan,
    network: &Network,
    node: &PlannedNode,
) -> Result<BTreeMap<String, LegStatus>, RunError> {
    Ok(reported_by(plan, network, node)?.legs)
}

fn reported_by(plan: &Plan, network: &Network, node: &PlannedNode) -> Result<DataPlane, RunError> {
    let pep = node.pep.as_ref().and_then(|pep| plan.peps.get(pep));
    let listen = pep.map(|pep| &pep.config().admin.listen);
    let address = listen.and_then(|all| all.first()).copied().unwrap_or(ADMIN);
    let fault = |why: &dyn std::fmt::Display| RunError::Tunnel {
        node: node.name.clone(),
        what: format!("does not report its tunnels at {address}: {why}"),
    };
    let namespace = network.node(&node.name).ok_or_else(|| fault(&"it has no node"))?;
    let text = ask(namespace, address).map_err(|error| fault(&error))?;
    let status: Status = serde_json::from_str(&text).map_err(|error| fault(&error))?;
    Ok(status.data_plane)
}

/// Asks the proxy behind `address` for its status.
fn ask(namespace: &Namespace, address: SocketAddr) -> io::Result<String> {
    let exchange = || -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, ANSWER_WITHIN)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        let request =
            format!("GET /status.json HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = namespace.run(exchange).map_err(io::Error::other)??;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    if head.starts_with("HTTP/1.1 200 ") {
        return Ok(body.to_owned());
    }
    Err(io::Error::other(head.lines().next().unwrap_or("no answer").to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(moves: bool) -> TunnelPeer {
        TunnelPeer {
            name: "far".to_owned(),
            node: "far".to_owned(),
            identity: "far.midhop".to_owned(),
            link: "between".to_owned(),
            address: None,
            rate: None,
            rate_in: None,
            rtt: None,
            modem: None,
            moves,
        }
    }

    /// What a proxy reports whose tunnels to `far` have a round trip.
    fn reported(carrier: &str) -> DataPlane {
        let text = format!(
            r#"{{ "data_plane": {{
                "legs": {{ "far": {{
                    "sent_bytes_total": 0, "received_bytes_total": 0, "retransmissions_total": 0,
                    "rtt_s": 0.004, "rtt_min_s": 0.004
                }} }},
                "peers": {{ "far": {{ "tunnels": 1, "carrier": {carrier} }} }}
            }} }}"#
        );
        serde_json::from_str::<Status>(&text).expect("a status").data_plane
    }

    #[test]
    fn a_tunnel_that_only_the_other_end_has_opened_is_not_this_ends() {
        for moves in [false, true] {
            assert!(!reported("null").has_tunnel_to(&peer(moves)));
            assert!(reported("\"quic\"").has_tunnel_to(&peer(moves)));
        }
    }

    #[test]
    fn a_tunnel_over_tcp_moves_no_flows() {
        assert!(reported("\"tcp-blocked\"").has_tunnel_to(&peer(false)));
        assert!(!reported("\"tcp-blocked\"").has_tunnel_to(&peer(true)));
    }
}
