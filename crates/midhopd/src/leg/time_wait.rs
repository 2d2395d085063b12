//! A port that waits for late segments, and is wanted again.
//!
//! Who ends a connection first keeps its addresses and ports for a minute, in TIME-WAIT (RFC 9293 §3.6). Where
//! a client ended first, that is the client itself and, towards the server, this host: the client's end has to be
//! passed on before the server's is known. The server keeps nothing, so with no proxy between, the client's
//! own kernel alone decides when it uses the port again: after a minute, or sooner where it is another system's,
//! or a translator's with many clients behind it. This host is to forbid nothing that the client's allows.
//!
//! With timestamps Linux lets a connection follow another (RFC 6191). Without, it refuses it
//! (`EADDRNOTAVAIL`), and the one that waits has to be sent away first, which `ss --kill` does as well.

use crate::ends::Ends;
use crate::keeper::line::line;
use crate::keeper::order::{Done, Order, pair};
use midhop_linux::sock_diag::{self, DiagSocket, TIME_WAIT};
use std::io;

/// Sends away what waits at the client's address and port for late segments of the server's; `false`: nothing
/// waits there, but something else may be.
///
/// # Errors
/// When the kernel does not tell or refuses: it has to know `INET_DIAG` and `INET_DIAG_DESTROY`, and this process
/// takes `CAP_NET_ADMIN`.
pub fn dismiss(ends: Ends) -> io::Result<bool> {
    if let Some(line) = line() {
        return Ok(line.order(&Order::Dismiss(pair(ends)), None)? == Done::Found(true));
    }
    match sock_diag::find(ends.client, ends.server)? {
        Some(DiagSocket { state: TIME_WAIT, cookie, .. }) => {
            // Nothing but the very socket that was looked at.
            sock_diag::destroy(ends.client, ends.server, cookie)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}
