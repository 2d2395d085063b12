//! Links of a network path as sans-IO state machines: rate, delay, loss, queues, access schemes.
//!
//! The same code drives the real-time emulator and the simulator. Nothing here knows what o'clock it
//! is, and the same packets at the same times with the same seed meet the same fate.
//!
//! # From a scenario to a link
//! A [`LinkSpec`] is what a person writes. [`LinkSpec::resolve`] fills in the preset and every default
//! and refuses what cannot be run; the [`LinkPlan`] that it gives is kept in the record of the run.
//! [`link::Link::new`] sets one direction of it to work.
//!
//! # The way of a packet
//! A packet reaches the link with [`link::Link::handle_input`]. If nobody is being served, it goes
//! straight to the sender. Otherwise it asks at the [`queue`] for room; a full queue turns it away, and
//! so may [`pie`], which has counted how long the others wait.
//!
//! It moves up as others leave. When its turn comes, [`codel`] may still drop it, because it has waited
//! too long and so did those before it. Else the `sender` takes it and puts its bits onto the channel,
//! as fast as `capacity` says at that moment: the [`rate`] of the carrier, less what the MODCOD of
//! [`acm`] allows, nothing while an [`outage`] holds the link, or only in the slots that [`dama`] was
//! granted. If the rate changes while the packet is being sent, the rest of it goes at the new one.
//!
//! With its last bit sent it is the `channel` that decides. It may be [`loss`], a flipped bit, a signal
//! too weak for the MODCOD, or an outage that does not hold packets but swallows them. The channel
//! stands behind the sender, so a packet lost there has cost its capacity, as it does in the sky.
//!
//! What survives is in `flight`: it arrives after the [`delay`], and the [`jitter`] that it draws, but
//! not before the one ahead of it, unless it was picked to be overtaken; it may arrive twice. A
//! [`reconfiguration`] of the constellation changes rate, delay and outages all at once.
//!
//! [`link::Link::poll_output`] hands it over together with the moment at which it was due.
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
