//! Finds flows that outlive their carriers. The key is their identity, which only the peer knows
//! that opened them.
//!
//! A flow lives in one task. Other tasks call it to continue with another stream, or because its
//! tunnel has another carrier.

use super::stream::Stream;
use midhop_tunnel::http3::Field;
use midhop_tunnel::resumption::{FlowId, Resumption};
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Unit: bytes. The most that all flows of a session may keep, if its carrier may have `window`
/// unacknowledged. It is the window, and three times as much that is acknowledged and not passed on
/// yet: the other end goes on reading for flows that stand still.
pub fn most_kept(window: u64) -> u64 {
    window.saturating_mul(4)
}

/// Number of complete flows that are remembered of each peer: as many as end in a round trip of a
/// busy link.
const FINISHED: usize = 4096;

/// A flow that is over at the far end. The near end may lack the last confirmation, or the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FinishedFlow {
    /// Unit: bytes. What was sent to the near end.
    pub sent: u64,
    /// The offset up to which it was received, its end included.
    pub received: u64,
}

impl FinishedFlow {
    /// Whether a near end that has received it up to this offset lacks no byte, but perhaps the end.
    pub fn lacks_no_byte(&self, received: u64) -> bool {
        received.checked_sub(self.sent).is_some_and(|end| end <= 1)
    }
}

/// Creates an identity for a new flow.
pub fn new_id() -> FlowId {
    let mut random = [0; 16];
    // This cannot fail where TLS has keys.
    let _ = SystemRandom::new().fill(&mut random);
    FlowId::new(random)
}

/// The fields of a request over HTTP/2 for a flow that is carried in capsules and can be resumed,
/// or is resumed.
pub fn by_capsules(resumption: &Resumption) -> Vec<Field> {
    let mut fields = vec![Field::new("capsule-protocol", "?1")];
    fields.extend(resumption.fields());
    fields
}

/// Whether a request has these fields.
pub fn is_by_capsules(fields: &[Field]) -> bool {
    fields.iter().any(|field| field.name == "capsule-protocol" && field.value == "?1")
}

/// Flows of all workers that can be resumed, by peer and identity.
#[derive(Debug, Default)]
pub struct ResumableFlows {
    flows: Mutex<BTreeMap<String, PeerFlows>>,
    /// Number of workers that still have to continue what another process has left.
    adopting: AtomicUsize,
}

/// The flows of one peer.
#[derive(Debug, Default)]
struct PeerFlows {
    live: BTreeMap<FlowId, Arc<Calls>>,
    /// The newest is last.
    finished: VecDeque<(FlowId, FinishedFlow)>,
}

/// Calls to the task of a flow.
#[derive(Debug, Default)]
pub struct Calls(Mutex<CallState>);

#[derive(Debug, Default)]
struct CallState {
    successor: Option<Box<Successor>>,
    moves: bool,
    waker: Option<Waker>,
}

/// A stream on which the near end has requested that a flow continues.
#[derive(Debug)]
pub struct Successor {
    pub(super) stream: Stream,
    /// The offset up to which the near end has received the flow.
    pub(super) received: u64,
}

/// A call to a flow.
#[derive(Debug)]
pub enum Call {
    /// The near end continues with this stream.
    GoOn(Box<Successor>),
    /// The near end's tunnel has changed its carrier.
    Move,
}

/// The entry of a flow, which can be found as long as this exists.
#[derive(Debug)]
pub struct ResumableEntry {
    flows: Arc<ResumableFlows>,
    pub(super) peer: Arc<str>,
    pub(super) id: FlowId,
    calls: Arc<Calls>,
}

impl ResumableFlows {
    /// Sets the number of workers that still have to continue what another process has left.
    pub fn adopt(&self, workers: usize) {
        self.adopting.store(workers, Relaxed);
    }

    /// To be called when a worker has continued all of its flows. Returns whether it is the last
    /// one.
    pub fn adopted(&self) -> bool {
        self.adopting.fetch_sub(1, Relaxed) == 1
    }

    /// Whether all existing flows are known.
    pub fn is_whole(&self) -> bool {
        self.adopting.load(Relaxed) == 0
    }

    /// Enters a flow. None: another one has this identity.
    pub fn enter(self: &Arc<Self>, peer: &str, id: FlowId) -> Option<ResumableEntry> {
        let mut flows = self.lock();
        let calls = Arc::<Calls>::default();
        let of_peer = match flows.get_mut(peer) {
            Some(known) => known,
            None => flows.entry(peer.to_owned()).or_default(),
        };
        if of_peer.live.contains_key(&id) {
            return None;
        }
        of_peer.live.insert(id, calls.clone());
        drop(flows);
        Some(ResumableEntry { flows: self.clone(), peer: peer.into(), id, calls })
    }

    /// Hands a stream to the flow that continues with it.
    ///
    /// # Errors
    /// The stream, if there is no such flow.
    pub fn go_on(
        &self,
        peer: &str,
        id: FlowId,
        stream: Stream,
        received: u64,
    ) -> Result<(), Box<Stream>> {
        let calls = self.lock().get(peer).and_then(|flows| flows.live.get(&id)).cloned();
        let Some(calls) = calls else { return Err(Box::new(stream)) };
        // A stream that was not taken yet is replaced: the near end has given it up.
        calls.put(|state| state.successor.replace(Box::new(Successor { stream, received })));
        Ok(())
    }

    /// A flow of a peer that is complete here, if it is remembered.
    pub fn finished(&self, peer: &str, id: FlowId) -> Option<FinishedFlow> {
        let flows = self.lock();
        let mut finished = flows.get(peer)?.finished.iter().rev();
        finished.find(|(known, _)| *known == id).map(|(_, flow)| *flow)
    }

    /// Calls the flows of a peer, whose tunnel has changed its carrier.
    pub fn move_all(&self, peer: &str) {
        let of_peer = |flows: &PeerFlows| flows.live.values().cloned().collect();
        let flows: Vec<_> = self.lock().get(peer).map(of_peer).unwrap_or_default();
        for calls in flows {
            calls.put(|state| state.moves = true);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, PeerFlows>> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Calls {
    /// The replaced stream is dropped without the lock, as dropping it calls its connection.
    fn put<T>(&self, put: impl FnOnce(&mut CallState) -> T) {
        let mut state = self.lock();
        let replaced = put(&mut state);
        let waker = state.waker.take();
        drop(state);
        drop(replaced);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, CallState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResumableEntry {
    /// The flow is over here.
    pub fn finish(&self, flow: FinishedFlow) {
        if let Some(of_peer) = self.flows.lock().get_mut(&*self.peer) {
            if of_peer.finished.len() == FINISHED {
                of_peer.finished.pop_front();
            }
            of_peer.finished.push_back((self.id, flow));
        }
    }

    /// Waits until the flow is called.
    pub fn poll_call(&self, cx: &mut Context<'_>) -> Poll<Call> {
        let mut state = self.calls.lock();
        if let Some(successor) = state.successor.take() {
            return Poll::Ready(Call::GoOn(successor));
        }
        if std::mem::take(&mut state.moves) {
            return Poll::Ready(Call::Move);
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => state.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for ResumableEntry {
    fn drop(&mut self) {
        let mut flows = self.flows.lock();
        if let Some(of_peer) = flows.get_mut(&*self.peer) {
            of_peer.live.remove(&self.id);
            if of_peer.live.is_empty() && of_peer.finished.is_empty() {
                flows.remove(&*self.peer);
            }
        }
    }
}
