//! What a proxy decides: configuration, policy rules, admission and credit, without any I/O.
//!
//! A configuration file is read as a [`config::Config`], in which every default is visible, and
//! resolved once into a [`config::Plan`], in which nothing is left to check. The plan's
//! [`policy::Policy`] says what becomes of a flow, its legs say how each side of it is treated,
//! its classes what a flow gets of a tunnel: the [`scheduler`] has them write in turns ([`fair_queue`]), lets some go
//! [`ahead`], and takes no more from their senders than leaves ([`ingress_shaper`]). While a flow lives, [`relay`] says what
//! each of its directions does next, and the [`budget`] what all flows together may hold. Which targets
//! [`answered`] lately decides who is accepted at once.
//!
//! Invariant: nothing here opens a socket, reads a clock or a file. The daemon hands in what it saw.

pub mod ahead;
pub mod answered;
pub mod budget;
pub mod config;
pub mod credit;
pub mod fair_queue;
pub mod ingress_shaper;
pub mod places;
pub mod policy;
pub mod rate_share;
pub mod relay;
pub mod scheduler;
pub mod source;
pub mod special;
