//! Descriptors that were open when this process began.
#![expect(unsafe_code, reason = "such descriptors are known by their numbers only")]

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use nix::unistd::close;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

/// The open descriptors of this process.
///
/// # Errors
/// When they cannot be listed.
pub fn open_descriptors() -> io::Result<BTreeSet<RawFd>> {
    let names = fs::read_dir("/proc/self/fd")?.map(|entry| Ok(entry?.file_name()));
    let names = names.collect::<io::Result<Vec<_>>>()?;
    Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
}

/// Closes every open descriptor that is not in `kept`. It takes no descriptor: all may be in use.
///
/// # Errors
/// When the kernel is older than 5.9.
pub fn close_all_but(kept: &BTreeSet<RawFd>) -> io::Result<()> {
    let mut first = 0;
    for kept in kept.iter().filter_map(|number| u32::try_from(*number).ok()) {
        if first < kept {
            close_range(first, kept - 1)?;
        }
        first = kept + 1;
    }
    close_range(first, u32::MAX)
}

/// Makes descriptors outlive an `execve`, or not. Those that are not open are left out.
///
/// # Errors
/// When the kernel refuses.
pub fn keep_over_exec(numbers: &BTreeSet<RawFd>, keep: bool) -> io::Result<()> {
    let flag = if keep { FdFlag::empty() } else { FdFlag::FD_CLOEXEC };
    for number in numbers.iter().filter(|number| **number > 2) {
        // SAFETY: the call changes a flag of the number, whosever it is; it reads and closes nothing.
        match fcntl(unsafe { BorrowedFd::borrow_raw(*number) }, FcntlArg::F_SETFD(flag)) {
            Ok(_) | Err(Errno::EBADF) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Opens another descriptor for the same open file, which this process owns.
///
/// # Errors
/// When it is not open.
pub fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(Errno::EBADF.into());
    }
    // SAFETY: the call opens another descriptor of the same, and changes nothing of the one that it is given.
    unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned()
}

fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: the call takes three numbers. What it closes belongs to a process that has ended: this one keeps what it
    // owns.
    let outcome = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    Ok(Errno::result(outcome).map(drop)?)
}

/// Those of some descriptors that are open, without the standard ones.
pub fn only_open(mut numbers: BTreeSet<RawFd>) -> BTreeSet<RawFd> {
    // SAFETY: the call only looks whether the number is open, and nothing that it may belong to is changed.
    let is_open = |it: &RawFd| fcntl(unsafe { BorrowedFd::borrow_raw(*it) }, FcntlArg::F_GETFD);
    numbers.retain(|number| *number > 2 && is_open(number).is_ok());
    numbers
}

/// Descriptors that another process has left to this one. Dropping it closes those that were not
/// taken.
#[derive(Debug, Default)]
pub struct Inherited(Mutex<BTreeSet<RawFd>>);

impl Inherited {
    /// Those of `wanted` that are open. To be called before this process has opened any
    /// descriptors, which have owners.
    pub fn of(wanted: BTreeSet<RawFd>) -> Self {
        Self(Mutex::new(only_open(wanted)))
    }

    /// Takes the descriptor with a number, if it is the one that is meant. None if it was taken
    /// before, or was never inherited.
    pub fn take(
        &self,
        number: RawFd,
        is_meant: impl FnOnce(BorrowedFd<'_>) -> bool,
    ) -> Option<OwnedFd> {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !left.contains(&number) {
            return None;
        }
        // SAFETY: it was open when this process began, and nobody closes it as long as it is left here.
        if !is_meant(unsafe { BorrowedFd::borrow_raw(number) }) {
            return None;
        }
        left.remove(&number);
        // SAFETY: as above; nothing else in this process owns it, and from here on it is not left any more.
        Some(unsafe { OwnedFd::from_raw_fd(number) })
    }
}

impl Inherited {
    /// Duplicates the descriptor with a number, if it is the one that is meant. The original is not
    /// taken.
    pub fn duplicate(
        &self,
        number: RawFd,
        is_meant: impl FnOnce(BorrowedFd<'_>) -> bool,
    ) -> Option<OwnedFd> {
        let left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !left.contains(&number) {
            return None;
        }
        // SAFETY: as in [`Inherited::take`]; it stays among those that are left.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        is_meant(descriptor).then(|| descriptor.try_clone_to_owned().ok())?
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        for number in std::mem::take(self.0.get_mut().unwrap_or_else(PoisonError::into_inner)) {
            let _ = close(number);
        }
    }
}
