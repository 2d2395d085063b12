//! A child that shares this process's table of descriptors, and no other state that changes later.
//!
//! Descriptors outlive the child: the kernel closes a table with its last user.
#![expect(unsafe_code, reason = "the C library has no fork that shares descriptors")]

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpid, getppid};
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

/// The process in which a call of [`twin`] has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Twin {
    /// In the parent, with the child's number.
    Parent(Pid),
    /// In the child. It is killed when its parent ends.
    Child,
}

/// Starts a child that is a copy of this process and shares its table of descriptors.
///
/// # Errors
/// When this process has more than one thread: the copy would have only this one, with the locks of all. Or when the
/// kernel has no room.
pub fn twin() -> io::Result<Twin> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other(format!("{threads} threads: a copy would have one of them")));
    }
    let parent = getpid();
    let flags = libc::CLONE_FILES | libc::SIGCHLD;
    // SAFETY: without CLONE_VM and with no stack of its own, the child goes on here on a copy of this stack, as with
    // `fork`. There is no other thread whose locks it could have copied, checked above. The C library's handlers of
    // `fork` do not run: they renew locks that other threads may hold, and there are none.
    let number = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match Errno::result(number)? {
        0 => {
            set_pdeathsig(Signal::SIGKILL)?;
            if getppid() != parent {
                // It has ended before it could be waited for.
                std::process::exit(1);
            }
            Ok(Twin::Child)
        }
        child => Ok(Twin::Parent(Pid::from_raw(i32::try_from(child).unwrap_or(-1)))),
    }
}

/// A descriptor by which the end of a process can be waited for, whoever its parent is.
///
/// # Errors
/// When there is no such process.
pub fn watch_process(process: Pid) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two numbers, and returns a new descriptor that nobody else knows.
    unsafe {
        let number = libc::syscall(libc::SYS_pidfd_open, process.as_raw(), 0);
        let number = Errno::result(number)?;
        Ok(OwnedFd::from_raw_fd(i32::try_from(number).map_err(io::Error::other)?))
    }
}

/// Waits until a process that is watched has ended.
///
/// # Errors
/// When the kernel refuses.
pub fn await_end(watched: impl AsFd) -> io::Result<()> {
    loop {
        let mut asked = [PollFd::new(watched.as_fd(), PollFlags::POLLIN)];
        match poll(&mut asked, PollTimeout::NONE) {
            Err(Errno::EINTR) | Ok(0) => {}
            ended => return Ok(ended.map(drop)?),
        }
    }
}

/// Whether a process that is watched has ended, and closed all that it had.
pub fn has_ended(watched: impl AsFd) -> bool {
    let mut asked = [PollFd::new(watched.as_fd(), PollFlags::POLLIN)];
    !matches!(poll(&mut asked, PollTimeout::ZERO), Ok(0) | Err(Errno::EINTR))
}
