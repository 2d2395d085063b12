//! Forward error correction below QUIC: recovers what a leg loses without a round trip.
//!
//! [`Shim`] stands between a QUIC connection and its socket, at both ends of a leg. Each datagram of
//! QUIC leaves at once with a number in front. Now and then a repair follows: a sum over GF(256) of the
//! last datagrams. If one of these is missing, the receiver recovers it and hands it to its QUIC, which
//! sees no loss. QUIC retransmits what repairs do not recover.
//!
//! - The number of repairs follows from the loss and the length of bursts that the peer reports. Until
//!   something was lost, there is not even a number.
//! - No later datagram would reveal a loss at the end of a burst. That end is protected once the
//!   queue has been empty for a twentieth of a round trip.
//! - Repairs leave through the same [`Pacer`] as all datagrams, so within the same rate.
//! - Where the path marks packets or a queue stands, losses are a signal that QUIC must get. Then there are
//!   no repairs, unless it is [configured](FecSettings::despite_congestion).
//!
//! `SPEC-fec.md` describes the wire format.
//!
//! ```
//! use midhop_tunnel::control::Pace;
//! use midhop_tunnel::fec::{FecSettings, Shim, WINDOW_MAX};
//! use midhop_units::{Duration, Instant, Rate};
//!
//! let pace = Pace::of(Some(Rate::from_mbit_per_s(20)), midhop_units::Bytes::new(28));
//! let mut now = Instant::START;
//! // A tag goes with each datagram, such as its address and its ECN field; here it is empty.
//! let mut near = Shim::new(FecSettings::default(), pace.clone(), now);
//! let mut far = Shim::new(FecSettings::default(), pace, now);
//! // Once each end knows that the other one supports it:
//! near.agree(WINDOW_MAX);
//! far.agree(WINDOW_MAX);
//!
//! // Its connection has found a loss on the leg.
//! near.pace().loses();
//! // QUIC sends while there is room.
//! if !near.is_full() {
//!     near.push(now, bytes::Bytes::from_static(b"\x40 a datagram of QUIC"), ());
//! }
//! // The socket sends what may leave, and waits for the timeout to send more.
//! while let Some((datagram, ())) = near.poll_output(now) {
//!     // What the other socket receives goes into its shim, and from there into QUIC.
//!     far.handle_input(now, datagram, (), false);
//!     while let Some((datagram, ())) = far.poll_delivery() {
//!         assert_eq!(datagram, b"\x40 a datagram of QUIC".as_slice());
//!     }
//! }
//! if let Some(wake) = near.poll_timeout() {
//!     now = now.max(wake);
//!     while near.poll_output(now).is_some() {}
//! }
//! assert_eq!(near.stats().sources_sent, 1);
//! ```
//!
//! [`Pacer`]: crate::pacer::Pacer

mod decoder;
mod encoder;
mod field;
mod redundancy;
mod shim;
mod tally;
mod wire;

pub(crate) use shim::DATAGRAM_MAX;
pub use shim::{FecSettings, Shim, Stats};
pub use wire::{HEADROOM, Packet, Repair, Report, SETTING};

/// The most datagrams that one repair may cover.
pub const WINDOW_MAX: usize = 128;
/// Datagrams that a receiver remembers: a window, and late ones.
const SPAN: usize = 2 * WINDOW_MAX;
