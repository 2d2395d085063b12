//! Orders to read the configuration again, which no death may lose.
//!
//! A signal is gone with the process that it was sent to. So the holder counts what it was asked for, in memory that the
//! data plane reads as it begins to read the configuration; when it has followed it, it reports the count that it has
//! read. What is not reported is asked of the next data plane again.

use midhop_linux::shared_words::SharedWords;
use midhop_process::notify::Notice;
use nix::unistd::{read, write};
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// What a byte has that reports a reload; the rest of it is of the count.
const RELOADED: u8 = 0x80;

/// The data plane's end: what it reports through the holder.
#[derive(Debug, Clone)]
pub struct Notices {
    sink: Arc<OwnedFd>,
    asked: Arc<SharedWords>,
}

impl Notices {
    /// Reports the daemon's state: the service manager believes the unit's main process alone.
    pub fn notify(&self, notice: Notice) {
        self.send(notice as u8);
    }

    /// How often it was asked to read the configuration again. To be called before it does.
    pub fn reloads_asked(&self) -> u64 {
        count(&self.asked).load(SeqCst)
    }

    /// Reports that what was asked for until then has been done, or refused for good.
    pub fn reloaded(&self, asked: u64) {
        self.send(RELOADED | low(asked));
    }

    fn send(&self, byte: u8) {
        if let Err(error) = write(&self.sink, &[byte]) {
            tracing::warn!(%error, byte, "the first process gets no notice");
        }
    }
}

/// The holder's end.
#[derive(Debug)]
pub struct Orders {
    source: OwnedFd,
    notices: Notices,
    /// The end of the count that was reported last.
    done: Cell<u8>,
}

impl Orders {
    /// For the ends of a pipe, of which neither waits.
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

    /// Notes that the data plane is to be asked to read its configuration again.
    pub fn ask_to_reload(&self) {
        count(&self.notices.asked).fetch_add(1, SeqCst);
    }

    /// Whether it was asked for a reload that it has not reported. To be called when all notices have been read.
    pub fn owes_reload(&self) -> bool {
        low(self.notices.reloads_asked()) != self.done.get()
    }

    /// The next notice for the service manager that has come; notes reports on the way.
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

/// As much of a count as a byte has room for: no more than one is ever on its way.
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
            // Asked again, after it has read the file or before: it will read it again.
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
