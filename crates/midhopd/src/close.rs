//! Carries each end's way of ending to the other.
//!
//! Ends of streams are passed on by the relay, each after its last byte. What is left here is how
//! the two sockets go: after an orderly end without losing what they still have to send, after a
//! broken one with a reset.

use crate::relay::Carried;
use crate::sockopt;
use socket2::SockRef;
use std::time::Duration;
use tokio::net::TcpStream;

/// The first pause between two looks at a queue that drains; it doubles up to the last.
const FIRST_LOOK: Duration = Duration::from_millis(10);
const LAST_LOOK: Duration = Duration::from_secs(1);

/// Closes both sockets as the flow ended.
pub async fn close(client: TcpStream, server: TcpStream, carried: &Carried) {
    match &carried.outcome {
        Ok(()) => {
            tokio::join!(depart(client), depart(server));
        }
        // Both sockets reset when they are dropped: see `leg::apply`.
        Err(_) => drop((client, server)),
    }
}

/// Lets go of a socket whose both directions have ended. A closed socket with unsent data is an
/// orphan, which the kernel gives up after a few minutes of a closed window: so it is closed only
/// when its far end has room for all that is left.
async fn depart(stream: TcpStream) {
    let mut pause = FIRST_LOOK;
    while sockopt::unsent(&stream).is_ok_and(|bytes| bytes > 0) {
        tokio::select! {
            _ = crate::relay::broken(&stream) => return,
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(LAST_LOOK),
        }
    }
    if let Err(error) = SockRef::from(&stream).set_linger(None) {
        tracing::warn!(%error, "a flow that ended in order may be reset");
    }
}
