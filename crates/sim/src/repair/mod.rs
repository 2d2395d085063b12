//! Agents that repair losses on the path, by the TCP sequence numbers that pass.
//!
//! Neither acknowledges anything: data that one end sees acknowledged has arrived at the other.

mod d_proxy;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod rig;
mod snoop;

pub use d_proxy::DProxyNode;
pub use snoop::SnoopNode;
