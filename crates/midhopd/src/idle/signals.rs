//! Signals that are read like a socket, so that no handler is installed which would outlast the wait.
#![expect(unsafe_code, reason = "the runtime asks for a promise about the descriptor")]

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Blocked signals of this process.
pub struct BlockedSignals(AsyncFd<SignalFd>);

impl BlockedSignals {
    /// Opens a descriptor for `signals`, which must be blocked.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn of(signals: &SigSet) -> io::Result<Self> {
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let descriptor = SignalFd::with_flags(signals, flags)?;
        // SAFETY: the descriptor is owned by the SignalFd, which gives the same one for as long as it lives, and is not
        // closed before it is dropped with this value.
        Ok(Self(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?))
    }

    /// The next signal.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn next(&self) -> io::Result<Signal> {
        loop {
            let mut ready = self.0.readable().await?;
            match self.0.get_ref().read_signal()? {
                Some(signal) => {
                    let number = i32::try_from(signal.ssi_signo).unwrap_or_default();
                    return Ok(Signal::try_from(number)?);
                }
                None => ready.clear_ready(),
            }
        }
    }
}
