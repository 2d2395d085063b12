//! Reports the daemon's state to a service manager, in the datagrams that systemd documents for `sd_notify`. Without
//! a receiver, nothing is sent.

use std::{
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    path::Path,
};

/// The daemon's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// It serves.
    Ready,
    /// It takes no new flows and ends.
    Stopping,
}

/// Sends the notice to the socket in `$NOTIFY_SOCKET`, if there is one.
pub fn send(notice: Notice) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let text = match notice {
        Notice::Ready => "READY=1",
        Notice::Stopping => "STOPPING=1",
    };
    let address = match path.to_string_lossy().strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(Path::new(&path)),
    };
    let sent = address.and_then(|address| {
        UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address).map(drop)
    });
    if let Err(error) = sent {
        tracing::warn!(%error, "the service manager could not be notified: {text}");
    }
}
