//! Counts the allocations of a test's thread, and the memory that it holds.
//!
//! A test program makes [`Counting`] its allocator, and calls [`so_far`] or [`held`] before and
//! after:
//!
//! ```
//! use midhop_testkit::allocations::{Counting, so_far};
//!
//! #[global_allocator]
//! static COUNTING: Counting = Counting;
//!
//! let before = so_far();
//! let _boxed = Box::new(7);
//! assert_eq!(so_far() - before, 1);
//! ```
//!
//! Each thread has its own count, so that parallel tests do not disturb each other.
#![expect(unsafe_code, reason = "counting allocations means being the allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator with a count. Growth in place counts as a new allocation.
#[derive(Debug)]
pub struct Counting;

/// The allocations of this thread since it began; none unless [`Counting`] is the allocator.
pub fn so_far() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

/// The bytes that this thread has allocated and not freed; negative where it frees memory that
/// other threads allocated. Unit: bytes.
pub fn held() -> i64 {
    HELD.with(Cell::get)
}

fn hold(bytes: usize, sign: i64) {
    HELD.with(|held| held.set(held.get() + sign * bytes as i64));
}

// SAFETY: every call is handed on unchanged to the system's allocator, which keeps the contract; the
// counters are plain thread-local numbers that allocate nothing and have no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        hold(layout.size(), 1);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        hold(layout.size(), -1);
        // SAFETY: `place` came from `alloc` above, that is from the system's allocator.
        unsafe { System.dealloc(place, layout) }
    }
}
