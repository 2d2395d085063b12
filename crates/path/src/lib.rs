//! Links of a network path as sans-IO state machines: rate, delay, loss, queues, access schemes.
//!
//! The same code drives the real-time emulator and the simulator. Nothing here reads a clock: the
//! same packets at the same times with the same seed have the same fate.
//!
//! # From a scenario to a link
//! A [`LinkSpec`] is a link as a person writes it. [`LinkSpec::resolve`] fills in the preset and
//! every default, and refuses what cannot be run. The resulting [`LinkPlan`] is kept in the record
//! of the run. [`link::Link::new`] makes one direction of it.
//!
//! # The path of a packet
//! A packet enters the link with [`link::Link::handle_input`]. If no packet is being sent, it goes
//! straight to the sender. Otherwise it joins the [`queue`]. A full queue drops it, and so may
//! [`pie`], which measures how long packets wait.
//!
//! When it reaches the head of the queue, [`codel`] may drop it, because it and the packets before
//! it have waited too long. Otherwise the `sender` sends its bits into the channel, at the rate
//! that `capacity` gives at that moment: the [`rate`] of the carrier, limited by the MODCOD of
//! [`acm`]; zero while an [`outage`] holds packets; or only in the slots that [`dama`] was granted.
//! If the rate changes while the packet is being sent, the rest of it is sent at the new rate.
//!
//! After its last bit, the `channel` decides whether the packet is lost: by [`loss`], by a bit
//! error, by a signal that is too weak for the MODCOD, or by an outage that drops packets instead
//! of holding them. The channel is behind the sender, so a packet that is lost there has used
//! capacity, as on a real link.
//!
//! A packet that is not lost is in `flight`. It arrives after the [`delay`] and the [`jitter`] that
//! it draws, but not before the packet ahead of it, unless it was selected for reordering. It may
//! arrive twice. A [`reconfiguration`] of the constellation changes rate, delay and outages at
//! once.
//!
//! [`link::Link::poll_output`] returns it with the moment at which it was due.
//!
//! # Invariants
//! - Packets in + duplicates = packets out + drops + packets inside, after every call.
//! - A busy sender does exactly the work that the rate allows: `n` packets take `n` × size / rate,
//!   rounded up once to a nanosecond, not `n` times.
//! - In the plain case no memory is allocated for a packet once the queues have grown to their size.

pub mod ack;
pub mod acm;
pub mod aqm;
mod capacity;
mod channel;
pub mod codel;
pub mod counters;
pub mod dama;
pub mod delay;
pub mod delay_csv;
mod direction;
mod drawn;
mod flight;
pub mod jitter;
pub mod link;
pub mod loss;
pub mod mahimahi;
pub mod orbit;
pub mod outage;
pub mod pie;
pub mod plan;
pub mod presets;
pub mod queue;
pub mod rate;
pub mod reconfiguration;
pub mod recorded;
pub mod resolve;
mod sender;
pub mod spec;
mod stream;
pub mod switch;
pub mod trace;
mod written;

pub use counters::{Cause, Counters};
pub use direction::Direction;
pub use drawn::{Drawn, Stretch};
pub use link::{Arrival, Dropped, Link};
pub use plan::{DirectionPlan, LinkPlan};
pub use resolve::ResolveError;
pub use spec::{DirectionSpec, LinkError, LinkSpec};
#[cfg(feature = "schema")]
pub use written::Short;
