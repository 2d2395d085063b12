//! Links of a plan between real kernels.
//!
//! A link is two virtual Ethernet pairs that meet in a hub namespace. One thread carries frames
//! between them as two [`midhop_path`] links, one per direction, for example:
//!
//! ```text
//! node A ══ veth ══ hub [ AF_PACKET → Link "up"   → AF_PACKET ] hub ══ veth ══ node B
//!                       [ AF_PACKET ← Link "down" ← AF_PACKET ]
//! ```
//! Sizes count from the IP header. Frames are carried as the nodes sent them, byte for byte, unless
//! agents stand at an end of the link. Offloads are off, so that each frame is one packet.
//!
//! Invariant: the emulator never guesses about its own quality. Each packet's departure is compared
//! with the moment its link promised, and packets that the kernel dropped before the emulator saw
//! them are counted; both are in every record.
//!
//! Decision 0008.

mod carrier;
mod filter;
mod frame;
pub(crate) mod lateness;
mod packet_socket;
mod post;
mod ring;
pub(crate) mod scheduling;

pub use post::PostPlan;
pub use scheduling::Policy;

use crate::namespace::Namespace;
use carrier::{Carrier, open_sockets};
use midhop_experiment::agents::SackRule;
use midhop_experiment::record::{LinkResult, NodeResult, Series};
use midhop_path::DirectionPlan;
use midhop_units::{Bytes, Instant, Seed};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// Why an emulator did not start or did not finish.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmulatorError {
    /// Opening sockets or threads failed.
    #[error("cannot emulate link {link}: {source}")]
    Start {
        /// The link's name.
        link: String,
        /// What failed.
        source: io::Error,
    },
    /// The thread ended before it was asked to.
    #[error("the emulator of link {link} stopped: {source}")]
    Stopped {
        /// The link's name.
        link: String,
        /// What failed.
        source: io::Error,
    },
}

/// One link to emulate.
#[derive(Debug, Clone)]
pub struct Wire {
    /// The link's name.
    pub name: String,
    /// Hub-side device of the pair to the first node.
    pub first: String,
    /// Hub-side device of the pair to the second node.
    pub second: String,
    /// Both nodes, whose devices are called as the link.
    pub nodes: [String; 2],
    /// Largest packet at the network layer. Unit: bytes.
    pub mtu: u32,
    /// Towards the first node.
    pub down: DirectionPlan,
    /// Towards the second node.
    pub up: DirectionPlan,
    /// The rule that thins the acknowledgements waiting before the link, down and up.
    pub ack_filters: [Option<SackRule>; 2],
    /// The agents at the first node's end, and at the second's.
    pub posts: [PostPlan; 2],
    /// The largest burst that the link receives, however long its queues are.
    pub burst: Bytes,
}

/// What one link did.
#[derive(Debug, Clone)]
pub struct WireReport {
    /// Down, then up.
    pub directions: [LinkResult; 2],
    /// Queue and rate over time, per direction.
    pub series: Vec<Series>,
    /// Frames that the kernel dropped before the emulator saw them: the run is not to be believed.
    pub missed: u64,
    /// What agents at its ends did, by node.
    pub nodes: Vec<NodeResult>,
    /// How the emulator's thread was scheduled; none where the kernel carries by itself.
    pub policy: Option<Policy>,
}

/// A running link. Dropping it stops the thread; [`Emulator::finish`] also reports what the link did.
#[derive(Debug)]
pub struct Emulator {
    name: String,
    /// Where the thread waits for the run's start.
    begin: Option<Sender<Instant>>,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<io::Result<WireReport>>>,
}

impl Emulator {
    /// Starts carrying frames between two devices of `hub`, as [`Self::open`] and [`Self::begin`] do.
    ///
    /// # Errors
    /// When the devices are not there or sockets are refused.
    pub fn start(
        hub: &Namespace,
        wire: Wire,
        seed: Seed,
        epoch: Instant,
    ) -> Result<Self, EmulatorError> {
        let mut emulator = Self::open(hub, wire, seed)?;
        emulator.begin(epoch);
        Ok(emulator)
    }

    /// Opens a link between two devices of `hub`, which takes milliseconds where its queues are long. Frames wait
    /// until it begins. Each direction draws its randomness from `seed` under the link's name and its own.
    ///
    /// # Errors
    /// When the devices are not there or sockets are refused.
    pub fn open(hub: &Namespace, wire: Wire, seed: Seed) -> Result<Self, EmulatorError> {
        let name = wire.name.clone();
        let fail = |source| EmulatorError::Start { link: name.clone(), source };
        let stop = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC)
            .map_err(|errno| fail(errno.into()))?;
        let stop = Arc::new(stop);
        let (ready, started) = channel();
        let (begin, begins) = channel();
        let (hub, stopped) = (hub.clone(), stop.clone());
        let work = move || {
            let opened = hub.enter().map_err(io::Error::other).and_then(|()| open_sockets(&wire));
            match opened {
                Ok(sockets) => {
                    let _ = ready.send(Ok(()));
                    let epoch = begins.recv().map_err(|_| io::Error::other("it never began"))?;
                    Carrier::new(sockets, wire, seed, epoch).run(&stopped)
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                    Err(io::Error::other("not started"))
                }
            }
        };
        let thread =
            std::thread::Builder::new().name(format!("link {name}")).spawn(work).map_err(fail)?;
        started
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("its thread ended")))
            .map_err(fail)?;
        Ok(Self { name, begin: Some(begin), stop, thread: Some(thread) })
    }

    /// Begins to carry frames. Traces and series of the link count from `epoch`, which may be in
    /// the future.
    pub fn begin(&mut self, epoch: Instant) {
        if let Some(begin) = self.begin.take() {
            // If the thread has ended, the join reports it.
            let _ = begin.send(epoch);
        }
    }

    /// Stops and reports what the link did.
    ///
    /// # Errors
    /// When the thread had ended by itself.
    pub fn finish(mut self) -> Result<WireReport, EmulatorError> {
        self.halt().map_err(|source| EmulatorError::Stopped { link: self.name.clone(), source })
    }

    fn halt(&mut self) -> io::Result<WireReport> {
        let gone = || io::Error::other("its thread was gone already");
        let thread = self.thread.take().ok_or_else(gone)?;
        // A thread that has not begun waits for this channel, and ends when it closes.
        self.begin = None;
        self.stop.write(1)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = self.halt();
        }
    }
}
