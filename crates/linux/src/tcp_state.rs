//! States of TCP sockets, as the kernel numbers them in `include/net/tcp_states.h`.

/// Both ends may send.
pub const ESTABLISHED: u8 = 1;
/// This end has sent its FIN.
pub const FIN_WAIT_1: u8 = 4;
/// The far end has acknowledged this end's FIN.
pub const FIN_WAIT_2: u8 = 5;
/// Late segments may still arrive.
pub const TIME_WAIT: u8 = 6;
/// There is no connection.
pub const CLOSED: u8 = 7;
/// The far end has sent its FIN.
pub const CLOSE_WAIT: u8 = 8;
/// After the far end's FIN this end has sent its own.
pub const LAST_ACK: u8 = 9;
/// Both ends have sent their FINs before they received the other's.
pub const CLOSING: u8 = 11;
