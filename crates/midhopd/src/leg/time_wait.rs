//! Frees a port in TIME-WAIT that is needed again.
//!
//! The end that closes a connection first keeps its addresses and ports for a minute, in TIME-WAIT
//! (RFC 9293 §3.6). If a client closes first, this applies to the client and, towards the server,
//! to this host: the client's FIN is forwarded before the server's is known. The server keeps
//! nothing. So without a proxy, only the client's kernel decides when it uses the port again. That
//! is after a minute, or sooner for other systems, and for a translator with many clients behind
//! it. This host must not forbid what the client's kernel allows.
//!
//! With timestamps, Linux lets a connection follow another (RFC 6191). Without them, it refuses the new one
//! (`EADDRNOTAVAIL`), and the socket in TIME-WAIT has to be removed first, as `ss --kill` also does.

use crate::ends::Ends;
use crate::keeper::line::line;
use crate::keeper::order::{Done, Order, pair};
use midhop_linux::sock_diag::{self, DiagSocket};
use midhop_linux::tcp_state::TIME_WAIT;
use std::io;

/// Removes the socket in TIME-WAIT with these ends. `false`: there is none in TIME-WAIT, but there
/// may be another one.
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
            // Only the socket that was found is removed, not a new one with the same ends.
            sock_diag::destroy(ends.client, ends.server, cookie)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}
