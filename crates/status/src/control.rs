//! The control socket: HTTP over a UNIX socket, for `midhopd status`, `flows`, `why`, `reload`, `rate`, `move` and for scripts.
//!
//! | request | answer |
//! |---|---|
//! | `GET /status` | [`answer::DaemonStatus`] |
//! | `POST /flows`, with a [`answer::FlowsQuery`] | [`answer::Flows`] |
//! | `POST /why`, with a [`answer::WhyQuery`] | [`answer::Why`] |
//! | `POST /reload` | [`answer::Reload`] |
//! | `POST /rate`, with a [`answer::RateReport`] | [`answer::RateTaken`] |
//! | `POST /move`, with a [`answer::MoveQuery`] | [`answer::MoveOutcome`] |
//!
//! All bodies are JSON. A physical quantity is a number with its unit at the end of its key. An error is a status of
//! 400 or more and an [`answer::ErrorAnswer`]. Keys may be added; an existing key keeps its meaning within a version
//! of [`answer::VERSION`].
//!
//! Invariant: only root, the daemon's user and the configured group can connect. A client holds at most one of
//! `CONNECTIONS_MAX` places, for at most `CONNECTION_TIME`, and `REQUEST_BYTES_MAX` bytes.
//!
//! Decision 0045.

pub mod answer;
pub mod idle;
pub mod render;
pub mod serve;
mod socket;

pub use socket::{Socket, SocketError, bind_for_its_user, make_directory, remove_stale};
