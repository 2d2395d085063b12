//! Moves a flow's bytes both ways until both ends have ended, or one of them broke.

pub mod count;
mod direction;
pub mod late;
mod pipe;
mod share;
pub mod start;

use crate::ends::{Broken, RelayOutcome, Side};
use crate::flow_sampler::BothLegs;
use crate::ledger::{FlowBook, Ledger};
use crate::leg::BoundedWindow;
use crate::survival::store::Scratch;
use direction::Direction;
use midhop_linux::sockopt;
use midhop_pep::budget::Budget;
use midhop_pep::config::LegPlan;
use midhop_pep::credit::Shares;
pub use pipe::{Pipe, PipePool};
pub use share::Pools;
use share::RateShare;
use start::Start;
pub use start::StartDirection;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::task::yield_now;

/// What the flows of one worker share while they relay.
#[derive(Debug)]
pub struct RelayContext {
    /// A buffer for small reads. No flow keeps anything in it.
    pub scratch: RefCell<Scratch>,
    /// The pipes for bulk data.
    pub pipes: PipePool,
    /// What all flows of all workers may hold.
    pub budget: Arc<Budget>,
    /// How the flows of all workers divide the legs of known rate.
    pub pools: Arc<Pools>,
    /// Where waits are booked.
    pub ledger: Arc<Ledger>,
}

/// What may be held between the two sockets of a flow, by the leg that it is sent into.
#[derive(Debug)]
pub struct Stages {
    /// On its way to the client.
    pub client: Stage,
    /// On its way to the server.
    pub server: Stage,
}

/// What one direction of a flow may hold and send.
#[derive(Debug)]
pub struct Stage {
    /// Unit: bytes. The most that waits between the sockets.
    pub bytes: usize,
    /// Its share of the leg's rate, if the rate is divided.
    share: Option<Box<RateShare>>,
}

impl RelayContext {
    /// A context for one worker, which lends at most `pipes` pipes.
    pub fn new(pipes: usize, budget: Arc<Budget>, pools: Arc<Pools>, ledger: Arc<Ledger>) -> Self {
        Self { scratch: RefCell::default(), pipes: PipePool::new(pipes), budget, pools, ledger }
    }
}

impl Stages {
    /// The stages of a flow between two legs.
    pub fn of(client: &LegPlan, server: &LegPlan, context: &RelayContext) -> Self {
        let stage = |leg: &LegPlan| Stage {
            bytes: usize::try_from(Shares::of(leg.buffer).stage.get()).unwrap_or(usize::MAX),
            share: RateShare::of(leg, &context.pools),
        };
        Self { client: stage(client), server: stage(server) }
    }
}

/// Relays from `start` on until both directions have ended or one side breaks. What a broken side
/// sent before has reached the other when this returns, unless that acknowledges nothing for
/// `linger`.
pub async fn relay(
    legs: &BothLegs,
    stages: Stages,
    start: Start,
    book: &FlowBook,
    context: &RelayContext,
    linger: Duration,
) -> Relayed {
    let BothLegs { client, server, windows, halt } = legs;
    let (mut up, mut down, mut broke) = begin(windows, stages, start);
    let mut client_broken = pin!(broken(client));
    let mut server_broken = pin!(broken(server));
    let outcome = poll_fn(|cx| {
        if let Some(side) = broke.take() {
            let error = io::ErrorKind::ConnectionReset.into();
            return Poll::Ready(Some(Err(Broken { side, error })));
        }
        // No byte is on its way between two system calls here.
        if halt.poll_asked(cx) {
            return Poll::Ready(None);
        }
        // Moving goes first, so that what a side sent before its reset is handed on. Closing the
        // sockets sends the later of the two ends.
        let up_is_last = down.is_done();
        let upwards = match up.poll_move(cx, client, server, up_is_last, &book.up, context) {
            Poll::Ready(Err(broken)) => return Poll::Ready(Some(Err(broken))),
            upwards => upwards,
        };
        let downwards = match down.poll_move(cx, server, client, up.is_done(), &book.down, context)
        {
            Poll::Ready(Err(broken)) => return Poll::Ready(Some(Err(broken))),
            downwards => downwards,
        };
        if upwards.is_ready() && downwards.is_ready() {
            let last = if up_is_last { Side::Server } else { Side::Client };
            return Poll::Ready(Some(Ok(last)));
        }
        // If a side is being read, reading reports that it broke.
        if !up.is_reading()
            && let Poll::Ready(error) = client_broken.as_mut().poll(cx)
        {
            return Poll::Ready(Some(Err(Broken { side: Side::Client, error })));
        }
        if !down.is_reading()
            && let Poll::Ready(error) = server_broken.as_mut().poll(cx)
        {
            return Poll::Ready(Some(Err(Broken { side: Side::Server, error })));
        }
        Poll::Pending
    })
    .await;
    let Some(outcome) = outcome else {
        let ((to_server, up), (to_client, down)) = (up.stop(), down.stop());
        let stages = Stages { client: to_client, server: to_server };
        return Relayed::Halted(Box::new(Halted { stages, left: [up, down] }));
    };
    match &outcome {
        Err(Broken { side: Side::Client, .. }) => {
            down.leave(context);
            late::deliver(&mut up, client, server, &book.up, context, linger).await;
        }
        Err(Broken { side: Side::Server, .. }) => {
            up.leave(context);
            late::deliver(&mut down, server, client, &book.down, context, linger).await;
        }
        Ok(_) => {}
    }
    up.leave(context);
    down.leave(context);
    Relayed::Ended(RelayOutcome { outcome })
}

