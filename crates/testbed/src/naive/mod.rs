//! A deliberately naive proxy on kernel sockets: what a scenario's `[naive.NAME]` is on a testbed.
//!
//! It exists only for comparison, and only on nodes of the laboratory. It intercepts every
//! connection that passes its node, answers the client before it is connected to the server, and
//! goes on reading whatever it holds already. All flows share one store. When the store is full,
//! the flow that holds the most is reset on both sides.
//!
//! ```text
//! intercept   SYNs that pass → a listener per link
//! flow        one task: two sockets, two queues without bound
//! store       what each flow holds; who is to go
//! socket      window, congestion control and rate of a leg's sockets
//! ```
//! Differs from the simulator's: the kernel repairs losses in its usual way, never by a timer
//! alone.
//!
//! Invariant: data counts as held from when it is read until the far end has acknowledged it.

mod flow;
mod intercept;
mod socket;
mod store;

use flow::{Far, Flow};
use intercept::{Entrance, Interception};
use midhop_experiment::plan::PlannedNode;
use midhop_units::{Bytes, Rate};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use store::Store;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// The size of one read at most. Unit: bytes.
const READ: usize = 64 << 10;

/// Options of a naive proxy.
#[derive(Debug, Clone, PartialEq)]
pub struct NaiveOptions {
    /// Its node. The caller is in that node's network namespace.
    pub node: PlannedNode,
    /// Size of the store for all flows together.
    pub buffer: Bytes,
    /// Its connections over each link of the node.
    pub legs: BTreeMap<String, NaiveLegOptions>,
}

/// The sockets of a naive proxy over one link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NaiveLegOptions {
    /// The window that is always offered.
    pub window: Bytes,
    /// Congestion control, as the kernel names it.
    pub congestion: String,
    /// Pacing rate of a socket; none: unlimited.
    pub pacing: Option<Rate>,
}

/// The counters of a naive proxy, under the names of the record.
pub type NaiveReport = BTreeMap<String, u64>;

/// Why a naive proxy could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NaiveError {
    /// Passing connections cannot be intercepted.
    #[error("cannot take the connections that pass: {0}; this takes nft and CAP_NET_ADMIN")]
    Intercept(#[source] io::Error),
    /// A socket could not listen.
    #[error("cannot listen for the connections of {link}: {source}")]
    Listen {
        /// Its link.
        link: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The system refused something else.
    #[error("cannot start the proxy's thread: {0}")]
    Thread(#[source] io::Error),
}

/// State that all flows share. One thread owns it.
#[derive(Debug)]
struct Shared {
    store: RefCell<Store>,
    living: RefCell<BTreeMap<u64, Living>>,
    counts: RefCell<NaiveReport>,
    next: Cell<u64>,
    /// The buffer of reads.
    room: RefCell<Vec<u8>>,
}

/// A flow, with what is needed to query its sockets and to abort it.
#[derive(Debug)]
struct Living {
    /// Its sockets: the client's, and the server's once there is one.
    ends: [Option<Rc<TcpStream>>; 2],
    task: Option<AbortHandle>,
}

/// Runs the proxy until `stop` is ready. `ready` is called once connections are intercepted.
///
/// # Errors
/// When it cannot begin.
pub fn run(
    options: &NaiveOptions,
    stop: impl Future<Output = ()>,
    ready: impl FnOnce(),
) -> Result<NaiveReport, NaiveError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(NaiveError::Thread)?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, serve(options, stop, ready))
}

async fn serve(
    options: &NaiveOptions,
    stop: impl Future<Output = ()>,
    ready: impl FnOnce(),
) -> Result<NaiveReport, NaiveError> {
    let options = Rc::new(options.clone());
    let shared = Rc::new(Shared {
        store: RefCell::new(Store::new(options.buffer.get())),
        living: RefCell::default(),
        counts: RefCell::default(),
        next: Cell::new(0),
        room: RefCell::new(vec![0; READ]),
    });
    let mut entrances = Vec::new();
    let mut listeners = Vec::new();
    for (link, leg) in &options.legs {
        let refused = |source| NaiveError::Listen { link: link.clone(), source };
        for family in [IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])] {
            let listener = socket::listen(SocketAddr::new(family, 0), leg).map_err(refused)?;
            let address = listener.local_addr().map_err(refused)?;
            entrances.push(Entrance { link: link.clone(), address });
            listeners.push((link.clone(), listener));
        }
    }
    let _interception = Interception::install(&entrances).map_err(NaiveError::Intercept)?;
    for (link, listener) in listeners {
        tokio::task::spawn_local(accept(link, listener, Rc::clone(&options), Rc::clone(&shared)));
    }
    ready();
    stop.await;
    let report = shared.counts.borrow().clone();
    Ok(report)
}

