//! Silence of peers that come: how much of it their connections take.
//!
//! QUIC settles that with the handshake, before it is known who has come. So each connection is asked for as often
//! as the most impatient of the peers wants it, and takes as much silence as the most patient; what its own
//! peer may take of it is watched here.

use super::quic::QuicConnection;
use midhop_pep::config::PeerPlan;
use midhop_tunnel::http3::Code;
use std::time::Duration;
use tokio::time;

/// Looks within the time that a silence may last.
const LOOKS: u32 = 8;
/// A silence is none before an answer could have come: in round trips.
const TRIPS: u32 = 3;

/// The plan by which somebody is let in who may be any of the peers, and `peer` most likely.
pub fn of_anybody(peer: &PeerPlan, peers: &[PeerPlan]) -> PeerPlan {
    let mut anybody = peer.clone();
    for other in peers {
        anybody.keepalive = anybody.keepalive.min(other.keepalive);
        anybody.timeout = anybody.timeout.max(other.timeout);
    }
    anybody
}

/// Ends a connection by which its peer has said nothing for as long as its table has. Over when it is gone.
pub async fn end(connection: QuicConnection, peer: PeerPlan) {
    let timeout = Duration::from(peer.timeout);
    let (mut heard, mut since) = (said(&connection), time::Instant::now());
    loop {
        tokio::select! {
            () = time::sleep(timeout / LOOKS) => {}
            _ = connection.closed() => return,
        }
        let now = said(&connection);
        if now != heard {
            (heard, since) = (now, time::Instant::now());
        } else if since.elapsed() >= timeout.max(connection.rtt() * TRIPS) {
            tracing::info!(peer = peer.name, timeout = %peer.timeout, "a peer has said nothing for too long");
            return connection.close(Code::NO_ERROR);
        }
    }
}

/// What the peer has said, and nobody else could: datagrams are also counted that are noise.
fn said(connection: &QuicConnection) -> u64 {
    let frames = connection.stats().frame_rx;
    frames.acks + frames.stream + frames.ping
}
