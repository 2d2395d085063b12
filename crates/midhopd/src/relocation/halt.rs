//! Asks the task of a flow to stand still, from outside of it, and what the two exchange then.

use super::copy::Positions;
use midhop_tunnel::relocation::{Arrival, FlowOffer, Readiness};
use std::cell::Cell;
use std::fmt;
use std::net::IpAddr;
use std::task::{Context, Waker};
use tokio::sync::oneshot;

/// Where a flow is asked to stand still. It does so between two turns, when no byte is on its way.
#[derive(Default)]
pub struct Halt(Cell<Asked>);

/// One word more than a waker: an idle flow is to be small.
#[derive(Default)]
enum Asked {
    #[default]
    No,
    /// Its task is to be woken.
    Awaited(Waker),
    Yes(Box<HaltRequest>),
}

/// Where the flow's state goes, or why it stays.
#[derive(Debug)]
pub struct HaltRequest {
    /// Gone if nobody waits any more.
    pub answer: oneshot::Sender<Result<LeavingFlow, Stay>>,
    /// The neighbour to which what arrives of it is forwarded from then on; none: it is dropped.
    pub neighbour: Option<IpAddr>,
    /// What the new place has a copy of, of what comes from the client, and from the server.
    pub copied: [Positions; 2],
    /// Unit: bytes. The most that the state may take in the message.
    pub bytes_max: usize,
}

impl fmt::Debug for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Halt")
    }
}

impl Halt {
    /// Asks the flow. A second request takes the place of one that was not taken.
    pub fn ask(&self, request: HaltRequest) {
        if let Asked::Awaited(waker) = self.0.replace(Asked::Yes(Box::new(request))) {
            waker.wake();
        }
    }

    /// Whether the flow is asked. If not, its task will be woken then.
    pub fn poll_asked(&self, cx: &Context<'_>) -> bool {
        let asked = match self.0.take() {
            Asked::Awaited(waker) if waker.will_wake(cx.waker()) => Asked::Awaited(waker),
            Asked::No | Asked::Awaited(_) => Asked::Awaited(cx.waker().clone()),
            Asked::Yes(request) => Asked::Yes(request),
        };
        let is_asked = matches!(asked, Asked::Yes(_));
        self.0.set(asked);
        is_asked
    }

    /// What was asked.
    pub fn take(&self) -> Option<HaltRequest> {
        match self.0.take() {
            Asked::Yes(request) => Some(*request),
            none => {
                self.0.set(none);
                None
            }
        }
    }
}

/// Why a flow stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stay {
    /// It has ended, or is about to.
    Ended,
    /// It did not stand still in time.
    Busy,
    /// Its sockets have addresses of this host, or its addresses are translated: the packets of one side do not have those
    /// of the other.
    Addresses,
    /// More is in its queues than can be moved.
    Queues,
    /// This kernel or the keeper refuses.
    Kernel,
    /// The peer did not answer, or not in time.
    Peer,
    /// The peer could not have it go on.
    There(Readiness),
    /// The time for moving was over.
    Time,
}

impl Stay {
    /// As answers name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::Busy => "busy",
            Self::Addresses => "addresses",
            Self::Queues => "queues",
            Self::Kernel => "kernel",
            Self::Peer => "peer-silent",
            Self::Time => "time",
            Self::There(Readiness::Ready) => "peer-discarded",
            Self::There(Readiness::Malformed) => "peer-malformed",
            Self::There(Readiness::Policy) => "peer-policy",
            Self::There(Readiness::Full) => "peer-full",
            Self::There(Readiness::Route) => "peer-route",
            Self::There(Readiness::Kernel) => "peer-kernel",
        }
    }
}

/// A flow that stands still. Dropping this has it go on here.
#[derive(Debug)]
pub struct LeavingFlow {
    /// Its state.
    pub offer: FlowOffer,
    /// The message that commits it to go.
    pub commit: oneshot::Sender<LeaveOrder>,
}

/// What a flow does before and after the commit.
#[derive(Debug)]
pub struct LeaveOrder {
    /// The flow is still there, and leaves nothing behind to the next process. Only then may the commit be sent.
    pub noted: oneshot::Sender<()>,
    /// What has become of it. If this is dropped, nobody knows.
    pub arrival: oneshot::Receiver<Arrival>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::task::Wake;

    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn a_flow_is_woken_once_it_is_asked() {
        let (count, halt) = (Arc::new(Count(AtomicU32::new(0))), Halt::default());
        let waker = count.clone().into();
        let cx = Context::from_waker(&waker);
        assert!(!halt.poll_asked(&cx) && !halt.poll_asked(&cx));
        assert!(halt.take().is_none());
        let (answer, _answered) = oneshot::channel();
        halt.ask(HaltRequest { answer, neighbour: None, copied: [0..0, 0..0], bytes_max: 0 });
        assert_eq!(count.0.load(Relaxed), 1);
        assert!(halt.poll_asked(&cx) && halt.poll_asked(&cx), "until it is taken");
        assert!(halt.take().is_some() && !halt.poll_asked(&cx));
    }
}
