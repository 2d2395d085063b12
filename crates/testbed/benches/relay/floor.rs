//! The minimal relay on sockets: no relay on sockets can cost less.
//!
//! One thread per core, each with its own listener and epoll. It forwards what it reads, waits
//! where the other side takes no more (backpressure), and passes on each side's FIN. It has no
//! settings, no counters and no handling of resets. Where a socket takes everything at once, as
//! with short connections, it makes only the system calls that two connections need.
//!
//! Decision 0013.

pub mod held;

use crate::Result;
use held::Held;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{MsgFlags, Shutdown, recv, send, shutdown};
use socket2::{Domain, SockAddr, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::thread;

/// The flag that turns this program into the relay.
pub const FLAG: &str = "--be-the-floor";
/// The argument after [`FLAG`] with which SYNs are held first.
pub const HELD: &str = "--held";
const THREADS: u16 = 2;
const LISTENER: u64 = u64::MAX;
const QUEUE: u64 = u64::MAX - 1;
const IN: EpollFlags = EpollFlags::EPOLLIN.union(EpollFlags::EPOLLRDHUP).union(EpollFlags::EPOLLET);
const BOTH: EpollFlags = IN.union(EpollFlags::EPOLLOUT);

/// Relays what interception delivers to `port`, until killed.
pub fn run(port: u16, held: bool) -> Result<()> {
    let begin = |thread| thread::spawn(move || serve(port, held.then_some(thread)));
    let threads: Vec<_> = (0..THREADS).map(begin).collect();
    for thread in threads {
        thread.join().map_err(|_| "a thread of the floor panicked")??;
    }
    Ok(())
}

struct Flow {
    client: End,
    server: End,
    connected: bool,
}

/// One socket of a flow, and what was read from it.
struct End {
    socket: Socket,
    /// Identifier of the socket in epoll's events.
    name: u64,
    /// Whether epoll reports when it can be written to.
    reports_space: bool,
    /// Whether the kernel has reported its FIN. From then on, reading stops only at the FIN.
    fin_reported: bool,
    /// Whether its FIN was read and passed on.
    ended: bool,
    /// What was read from it and did not fit into the other socket.
    held: Vec<u8>,
}

impl End {
    fn new(socket: Socket, name: u64, reports_space: bool) -> Self {
        let (fin_reported, ended, held) = (false, false, Vec::new());
        Self { socket, name, reports_space, fin_reported, ended, held }
    }
}

fn serve(port: u16, held: Option<u16>) -> Result<()> {
    let held = held.map(Held::open).transpose()?;
    let listener = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None)?;
    listener.set_ip_transparent_v4(true)?;
    listener.set_reuse_address(true)?;
    listener.set_reuse_port(true)?;
    listener.set_tcp_nodelay(true)?;
    // Not on every address: a client may use this port as its own, and its port has to be free
    // here.
    listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    listener.listen(4096)?;
    let epoll = Epoll::new(EpollCreateFlags::empty())?;
    epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, LISTENER))?;
    if let Some(held) = &held {
        epoll.add(held, EpollEvent::new(EpollFlags::EPOLLIN, QUEUE))?;
    }
    let mut flows: Vec<Option<Flow>> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    let mut ended: Vec<usize> = Vec::new();
    let mut events = vec![EpollEvent::empty(); 256];
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = epoll.wait(&mut events, EpollTimeout::NONE)?;
        for event in &events[..count] {
            if let Some(held) = held.as_ref().filter(|_| event.data() == QUEUE) {
                held.take_all()?;
                continue;
            }
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
            let of_server = event.data() % 2 == 0;
            if flow.advance(&epoll, of_server, event.events(), &mut buffer).is_none() {
                flows[place] = None;
                ended.push(place);
            }
        }
        // Slots are reused only after all events of this turn: later events may belong to a flow
        // that has ended.
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
    // The result is "in progress", or a failure that epoll reports again.
    let _ = server.connect(&to);
    let (server, client) =
        (End::new(server, place * 2, true), End::new(client, place * 2 + 1, false));
    epoll.add(&server.socket, EpollEvent::new(BOTH, server.name))?;
    epoll.add(&client.socket, EpollEvent::new(IN, client.name))?;
    Ok(Flow { client, server, connected: false })
}

impl Flow {
    /// Takes one event; `None` when the flow is over.
    fn advance(
        &mut self,
        epoll: &Epoll,
        of_server: bool,
        events: EpollFlags,
        buffer: &mut [u8],
    ) -> Option<()> {
        let fin = EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR;
        let near = if of_server { &mut self.server } else { &mut self.client };
        near.fin_reported |= events.intersects(fin);
        if !self.connected {
            if !of_server {
                // Client data is read once the server's connection stands.
                return Some(());
            }
            self.connected = true;
            forward(epoll, &mut self.client, &mut self.server, buffer)?;
            if !events.intersects(EpollFlags::EPOLLIN | fin) {
                return Some(());
            }
        }
        let (near, far) = if of_server {
            (&mut self.server, &mut self.client)
        } else {
            (&mut self.client, &mut self.server)
        };
        if events.contains(EpollFlags::EPOLLOUT) && !far.held.is_empty() {
            forward(epoll, far, near, buffer)?;
        }
        if events.intersects(EpollFlags::EPOLLIN | fin) {
            forward(epoll, near, far, buffer)?;
        }
        (!(near.ended && far.ended)).then_some(())
    }
}

/// Forwards what there is, until `from` has no more or `to` takes no more; `None` when the flow
/// breaks.
fn forward(epoll: &Epoll, from: &mut End, to: &mut End, buffer: &mut [u8]) -> Option<()> {
    if !from.held.is_empty() {
        let sent = write(&to.socket, &from.held)?;
        from.held.drain(..sent);
        if !from.held.is_empty() {
            return Some(());
        }
    }
    while !from.ended {
        match recv(from.socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(0) => {
                from.ended = true;
                // The second FIN is sent by closing the sockets.
                if !to.ended {
                    shutdown(to.socket.as_raw_fd(), Shutdown::Write).ok()?;
                }
            }
            Ok(count) => {
                let sent = write(&to.socket, &buffer[..count])?;
                if sent < count {
                    from.held.extend_from_slice(&buffer[sent..count]);
                    return wait_for_space(epoll, to);
                }
                // A short read has emptied the socket. Later data is a new event.
                if count < buffer.len() && !from.fin_reported {
                    return Some(());
                }
            }
            Err(Errno::EAGAIN) => return Some(()),
            Err(_) => return None,
        }
    }
    Some(())
}

/// Makes epoll report when `end` can be written to. The change makes epoll check at once, so space
/// that became free in between is not missed.
fn wait_for_space(epoll: &Epoll, end: &mut End) -> Option<()> {
    if !end.reports_space {
        epoll.modify(&end.socket, &mut EpollEvent::new(BOTH, end.name)).ok()?;
        end.reports_space = true;
    }
    Some(())
}

/// Writes what fits; `None` when the socket is broken.
fn write(to: &Socket, bytes: &[u8]) -> Option<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match send(to.as_raw_fd(), &bytes[sent..], MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT)
        {
            Ok(count) => sent += count,
            Err(Errno::EAGAIN) => break,
            Err(_) => return None,
        }
    }
    Some(sent)
}
