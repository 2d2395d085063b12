//! Accepts the connections that interception delivers to a worker's listeners.

use crate::ends::Ends;
use crate::flow::Flow;
use crate::survival::adopt::serve_awaited;
use crate::worker::Worker;
use midhop_pep::config::LegPlan;
use nix::errno::Errno;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// Maximum pause of accepting when the process or the host has no descriptors left.
const REST: Duration = Duration::from_millis(200);

/// Accepts clients on the leg of `door` until the worker stops; each flow is then on its own.
pub async fn accept(worker: Rc<Worker>, door: Arc<LegPlan>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((client, peer)) => match ends(&client, peer) {
                Ok(ends) => match Flow::taken(&worker, client, ends, &door) {
                    Ok(flow) => flow.spawn(),
                    Err(client) => {
                        if !serve_awaited(&worker, client, &ends) {
                            // No flow expects this client: it came too late, or never was one.
                            // Dropping its socket resets it.
                            tracing::debug!(
                                ?ends,
                                "a client's connection is reset: no pending flow has its addresses"
                            );
                        }
                    }
                },
                Err(error) => tracing::debug!(%error, "a client disconnected before it was served"),
            },
            Err(error) if is_exhaustion(&error) => {
                // The connection stays in the backlog: it is not reset, and no loop spins.
                tracing::warn!(%error, "accepting connections pauses: descriptors or memory are exhausted");
                let departed = worker.admission.departed.notified();
                let _ = tokio::time::timeout(REST, departed).await;
            }
            // The connection is gone already, or the network reports an error for it.
            Err(error) => {
                tracing::debug!(%error, "a connection was aborted before it was accepted");
            }
        }
    }
}

/// The addresses of an intercepted flow: its socket is bound to the server's own.
fn ends(client: &TcpStream, peer: SocketAddr) -> io::Result<Ends> {
    Ok(Ends { client: peer, server: client.local_addr()? })
}

fn is_exhaustion(error: &io::Error) -> bool {
    let exhausted = [Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM];
    error.raw_os_error().is_some_and(|number| exhausted.contains(&Errno::from_raw(number)))
}
