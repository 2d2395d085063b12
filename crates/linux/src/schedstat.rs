//! How long a thread has waited for a processor (`/proc/PID/task/TID/schedstat`, `sched-stats` of the kernel's documents).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Unit: bytes. Three numbers of 64 bits in decimal.
const LENGTH_MAX: usize = 3 * 21;

/// The kernel's record of one thread.
#[derive(Debug)]
pub struct ThreadWaits(File);

impl ThreadWaits {
    /// The record of the calling thread. Other threads may read it.
    ///
    /// # Errors
    /// Where the kernel keeps none, or there is no `/proc`.
    pub fn of_this_thread() -> io::Result<Self> {
        File::open("/proc/thread-self/schedstat").map(Self)
    }

    /// How long, since its beginning, the thread has been ready to run while another had the processor.
    ///
    /// # Errors
    /// When the thread is gone.
    pub fn waited(&self) -> io::Result<Duration> {
        let mut text = [0; LENGTH_MAX];
        let length = self.0.read_at(&mut text, 0)?;
        let text = std::str::from_utf8(text.get(..length).unwrap_or_default());
        let waited = text.ok().and_then(|text| text.split_whitespace().nth(1)?.parse().ok());
        waited.map(Duration::from_nanos).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::unistd::Pid;
    use std::hint::spin_loop;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    #[test]
    fn a_thread_that_shares_a_processor_waits_for_it() {
        let all = sched_getaffinity(Pid::from_raw(0)).expect("its processors");
        let first = (0..CpuSet::count()).find(|at| all.is_set(*at).is_ok_and(|is_set| is_set));
        let mut one = CpuSet::new();
        one.set(first.expect("a processor")).expect("a set");
        let (there, over) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sched_setaffinity(Pid::from_raw(0), &one).expect("a processor of its own");
                there.store(true, Relaxed);
                while !over.load(Relaxed) {
                    spin_loop();
                }
            });
            let waits = scope.spawn(|| {
                sched_setaffinity(Pid::from_raw(0), &one).expect("the same one");
                let waits = ThreadWaits::of_this_thread().expect("a record");
                while !there.load(Relaxed) {
                    spin_loop();
                }
                let before = waits.waited().expect("a time");
                // Neither gives way, so each waits for the other's turns to end.
                while waits.waited().expect("a time") == before {
                    spin_loop();
                }
                waits
            });
            let waits = waits.join().expect("it has waited");
            over.store(true, Relaxed);
            assert!(waits.waited().is_err(), "it is gone");
        });
    }
}
