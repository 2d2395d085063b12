//! The transparent performance-enhancing proxy.
//!
//! There are two halves. The operations part starts the data plane, watches it, shows its state and ends it. The data
//! plane takes flows from the wire and relays their bytes:
//!
//! ```text
//! cli ─► check | doctor | run ─► data plane ◄─ explicit (HTTP CONNECT, SOCKS5)
//!                           └──► midhop_status ◄─ snapshot ◄─ data plane
//! ```
//!
//! Both are one process without any capability. A second process, the [`keeper`], does what takes one.
//!
//! A flow is intercepted ([`intercept`]), accepted ([`accept`]), admitted ([`admission`]), given a far side
//! ([`leg`]), relayed ([`relay`]), closed as its ends closed it ([`close`]) and booked ([`ledger`]). [`flow`] has
//! these steps in one function, [`data_plane`] starts and stops everything, and [`daemon`] is the process around it.
//! Where a rule names a peer, the far side is a stream of a [`tunnel`] instead of a leg.
//!
//! This is a library only so that tests, fuzzers and benches can reach its parts; the program is
//! `midhopd`.

pub mod accept;
pub mod admission;
mod assist;
pub mod capacity;
pub mod cli;
pub mod close;
pub mod coarse_timer;
pub mod congestion;
pub mod daemon;
pub mod data_plane;
pub mod eager;
pub mod ends;
pub mod explain;
pub mod explicit;
pub mod firewall;
pub mod flow;
pub mod flow_sampler;
pub mod handover;
pub mod happy_eyeballs;
mod idle;
pub mod intercept;
pub mod keeper;
pub mod ledger;
pub mod leg;
pub mod networks;
pub mod prefixes;
pub mod relay;
pub mod relocation;
pub mod snapshot;
pub mod survival;
pub mod syn_hold;
pub mod targets;
pub mod trial;
pub mod tunnel;
pub mod watchdog;
mod watched;
pub mod worker;

pub use midhop_failure as failure;
