//! A link between two endpoints of QUIC that is nothing but memory: it delays each datagram, and loses some.

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::{
    collections::VecDeque,
    io::{self, IoSliceMut},
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep_until};

/// The addresses of its ends.
pub const NEAR: &str = "192.0.2.1:4433";
pub const FAR: &str = "192.0.2.2:4433";

/// The link.
#[derive(Debug)]
pub struct Wire {
    loss_percent: Arc<AtomicU64>,
    delay: Duration,
    /// What is on its way to the near end, and to the far end.
    ways: [Arc<Mutex<Way>>; 2],
}

#[derive(Debug, Default)]
struct Way {
    datagrams: VecDeque<(Instant, Vec<u8>)>,
    /// Who waits at its end.
    waker: Option<Waker>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Wire {
    pub fn new(delay: Duration) -> Self {
        Self { loss_percent: Arc::default(), delay, ways: Default::default() }
    }

    /// From now on it loses so many of a hundred towards the far end.
    pub fn lose(&self, percent: u64) {
        self.loss_percent.store(percent, Relaxed);
    }

    /// The socket of an end.
    pub fn end(&self, at: &str) -> Arc<End> {
        let [near, far] = self.ways.clone();
        let (here, there) = if at == NEAR { (near, far) } else { (far, near) };
        let loss_percent = if at == NEAR { self.loss_percent.clone() } else { Arc::default() };
        let (own, peer) = if at == NEAR { (NEAR, FAR) } else { (FAR, NEAR) };
        let [own, peer] = [own, peer].map(|it| it.parse().expect("an address"));
        let dice = Mutex::new(0x9e37_79b9_7f4a_7c15);
        Arc::new(End { own, peer, here, there, loss_percent, delay: self.delay, dice })
    }
}

/// One end.
#[derive(Debug)]
pub struct End {
    own: SocketAddr,
    peer: SocketAddr,
    here: Arc<Mutex<Way>>,
    there: Arc<Mutex<Way>>,
    loss_percent: Arc<AtomicU64>,
    delay: Duration,
    dice: Mutex<u64>,
}

impl End {
    fn loses(&self) -> bool {
        let mut state = self.dice.lock().expect("no panic");
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 32) % 100 < self.loss_percent.load(Relaxed)
    }
}

impl AsyncUdpSocket for End {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Ready)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let size = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        let due = Instant::now() + self.delay;
        let mut there = self.there.lock().expect("no panic");
        for datagram in transmit.contents.chunks(size) {
            if !self.loses() {
                there.datagrams.push_back((due, datagram.to_vec()));
            }
        }
        if let Some(waker) = there.waker.take() {
            waker.wake();
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut here = self.here.lock().expect("no panic");
        let mut count = 0;
        for (buffer, meta) in buffers.iter_mut().zip(metas) {
            let Some((due, datagram)) = here.datagrams.front() else { break };
            if *due > Instant::now() {
                break;
            }
            let len = datagram.len();
            buffer[..len].copy_from_slice(datagram);
            *meta = RecvMeta::default();
            (meta.addr, meta.dst_ip) = (self.peer, Some(self.own.ip()));
            (meta.len, meta.stride) = (len, len);
            here.datagrams.pop_front();
            count += 1;
        }
        if count > 0 {
            return Poll::Ready(Ok(count));
        }
        here.waker = Some(cx.waker().clone());
        here.timer = here.datagrams.front().map(|(due, _)| Box::pin(sleep_until(*due)));
        // One that is due already wakes at once.
        if let Some(timer) = &mut here.timer
            && timer.as_mut().poll(cx).is_ready()
        {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.own)
    }
}

/// It always takes more.
#[derive(Debug)]
struct Ready;

impl UdpPoller for Ready {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