/// Takes the connections that come over one link.
async fn accept(
    link: String,
    listener: TcpListener,
    options: Rc<NaiveOptions>,
    shared: Rc<Shared>,
) {
    loop {
        let (client, source) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Either no descriptor is free, or the client has gone: neither ends the proxy.
                tracing::warn!(%error, "cannot accept");
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                continue;
            }
        };
        // The socket's local address is the server's, to which the client connects.
        let Ok(server) = client.local_addr() else { continue };
        let far = options.node.link_to(server.ip()).and_then(|far| options.legs.get_key_value(far));
        let (Some(near), Some((_, leg))) = (options.legs.get(&link), far) else { continue };
        let far = Far { source, server, leg: leg.clone() };
        let id = shared.begin(&client);
        let Ok(id) = id else { continue };
        let flow = Flow::new(id, near.window, client, Rc::clone(&shared));
        let task = tokio::task::spawn_local(flow.run(far));
        if let Some(living) = shared.living.borrow_mut().get_mut(&id) {
            living.task = Some(task.abort_handle());
        }
    }
}

impl Shared {
    /// Registers a new flow and returns its number.
    fn begin(&self, client: &TcpStream) -> io::Result<u64> {
        socket::guard(client)?;
        let id = self.next.get();
        self.next.set(id + 1);
        self.count("flows", 1);
        self.living.borrow_mut().insert(id, Living { ends: [None, None], task: None });
        Ok(id)
    }

    fn know(&self, id: u64, end: usize, stream: &Rc<TcpStream>) {
        if let Some(living) = self.living.borrow_mut().get_mut(&id) {
            living.ends[end] = Some(Rc::clone(stream));
        }
    }

    /// Removes a flow that is over.
    fn end(&self, id: u64) {
        self.living.borrow_mut().remove(&id);
        self.store.borrow_mut().forget(id);
    }

    fn count(&self, name: &str, more: u64) {
        *self.counts.borrow_mut().entry(name.to_owned()).or_default() += more;
    }

    /// Accounts what a flow has read for `end`. While the store is full, resets the flow that holds
    /// the most.
    fn take(&self, id: u64, end: usize, bytes: u64) {
        self.store.borrow_mut().take(id, end, bytes);
        if !self.store.borrow().is_over() {
            return;
        }
        // Data that has been acknowledged meanwhile is no longer held.
        let flows: Vec<u64> = self.living.borrow().keys().copied().collect();
        for flow in flows {
            self.settle(flow);
        }
        while self.store.borrow().is_over() {
            let Some(largest) = self.store.borrow().largest() else { return };
            self.overflow(largest);
        }
    }

    /// Accounts what the ends of a flow have acknowledged, and returns what the flow holds.
    fn settle(&self, id: u64) -> u64 {
        let living = self.living.borrow();
        let ends = living
            .get(&id)
            .map_or([None, None], |living| living.ends.each_ref().map(Option::as_ref));
        for (end, stream) in ends.into_iter().enumerate() {
            if let Some(acknowledged) = stream.and_then(socket::acknowledged) {
                self.store.borrow_mut().acknowledge(id, end, acknowledged);
            }
        }
        self.store.borrow().held_by(id)
    }

    /// Drops a flow for lack of space: its task is aborted, and its sockets are reset.
    fn overflow(&self, id: u64) {
        self.count("flows-reset-store-full", 1);
        let living = self.living.borrow_mut().remove(&id);
        self.store.borrow_mut().forget(id);
        if let Some(task) = living.and_then(|living| living.task) {
            task.abort();
        }
    }

    fn is_living(&self, id: u64) -> bool {
        self.living.borrow().contains_key(&id)
    }
}
