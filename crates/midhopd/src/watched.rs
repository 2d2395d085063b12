//! A descriptor as the runtime watches it.
#![expect(unsafe_code, reason = "the runtime asks for a promise about the descriptor")]

use std::io;
use std::os::fd::OwnedFd;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Lets the current runtime wake the tasks that wait for what is of `interest`.
///
/// # Errors
/// When the runtime has no I/O driver or no room.
pub fn watch(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open until it is dropped, and has one number as long as it lives.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, interest) }?)
}
