//! One flow through a naive proxy: two sockets, and unbounded queues between them.

use super::{NaiveLegOptions, Shared, socket};
use midhop_units::Bytes;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::TcpStream;

/// Interval at which both ends are checked for acknowledgement of everything.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The ends of a flow.
const CLIENT: usize = 0;
const SERVER: usize = 1;

/// The server's end of a flow: how to connect to it.
#[derive(Debug)]
pub(super) struct Far {
    pub(super) source: SocketAddr,
    pub(super) server: SocketAddr,
    pub(super) leg: NaiveLegOptions,
}

/// A flow whose client has been answered.
#[derive(Debug)]
pub(super) struct Flow {
    id: u64,
    client: Rc<TcpStream>,
    /// The window that is offered to the client.
    window: Bytes,
    shared: Rc<Shared>,
}

impl Flow {
    pub(super) fn new(id: u64, window: Bytes, client: TcpStream, shared: Rc<Shared>) -> Self {
        let client = Rc::new(client);
        shared.know(id, CLIENT, &client);
        Self { id, client, window, shared }
    }

    /// Carries everything both ways until both directions have ended, or one socket fails: then
    /// both are closed.
    pub(super) async fn run(self, far: Far) {
        let ended = self.carry_both(&far).await;
        if self.shared.is_living(self.id) {
            self.shared.count(if ended.is_ok() { "flows-ended" } else { "flows-reset" }, 1);
        }
        self.shared.end(self.id);
    }

    async fn carry_both(&self, far: &Far) -> io::Result<()> {
        // Client data is read before the server is connected: the offered window is the same at all
        // times.
        let mut early = Queue::default();
        let server = {
            let dial = socket::dial(far.source, far.server, &far.leg);
            tokio::pin!(dial);
            loop {
                tokio::select! {
                    dialled = &mut dial => break Rc::new(dialled?),
                    ready = self.client.readable(), if !early.ended => {
                        ready?;
                        self.read(&self.client, self.window, SERVER, &mut early)?;
                    }
                }
            }
        };
        self.shared.know(self.id, SERVER, &server);
        let up = self.carry(&self.client, self.window, SERVER, &server, early);
        let down = self.carry(&server, far.leg.window, CLIENT, &self.client, Queue::default());
        tokio::try_join!(up, down)?;
        while self.shared.settle(self.id) > 0 {
            if let Some(error) = self.client.take_error()?.or(server.take_error()?) {
                return Err(error);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        socket::release(&*self.client)?;
        socket::release(&*server)
    }

    /// Carries the data of one socket to the `end` behind the other.
    async fn carry(
        &self,
        from: &TcpStream,
        window: Bytes,
        end: usize,
        to: &TcpStream,
        mut queue: Queue,
    ) -> io::Result<()> {
        let direction = if end == SERVER { "bytes-up" } else { "bytes-down" };
        loop {
            if queue.is_empty() && queue.ended {
                socket2::SockRef::from(to).shutdown(std::net::Shutdown::Write)?;
                return Ok(());
            }
            tokio::select! {
                ready = from.readable(), if !queue.ended => {
                    ready?;
                    self.read(from, window, end, &mut queue)?;
                }
                ready = to.writable(), if !queue.is_empty() => {
                    ready?;
                    self.shared.count(direction, queue.write(to)?);
                }
            }
        }
    }

    /// Reads what has arrived, whether or not the store has room for it.
    fn read(
        &self,
        from: &TcpStream,
        window: Bytes,
        end: usize,
        queue: &mut Queue,
    ) -> io::Result<()> {
        let mut room = self.shared.room.borrow_mut();
        match from.try_read(&mut room) {
            Ok(0) => queue.ended = true,
            Ok(length) => {
                queue.parts.push_back(room.get(..length).unwrap_or_default().to_vec());
                socket::offer(from, window)?;
                self.shared.take(self.id, end, length as u64);
                if !self.shared.is_living(self.id) {
                    return Err(io::ErrorKind::OutOfMemory.into());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Data that waits for a socket.
#[derive(Debug, Default)]
struct Queue {
    parts: VecDeque<Vec<u8>>,
    /// Bytes of the first part that have been written.
    gone: usize,
    /// No more data will follow.
    ended: bool,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Writes as much as the socket takes, and returns how much that was.
    fn write(&mut self, to: &TcpStream) -> io::Result<u64> {
        let mut written = 0;
        while let Some(part) = self.parts.front() {
            match to.try_write(part.get(self.gone..).unwrap_or_default()) {
                Ok(length) => {
                    written += length as u64;
                    self.gone += length;
                    if self.gone >= part.len() {
                        self.parts.pop_front();
                        self.gone = 0;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }
}
