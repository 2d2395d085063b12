//! Two processes of one program: the data plane, which reads what strangers send and has no privilege, and a
//! small *keeper* beside it, which has privileges and reads nothing of strangers'.
//!
//! ```text
//! midhopd run ── starts, before any thread exists ──► midhopd keeper ──► nft, routing rules
//!   data plane ── requests, each of them typed ─────►   (reads the configuration itself)
//!              ◄─ answers, and news of the firewall ─
//! ```
//!
//! The keeper owns what interception puts into the system. It makes the firewall's table from the configuration,
//! which it reads itself: a data plane that somebody has taken over chooses no rules. When the data plane
//! is gone, by whatever death, the keeper removes what it put there; when the keeper is gone, the data plane
//! ends.
//!
//! What takes privileges while flows come and go is ordered by each thread of the data plane on a [line](mod@line) of its own.
//! On the usual way of a flow it waits for no answer: verdicts have none, sockets are made in advance, and while legs are entered
//! into connection tracking it goes on with other flows.
//!
//! Invariants: nothing that a stranger sent is in a request but numbers of fixed size; a request is answered or
//! refused, and nothing in it can make the keeper fail.

mod descriptors;
pub mod entering;
mod frame;
pub mod line;
pub mod order;
mod request;
mod serve;
mod start;
mod supply;
mod watched;

pub use request::{Answer, Reply, Request, RequestFailed};
pub use serve::main;
pub use start::Keeper;