/// Yields to other tasks until the worker has polled for events. What has arrived meanwhile, for other flows or for a
/// tunnel, goes first: a task that wakes itself is run some sixty times before.
pub fn yield_turn<T>(cx: &mut Context<'_>) -> Poll<T> {
    let _yielded = pin!(yield_now()).poll(cx);
    Poll::Pending
}

/// How relaying ended.
#[derive(Debug)]
pub enum Relayed {
    /// With the flow.
    Ended(RelayOutcome),
    /// The flow stands still: see [`Halt`](crate::relocation::halt::Halt).
    Halted(Box<Halted>),
}

/// A flow that stands still. The kernel has every byte of it: in a socket's queue, or in a pipe.
#[derive(Debug)]
pub struct Halted {
    /// Its stages.
    pub stages: Stages,
    /// What it has left to do, up and down.
    pub left: [StartDirection; 2],
}

/// The two directions of a flow, and the side that broke before.
fn begin(
    [client, server]: &[BoundedWindow; 2],
    stages: Stages,
    start: Start,
) -> (Direction<'_>, Direction<'_>, Option<Side>) {
    let Start { entry, broke, left } = start;
    let [up, down] = left.map(|both| *both).unwrap_or_default();
    let up = Direction::new(Side::Client, client, stages.server, up, entry.clone());
    (up, Direction::new(Side::Server, server, stages.client, down, entry), broke)
}

/// Waits until a connection breaks, even while nobody reads it because the other side is full.
pub async fn broken(stream: &TcpStream) -> io::Error {
    loop {
        if let Err(error) = stream.ready(Interest::ERROR).await {
            return error;
        }
        match sockopt::take_error(stream) {
            Ok(Some(error)) | Err(error) => return error,
            // The socket's error queue has a report, such as a passing ICMP message, which does not
            // end the connection.
            Ok(None) => {
                let _ = stream.try_io(Interest::ERROR, || -> io::Result<()> {
                    Err(io::ErrorKind::WouldBlock.into())
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;
    use tokio::net::UdpSocket;
    use tokio::task::{LocalSet, spawn_local};

    /// As on a worker: its tasks are one of the runtime's.
    #[test]
    fn what_has_arrived_comes_before_the_next_turn() -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        LocalSet::new().block_on(&runtime, async {
            let near = UdpSocket::bind("127.0.0.1:0").await?;
            let (address, turns) = (near.local_addr()?, Rc::new(Cell::new(0)));
            let seen = turns.clone();
            let reader = spawn_local(async move {
                near.recv(&mut [0]).await?;
                Ok::<_, io::Error>(seen.get())
            });
            // It waits by then.
            yield_now().await;
            std::net::UdpSocket::bind("127.0.0.1:0")?.send_to(&[0], address)?;
            let busy = poll_fn(move |cx| {
                turns.set(turns.get() + 1);
                if turns.get() == 1000 { Poll::Ready(()) } else { yield_turn(cx) }
            });
            spawn_local(busy).await?;
            let turns = reader.await??;
            assert!(turns <= 2, "{turns} turns before what had arrived");
            Ok(())
        })
    }
}
