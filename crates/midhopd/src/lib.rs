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
//! In the data plane a flow is intercepted ([`intercept`]), accepted ([`accept`]), admitted
//! ([`admission`]), given a far side ([`leg`]), relayed ([`relay`]), closed as its ends closed it
//! ([`close`]) and booked ([`ledger`]); [`flow`] tells that story in one function.
//!
//! This is a library only so that tests, fuzzers and benches can reach its parts; the program is
//! `midhopd`.

pub mod accept;
pub mod admission;
pub mod cli;
pub mod close;
pub mod daemon;
pub mod failure;
pub mod flow;
pub mod intercept;
pub mod ledger;
pub mod leg;
pub mod logging;
pub mod relay;
pub mod snapshot;
mod sockopt;
pub mod worker;
