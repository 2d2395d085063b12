//! A descriptor as the runtime watches it.
#![expect(unsafe_code, reason = "the runtime asks for a promise about the descriptor")]

use std::io;
use std::os::fd::OwnedFd;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor with the current runtime, which wakes the tasks that wait for `interest`.
///
/// # Errors
/// When the runtime has no I/O driver or no room.
pub fn watch(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open until it is dropped, and has one number as long as it lives.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, interest) }?)
}
