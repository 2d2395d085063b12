//! What a proxy decides: configuration, policy rules, admission and credit, without any I/O.
//!
//! A configuration file is read as a [`config::Config`], in which every default is visible. It is resolved once
//! into a [`config::Plan`], which needs no further checks. The plan's [`policy::Policy`] decides what happens to a
//! flow. Its legs define how each side of the flow is treated, and its classes which part of a tunnel the flow
//! gets. The [`scheduler`] lets flows write in turns ([`fair_queue`]), lets some go first ([`priority`]), and reads no more
//! from their senders than leaves ([`ingress_shaper`]). While a flow lives, [`relay`] decides what each direction
//! does next. The [`budget`] bounds what all flows may hold together, with the [`receive_window`]s that they offer.
//! [`answered`] remembers which targets accepted recently, and so which clients are accepted at once. [`modem`]
//! decides which reported rate a tunnel relies upon.
//!
//! Invariant: nothing here opens a socket, or reads a clock or a file. The daemon passes in what it has observed.

pub mod answered;
pub mod budget;
pub mod config;
pub mod credit;
pub mod fair_queue;
pub mod ingress_shaper;
pub mod modem;
pub mod places;
pub mod policy;
pub mod priority;
pub mod rate_share;
pub mod receive_window;
pub mod relay;
pub mod resumption;
pub mod scheduler;
pub mod source;
pub mod special;
