//! The socket of an endpoint.
//!
//! The kernel reports each datagram that has left as room for another one, whether or not a task
//! waits for room. This would be a wake-up per datagram. So room is watched only while there is
//! none.
//!
//! Decision 0060.

use crate::watched::watch;
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use socket2::SockRef;
use std::io::{self, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};

/// A UDP socket, its reader and its sender.
#[derive(Debug)]
pub struct QuicSocket {
    io: Arc<AsyncFd<OwnedFd>>,
    udp: UdpSocketState,
    /// Watches the kernel's room, while there is none.
    room: Option<AsyncFd<OwnedFd>>,
}

impl QuicSocket {
    /// Creates it from a non-blocking socket.
    ///
    /// # Errors
    /// When the runtime cannot watch it.
    pub fn new(socket: UdpSocket) -> io::Result<Self> {
        let udp = UdpSocketState::new((&socket).into())?;
        let interest = Interest::READABLE | Interest::ERROR;
        Ok(Self { io: Arc::new(watch(socket.into(), interest)?), udp, room: None })
    }

    /// How many datagrams one call sends at most.
    pub fn most_sent(&self) -> usize {
        self.udp.max_gso_segments()
    }

    /// Waits until there may be datagrams.
    ///
    /// # Errors
    /// When the runtime ends.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_read_ready(cx).map_ok(drop)
    }

    /// Waits for datagrams and receives those that are there, by one call. Returns the number of
    /// buffers that are used.
    ///
    /// # Errors
    /// When the socket cannot be used any more.
    pub fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let empty = || Err(io::ErrorKind::WouldBlock.into());
        loop {
            ready!(self.poll_readable(cx))?;
            let mut count = 0;
            let received = self.io.try_io(Interest::READABLE, |socket| {
                count = self.udp.recv(socket.into(), buffers, metas)?;
                // No more datagrams are left, and the kernel reports the next one.
                if count < buffers.len() { empty() } else { Ok(()) }
            });
            match received {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Poll::Ready(Err(error));
                }
                Ok(()) | Err(_) if count > 0 => return Poll::Ready(Ok(count)),
                Ok(()) | Err(_) => {}
            }
        }
    }

    /// Sends datagrams of one size.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`]: the kernel has no room.
    pub fn send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.udp.try_send(self.io.get_ref().into(), transmit)
    }

    /// Waits for room, if there was none.
    ///
    /// # Errors
    /// When the runtime cannot watch it.
    pub fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let room = match self.room.take() {
            Some(room) => room,
            None => watch(self.io.get_ref().try_clone()?, Interest::WRITABLE)?,
        };
        let Poll::Ready(found) = room.poll_write_ready(cx).map_ok(drop) else {
            self.room = Some(room);
            return Poll::Pending;
        };
        Poll::Ready(found)
    }

    /// Waits until the socket was destroyed. This event wakes no reader of datagrams, so without
    /// datagrams it would not be noticed.
    pub fn destroyed(&self) -> impl Future<Output = io::Error> + use<> {
        let io = self.io.clone();
        async move {
            loop {
                let mut ready = match io.ready(Interest::ERROR).await {
                    Ok(ready) => ready,
                    Err(error) => return error,
                };
                if let Ok(Some(error)) = SockRef::from(io.get_ref()).take_error()
                    && is_destroyed(&error)
                {
                    return error;
                }
                // The loop waits for the next event.
                ready.clear_ready_matching(Ready::ERROR);
            }
        }
    }
}

/// Whether it is the error of a socket that was destroyed.
pub fn is_destroyed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionAborted
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::net::SocketAddr;
    use std::time::Duration;
    use tokio::time::timeout;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn opened() -> (QuicSocket, SocketAddr) {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.set_nonblocking(true).expect("it does not block");
        let address = socket.local_addr().expect("an address");
        (QuicSocket::new(socket).expect("it is watched"), address)
    }

    /// Receives into this many buffers.
    async fn receive(socket: &QuicSocket, buffers: usize) -> usize {
        let mut room = vec![0; buffers << 16];
        let mut metas = vec![RecvMeta::default(); buffers];
        let received = poll_fn(|cx| {
            let mut slices: Vec<_> = room.chunks_mut(1 << 16).map(IoSliceMut::new).collect();
            socket.poll_receive(cx, &mut slices, &mut metas)
        });
        timeout(PATIENCE, received).await.expect("a datagram").expect("it is received")
    }

    #[tokio::test]
    async fn no_datagram_is_waited_for_that_is_there() {
        let (socket, address) = opened();
        let peer = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        for round in 0..50 {
            // As many datagrams as there are buffers, fewer, and more.
            for _ in 0..=round % 5 {
                peer.send_to(b"some", address).expect("room");
            }
            let mut left = 1 + round % 5;
            while left > 0 {
                left -= receive(&socket, 3).await;
            }
        }
    }

    #[tokio::test]
    async fn room_is_noticed_when_it_is_there_again() {
        let (mut socket, _) = opened();
        for _ in 0..2 {
            let room = timeout(PATIENCE, poll_fn(|cx| socket.poll_room(cx))).await;
            room.expect("it is there").expect("it is watched");
            assert!(socket.room.is_none(), "nobody waits");
        }
    }
}
