//! Stale connections: the earlier ones of a peer that connects again.
//!
//! A peer that was killed and started again sends nothing on its earlier connection any more. The flows of that
//! connection would remain until its timeout. So when a peer connects again, its earlier connections are asked for a
//! sign of life. A second proxy of the same name, or an earlier process that serves its flows to their ends,
//! responds, and its connection is left alone.
//!
//! Invariant: a connection is closed only because its peer is silent.

use super::{fallback, quic::QuicConnection, silence};
use midhop_tunnel::http3::Code;
use std::{
    sync::{Mutex, PoisonError, Weak},
    time::Duration,
};
use tokio::task::spawn_local;

/// Timeout of a sign of life: in round trips, in which a lost packet is sent a third time; and its minimum.
const TRIPS: u32 = 8;
const LEAST: Duration = Duration::from_secs(5);

/// The connection by which a peer has connected.
#[derive(Debug, Clone)]
pub enum PeerTransport {
    /// HTTP/3.
    Quic(QuicConnection),
    /// HTTP/2.
    Tcp(Weak<fallback::LivenessProbe>),
}

/// The connections of peers that connect to this daemon, on all workers.
#[derive(Debug, Default)]
pub struct StaleConnections(Mutex<Vec<(String, PeerTransport)>>);

impl StaleConnections {
    /// A peer has connected. Its earlier connections that are still open must show a sign of life.
    pub fn follow(&self, peer: &str, way: PeerTransport) {
        self.doubt(peer);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.push((peer.to_owned(), way));
    }

    /// The connections of a peer must show a sign of life.
    pub fn doubt(&self, peer: &str) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, earlier)| match earlier {
            PeerTransport::Quic(connection) => connection.close_reason().is_none(),
            PeerTransport::Tcp(doubt) => doubt.strong_count() > 0,
        });
        for (name, earlier) in known.iter().filter(|(name, _)| name == peer) {
            match earlier {
                PeerTransport::Quic(connection) => {
                    let (name, connection) = (name.clone(), connection.clone());
                    spawn_local(async move { prove(&name, connection).await });
                }
                // Its own thread sends the request.
                PeerTransport::Tcp(doubt) => drop(doubt.upgrade().map(|doubt| doubt.raise())),
            }
        }
    }
}

/// Timeout of a sign of life on a path of this round-trip time.
pub fn patience(rtt: Duration) -> Duration {
    (rtt * TRIPS).max(LEAST)
}

/// Closes a connection whose peer gives no sign of life.
///
async fn prove(peer: &str, connection: QuicConnection) {
    let patience = patience(connection.rtt());
    let received = |connection: &QuicConnection| connection.stats().udp_rx.datagrams;
    let before = received(&connection);
    connection.ping();
    tokio::select! {
        () = silence::wait(patience) => {}
        _ = connection.closed() => return,
    }
    if received(&connection) == before {
        tracing::info!(
            peer,
            "a peer has connected again: its earlier tunnel does not respond, and is closed"
        );
        connection.close(Code::PEER_SILENT);
    }
}
