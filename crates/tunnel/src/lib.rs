//! What two proxies around a link say to each other, and how they fill it, without any I/O.
//!
//! [`control`] lets the congestion control of midhop-congestion steer a QUIC connection.
//!
//! Invariant: nothing here opens a socket or reads a clock; QUIC itself is quinn-proto's, which is
//! handed the time like everything else.

pub mod control;
