//! Earlier connections of a peer that comes again.
//!
//! A peer that was killed and started again says nothing of its earlier connection any more, and nobody else
//! does: its flows would stand until the connection's time is out. So whoever comes again gives reason to ask
//! for a sign of life on what it had before. A second proxy of the same name, or an earlier process that serves
//! its flows to their ends, gives it, and nothing is taken from it.
//!
//! Invariant: nothing is ended for anything but silence.

use super::{fallback, quic::QuicConnection};
use midhop_tunnel::http3::Code;
use std::{
    sync::{Mutex, PoisonError, Weak},
    time::Duration,
};
use tokio::{task::spawn_local, time};

/// How long a sign of life may take: in round trips, in which what was lost is sent a third time, and at least.
const TRIPS: u32 = 8;
const LEAST: Duration = Duration::from_secs(5);

/// By what a peer has come.
#[derive(Debug, Clone)]
pub enum PeerTransport {
    /// HTTP/3.
    Quic(QuicConnection),
    /// HTTP/2.
    Tcp(Weak<fallback::LivenessProbe>),
}

/// The connections by which peers have come, of all workers.
#[derive(Debug, Default)]
pub struct Earlier(Mutex<Vec<(String, PeerTransport)>>);

impl Earlier {
    /// A peer has come: those by which it had come before, and has not gone, are to prove themselves.
    pub fn follow(&self, peer: &str, way: PeerTransport) {
        self.doubt(peer);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.push((peer.to_owned(), way));
    }

    /// Those by which a peer has come are to prove themselves.
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
                // Its own thread asks.
                PeerTransport::Tcp(doubt) => drop(doubt.upgrade().map(|doubt| doubt.raise())),
            }
        }
    }
}

/// How long a sign of life may take that comes by a way of this round-trip time.
pub fn patience(rtt: Duration) -> Duration {
    (rtt * TRIPS).max(LEAST)
}

/// Ends a connection whose peer gives no sign of life.
///
async fn prove(peer: &str, connection: QuicConnection) {
    let patience = patience(connection.rtt());
    let heard = |connection: &QuicConnection| connection.stats().udp_rx.datagrams;
    let before = heard(&connection);
    connection.ping();
    tokio::select! {
        () = time::sleep(patience) => {}
        _ = connection.closed() => return,
    }
    if heard(&connection) == before {
        tracing::info!(peer, "a peer that has come again says nothing of its earlier tunnel");
        connection.close(Code::NO_ERROR);
    }
}
