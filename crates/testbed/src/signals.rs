//! Ctrl-C and similar signals, as a flag that long operations check.

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Signals that ask to stop: SIGINT, SIGTERM, SIGHUP.
#[derive(Debug)]
pub struct Interrupts {
    flag: Arc<AtomicBool>,
}

impl Interrupts {
    /// From now on, these signals set the flag and do not end the program. A second one ends it.
    ///
    /// Call it while the program has one thread, so that every later thread blocks the signals.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn watch() -> io::Result<Self> {
        let signals = blocked()?;
        let flag = Arc::new(AtomicBool::new(false));
        let shared = flag.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            while let Ok(signal) = signals.wait() {
                if shared.swap(true, Ordering::Relaxed) {
                    std::process::exit(128 + signal as i32);
                }
            }
        })?;
        Ok(Self { flag })
    }

    /// Whether such a signal has arrived.
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// The flag that a signal sets.
    pub fn flag(&self) -> &AtomicBool {
        &self.flag
    }
}

/// Blocks the same signals for a thread that waits for them. Call it while the program has one
/// thread.
#[derive(Debug)]
pub struct StopRequest(SigSet);

impl StopRequest {
    /// From now on these signals do not end the program.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn expect() -> io::Result<Self> {
        blocked().map(Self)
    }

    /// Waits for one of these signals.
    ///
    /// # Errors
    /// When signals cannot be waited for.
    pub fn wait(&self) -> io::Result<()> {
        self.0.wait()?;
        Ok(())
    }
}

fn blocked() -> io::Result<SigSet> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), None)?;
    Ok(signals)
}
