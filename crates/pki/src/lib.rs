//! The certificates by which proxies identify each other.
//!
//! [`authority`] makes them, [`key_file`] reads their keys. [`identity`] is a daemon's own
//! certificate and the verification of its peers', which happens in each [`handshake`]; [`revoked`]
//! certificates are refused. [`trouble`] reports failures.
//!
//! Nothing here is called per byte or per packet of a flow.

pub mod authority;
pub mod handshake;
pub mod identity;
pub mod key_file;
pub mod revoked;
pub mod trouble;
