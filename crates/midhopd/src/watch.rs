//! Looks at live flows now and then, so that long ones show in the metrics before they end, and has
//! the kernel keep alive those that have come to some age. Most flows never do.
//!
//! Invariant: one look costs at most `LOOKS` flows' worth of questions to the kernel, however many
//! there are, and what those need that have just come of age; and it is over before any flow of this
//! thread goes on.

use crate::flow::Side;
use crate::ledger::{FlowBook, Ledger};
use crate::leg;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval};

/// How often there is a look, and the age at which a flow is kept alive.
const PERIOD: Duration = Duration::from_secs(1);
/// Flows looked at each time, in turn.
const LOOKS: usize = 256;

/// The live flows of one thread.
#[derive(Debug, Default)]
pub struct Watch {
    flows: RefCell<Slab<(Arc<FlowBook>, Rc<Sides>)>>,
    next: Cell<usize>,
    /// Places of flows in the order in which they began; some have ended since, or have become
    /// another flow's.
    young: RefCell<VecDeque<(usize, Instant)>>,
}

#[derive(Debug)]
struct Sides {
    client: TcpStream,
    server: TcpStream,
}

impl Watch {
    /// Watches a flow until what is given is released or dropped.
    pub fn add(&self, book: &Arc<FlowBook>, client: TcpStream, server: TcpStream) -> Watched<'_> {
        let sides = Rc::new(Sides { client, server });
        let key = self.flows.borrow_mut().insert((book.clone(), sides.clone()));
        self.young.borrow_mut().push_back((key, book.since));
        Watched { sides, _seat: Seat { watch: self, key } }
    }

    /// Looks at some flows each second, for ever.
    pub async fn look(&self, ledger: &Ledger) -> Infallible {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.keep_alive(Instant::now());
            self.look_once(ledger);
        }
    }

    /// Has the kernel keep alive what has lived for a period.
    fn keep_alive(&self, now: Instant) {
        let flows = self.flows.borrow();
        let mut young = self.young.borrow_mut();
        while let Some(&(key, since)) = young.front().filter(|(_, since)| *since + PERIOD <= now) {
            young.pop_front();
            let Some((book, sides)) = flows.get(key).filter(|(book, _)| book.since == since) else {
                continue;
            };
            for (stream, wanted) in
                [(&sides.client, &book.client_keepalive), (&sides.server, &book.server_keepalive)]
            {
                if let Err(error) = leg::keep_alive(stream, wanted) {
                    tracing::debug!(ends = ?book.ends, %error, "a flow has no keep-alive");
                }
            }
        }
    }

    fn look_once(&self, ledger: &Ledger) {
        let flows = self.flows.borrow();
        let places = flows.capacity();
        for _ in 0..places.min(LOOKS) {
            let key = self.next.get() % places;
            self.next.set(key + 1);
            if let Some((book, sides)) = flows.get(key) {
                ledger.sample(book, Side::Client, &sides.client);
                ledger.sample(book, Side::Server, &sides.server);
            }
        }
    }
}

/// A flow that is watched.
#[derive(Debug)]
pub struct Watched<'a> {
    sides: Rc<Sides>,
    _seat: Seat<'a>,
}

impl Watched<'_> {
    /// Its sockets: the client's, the server's.
    pub fn sides(&self) -> (&TcpStream, &TcpStream) {
        (&self.sides.client, &self.sides.server)
    }

    /// Ends the watching and gives the sockets back.
    pub fn release(self) -> Option<(TcpStream, TcpStream)> {
        let Self { sides, _seat: seat } = self;
        drop(seat);
        Rc::into_inner(sides).map(|sides| (sides.client, sides.server))
    }
}

/// A place among the watched; dropping it leaves.
#[derive(Debug)]
struct Seat<'a> {
    watch: &'a Watch,
    key: usize,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.watch.flows.borrow_mut().try_remove(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Ends;
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
        let book = Arc::new(FlowBook::new(Ends { client, server: address }, leg, leg));
        let watch = Watch::default();
        let watched = watch.add(&book, near, far);
        let kept = |stream: &TcpStream| SockRef::from(stream).keepalive();
        watch.keep_alive(book.since + PERIOD / 2);
        assert!(!kept(watched.sides().0)? && !kept(watched.sides().1)?, "still young");
        watch.keep_alive(book.since + PERIOD);
        assert!(kept(watched.sides().0)? && kept(watched.sides().1)?);
        drop(watched);
        assert!(watch.young.borrow().is_empty());
        Ok(())
    }
}
