//! How much silence of a peer its incoming connection tolerates.
//!
//! QUIC settles this in the handshake, before the peer is identified. So each connection is probed as often as the
//! most impatient of the peers wants, and tolerates as much silence as the most patient one. The peer's own limit is
//! enforced here.

use super::quic::QuicConnection;
use midhop_pep::config::PeerPlan;
use midhop_tunnel::http3::Code;
use std::time::Duration;
use tokio::time;

/// Number of checks within the permitted silence.
const LOOKS: u32 = 8;
/// Number of round trips within which no response can be expected.
const TRIPS: u32 = 3;

/// The plan for admitting a peer that may be any of the peers, and `peer` most likely.
pub fn of_anybody(peer: &PeerPlan, peers: &[PeerPlan]) -> PeerPlan {
    let mut anybody = peer.clone();
    for other in peers {
        anybody.keepalive = anybody.keepalive.min(other.keepalive);
        anybody.timeout = anybody.timeout.max(other.timeout);
    }
    anybody
}

/// Closes a connection whose peer has sent nothing for as long as its table permits. Returns when the connection is
/// gone.
pub async fn end(connection: QuicConnection, peer: PeerPlan) {
    let timeout = Duration::from(peer.timeout);
    let (mut last, mut since, mut silent) = (received(&connection), time::Instant::now(), 0);
    loop {
        tokio::select! {
            () = time::sleep(timeout / LOOKS) => {}
            _ = connection.closed() => return,
        }
        let now = received(&connection);
        if now != last {
            (last, since, silent) = (now, time::Instant::now(), 0);
            continue;
        }
        // What arrives while this process does not run is not read. So such a time counts as one
        // check.
        silent += 1;
        if silent >= LOOKS && since.elapsed() >= timeout.max(connection.rtt() * TRIPS) {
            tracing::info!(peer = peer.name, timeout = %peer.timeout, "a connection is closed: nothing was received from the peer within its timeout");
            return connection.close(Code::NO_ERROR);
        }
    }
}

/// Counts what only the peer can have sent: the datagram count also includes noise.
fn received(connection: &QuicConnection) -> u64 {
    let frames = connection.stats().frame_rx;
    frames.acks + frames.stream + frames.ping
}

/// Waits for `patience`, in several parts. If this process does not run for a time, that ends at
/// most one part: what arrived meanwhile is read in the others.
pub async fn wait(patience: Duration) {
    for _ in 0..LOOKS {
        time::sleep(patience / LOOKS).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    #[tokio::test(start_paused = true)]
    async fn a_stall_is_not_all_of_the_silence() {
        const PATIENCE: Duration = Duration::from_secs(8);
        let mut waiting = pin!(wait(PATIENCE));
        assert!(time::timeout(Duration::ZERO, &mut waiting).await.is_err());
        time::advance(PATIENCE * 10).await;
        let most = PATIENCE - PATIENCE / LOOKS;
        let early = time::timeout(most - Duration::from_millis(100), &mut waiting).await;
        assert!(early.is_err(), "only one part has passed");
        assert!(time::timeout(Duration::from_secs(1), &mut waiting).await.is_ok());
    }
}
