//! Where the relaying of a flow starts: at its beginning, or where another process was killed.

use super::RelayContext;
use super::pipe::Pipe;
use crate::ends::Side;
use crate::survival::register::FlowEntry;
use midhop_linux::sockopt;
use midhop_linux::stream_position::{OpenedBy, StreamPosition};
use midhop_pep::resumption::{Broken, Progress};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;

/// What a flow starts with. That of a new flow is the default.
#[derive(Debug, Default)]
pub struct Start {
    /// Its entry in the register, so that it outlives this process.
    pub entry: Option<Rc<FlowEntry>>,
    /// The side that broke before.
    pub broke: Option<Side>,
    /// What another process left, up and down. It is boxed, as few flows have it and all would need
    /// the room.
    pub left: Option<Box<[StartDirection; 2]>>,
}

/// What one direction starts with.
#[derive(Debug, Default)]
pub struct StartDirection {
    /// A pipe with so many bytes that were read and not written.
    pub piped: Option<(Pipe, usize)>,
    /// Whether its end has been passed on.
    pub done: bool,
}

/// Why a flow cannot be continued.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// The kernel does not report its position.
    #[error("its position is unknown: {0}")]
    Unknown(#[from] io::Error),
    /// Its bytes are not there any more.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// Difference between the bytes written to the far socket of a direction and those read from the
/// near one, up and down; modulo 2⁶⁴. This is 0 for a flow of which no byte was moved yet.
///
/// # Errors
/// When the kernel does not report it.
pub fn ahead(client: impl AsFd, server: impl AsFd) -> io::Result<[u64; 2]> {
    let client = StreamPosition::of(client, OpenedBy::FarEnd)?;
    let server = StreamPosition::of(server, OpenedBy::ThisEnd)?;
    Ok([server.written.wrapping_sub(client.read), client.written.wrapping_sub(server.read)])
}

/// The start of a flow that another process relayed until it was killed, with the pipes that it had
/// up and down, and what was [`ahead`] when it began. What was written already is dropped from the
/// receive queues. `entry` removes a pipe that is not needed before the pipe is closed, because its
/// descriptors will be used again.
///
/// # Errors
/// When the flow cannot be continued.
pub fn after_death(
    client: impl AsFd,
    server: impl AsFd,
    pipes: [Option<(OwnedFd, OwnedFd)>; 2],
    ahead: [u64; 2],
    entry: &FlowEntry,
    context: &RelayContext,
) -> Result<Start, Lost> {
    let (client, server) = (client.as_fd(), server.as_fd());
    let of_client = StreamPosition::of(client, OpenedBy::FarEnd)?;
    let of_server = StreamPosition::of(server, OpenedBy::ThisEnd)?;
    let broke = match (of_client.is_reset(), of_server.is_reset()) {
        (true, _) => Some(Side::Client),
        (_, true) => Some(Side::Server),
        _ => None,
    };
    let ways = [
        (Side::Client, client, of_client, of_server),
        (Side::Server, server, of_server, of_client),
    ];
    let mut directions = <[StartDirection; 2]>::default();
    for (((side, from, near, far), pipe), (ahead, direction)) in
        ways.into_iter().zip(pipes).zip(ahead.into_iter().zip(&mut directions))
    {
        let piped = match &pipe {
            Some((source, _)) => sockopt::unread(source)?,
            None => 0,
        };
        if far.closed || far.shut {
            // The far socket takes nothing any more. A FIN of this end was sent after everything
            // else: it must not be sent again, because the far end's acknowledgement may close the
            // connection at any moment.
            let has_all = || Ok::<_, io::Error>(piped + sockopt::unread(from)? == 0);
            direction.done = far.shut && (!far.closed || (near.ended && has_all()?));
            entry.note_pipe(side, None);
            continue;
        }
        let written = far.written.wrapping_sub(ahead);
        let progress = Progress { read: near.read, piped: piped as u64, written };
        discard(from, progress.written_and_unread()?, &mut context.scratch.borrow_mut())?;
        match pipe {
            Some((source, sink)) if piped > 0 => {
                direction.piped = Some((context.pipes.adopt(source, sink), piped));
            }
            _ => entry.note_pipe(side, None),
        }
    }
    Ok(Start { entry: None, broke, left: Some(Box::new(directions)) })
}

/// Takes this many bytes, which are there, from the head of a receive queue, and drops them. TCP
/// copies nothing with this flag, but the kernel requires a buffer all the same.
///
/// # Errors
/// When the queue has fewer.
pub fn discard(from: impl AsFd, mut bytes: u64, room: &mut [u8]) -> io::Result<()> {
    let from = from.as_fd().as_raw_fd();
    while bytes > 0 {
        let most = usize::try_from(bytes).map_or(room.len(), |bytes| bytes.min(room.len()));
        match recv(from, &mut room[..most], MsgFlags::MSG_TRUNC | MsgFlags::MSG_DONTWAIT) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes -= count as u64,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ends::Ends;
    use crate::flow_sampler::BothLegs;
    use crate::ledger::{FlowBook, Party};
    use crate::leg::{BoundedWindow, Sample};
    use crate::relay::{Relayed, Stage, Stages, relay};
    use crate::relocation::halt::Halt;
    use crate::survival::register::{Record, Region, Register, tests::record};
    use midhop_pep::budget::Budget;
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    const LINGER: Duration = Duration::from_secs(60);

    fn context() -> RelayContext {
        RelayContext::new(1, Arc::new(Budget::new(1 << 30)), Arc::default(), Arc::default())
    }

    fn stages() -> Stages {
        let stage = || Stage { bytes: 1 << 16, share: None };
        Stages { client: stage(), server: stage() }
    }

    fn book(ends: Ends) -> FlowBook {
        FlowBook::new(ends, Party::tunnel("near"), Party::tunnel("far"))
    }

    async fn listen() -> io::Result<(TcpListener, SocketAddr)> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    }

    /// The server has ended, and a process that was killed had passed that on to the client. The
    /// client ends while the next process starts, which closes its connection in order.
    #[tokio::test]
    async fn an_end_that_was_passed_on_is_not_passed_on_again() -> io::Result<()> {
        let (near, (far, at)) = (listen().await?, listen().await?);
        let mut client = TcpStream::connect(near.1).await?;
        let (to_client, client_address) = near.0.accept().await?;
        let to_server = TcpStream::connect(at).await?;
        let (mut server, _) = far.accept().await?;
        let mut legs = BothLegs {
            client: to_client,
            server: to_server,
            windows: [BoundedWindow::new(None), BoundedWindow::new(None)],
            halt: Halt::default(),
        };
        server.shutdown().await?;
        assert_eq!(legs.server.read(&mut [0]).await?, 0);
        legs.client.shutdown().await?;
        assert_eq!(client.read(&mut [0]).await?, 0);

        let (register, context) = (Register::new(1, 1)?, context());
        let region = Region::of(&register, 0).0;
        let entry = region.enter(&Record { pipes: [None, None], ..record(7) }).expect("an entry");
        let BothLegs { client: near, server: far, .. } = &legs;
        let start =
            after_death(near, far, [None, None], [0, 0], &entry, &context).expect("a start");
        let up = b"the client's last bytes";
        client.write_all(up).await?;
        client.shutdown().await?;
        while !Sample::of(&legs.client).expect("an answer").closed {
            tokio::task::yield_now().await;
        }
        let book = book(Ends { client: client_address, server: at });
        let relayed = relay(&legs, stages(), start, &book, &context, LINGER).await;
        let Relayed::Ended(carried) = relayed else { panic!("nobody asked it to stand still") };
        assert_eq!(carried.outcome.expect("an orderly end"), Side::Server);
        legs.server.shutdown().await?;
        let mut received = Vec::new();
        server.read_to_end(&mut received).await?;
        assert_eq!(received, up);
        Ok(())
    }
}
