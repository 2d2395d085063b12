//! Two processes of one program: the data plane, which reads what strangers send and has no privilege, and a small
//! *keeper*, which has privileges and reads nothing that strangers send.
//!
//! ```text
//! midhopd run ── starts, before any thread exists ──► midhopd keeper ──► nft, routing rules
//!   data plane ── requests, each of them typed ─────►   (reads the configuration itself)
//!              ◄─ answers, and news of the firewall ─
//! ```
//!
//! The keeper owns what interception installs in the system. It makes the firewall's table from the configuration,
//! which it reads itself, so a compromised data plane cannot choose rules. When the data plane ends, for any reason,
//! the keeper removes what it installed. When the keeper ends, the data plane ends.
//!
//! Each thread of the data plane has its own [line](mod@line) to the keeper. There it orders what takes privileges
//! while flows come and go. In the usual course of a flow it waits for no answer: verdicts have none, sockets are
//! made in advance, and while legs are entered into connection tracking it goes on with other flows.
//!
//! Invariants: a request contains nothing that a stranger sent, except numbers of fixed size. A request is answered
//! or refused, and nothing in it can make the keeper fail.
//!
//! Decision 0028.

pub mod descriptors;
pub mod entering;
mod frame;
pub mod line;
pub mod order;
mod request;
mod serve;
mod start;
mod supply;

pub use request::{Answer, Reply, Request, RequestFailed};
pub use serve::main;
pub use start::Keeper;
