//! The transparent performance-enhancing proxy.
//!
//! Two halves. Operations start it, watch it, show it and end it; the data plane takes flows from the
//! wire and moves their bytes:
//!
//! ```text
//! cli ─► check | doctor | run ─► data plane ◄─ explicit (HTTP CONNECT, SOCKS5)
//!                           └──► admin ◄─ snapshot ◄─ data plane
//! ```
//!
//! A flow is intercepted ([`intercept`]), accepted ([`accept`]), admitted ([`admission`]), given a
//! far side ([`leg`]), relayed ([`relay`]), closed as its ends closed it ([`close`]) and booked
//! ([`ledger`]); [`flow`] tells that story in one function, [`daemon`] starts and stops it all.
//!
//! This is a library only so that tests, fuzzers and benches can reach its parts; the program is
//! `midhopd`.

pub mod admin;
pub mod cli;
pub mod congestion;
pub mod doctor;
pub mod explicit;
pub mod failure;
pub mod logging;
pub mod metrics;
pub mod notify;
pub mod privileges;
pub mod run;
pub mod snapshot;

pub mod accept;
pub mod admission;
pub mod close;
pub mod daemon;
pub mod flow;
pub mod intercept;
pub mod ledger;
pub mod leg;
pub mod relay;
mod sockopt;
pub mod worker;
