//! Punctual scheduling of a thread, and the processor time that it used.
#![expect(unsafe_code, reason = "scheduling policies and precise polling have no safe wrapper")]

use midhop_units::{Duration, Instant};
use nix::time::{ClockId, clock_gettime};
use std::io;

/// How the kernel schedules an emulator's thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Policy {
    /// SCHED_FIFO: before every ordinary thread.
    RealTime,
    /// SCHED_OTHER with the shortest slice, which wakes sooner than others of its kind.
    ShortSlice,
    /// SCHED_OTHER: real-time scheduling was refused and slices are not known here.
    Ordinary,
}

impl Policy {
    /// The policy's name, as printed in a record.
    pub fn name(self) -> &'static str {
        match self {
            Self::RealTime => "SCHED_FIFO",
            Self::ShortSlice => "SCHED_OTHER, slice 0.1 ms",
            Self::Ordinary => "SCHED_OTHER",
        }
    }
}

/// `struct sched_attr`, first version.
#[repr(C)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Makes the calling thread wake as exactly as this kernel and our rights allow.
pub(crate) fn be_punctual() -> Policy {
    // Failure leaves the default slack of 50 µs, which the lateness statistics then show.
    let _ = nix::sys::prctl::set_timerslack(1);
    if set_attributes(libc::SCHED_FIFO, 20, 0) {
        Policy::RealTime
    } else if set_attributes(libc::SCHED_OTHER, 0, 100_000) {
        Policy::ShortSlice
    } else {
        Policy::Ordinary
    }
}

/// Gives the calling thread ordinary scheduling again.
pub(super) fn be_ordinary() {
    // Giving up a privilege is never refused.
    let _ = set_attributes(libc::SCHED_OTHER, 0, 0);
}

fn set_attributes(policy: libc::c_int, priority: u32, runtime_ns: u64) -> bool {
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: policy as u32,
        flags: 0,
        nice: 0,
        priority,
        runtime_ns,
        deadline_ns: 0,
        period_ns: 0,
    };
    // SAFETY: thread 0 is the caller; the structure says its own size and outlives the call, which
    // only reads it.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, std::ptr::from_ref(&attributes), 0) };
    result == 0
}

/// The machine's monotonic clock.
pub(crate) fn now() -> Instant {
    Instant::from_ns(read(ClockId::CLOCK_MONOTONIC))
}

/// By how much the wall clock is ahead of [`now`]. Unit: nanoseconds.
pub(super) fn real_ahead_ns() -> i128 {
    let monotonic = read(ClockId::CLOCK_MONOTONIC);
    i128::from(read(ClockId::CLOCK_REALTIME)) - i128::from(monotonic)
}

/// Processor time that the calling thread has used.
pub(super) fn thread_cpu() -> Duration {
    Duration::from_ns(read(ClockId::CLOCK_THREAD_CPUTIME_ID))
}

fn read(clock: ClockId) -> u64 {
    // These clocks always exist on Linux; a clock that is not there reads zero.
    clock_gettime(clock)
        .map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// Waits until a descriptor is readable or `timeout` is over; with `None` there is no timeout.
pub(crate) fn wait(descriptors: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: (timeout.as_ns() / 1_000_000_000) as libc::time_t,
        tv_nsec: (timeout.as_ns() % 1_000_000_000) as libc::c_long,
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the array is as long as said; the timeout is null or outlives the call; no signal
    // mask is given.
    let result = unsafe {
        libc::ppoll(
            descriptors.as_mut_ptr(),
            descriptors.len() as libc::nfds_t,
            timeout,
            std::ptr::null(),
        )
    };
    if result >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}
