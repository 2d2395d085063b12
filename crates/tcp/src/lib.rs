//! A sans-IO TCP: one end of a connection.
//!
//! An [`Endpoint`] takes segments and the time, and gives segments and the moment of its next call.
//! It moves offsets and lengths, never bytes: a simulated segment needs no payload, and an
//! adapter that puts segments on a wire supplies the bytes by their offset in the stream.
//!
//! The caller drains after every mutation: after each of [`Endpoint::handle_segment`],
//! [`Endpoint::handle_timeout`], [`Endpoint::write`], [`Endpoint::read`], [`Endpoint::close`] and
//! [`Endpoint::abort`] it calls [`Endpoint::poll_transmit`] until there is none, then
//! [`Endpoint::poll_event`] likewise, then [`Endpoint::poll_timeout`] once.
//!
//! Invariant: the same calls give the same segments, on every machine.

mod endpoint;
mod handshake;
mod invariants;
mod ranges;
mod receive;
mod send;
mod sequence;

pub mod segment;
pub mod settings;
pub mod wire;

pub use endpoint::{Cause, Endpoint, Event, Placement, State, refusal};
pub use invariants::Broken;
pub use segment::{Ecn, Flags, SackBlock, SackBlocks, Segment, SynOptions, Timestamps};
pub use send::{Counters, PhaseTimes, SenderPhase};
pub use settings::{Autotuning, DelayedAck, LossDetection, RtoRule, Settings};
