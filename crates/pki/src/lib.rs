//! The certificates by which proxies know each other.
//!
//! [`authority`] makes them, [`key_file`] reads their keys. [`identity`] is what a daemon proves to its peers, and verifies of
//! them: [`handshake`] by handshake, less what is [`revoked`]. [`trouble`] is the report of what failed.
//!
//! Nothing here runs for a byte or a packet of a flow.

pub mod authority;
pub mod handshake;
pub mod identity;
pub mod key_file;
pub mod revoked;
pub mod trouble;
