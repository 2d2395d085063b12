//! Copies what the receive queues of a flow hold while it goes on, for the new place (decision 0068).
//!
//! The send queues are not copied: reading one takes repair mode, in which the kernel marks as sent, without sending it, all
//! that is unsent as soon as an acknowledgement arrives (`tcp_write_xmit`). What they hold when the flow stands still was in
//! a receive queue before.
//!
//! Invariant: this takes nothing from a queue, and changes no socket but that it reports how much is unread.

use crate::flow_sampler::Sockets;
use midhop_linux::receive_queue::copy_unread;
use midhop_linux::sockopt;
use midhop_linux::stream_position::{OpenedBy, StreamPosition};
use midhop_tunnel::relocation::FLOW_BYTES_MAX;
use std::io;
use std::ops::Range;
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// Unit: bytes. The least that is worth a copy: less takes no longer than the messages do.
pub const LEAST: usize = 128 << 10;
/// Unit: bytes. The most of one receive queue.
const QUEUE_BYTES_MAX: usize = FLOW_BYTES_MAX / 2;

/// Positions in a stream, as its receiving socket counts.
pub type Positions = Range<i64>;

/// Bytes of a stream that its receiving socket has and nobody has read yet.
#[derive(Debug)]
pub struct StreamCopy {
    /// The position of the first.
    pub begin: i64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Asks for copies of a flow's receive queues: of the client's socket, then of the server's.
#[derive(Debug)]
pub struct CopyRequest {
    /// What is copied already.
    pub copied: [Positions; 2],
    /// What is worth it. Unit: bytes.
    pub least: [usize; 2],
    /// Gone if nobody waits any more.
    pub answer: oneshot::Sender<[Option<StreamCopy>; 2]>,
}

impl CopyRequest {
    /// Answers for a flow with these sockets. To be called on its thread, so that nobody reads meanwhile.
    pub fn serve(self, sockets: &dyn Sockets) {
        let copies = sockets.each().map(|leg| {
            let (side, socket, _) = leg?;
            let at = side as usize;
            copy(socket, &self.copied[at], self.least[at]).unwrap_or_else(|error| {
                // It has ended, or stands still already.
                tracing::debug!(%error, "what a flow holds cannot be copied");
                None
            })
        });
        let _ = self.answer.send(copies);
    }
}

/// What a socket has received and nobody has read, beyond what is copied. None: it is less than `least`, or what follows the
/// copy has been read.
fn copy(socket: &TcpStream, copied: &Positions, least: usize) -> io::Result<Option<StreamCopy>> {
    let unread = sockopt::unread(socket)?;
    if unread < least {
        return Ok(None);
    }
    let read = read_position(socket)?;
    let begin = if copied.is_empty() { read } else { copied.end };
    let Some(known) =
        usize::try_from(begin - read).ok().filter(|known| unread - *known.min(&unread) >= least)
    else {
        return Ok(None);
    };
    let mut bytes = copy_unread(socket, unread.min(QUEUE_BYTES_MAX)).map_err(io::Error::other)?;
    bytes.drain(..known.min(bytes.len()));
    Ok(Some(StreamCopy { begin, bytes }).filter(|copy| copy.bytes.len() >= least))
}

/// The position of the first byte that was not read. To be called on the flow's thread, and not in repair mode.
///
/// # Errors
/// When the socket has no connection.
pub fn read_position(socket: &TcpStream) -> io::Result<i64> {
    let position = StreamPosition::of(socket, OpenedBy::FarEnd)?;
    i64::try_from(position.read).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[tokio::test]
    async fn what_is_unread_is_copied_and_stays() -> io::Result<()> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let mut far = std::net::TcpStream::connect(listener.local_addr()?)?;
        let near = listener.accept()?.0;
        near.set_nonblocking(true)?;
        let mut reader = near.try_clone()?;
        let near = TcpStream::from_std(near)?;
        let sent: Vec<u8> = (0..60_000_u32).map(|n| (n % 251) as u8).collect();
        let wait_for = |bytes: usize| async move {
            while sockopt::unread(&near)? < bytes {
                near.readable().await?;
                tokio::task::yield_now().await;
            }
            Ok::<_, io::Error>(near)
        };
        far.write_all(&sent[..40_000])?;
        let near = wait_for(40_000).await?;
        let mut some = [0; 10_000];
        reader.read_exact(&mut some)?;
        assert!(copy(&near, &(0..0), 30_001)?.is_none(), "not worth it");
        let first = copy(&near, &(0..0), 30_000)?.expect("a copy");
        assert!(first.begin == 10_000 && first.bytes == sent[10_000..40_000]);
        far.write_all(&sent[40_000..])?;
        // With its end behind it.
        drop(far);
        while sockopt::unread(&near)? < 50_000 {
            tokio::task::yield_now().await;
        }
        reader.read_exact(&mut some)?;
        let copied = 10_000..40_000;
        assert!(copy(&near, &copied, 20_001)?.is_none(), "not worth it");
        let second = copy(&near, &copied, 1)?.expect("a copy");
        assert!(second.begin == 40_000 && second.bytes == sent[40_000..]);
        let mut rest = vec![0; 25_000];
        reader.read_exact(&mut rest)?;
        assert!(rest == sent[20_000..45_000], "nothing was taken");
        assert_eq!(read_position(&near)?, 45_000);
        // What follows the copy is gone.
        assert!(copy(&near, &copied, 1)?.is_none());
        Ok(())
    }
}
