//! Agents that repair losses on the path, by the sequence numbers of the TCP that passes.
//!
//! Neither acknowledges anything: what an end reads as acknowledged has arrived at the other.

mod d_proxy;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod rig;
mod snoop;

pub use d_proxy::DProxyNode;
pub use snoop::SnoopNode;
