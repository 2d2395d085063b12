//! A queue as the runtime watches it.
#![expect(unsafe_code, reason = "the runtime asks for a promise about the descriptor")]

use super::Queue;
use std::io;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

impl Queue {
    /// Lets the current runtime watch what is in the queue.
    ///
    /// # Errors
    /// When the runtime has no I/O driver or no room.
    pub fn watch(self) -> io::Result<AsyncFd<Self>> {
        // SAFETY: the queue owns its descriptor, which is open, and never replaces or closes it
        // before it is dropped; `as_raw_fd` returns that one each time.
        Ok(unsafe { AsyncFd::register_with_interest(self, Interest::READABLE) }?)
    }
}
