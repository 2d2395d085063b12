//! Drives an endpoint: reads its socket, advances its timers, and sends.
//!
//! Decision 0041.

use super::socket::{QuicSocket, is_destroyed};
use super::state::{EndpointShared, EndpointState};
use crate::ledger::Ledger;
use crate::tunnel::shards::Shard;
use bytes::{Bytes, BytesMut};
use midhop_tunnel::fec::Packet;
use midhop_tunnel::quic::{Datagram, DatagramBatch, EcnCodepoint, Label};
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::time::{self, Sleep};

/// The most that one call receives into a buffer, if the kernel joins datagrams of one size. Unit:
/// bytes.
const RECEIVED_BYTES: usize = 64 << 10;
/// Up to this many datagrams are acknowledged together with what the woken tasks send.
const FEW: u64 = 16;
/// The number of source addresses whose shard is remembered.
const MOVED_MAX: usize = 4096;

thread_local! {
    /// The receive buffer for the sockets of this thread: it is emptied before the next one is read.
    static RECEIVED: RefCell<Vec<u8>> = RefCell::new(vec![0; BATCH_SIZE * RECEIVED_BYTES]);
}

/// The task of one endpoint.
pub struct Driver {
    shared: Arc<EndpointShared>,
    socket: QuicSocket,
    /// Its shard of the address.
    shard: Shard,
    /// Its worker's counters.
    ledger: Arc<Ledger>,
    /// The shards to which the last datagrams from some addresses were handed over.
    moved: BTreeMap<SocketAddr, usize>,
    /// Datagrams that may leave and have not yet.
    batch: DatagramBatch,
    /// Whether it sent nothing when it ran last, so that the tasks woken by datagrams could act
    /// first.
    has_held: bool,
    timer: Pin<Box<Sleep>>,
}

impl Driver {
    /// Creates it for an endpoint on `socket`.
    ///
    /// # Errors
    /// When the runtime cannot watch the socket.
    pub fn new(
        shared: Arc<EndpointShared>,
        socket: std::net::UdpSocket,
        shard: Shard,
        ledger: Arc<Ledger>,
    ) -> io::Result<Self> {
        let socket = QuicSocket::new(socket)?;
        let timer = Box::pin(time::sleep(time::Duration::MAX));
        let batch = DatagramBatch::new(socket.most_sent());
        let (moved, has_held) = (BTreeMap::new(), false);
        Ok(Self { shared, socket, shard, ledger, moved, batch, has_held, timer })
    }

