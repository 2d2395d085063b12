//! Carries each end's way of ending to the other.
//!
//! The first end of a stream is passed on by the relay, after its last byte. What is left here is how
//! the two sockets go: after an orderly end, which closing passes on to the second, without losing
//! what they still have to send; after a broken one with a reset.

use crate::flow::Side;
use crate::leg::Sample;
use crate::relay::Carried;
use crate::sockopt;
use nix::sys::socket::{Shutdown, shutdown};
use socket2::SockRef;
use std::os::fd::AsRawFd;
use std::time::Duration;
use tokio::net::TcpStream;

/// The first pause between two looks at a queue that drains; it doubles up to the last.
const FIRST_LOOK: Duration = Duration::from_millis(10);
const LAST_LOOK: Duration = Duration::from_secs(1);

/// Closes both sockets as the flow ended. `last` is what the kernel said of each just now.
pub async fn close(
    client: TcpStream,
    server: TcpStream,
    last: [Option<Sample>; 2],
    carried: &Carried,
) {
    match &carried.outcome {
        Ok(last_told) => {
            let [of_client, of_server] = last;
            let told = |side| *last_told != side;
            tokio::join!(
                depart(client, of_client, told(Side::Client)),
                depart(server, of_server, told(Side::Server))
            );
        }
        // Both sockets reset when they are dropped: see `leg::guard`.
        Err(_) => drop((client, server)),
    }
}

/// Closes the socket of a flow whose other side is a stream, as the flow ended. Its far end has been told.
pub async fn close_one(stream: TcpStream, last: Option<Sample>, carried: &Carried) {
    match carried.outcome {
        Ok(_) => depart(stream, last, true).await,
        Err(_) => drop(stream),
    }
}

/// Lets go of a socket whose both directions have ended; where its far end has not been `told` of the
/// end, closing tells it. A closed socket with unsent data is an orphan, which the kernel gives up
/// after a few minutes of a closed window: so it is closed only when its far end has room for all
/// that is left.
async fn depart(stream: TcpStream, last: Option<Sample>, told: bool) {
    if last.is_some_and(|sample| sample.closed) {
        return;
    }
    if last.is_none_or(|sample| sample.unsent > 0) {
        // It learns of the end as soon as it has read what comes before.
        if !told && shutdown(stream.as_raw_fd(), Shutdown::Write).is_err() {
            return;
        }
        drain(&stream).await;
    }
    if let Err(error) = SockRef::from(&stream).set_linger(None) {
        tracing::warn!(%error, "a flow that ended in order may be reset");
    }
}

/// Waits until the kernel has sent all that was written, or the connection breaks.
async fn drain(stream: &TcpStream) {
    let mut pause = FIRST_LOOK;
    while sockopt::unsent(stream).is_ok_and(|bytes| bytes > 0) {
        tokio::select! {
            _ = crate::relay::broken(stream) => return,
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(LAST_LOOK),
        }
    }
}
