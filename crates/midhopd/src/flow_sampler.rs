//! Samples live flows at intervals, so that long flows show in the metrics before they end. It also
//! turns on the kernel's keep-alive for flows of a certain age, which most flows never reach, and
//! bounds the windows of idle flows.
//!
//! Invariant: one round queries the kernel for at most `LOOKS` flows, however many there are, and
//! for the flows that have just reached that age. Of either kind, it handles at most `BATCH` flows
//! before the flows of this thread go on.
//!
//! Decision 0013.

use crate::ends::Side;
use crate::ledger::{FlowBook, Ledger};
use crate::leg::{self, BoundedWindow};
use crate::relocation::halt::Halt;
use crate::relocation::order::{FlowRequest, FlowRequests};
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::task::yield_now;
use tokio::time::{MissedTickBehavior, interval};

/// Interval of the rounds, and the age at which a flow gets keep-alive.
const PERIOD: Duration = Duration::from_secs(1);
/// Flows sampled in each round, in turn.
const LOOKS: usize = 256;
/// Flows handled before others of the thread have their turn: each takes some ten system calls.
const BATCH: usize = 16;

/// The live flows of one thread.
#[derive(Debug, Default)]
pub struct FlowSampler {
    flows: RefCell<Slab<Seen>>,
    next: Cell<usize>,
    /// Keys of flows, in the order in which the flows began. Some flows have ended since, and their
    /// keys may belong to other flows now.
    young: RefCell<VecDeque<(usize, Instant)>>,
}

/// A flow and its sockets.
type Seen = (Arc<FlowBook>, Rc<dyn Sockets>);

/// The sockets of a flow.
pub trait Sockets: fmt::Debug {
    /// Each socket, with its side and its window.
    fn each(&self) -> [Option<(Side, &TcpStream, &BoundedWindow)>; 2];

    /// Where the flow is asked to stand still; none: it cannot move.
    fn halt(&self) -> Option<&Halt> {
        None
    }
}

/// The sockets of a flow that is split here.
#[derive(Debug)]
pub struct BothLegs {
    /// The client's.
    pub client: TcpStream,
    /// The server's.
    pub server: TcpStream,
    /// Their windows, in this order.
    pub windows: [BoundedWindow; 2],
    /// Where the flow is asked to stand still.
    pub halt: Halt,
}

impl Sockets for BothLegs {
    fn each(&self) -> [Option<(Side, &TcpStream, &BoundedWindow)>; 2] {
        let [client, server] = &self.windows;
        [Some((Side::Client, &self.client, client)), Some((Side::Server, &self.server, server))]
    }

    fn halt(&self) -> Option<&Halt> {
        Some(&self.halt)
    }
}

/// The socket of a flow whose other side is a stream.
#[derive(Debug)]
pub struct One {
    /// Its side.
    pub side: Side,
    /// The socket.
    pub stream: TcpStream,
    /// Its window.
    pub window: BoundedWindow,
}

impl Sockets for One {
    fn each(&self) -> [Option<(Side, &TcpStream, &BoundedWindow)>; 2] {
        [Some((self.side, &self.stream, &self.window)), None]
    }
}

impl FlowSampler {
    /// Samples a flow until the returned value is released or dropped.
    pub fn add<S: Sockets + 'static>(&self, book: &Arc<FlowBook>, sides: S) -> SampledFlow<'_, S> {
        let sides = Rc::new(sides);
        let key = self.flows.borrow_mut().insert((book.clone(), sides.clone()));
        self.young.borrow_mut().push_back((key, book.since));
        SampledFlow { sides, _seat: Seat { sampler: self, key } }
    }

    /// Asks flows to stand still, or copies what they hold. Requests to flows that are not here any more are dropped.
    pub fn ask(&self, asked: FlowRequests) {
        let flows = self.flows.borrow();
        for (book, request) in asked {
            // They are asked one at a time, mostly: looking for one of many is comparing addresses.
            let found = flows.iter().find(|(_, (other, _))| Arc::as_ptr(other).addr() == book);
            let Some((_, (_, sides))) = found else { continue };
            match (request, sides.halt()) {
                (FlowRequest::Halt(request), Some(halt)) => halt.ask(request),
                (FlowRequest::Copy(request), Some(_)) => request.serve(&**sides),
                // It cannot move.
                (_, None) => {}
            }
        }
    }

