//! Kernel pipes that bulk data is spliced through, shared by the flows of one worker.
//!
//! Invariant: a pipe goes back to the pool only when it is empty, so no byte of one flow can ever
//! reach another. A pipe that is dropped with bytes inside is closed.

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::pipe2;
use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;

/// What a pipe should hold at best.
const PIPE_BYTES: usize = 1 << 20;
/// What is tried where the user's share of pipe memory is used up.
const PIPE_BYTES_SMALL: usize = 256 << 10;

/// Both ends of a pipe, and how much fits between them.
#[derive(Debug)]
pub struct Pipe {
    /// The end that is spliced from.
    pub source: OwnedFd,
    /// The end that is spliced into.
    pub sink: OwnedFd,
    /// Unit: bytes, if every page is full.
    pub capacity: usize,
}

impl Pipe {
    /// Opens one that is as large as this user may have it.
    ///
    /// # Errors
    /// When there are no descriptors.
    pub fn open() -> io::Result<Self> {
        let (source, sink) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        let mut capacity = 64 << 10;
        for bytes in [PIPE_BYTES, PIPE_BYTES_SMALL] {
            // Beyond `pipe-user-pages-soft` an unprivileged process is refused: less will do.
            let Ok(wanted) = i32::try_from(bytes) else { continue };
            if let Ok(size) = fcntl(&sink, FcntlArg::F_SETPIPE_SZ(wanted)) {
                capacity = usize::try_from(size).unwrap_or(capacity);
                break;
            }
        }
        Ok(Self { source, sink, capacity })
    }
}

/// The pipes of one worker: at most `limit` in use at a time, some kept for the next flow.
#[derive(Debug)]
pub struct PipePool {
    idle: RefCell<Vec<Pipe>>,
    lent: std::cell::Cell<usize>,
    limit: usize,
}

impl PipePool {
    /// How many empty pipes are kept; each keeps two descriptors and no data.
    const KEPT: usize = 16;

    /// A pool that lends at most `limit` pipes.
    pub fn new(limit: usize) -> Self {
        Self { idle: RefCell::new(Vec::new()), lent: std::cell::Cell::new(0), limit }
    }

    /// Lends a pipe; `None` when all are lent or the process has no descriptors left, in which case
    /// the flow copies instead.
    pub fn take(&self) -> Option<Pipe> {
        if self.lent.get() >= self.limit {
            return None;
        }
        let kept = self.idle.borrow_mut().pop();
        let pipe = kept.or_else(|| Pipe::open().ok())?;
        self.lent.set(self.lent.get() + 1);
        Some(pipe)
    }

    /// Counts a pipe that another process lent, and that has bytes of a flow.
    pub fn adopt(&self, source: OwnedFd, sink: OwnedFd) -> Pipe {
        self.lent.set(self.lent.get() + 1);
        let size = fcntl(&sink, FcntlArg::F_GETPIPE_SZ).ok();
        let capacity = size.and_then(|size| usize::try_from(size).ok()).unwrap_or(64 << 10);
        Pipe { source, sink, capacity }
    }

    /// Takes an empty pipe back.
    pub fn put(&self, pipe: Pipe) {
        self.lent.set(self.lent.get().saturating_sub(1));
        let mut idle = self.idle.borrow_mut();
        if idle.len() < Self::KEPT {
            idle.push(pipe);
        }
    }

    /// Closes a pipe that still holds bytes of a flow that was reset.
    pub fn discard(&self, pipe: Pipe) {
        self.lent.set(self.lent.get().saturating_sub(1));
        drop(pipe);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_are_lent_than_allowed() {
        let pool = PipePool::new(2);
        let first = pool.take().expect("the first pipe");
        let second = pool.take().expect("the second pipe");
        assert!(first.capacity >= 64 << 10);
        assert!(pool.take().is_none());
        pool.put(first);
        let third = pool.take().expect("the one given back");
        pool.discard(second);
        pool.discard(third);
        assert!(pool.take().is_some());
    }
}
