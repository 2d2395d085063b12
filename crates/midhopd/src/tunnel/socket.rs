//! The UDP socket of an endpoint, from which each peer's datagrams leave at its connection's pace.
//!
//! quinn hands over datagrams of all connections of an endpoint. Those to a peer that has a [`Course`] go
//! through a [`Lane`] of their own; those to anybody else, which are answers to strangers, leave at once.
//! A full lane refuses more, so that QUIC keeps its data and decides as late as possible what goes next.
//! What comes is QUIC's as it is, and what is not goes through its peer's lane, if that peer was told that it
//! may send more than QUIC's ([`Arrivals`]). What is for a connection of another worker is handed to its socket
//! ([`Shard`]), and what that one received for us comes in as if we had.
//!
//! Invariant: nothing waits for ever. Whoever was refused is woken when there is room, which
//! [`Paced::drive`] makes as time passes.

use super::arrivals::Arrivals;
use super::drivers;
use super::lane::{Datagram, Label, Lane};
use super::lanes::{Flushed, Lanes};
use super::shards::Shard;
use crate::ledger::Ledger;
use bytes::Bytes;
use midhop_tunnel::{
    control::Pace,
    fec::{self, Packet},
};
use midhop_units::Instant;
use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::{Notify, watch};
use tokio::time;

/// Datagrams that QUIC makes at once where nobody says otherwise.
const SEGMENTS: usize = 10;
/// Datagrams from other workers' sockets that wait here at most.
const HANDED_MAX: usize = 1024;
/// Addresses of which is known where what comes from them is to go.
const MOVED_MAX: usize = 4096;

/// The socket.
#[derive(Debug)]
pub struct Paced {
    io: UdpSocket,
    udp: UdpSocketState,
    /// Zero of the lanes' clock.
    epoch: time::Instant,
    state: Mutex<State>,
    /// Which of its address's it is.
    shard: Shard,
    /// Where its worker counts.
    ledger: Arc<Ledger>,
    /// Something waits on a lane on which nothing waited before.
    busy: Notify,
    /// Whether it cannot be used any more.
    failed: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    lanes: Lanes,
    /// Whose datagrams were refused by the last call.
    refused: Option<SocketAddr>,
    arrivals: Arrivals,
    /// Whoever waits for what comes.
    reader: Option<Waker>,
    /// Where what came from some addresses went last, which was for other shards.
    moved: BTreeMap<SocketAddr, usize>,
}

impl Paced {
    /// A socket on which nobody has a course yet.
    ///
    /// # Errors
    /// When the runtime cannot watch it.
    pub fn new(
        socket: std::net::UdpSocket,
        shard: Shard,
        ledger: Arc<Ledger>,
    ) -> io::Result<Arc<Self>> {
        let udp = UdpSocketState::new((&socket).into())?;
        let this = Arc::new(Self {
            io: UdpSocket::from_std(socket)?,
            udp,
            epoch: time::Instant::now(),
            state: Mutex::default(),
            shard,
            ledger,
            busy: Notify::new(),
            failed: watch::Sender::new(false),
        });
        this.shard.open(&this);
        Ok(this)
    }

    /// Whether it cannot be used any more: another one is to be opened.
    pub fn has_failed(&self) -> bool {
        *self.failed.borrow()
    }

    /// Waits until it cannot be used any more.
    pub async fn failed(&self) {
        let mut failed = self.failed.subscribe();
        // The sender is here.
        let _ = failed.wait_for(|failed| *failed).await;
    }

    /// It cannot be used any more, or nobody uses it any more.
    pub fn fail(&self) {
        self.failed.send_replace(true);
        // Whoever drives it lets go of it.
        self.busy.notify_one();
    }

    /// Lets what goes to `peer` leave at `pace`, whoever had a course there before.
    pub fn steer(self: &Arc<Self>, peer: SocketAddr, pace: Pace) -> Course {
        let mut course = Course::new(self.clone(), peer, pace);
        course.take(peer);
        course
    }

    /// The same for a connection of which nobody knows yet what will become of it: a course that is there
    /// already stays.
    pub fn steer_attempt(self: &Arc<Self>, peer: SocketAddr, pace: Pace) -> Course {
        if !self.state().lanes.has(peer) {
            return self.steer(peer, pace);
        }
        Course::new(self.clone(), peer, pace)
    }

