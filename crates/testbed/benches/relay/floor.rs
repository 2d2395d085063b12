//! The least that a relay on sockets can do: a line below which no such relay gets.
//!
//! One thread per core, each with a listener and an epoll of its own. It forwards what it reads and
//! tells each side of the other's end, and nothing else: no settings, no counters, no back-pressure
//! (what a socket does not take at once ends the flow), no care for resets. It knows short connections
//! only; what it costs there is the kernel's price of two connections.

use crate::Result;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{MsgFlags, Shutdown, recv, send, shutdown};
use socket2::{Domain, SockAddr, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::thread;

/// The flag that turns this program into the relay.
pub const FLAG: &str = "--be-the-floor";
const THREADS: usize = 2;
const LISTENER: u64 = u64::MAX;

/// Relays what interception delivers to `port`, until killed.
pub fn run(port: u16) -> Result<()> {
    let threads: Vec<_> = (0..THREADS).map(|_| thread::spawn(move || serve(port))).collect();
    for thread in threads {
        thread.join().map_err(|_| "a thread of the floor panicked")??;
    }
    Ok(())
}

struct Flow {
    client: Socket,
    server: Socket,
    connected: bool,
    client_ended: bool,
    server_ended: bool,
}

fn serve(port: u16) -> Result<()> {
    let listener = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None)?;
    listener.set_ip_transparent_v4(true)?;
    listener.set_reuse_address(true)?;
    listener.set_reuse_port(true)?;
    listener.set_tcp_nodelay(true)?;
    // Not on every address: a client may come from this very port, which has to be free for it.
    listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    listener.listen(4096)?;
    let epoll = Epoll::new(EpollCreateFlags::empty())?;
    epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, LISTENER))?;
    let mut flows: Vec<Option<Flow>> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    let mut ended: Vec<usize> = Vec::new();
    let mut events = vec![EpollEvent::empty(); 256];
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = epoll.wait(&mut events, EpollTimeout::NONE)?;
        for event in &events[..count] {
            if event.data() == LISTENER {
                while let Ok((client, from)) = listener.accept() {
                    let place = free.pop().unwrap_or(flows.len());
                    let flow = open(&epoll, client, &from, place as u64)?;
                    if place == flows.len() {
                        flows.push(Some(flow));
                    } else {
                        flows[place] = Some(flow);
                    }
                }
                continue;
            }
            let place = (event.data() / 2) as usize;
            let Some(flow) = &mut flows[place] else { continue };
            if flow.advance(event.data() % 2 == 0, &mut buffer).is_none() {
                flows[place] = None;
                ended.push(place);
            }
        }
        // Not before all events of this turn are through, some of which may be of a flow that ended.
        free.append(&mut ended);
    }
}

fn open(epoll: &Epoll, client: Socket, from: &SockAddr, place: u64) -> Result<Flow> {
    let to = client.local_addr()?;
    let server = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None)?;
    server.set_ip_transparent_v4(true)?;
    server.set_reuse_address(true)?;
    server.set_tcp_nodelay(true)?;
    server.bind(from)?;
    // "In progress", which is the answer, or a failure that epoll tells again.
    let _ = server.connect(&to);
    let both = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
    epoll.add(&server, EpollEvent::new(both, place * 2))?;
    epoll
        .add(&client, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, place * 2 + 1))?;
    Ok(Flow { client, server, connected: false, client_ended: false, server_ended: false })
}

impl Flow {
    /// Takes one event; `None` when the flow is over.
    fn advance(&mut self, of_server: bool, buffer: &mut [u8]) -> Option<()> {
        if of_server && self.connected {
            forward(&self.server, &self.client, &mut self.server_ended, self.client_ended, buffer)?;
        } else if of_server || self.connected {
            self.connected = true;
            forward(&self.client, &self.server, &mut self.client_ended, self.server_ended, buffer)?;
        }
        (!(self.client_ended && self.server_ended)).then_some(())
    }
}

/// Forwards one read; `None` when the flow breaks.
fn forward(
    from: &Socket,
    to: &Socket,
    ended: &mut bool,
    other_ended: bool,
    buffer: &mut [u8],
) -> Option<()> {
    match recv(from.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
        Ok(0) => {
            *ended = true;
            // The later end is told by closing.
            if !other_ended {
                shutdown(to.as_raw_fd(), Shutdown::Write).ok()?;
            }
        }
        Ok(count) => {
            let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
            let sent = send(to.as_raw_fd(), &buffer[..count], flags).ok()?;
            (sent == count).then_some(())?;
        }
        Err(nix::errno::Errno::EAGAIN) => {}
        Err(_) => return None,
    }
    Some(())
}
