//! Emulated links: what becomes of packets, and when.
//!
//! The allocator counts for each thread, so that `allocation` may stand beside the others.

mod drive;

mod access;
mod allocation;
mod drawn;
mod fates;
mod properties;
mod queues;
mod reference;
mod timing;
