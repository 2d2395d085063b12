//! Forwards each end's way of ending to the other.
//!
//! The relay forwards the first end of a stream after its last byte, and a reset only after the bytes that the broken
//! end had sent. This module closes the two sockets. After an orderly end, which is sent to the second socket here,
//! they lose nothing that they still have to send. After a broken one they are reset.
//!
//! Invariant: a flow that ended in order leaves the kernel no orphan while its far end responds. An orphan is a
//! socket that is closed before its far end has acknowledged everything, the FIN included. Beyond
//! `net.ipv4.tcp_max_orphans` the kernel resets orphans: on a host of 1 GiB with a satellite behind it, that many
//! flows end within seconds.

use crate::coarse_timer::CoarseTimer;
use crate::ends::RelayOutcome;
use crate::ends::Side;
use crate::leg::Sample;
use nix::sys::socket::{Shutdown, shutdown};
use socket2::SockRef;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// The shortest pause between two checks of a socket with unacknowledged data.
pub const FIRST_LOOK: Duration = Duration::from_millis(1);
/// The longest such pause.
pub const LAST_LOOK: Duration = Duration::from_secs(1);

/// A socket that has nothing to do any more. Dropping it closes it.
pub type Departed = std::net::TcpStream;

/// Closes both sockets as the flow ended. `last` has the kernel's latest statistics of each. A far
/// end that acknowledges nothing for `linger` is left to the kernel. After an orderly end the
/// sockets are returned once both are done, and neither is closed before: if this process dies
/// meanwhile, the next one needs both.
pub async fn close(
    client: TcpStream,
    server: TcpStream,
    last: [Option<Sample>; 2],
    carried: &RelayOutcome,
    linger: Duration,
    timer: &CoarseTimer,
) -> [Option<Departed>; 2] {
    match &carried.outcome {
        Ok(end_unsent) => {
            let [of_client, of_server] = last;
            let end_sent = |side| *end_unsent != side;
            tokio::join!(
                depart(client, of_client, end_sent(Side::Client), linger, timer),
                depart(server, of_server, end_sent(Side::Server), linger, timer)
            )
            .into()
        }
        // Both sockets reset when they are dropped: see `leg::guard`.
        Err(_) => {
            drop((client, server));
            [None, None]
        }
    }
}

/// Closes the socket of a flow whose other side is a stream, as the flow ended. Its far end has been informed.
pub async fn close_one(
    stream: TcpStream,
    last: Option<Sample>,
    carried: &RelayOutcome,
    linger: Duration,
    timer: &CoarseTimer,
) {
    match carried.outcome {
        Ok(_) => drop(depart(stream, last, true, linger, timer).await),
        Err(_) => drop(stream),
    }
}

/// Waits until the far end of a socket whose two directions have ended has acknowledged everything. Unless the end was
/// already sent to it (`end_sent`), it is sent here.
async fn depart(
    stream: TcpStream,
    last: Option<Sample>,
    end_sent: bool,
    linger: Duration,
    timer: &CoarseTimer,
) -> Option<Departed> {
    if last.is_some_and(|sample| sample.closed) {
        return stream.into_std().ok();
    }
    // The far end receives the FIN after the bytes before it.
    if !end_sent && shutdown(stream.as_raw_fd(), Shutdown::Write).is_err() {
        return stream.into_std().ok();
    }
    // From here on, the socket's events bring nothing new, and would only wake the thread. Removing
    // the socket from the event loop fails only if it is not registered there.
    let stream = stream.into_std().ok()?;
    if !drain(&stream, last, linger, timer).await
        && let Err(error) = SockRef::from(&stream).set_linger(None)
    {
        tracing::warn!(%error, "SO_LINGER could not be cleared: a flow that ended in order may be reset");
    }
    Some(stream)
}

/// Waits until the far end has acknowledged all written bytes and the FIN, which closes the connection. `false`: it
/// has acknowledged nothing for `linger` though all was sent.
async fn drain(
    stream: &std::net::TcpStream,
    mut last: Option<Sample>,
    linger: Duration,
    timer: &CoarseTimer,
) -> bool {
    // An acknowledgement takes a round trip.
    let rtt = last.map_or(0, |sample| sample.rtt_us);
    let mut pause = Duration::from_micros(rtt.into()).clamp(FIRST_LOOK, LAST_LOOK);
    let mut since = Instant::now();
    loop {
        timer.after(pause).await;
        pause = (pause * 2).min(LAST_LOOK);
        // A broken socket is closed as well.
        let Some(now) = Sample::of(stream) else { return true };
        if now.closed {
            return true;
        }
        // A far end whose window is closed is alive, and may read as slowly as it likes.
        if now.unsent > 0 || last.is_none_or(|last| last.sent != now.sent) {
            since = Instant::now();
        } else if since.elapsed() >= linger {
            return false;
        }
        last = Some(now);
    }
}
