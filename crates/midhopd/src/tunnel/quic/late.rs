//! Sends the reset of a stream behind the bytes that were put before it.
//!
//! RESET_STREAM overtakes data that is on its way (RFC 9000 §19.4), and a peer may drop what it has
//! not read by then. So the reset waits until QUIC has acknowledged as much as had been written.
//! Then it waits for a while longer: for lost data that is sent again, and for a peer that still
//! has to read its data.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// Interval between two checks of what was acknowledged, in parts of a round trip, with its bounds.
const LOOKS_PER_TRIP: u32 = 8;
const LOOK_LEAST: Duration = Duration::from_millis(5);
const LOOK_MOST: Duration = Duration::from_millis(100);
/// How long the peer has to read after that, and round trips for data that is sent again meanwhile.
const GRACE: Duration = Duration::from_millis(250);
const TRIPS: u32 = 3;

/// A reset that waits.
#[derive(Debug)]
pub struct LateReset {
    /// Unit: bytes. Written on the connection before it.
    written: u64,
    has_arrived: bool,
    pause: Pin<Box<Sleep>>,
}

impl LateReset {
    /// Creates a reset behind what was written on its connection so far.
    pub fn behind(written: u64) -> Self {
        Self { written, has_arrived: false, pause: Box::pin(sleep(Duration::ZERO)) }
    }

    /// Waits until it may be sent.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        rtt: impl Fn() -> Duration,
        has_arrived: impl Fn(u64) -> bool,
    ) -> Poll<()> {
        loop {
            ready!(self.pause.as_mut().poll(cx));
            if self.has_arrived {
                return Poll::Ready(());
            }
            self.has_arrived = has_arrived(self.written);
            let pause = if self.has_arrived {
                GRACE + rtt() * TRIPS
            } else {
                (rtt() / LOOKS_PER_TRIP).clamp(LOOK_LEAST, LOOK_MOST)
            };
            self.pause.as_mut().reset(Instant::now() + pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::future::poll_fn;

    #[tokio::test(start_paused = true)]
    async fn it_waits_for_what_was_written_and_for_the_peer() {
        const RTT: Duration = Duration::from_millis(600);
        let (arrived, begin) = (Cell::new(99), Instant::now());
        let mut late = LateReset::behind(100);
        let mut wait = async |most: Duration| {
            let poll = poll_fn(|cx| late.poll(cx, || RTT, |written| arrived.get() >= written));
            tokio::time::timeout(most, poll).await
        };
        assert!(wait(Duration::from_secs(50)).await.is_err(), "a byte is missing");
        arrived.set(100);
        assert!(wait(RTT * TRIPS).await.is_err(), "it may be another byte");
        assert!(wait(Duration::from_secs(50)).await.is_ok());
        assert!(begin.elapsed() < Duration::from_secs(53));
    }
}
