//! The transparent performance-enhancing proxy.
//!
//! Two halves. The data plane takes flows from the wire and moves their bytes; operations start it,
//! watch it, show it and end it:
//!
//! ```text
//! cli ─► check | doctor | run ─► data plane ◄─ explicit (HTTP CONNECT, SOCKS5)
//!                           └──► admin ◄─ snapshot ◄─ data plane
//! ```
//!
//! This is a library only so that tests, fuzzers and benches can reach its parts; the program is
//! `midhopd`.

pub mod cli;
pub mod failure;
pub mod logging;
pub mod snapshot;
