//! A port in TIME-WAIT that is needed again.
//!
//! The end that closes a connection first keeps its addresses and ports for a minute, in TIME-WAIT (RFC 9293 §3.6).
//! Where a client closed first, that is the client itself and, towards the server, this host: the client's FIN has to
//! be forwarded before the server's is known. The server keeps nothing. So with no proxy between, the client's own
//! kernel alone decides when it uses the port again: after a minute, or sooner where it is another system, or a
//! translator with many clients behind it. This host must not forbid what the client's kernel allows.
//!
//! With timestamps, Linux lets a connection follow another (RFC 6191). Without them, it refuses the new one
//! (`EADDRNOTAVAIL`), and the socket in TIME-WAIT has to be removed first, as `ss --kill` also does.

use crate::ends::Ends;
use crate::keeper::line::line;
use crate::keeper::order::{Done, Order, pair};
use midhop_linux::sock_diag::{self, DiagSocket, TIME_WAIT};
use std::io;

/// Removes the socket that waits at the client's address and port for late segments of the server's. `false`: nothing
/// waits there, but something else may be there.
///
/// # Errors
/// When the kernel cannot report it or refuses: it needs `INET_DIAG` and `INET_DIAG_DESTROY`, and this process needs
/// `CAP_NET_ADMIN`.
pub fn dismiss(ends: Ends) -> io::Result<bool> {
    if let Some(line) = line() {
        return Ok(line.order(&Order::Dismiss(pair(ends)), None)? == Done::Found(true));
    }
    match sock_diag::find(ends.client, ends.server)? {
        Some(DiagSocket { state: TIME_WAIT, cookie, .. }) => {
            // Only the very socket that was examined.
            sock_diag::destroy(ends.client, ends.server, cookie)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}