    /// Samples some flows each second, for ever.
    pub async fn look(&self, ledger: &Ledger) -> Infallible {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = Instant::now();
            while self.keep_alive(now) {
                yield_now().await;
            }
            let mut left = self.flows.borrow().capacity().min(LOOKS);
            while left > 0 {
                let some = left.min(BATCH);
                self.look_once(ledger, some);
                left -= some;
                yield_now().await;
            }
        }
    }

    /// Turns on the kernel's keep-alive for some of the flows that have reached the age. Returns
    /// whether there are more.
    fn keep_alive(&self, now: Instant) -> bool {
        let flows = self.flows.borrow();
        let mut young = self.young.borrow_mut();
        let is_of_age = |(_, since): &&(usize, Instant)| *since + PERIOD <= now;
        for _ in 0..BATCH {
            let Some(&(key, since)) = young.front().filter(is_of_age) else { return false };
            young.pop_front();
            let Some((book, sides)) = flows.get(key).filter(|(book, _)| book.since == since) else {
                continue;
            };
            for (side, stream, _) in sides.each().into_iter().flatten() {
                let wanted = &book.party(side).keepalive;
                if let Err(error) = leg::keep_alive(stream, wanted) {
                    tracing::debug!(ends = ?book.ends, %error, "TCP keepalive could not be set for a flow");
                }
            }
        }
        true
    }

    /// Samples the flows at this many keys, in turn.
    fn look_once(&self, ledger: &Ledger, count: usize) {
        let flows = self.flows.borrow();
        // The number of flows may have changed since the last call.
        let places = flows.capacity().max(1);
        for _ in 0..count {
            let key = self.next.get() % places;
            self.next.set(key + 1);
            if let Some((book, sides)) = flows.get(key) {
                for (side, stream, window) in sides.each().into_iter().flatten() {
                    ledger.sample(book, side, stream);
                    window.look_again(stream, &ledger.windows_bounded);
                }
            }
        }
    }
}

/// A flow that is sampled.
#[derive(Debug)]
pub struct SampledFlow<'a, S> {
    sides: Rc<S>,
    _seat: Seat<'a>,
}

impl<S> SampledFlow<'_, S> {
    /// Its sockets.
    pub fn sides(&self) -> &S {
        &self.sides
    }

    /// Ends the sampling and returns the sockets.
    pub fn release(self) -> Option<S> {
        let Self { sides, _seat: seat } = self;
        drop(seat);
        Rc::into_inner(sides)
    }
}

/// A place among the sampled flows. Dropping it frees the place.
#[derive(Debug)]
struct Seat<'a> {
    sampler: &'a FlowSampler,
    key: usize,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.sampler.flows.borrow_mut().try_remove(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ends::Ends;
    use midhop_pep::config::Plan;
    use socket2::SockRef;

    #[tokio::test]
    async fn a_flow_that_came_of_age_is_kept_alive() -> std::io::Result<()> {
        let plan = Plan::read("test.toml", "[intercept]\ninterfaces = \"lan0\"\n").expect("a plan");
        let leg = &plan.legs[0];
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let near = TcpStream::connect(address).await?;
        let (far, client) = listener.accept().await?;
        let book =
            Arc::new(FlowBook::new(Ends { client, server: address }, leg.into(), leg.into()));
        let windows = [(); 2].map(|()| BoundedWindow::new(Some(leg)));
        let sampler = FlowSampler::default();
        let sampled = sampler
            .add(&book, BothLegs { client: near, server: far, windows, halt: Halt::default() });
        let BothLegs { client: near, server: far, .. } = sampled.sides();
        let kept = |stream: &TcpStream| SockRef::from(stream).keepalive();
        sampler.keep_alive(book.since + PERIOD / 2);
        assert!(!kept(near)? && !kept(far)?, "still young");
        sampler.keep_alive(book.since + PERIOD);
        assert!(kept(near)? && kept(far)?);
        drop(sampled);
        assert!(sampler.young.borrow().is_empty());
        Ok(())
    }

    #[test]
    fn flows_that_come_of_age_together_are_looked_at_a_few_at_a_time() {
        let sampler = FlowSampler::default();
        let begun = Instant::now();
        sampler.young.borrow_mut().extend((0..100).map(|key| (key, begun)));
        let mut turns = 0;
        while sampler.keep_alive(begun + PERIOD) {
            turns += 1;
            assert_eq!(sampler.young.borrow().len(), 100_usize.saturating_sub(turns * BATCH));
        }
        assert!(turns >= 100 / BATCH && sampler.young.borrow().is_empty());
    }
}
