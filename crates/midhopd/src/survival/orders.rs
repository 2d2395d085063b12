//! Orders to read the configuration again. None is lost when a data plane is killed.
//!
//! A signal is lost with the process that it was sent to. So the holder counts the requests, in
//! memory that the data plane reads before it reads the configuration. When it has applied the
//! configuration, it reports the count that it has read. If a request is not reported, the next
//! data plane gets it again.
//!
//! Decision 0058.

use midhop_linux::shared_words::SharedWords;
use midhop_process::notify::Notice;
use nix::unistd::{read, write};
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The bit of a byte that reports a reload. The other bits are those of the count.
const RELOADED: u8 = 0x80;

/// The data plane's end: what it reports through the holder.
#[derive(Debug, Clone)]
pub struct Notices {
    sink: Arc<OwnedFd>,
    asked: Arc<SharedWords>,
}

impl Notices {
    /// Reports the daemon's state. The holder passes it on, because the service manager accepts it
    /// only from the unit's main process.
    pub fn notify(&self, notice: Notice) {
        self.send(notice as u8);
    }

    /// Number of requests to read the configuration again. To be called before reading it.
    pub fn reloads_asked(&self) -> u64 {
        count(&self.asked).load(SeqCst)
    }

    /// Reports that the requests up to this count have been followed, or refused for good.
    pub fn reloaded(&self, asked: u64) {
        self.send(RELOADED | low(asked));
    }

    fn send(&self, byte: u8) {
        if let Err(error) = write(&self.sink, &[byte]) {
            tracing::warn!(%error, byte, "the first process could not be notified");
        }
    }
}

/// The holder's end.
#[derive(Debug)]
pub struct Orders {
    source: OwnedFd,
    notices: Notices,
    /// The low bits of the count that was reported last.
    done: Cell<u8>,
}

impl Orders {
    /// Creates it from the two ends of a pipe, both of which are non-blocking.
    ///
    /// # Errors
    /// When the kernel has no memory for a word.
    pub fn new((source, sink): (OwnedFd, OwnedFd)) -> io::Result<Self> {
        let notices = Notices { sink: Arc::new(sink), asked: Arc::new(SharedWords::new(1)?) };
        Ok(Self { source, notices, done: Cell::new(0) })
    }

    /// The data plane's end.
    pub fn notices(&self) -> Notices {
        self.notices.clone()
    }

    /// Counts a request to read the configuration again.
    pub fn ask_to_reload(&self) {
        count(&self.notices.asked).fetch_add(1, SeqCst);
    }

    /// Whether there is a request for a reload that was not reported. To be called when all notices
    /// have been read.
    pub fn owes_reload(&self) -> bool {
        low(self.notices.reloads_asked()) != self.done.get()
    }

    /// The next notice for the service manager that has arrived. Records reports of reloads on the
    /// way.
    pub fn next(&self) -> Option<Notice> {
        let mut byte = [0];
        while let Ok(1) = read(&self.source, &mut byte) {
            let [byte] = byte;
            if byte & RELOADED != 0 {
                self.done.set(byte & !RELOADED);
                continue;
            }
            let known = [Notice::Ready, Notice::Stopping];
            if let Some(notice) = known.into_iter().find(|it| *it as u8 == byte) {
                return Some(notice);
            }
        }
        None
    }
}

impl AsFd for Orders {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.as_fd()
    }
}

fn count(asked: &SharedWords) -> &AtomicU64 {
    &asked[0]
}

/// The bits of a count for which a byte has room. They suffice, as no more than one report is ever
/// on its way.
#[expect(clippy::cast_possible_truncation, reason = "the end of it")]
fn low(asked: u64) -> u8 {
    asked as u8 & !RELOADED
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::OFlag;
    use nix::unistd::pipe2;

    #[test]
    fn a_reload_is_owed_until_it_is_reported() -> io::Result<()> {
        let orders = Orders::new(pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?)?;
        let data_plane = orders.notices();
        assert!(!orders.owes_reload());
        for _ in 0..300 {
            orders.ask_to_reload();
            let asked = data_plane.reloads_asked();
            assert!(orders.owes_reload(), "it may die while it reads");
            // Another request, made before or after the file was read: the file is read again.
            orders.ask_to_reload();
            data_plane.reloaded(asked);
            assert_eq!(orders.next(), None);
            assert!(orders.owes_reload(), "it may die before it reads again");
            data_plane.notify(Notice::Ready);
            data_plane.reloaded(data_plane.reloads_asked());
            assert_eq!((orders.next(), orders.next()), (Some(Notice::Ready), None));
            assert!(!orders.owes_reload());
        }
        Ok(())
    }
}
