//! Emulated links: the fate of packets, and its time.
//!
//! The allocator counts per thread, so that `allocation` can run in parallel with other tests.

mod drive;

mod access;
mod allocation;
mod drawn;
mod fates;
mod properties;
mod queues;
mod reference;
mod timing;