    /// Lets datagrams go as their time comes, for ever.
    ///
    /// # Errors
    /// When the socket cannot be used any more.
    pub async fn drive(&self) -> io::Result<Infallible> {
        loop {
            if self.has_failed() {
                return Err(io::Error::other("the socket has failed"));
            }
            let Flushed { wake, is_blocked } = self.flush();
            let since = |at: Instant| self.epoch + at.saturating_since(Instant::START).into();
            let timer = async {
                match wake {
                    Some(wake) => time::sleep_until(since(wake)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = timer => {}
                () = self.busy.notified() => {}
                writable = self.io.writable(), if is_blocked => writable?,
                erred = self.io.ready(Interest::ERROR) => {
                    erred?;
                    self.look_for_error();
                }
            }
        }
    }

    /// The socket has an error, which wakes nobody who waits for datagrams: where there are none, nobody would be
    /// told that it was destroyed.
    fn look_for_error(&self) {
        let took = self.io.take_error();
        if matches!(took, Ok(Some(error)) if error.kind() == io::ErrorKind::ConnectionAborted) {
            self.fail();
        }
        // Until the next one.
        let clear = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
        let _cleared = self.io.try_io(Interest::ERROR, clear);
    }

    /// Sends what may leave now.
    fn flush(&self) -> Flushed {
        let now = self.now();
        let segments = self.udp.max_gso_segments();
        let send = |transmit: &Transmit<'_>| self.send(transmit);
        self.state().lanes.flush(now, |lane| lane.flush(now, segments, send))
    }

    fn send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.io.try_io(Interest::WRITABLE, || self.send_now(transmit))
    }

    /// Sends, or loses what the network does not take, as it may lose it anywhere.
    fn send_now(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        match self.udp.try_send((&self.io).into(), transmit) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            // The socket was destroyed. Whoever asks it first is told, and nobody after that.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {
                self.fail();
                Ok(())
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Takes out of so many buffers what is not QUIC's or not this shard's, and puts back what of it is. How many are
    /// used then.
    fn sort(&self, count: usize, buffers: &mut [IoSliceMut<'_>], metas: &mut [RecvMeta]) -> usize {
        let mut guard = self.state();
        let state = &mut *guard;
        let now = self.now();
        let (mut is_sooner_now, mut others, mut came) = (false, Vec::new(), 0);
        for (buffer, meta) in buffers.iter().zip(&mut *metas).take(count) {
            came += meta.len.div_ceil(meta.stride.max(1)) as u64;
            let from = meta.addr;
            if !self.shard.is_alone() {
                state.divide(&self.shard, now, buffer, meta, &mut others);
            }
            let State { lanes, arrivals, .. } = state;
            if lanes.see(from).is_some_and(Lane::hears) {
                let took = lanes.with(from, |lane| arrivals.take(now, buffer, meta, Some(lane)));
                is_sooner_now |= took.is_some_and(|(_, is_sooner)| is_sooner);
            } else {
                arrivals.take(now, buffer, meta, None);
            }
        }
        let count = if state.arrivals.is_empty() {
            count
        } else {
            state.arrivals.give(count, buffers, metas)
        };
        // Another shard's lock is not taken under this one's.
        drop(guard);
        if is_sooner_now {
            self.busy.notify_one();
        }
        self.ledger.datagrams.add(came);
        for (shard, datagram) in others {
            match self.shard.hand_over(shard, datagram) {
                Ok(()) => self.ledger.handed_datagrams.add(1),
                // Its connections are gone, and this one can tell their peers as well.
                Err(datagram) => self.take_over(datagram),
            }
        }
        count
    }

    /// Takes a datagram that another shard's socket has received for this one.
    pub fn take_over(&self, datagram: Datagram) {
        let mut state = self.state();
        let State { lanes, arrivals, reader, .. } = &mut *state;
        if arrivals.len() >= HANDED_MAX {
            return;
        }
        let (now, from) = (self.now(), datagram.1.peer);
        let is_sooner = if lanes.see(from).is_some_and(Lane::hears) {
            let took = lanes.with(from, |lane| arrivals.add(now, datagram, Some(lane)));
            took.is_some_and(|(_, is_sooner)| is_sooner)
        } else {
            arrivals.add(now, datagram, None);
            false
        };
        let reader = reader.take();
        drop(state);
        if is_sooner {
            self.busy.notify_one();
        }
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn now(&self) -> Instant {
        Instant::START + self.epoch.elapsed().into()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Its holder never panics in between: what it guards is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes a buffer apart in which there is something for another shard, which goes to `others`; the buffer is
    /// empty then.
    fn divide(
        &mut self,
        own: &Shard,
        now: Instant,
        buffer: &[u8],
        meta: &mut RecvMeta,
        others: &mut Vec<(usize, Datagram)>,
    ) {
        let Some(contents) = buffer.get(..meta.len) else { return };
        let (from, stride) = (meta.addr, meta.stride.max(1));
        if contents.chunks(stride).all(|it| self.shard_of(own, from, it).is_none()) {
            return;
        }
        let (mut bytes, label) = (Bytes::copy_from_slice(contents), Label::of(meta));
        while !bytes.is_empty() {
            let datagram = bytes.split_to(stride.min(bytes.len()));
            match self.shard_of(own, from, &datagram) {
                Some(shard) => {
                    if self.moved.len() >= MOVED_MAX {
                        self.moved.clear();
                    }
                    self.moved.insert(from, shard);
                    others.push((shard, (datagram, label)));
                }
                None => {
                    let State { lanes, arrivals, .. } = self;
                    let datagram = (datagram, label);
                    if lanes.see(from).is_some_and(Lane::hears) {
                        lanes.with(from, |lane| arrivals.add(now, datagram, Some(lane)));
                    } else {
                        arrivals.add(now, datagram, None);
                    }
                }
            }
        }
        meta.len = 0;
    }

    /// Which other shard a datagram is for.
    fn shard_of(&self, own: &Shard, from: SocketAddr, datagram: &[u8]) -> Option<usize> {
        let moved = || {
            let is_quic_s = Packet::quic_in(datagram).is_some();
            (!is_quic_s && !self.lanes.has(from)).then(|| self.moved.get(&from).copied())?
        };
        own.other(datagram).or_else(moved)
    }
}

impl AsyncUdpSocket for Paced {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller { socket: self, refused: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let peer = transmit.destination;
        drivers::note(peer);
        let mut state = self.state();
        let now = self.now();
        let segments = self.udp.max_gso_segments();
        let sent = state.lanes.with(peer, |lane| {
            if lane.is_full() {
                lane.refuse();
                return Err(io::ErrorKind::WouldBlock);
            }
            let gathers = lane.push(now, transmit);
            if !gathers {
                lane.flush(now, segments, |transmit| self.send(transmit));
            }
            Ok(gathers)
        });
        match sent {
            None => {
                drop(state);
                // A stranger's answer that the kernel has no room for is lost, as it may be anywhere.
                let _lost = self.send_now(transmit);
            }
            Some((Err(full), _)) => {
                state.refused = Some(peer);
                return Err(full.into());
            }
            // What drives the socket comes after what has QUIC make its datagrams.
            Some((Ok(gathers), is_sooner)) if gathers || is_sooner => self.busy.notify_one(),
            Some(_) => {}
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut state = self.state();
            let left = state.arrivals.give(0, buffers, metas);
            if left > 0 {
                return Poll::Ready(Ok(left));
            }
            if !self.shard.is_alone() {
                state.reader = Some(cx.waker().clone());
            }
            drop(state);
            ready!(self.io.poll_recv_ready(cx))?;
            let received = self
                .io
                .try_io(Interest::READABLE, || self.udp.recv((&self.io).into(), buffers, metas));
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(count) => return Poll::Ready(Ok(self.sort(count, buffers, metas))),
                // quinn gives the endpoint up for this, and tells nobody.
                Err(error) => {
                    self.fail();
                    return Poll::Ready(Err(error));
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        // Asked by a connection that is about to have QUIC make its datagrams.
        let state = self.state();
        let lane = drivers::towards().and_then(|peer| state.lanes.see(peer));
        lane.map_or(SEGMENTS, Lane::segments).min(self.udp.max_gso_segments())
    }

    fn max_receive_segments(&self) -> usize {
        self.udp.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.udp.may_fragment()
    }
}

/// What one connection waits with.
///
/// quinn does not say whose connection it is, but it asks right after it was refused, and all
/// connections of an endpoint are served by one thread.
#[derive(Debug)]
struct Poller {
    socket: Arc<Paced>,
    refused: Option<SocketAddr>,
}

impl UdpPoller for Poller {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = self.socket.clone();
        let mut state = socket.state();
        let Some(peer) = state.refused.take().or(self.refused) else { return Poll::Ready(Ok(())) };
        if state.lanes.see(peer).is_some_and(Lane::is_full) {
            state.lanes.with(peer, |lane| lane.wake_when_room(cx.waker()));
            self.refused = Some(peer);
            return Poll::Pending;
        }
        self.refused = None;
        Poll::Ready(Ok(()))
    }
}

/// A connection's way to its peer; gone when this is.
#[derive(Debug)]
pub struct Course {
    socket: Arc<Paced>,
    peer: SocketAddr,
    pace: Pace,
    number: Option<u64>,
    /// How losses are repaired, where the peer is told that its repairs are read.
    repairs: Option<fec::FecSettings>,
    /// The largest window of a repair that the peer reads, once it has said so.
    window: Option<usize>,
}

impl Course {
    fn new(socket: Arc<Paced>, peer: SocketAddr, pace: Pace) -> Self {
        Self { socket, peer, pace, number: None, repairs: None, window: None }
    }

    /// Is the way to `peer` from now on, whoever had one there: the peer has shown who it is, or has moved.
    pub fn take(&mut self, peer: SocketAddr) {
        let now = self.socket.now();
        let mut state = self.socket.state();
        // Another connection that had this way may have gone, and taken it with it.
        let is_there = state.lanes.has(peer);
        if self.number.is_some() && self.peer == peer && is_there {
            return;
        }
        let moved = self.release(&mut state.lanes);
        let goes_on = moved.is_some() && !is_there;
        // What is known of the leg and what waits go with it, and what was agreed.
        let lane = || moved.unwrap_or_else(|| Lane::new(self.pace.clone(), now));
        let number = state.lanes.put(peer, lane);
        if !goes_on {
            state.lanes.with(peer, |lane| {
                lane.follow(self.pace.clone(), self.repairs.as_ref());
                if let Some(window) = self.window {
                    lane.agree(window);
                }
            });
        }
        drop(state);
        // What waits on it may now leave from elsewhere.
        self.socket.busy.notify_one();
        (self.peer, self.number) = (peer, Some(number));
    }

    /// Whoever comes may turn out to be a peer whose losses are repaired.
    pub fn propose(&self) {
        self.with_lane(Lane::propose);
    }

    /// The peer is told that its repairs are read, and gets some once it has [agreed](Self::agree).
    pub fn repair(&mut self, settings: fec::FecSettings) {
        self.repairs = Some(settings);
        let (pace, repairs) = (self.pace.clone(), self.repairs.clone());
        self.with_lane(|lane| lane.follow(pace, repairs.as_ref()));
    }

    /// The peer has said how large a window of a repair it reads; zero: it reads none.
    pub fn agree(&mut self, window: u64) {
        if self.repairs.is_some() {
            let window = usize::try_from(window).unwrap_or(usize::MAX);
            self.window = Some(window);
            self.with_lane(|lane| lane.agree(window));
        }
    }

    /// What repairs have cost and given, and what part of its datagrams the peer has missed before them.
    /// `None` where another connection has this way now.
    pub fn repaired(&self) -> Option<(fec::Stats, f64)> {
        self.with_lane(|lane| (lane.stats(), lane.loss()))
    }

    /// The pace that its datagrams keep.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    fn with_lane<R>(&self, tell: impl FnOnce(&mut Lane) -> R) -> Option<R> {
        let mut state = self.socket.state();
        let owner = state.lanes.owner(self.peer)?;
        if Some(owner) != self.number {
            return None;
        }
        state.lanes.with(self.peer, tell).map(|(told, _)| told)
    }

    /// Gives up its own lane.
    fn release(&self, lanes: &mut Lanes) -> Option<Lane> {
        lanes.remove(self.peer, self.number?)
    }
}

impl Drop for Course {
    fn drop(&mut self) {
        let _lane = self.release(&mut self.socket.state().lanes);
    }
}

#[cfg(test)]
mod tests;
