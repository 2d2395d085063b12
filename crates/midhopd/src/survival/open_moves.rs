//! Moves of flows to or from another machine that are not to be cut off: an upgrade waits for them.
//!
//! Between the old place's commit and the new place's answer, a flow whose data plane ends at either place is reset, since
//! nobody knows where it is; and at the new place, flows that are about to come stand still. A death cannot wait for that to
//! pass, and an upgrade can. The data plane counts such moves in memory that it shares with the holder: at the old place each
//! flow from its commit on, at the new place each stream of flows. An upgrade first lets no more of them begin.
//!
//! A compromised data plane, and a peer that may move flows here, can make an upgrade wait, but no longer than
//! [`PATIENCE`].
//!
//! Decision 0074.

use midhop_linux::shared_words::SharedWords;
use midhop_linux::twin::watch_process;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// How long an upgrade waits: flows are copied for up to five seconds before they stand still.
const PATIENCE: Duration = Duration::from_secs(10);
/// Unit: milliseconds. Between two looks at the count.
const LOOK: u8 = 1;

/// The words: how many are open, and whether no more may begin.
const COUNT: usize = 0;
const SHUT: usize = 1;

/// The moves of a data plane that are open. The default is for a data plane without a holder, which nobody upgrades.
#[derive(Debug, Clone, Default)]
pub struct OpenMoves(Option<Arc<SharedWords>>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub struct OpenMove(OpenMoves);

impl OpenMoves {
    /// None is open.
    ///
    /// # Errors
    /// When the kernel has no memory for two words.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Some(Arc::new(SharedWords::new(2)?))))
    }

    /// Opens one. None: an upgrade waits, so that a flow should stay where it is.
    pub fn begin(&self) -> Option<OpenMove> {
        if let Some(words) = &self.0 {
            // Counted first: whoever shuts then looks at the count.
            words[COUNT].fetch_add(1, SeqCst);
        }
        let open = OpenMove(self.clone());
        self.0.as_ref().is_none_or(|words| words[SHUT].load(SeqCst) == 0).then_some(open)
    }

    /// For the next data plane: none is open, and they may begin.
    pub fn renew(&self) {
        for word in self.0.iter().flat_map(|words| words.iter()) {
            word.store(0, SeqCst);
        }
    }

    /// Lets no more of them begin, and waits until none is open, the data plane has ended, or it has waited for long enough.
    /// Returns how many are open.
    pub fn shut(&self, data_plane: Pid) -> u64 {
        let Some(words) = &self.0 else { return 0 };
        words[SHUT].store(1, SeqCst);
        let (begun, process) = (Instant::now(), watch_process(data_plane));
        loop {
            let open = words[COUNT].load(SeqCst);
            let Ok(process) = &process else { return open };
            if open == 0 || begun.elapsed() >= PATIENCE {
                return open;
            }
            // It is readable once the process has ended.
            match poll(
                &mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)],
                PollTimeout::from(LOOK),
            ) {
                Ok(0) | Err(nix::errno::Errno::EINTR) => {}
                Ok(_) | Err(_) => return open,
            }
        }
    }
}

impl Drop for OpenMove {
    fn drop(&mut self) {
        if let Some(words) = &self.0.0 {
            words[COUNT].fetch_sub(1, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A process that ends when its input does.
    fn waits() -> std::process::Child {
        let mut command = Command::new("cat");
        command.stdin(std::process::Stdio::piped()).spawn().expect("cat starts")
    }

    fn number(process: &std::process::Child) -> Pid {
        Pid::from_raw(process.id().cast_signed())
    }

    #[test]
    fn an_upgrade_waits_for_open_moves_and_lets_none_begin() {
        let (moves, mut process) = (OpenMoves::new().expect("memory"), waits());
        let open = moves.begin().expect("one may begin");
        let pid = number(&process);
        std::thread::scope(|scope| {
            let shut = scope.spawn(|| moves.shut(pid));
            while let Some(another) = moves.begin() {
                drop(another);
                std::thread::yield_now();
            }
            assert!(!shut.is_finished(), "one is open");
            drop(open);
            assert_eq!(shut.join().expect("an end"), 0);
        });
        assert!(moves.begin().is_none(), "the upgrade goes on");
        moves.renew();
        assert!(moves.begin().is_some());
        drop(process.stdin.take());
        process.wait().expect("an end");
    }

    #[test]
    fn an_upgrade_does_not_wait_for_a_data_plane_that_has_ended() {
        let (moves, mut process) = (OpenMoves::new().expect("memory"), waits());
        let open = moves.begin();
        drop(process.stdin.take());
        // It has ended, and is not waited for yet.
        assert_eq!(moves.shut(number(&process)), 1);
        process.wait().expect("an end");
        drop(open);
    }

    #[test]
    fn without_a_holder_moves_begin() {
        let moves = OpenMoves::default();
        assert!(moves.begin().is_some() && moves.shut(Pid::this()) == 0);
        assert!(moves.begin().is_some());
    }
}