    /// Drives the endpoint until its socket has failed, or it is no longer used.
    pub async fn run(mut self) {
        let destroyed = self.socket.destroyed();
        let error = tokio::select! {
            biased;
            error = poll_fn(|cx| self.poll(cx)) => error,
            error = destroyed => error,
        };
        tracing::debug!(%error, "a QUIC socket has failed");
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if *self.shared.failed.borrow() {
            return Poll::Ready(io::Error::other("the socket has failed"));
        }
        let dropped = self.shared.attend(cx.waker());
        let received = match self.poll_receive(cx) {
            Poll::Ready(Err(error)) => return Poll::Ready(error),
            Poll::Ready(Ok(received)) => received,
            Poll::Pending => 0,
        };
        let shared = self.shared.clone();
        let mut state = shared.lock();
        dropped.into_iter().for_each(|number| state.forget(number, shared.now()));
        while let Some((bytes, label)) = state.handed.pop_front() {
            let size = bytes.len();
            state.endpoint.handle_datagrams(shared.now(), BytesMut::from(bytes), size, label);
        }
        self.has_held = !self.has_held && (1..=FEW).contains(&received);
        if self.has_held {
            state.settle();
            // The driver runs again after the tasks that were woken.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        loop {
            let now = shared.now();
            state.endpoint.handle_timeout(now);
            state.settle();
            if let Err(error) = self.send(cx, &mut state) {
                return Poll::Ready(error);
            }
            state.settle();
            if !self.batch.is_empty() {
                // The driver continues when the kernel has room.
                break;
            }
            let Some(wake) = state.endpoint.poll_timeout() else { break };
            let wake = shared.since(wake);
            // Each change costs a call into the runtime.
            if self.timer.deadline() != wake {
                self.timer.as_mut().reset(wake);
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                break;
            }
        }
        if received > 0 && self.socket.poll_readable(cx).is_ready() {
            // Other tasks run before more is received.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Receives datagrams, by one call. Returns how many.
    ///
    /// # Errors
    /// When the socket cannot be used any more.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
        // The buffers are prepared only if datagrams can be read: flows call the driver more often
        // than datagrams arrive.
        ready!(self.socket.poll_readable(cx))?;
        RECEIVED.with_borrow_mut(|room| {
            let mut metas = [RecvMeta::default(); BATCH_SIZE];
            let mut buffers = room.chunks_mut(RECEIVED_BYTES);
            let mut buffers: [IoSliceMut<'_>; BATCH_SIZE] =
                std::array::from_fn(|_| IoSliceMut::new(buffers.next().unwrap_or_default()));
            let count = ready!(self.socket.poll_receive(cx, &mut buffers, &mut metas))?;
            let received = buffers.iter().zip(&metas).take(count);
            Poll::Ready(Ok(self.handle(received.map(|(buffer, meta)| (&**buffer, meta)))))
        })
    }

    /// Hands on what one call has received. Returns how many datagrams there were.
    fn handle<'a>(&mut self, received: impl Iterator<Item = (&'a [u8], &'a RecvMeta)>) -> u64 {
        let mut others = Vec::new();
        let mut came = 0;
        let shared = self.shared.clone();
        let mut state = shared.lock();
        let now = shared.now();
        for (buffer, meta) in received {
            let Some(contents) = buffer.get(..meta.len) else { continue };
            let size = meta.stride.max(1);
            came += contents.len().div_ceil(size) as u64;
            let ecn = meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
            let label = Label { peer: meta.addr, own: meta.dst_ip, ecn };
            if self.is_all_own(&state, contents, size, label.peer) {
                state.endpoint.handle_datagrams(now, BytesMut::from(contents), size, label);
            } else {
                self.divide(&mut state, contents, size, label, &mut others);
            }
        }
        // Another shard's lock must not be taken under this one's.
        drop(state);
        self.ledger.datagrams.add(came);
        for (shard, datagram) in others {
            match self.shard.hand_over(shard, datagram) {
                Ok(()) => self.ledger.handed_datagrams.add(1),
                // That shard has no connections any more, and this one can respond to their peers
                // as well.
                Err((bytes, label)) => {
                    let size = bytes.len();
                    let mut state = shared.lock();
                    state.endpoint.handle_datagrams(now, BytesMut::from(bytes), size, label);
                }
            }
        }
        came
    }

    /// Whether none of the datagrams received together is for another shard.
    fn is_all_own(
        &self,
        state: &EndpointState,
        contents: &[u8],
        size: usize,
        from: SocketAddr,
    ) -> bool {
        self.shard.is_alone()
            || contents.chunks(size).all(|it| self.shard_of(state, from, it).is_none())
    }

    /// Separates received datagrams, if one of them is for another shard. That one goes to `others`.
    fn divide(
        &mut self,
        state: &mut EndpointState,
        contents: &[u8],
        size: usize,
        label: Label,
        others: &mut Vec<(usize, Datagram)>,
    ) {
        for datagram in contents.chunks(size) {
            let Some(shard) = self.shard_of(state, label.peer, datagram) else {
                let (now, datagram) = (self.shared.now(), BytesMut::from(datagram));
                state.endpoint.handle_datagrams(now, datagram, size, label);
                continue;
            };
            if self.moved.len() >= MOVED_MAX {
                self.moved.clear();
            }
            self.moved.insert(label.peer, shard);
            others.push((shard, (Bytes::copy_from_slice(datagram), label)));
        }
    }

    /// Which other shard a datagram is for.
    fn shard_of(&self, state: &EndpointState, from: SocketAddr, datagram: &[u8]) -> Option<usize> {
        let moved = || {
            let is_repair = Packet::quic_in(datagram).is_none();
            (is_repair && !state.endpoint.has_peer_at(from))
                .then(|| self.moved.get(&from).copied())?
        };
        self.shard.other(datagram).or_else(moved)
    }

    /// Sends what may leave now, as long as the kernel has room.
    fn send(&mut self, cx: &mut Context<'_>, state: &mut EndpointState) -> io::Result<()> {
        while !self.batch.is_empty()
            || state.endpoint.poll_batch(self.shared.now(), &mut self.batch)
        {
            let Self { socket, batch, .. } = self;
            match send(batch, |transmit| socket.send(transmit)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // If pending, the kernel's room wakes the task. If ready, it tries at once.
                    match self.socket.poll_room(cx) {
                        Poll::Ready(ready) => ready?,
                        Poll::Pending => return Ok(()),
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// When the task ends, for any reason, all tasks that wait for its connections are woken, and
/// another endpoint is opened.
impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.fail();
        self.shared.lock().lose_all();
    }
}

/// Sends a batch. Datagrams that the network does not accept are lost, as in any network.
///
/// # Errors
/// When the kernel has no room: all of the batch is kept. When the socket was destroyed: only the first call after
/// that reports it.
pub fn send(
    batch: &mut DatagramBatch,
    send: impl FnOnce(&Transmit<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let Some(label) = batch.label() else { return Ok(()) };
    let sent = send(&Transmit {
        destination: label.peer,
        ecn: label.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
        contents: batch.bytes(),
        segment_size: batch.segment(),
        src_ip: label.own,
    });
    match sent {
        Err(error) if is_destroyed(&error) || error.kind() == io::ErrorKind::WouldBlock => {
            Err(error)
        }
        Ok(()) | Err(_) => {
            batch.clear();
            Ok(())
        }
    }
}
