//! Looks at live flows now and then, so that long ones show in the metrics before they end.
//!
//! Invariant: one look costs at most `LOOKS` flows' worth of questions to the kernel, however many
//! there are; and it is over before any flow of this thread goes on.

use crate::ledger::{FlowBook, Ledger};
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval};

/// How often there is a look.
const PERIOD: Duration = Duration::from_secs(1);
/// Flows looked at each time, in turn.
const LOOKS: usize = 256;

/// The live flows of one thread.
#[derive(Debug, Default)]
pub struct Watch {
    flows: RefCell<Slab<(Arc<FlowBook>, Rc<Sides>)>>,
    next: Cell<usize>,
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
        Watched { sides, _seat: Seat { watch: self, key } }
    }

    /// Looks at some flows each second, for ever.
    pub async fn look(&self, ledger: &Ledger) -> Infallible {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look_once(ledger);
        }
    }

    fn look_once(&self, ledger: &Ledger) {
        let flows = self.flows.borrow();
        let places = flows.capacity();
        for _ in 0..places.min(LOOKS) {
            let key = self.next.get() % places;
            self.next.set(key + 1);
            if let Some((book, sides)) = flows.get(key) {
                ledger.sample(book, &sides.client, &sides.server);
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
