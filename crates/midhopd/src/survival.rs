//! Flows that outlive the process which relays them (decision 0049).
//!
//! Three processes of one program: the *holder* is the first one, parses nothing and only waits; its *twin*, the data
//! plane, shares its table of descriptors, so that sockets and pipes stay open when the data plane is killed; the
//! [keeper](crate::keeper) has the firewall. The data plane notes in memory that outlives it which descriptors belong to
//! which flow ([`register`]). When it has been killed, the holder closes every other descriptor and starts the next one,
//! which goes on with the flows ([`adopt`]): how far each had come is the kernel's to report. What tunnels had not
//! confirmed is in that memory, too ([`store`], decision 0059).
//!
//! An [`upgrade`] is such a death, at a moment that was chosen, with another program behind it (decision 0050): the holder
//! receives the program at its [`door`], and executes it in its own place with all that it holds ([`handed`]).

pub mod adopt;
pub mod awaited;
pub mod door;
pub mod handed;
pub mod holder;
mod inherited;
pub mod left;
mod orders;
mod own;
pub mod register;
pub mod store;
pub mod upgrade;
