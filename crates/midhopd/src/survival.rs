//! Flows that outlive the process which relays them (decision 0049).
//!
//! There are three processes of one program. The *holder* is the first one. It parses nothing and
//! only waits. Its *twin*, the data plane, shares its table of descriptors, so sockets and pipes
//! stay open when the data plane is killed. The [keeper](crate::keeper) has the firewall.
//!
//! The data plane records in memory that outlives it which descriptors belong to which flow
//! ([`register`]). After it was killed, the holder closes every other descriptor and starts the
//! next data plane, which continues the flows ([`adopt`]). The kernel reports how far each had
//! come. Bytes that tunnels had not confirmed are in that memory, too ([`store`], decision 0059).
//!
//! An [`upgrade`] is such a death at a chosen moment, followed by another program (decision 0050).
//! The holder receives the program at its [`door`], and executes it in its own place with
//! everything that it holds ([`handed`]). A program that can do so starts while the data plane still
//! relays, which a [`caretaker`] holds meanwhile (decision 0067).

pub mod adopt;
pub mod awaited;
pub mod caretaker;
pub mod door;
pub mod handed;
pub mod holder;
mod inherited;
pub mod left;
pub mod open_moves;
mod orders;
mod own;
pub mod register;
pub mod store;
pub mod upgrade;
