//! The tunnel to a peer that this daemon connects to, as its flows see it: open or gone. The `keeper` keeps it open.

mod backlog;
mod choice;
pub mod keeper;
mod link_rate;
mod probe_carrier;
mod refused;

use self::probe_carrier::ProbeCarrier;
use super::carrier::Connection;
use super::fallback;
use super::session::QuicSession;
use super::stream::{Stream, StreamError};
use midhop_pep::config::ClassPlan;
use midhop_tunnel::connect::Request;
use midhop_tunnel::resumption::Resumption;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{self, Instant};

/// A tunnel as the flows of its thread see it.
#[derive(Debug, Clone)]
pub struct Link {
    state: watch::Receiver<State>,
    probe_carrier: Rc<ProbeCarrier>,
    patience: Duration,
}

/// An open tunnel, over either carrier.
#[derive(Debug, Clone)]
pub enum OpenTunnel {
    /// HTTP/3.
    Quic(Rc<QuicSession>),
    /// HTTP/2, where UDP does not pass.
    Tcp(Rc<fallback::TcpSession>),
}

impl OpenTunnel {
    /// Whether it accepts new flows.
    pub fn is_open(&self) -> bool {
        match self {
            Self::Quic(session) => session.is_open(),
            Self::Tcp(session) => session.is_open(),
        }
    }

    /// Whether a stream of this connection belongs to it.
    pub fn carries(&self, connection: &Connection) -> bool {
        match (self, connection) {
            (Self::Quic(session), Connection::Quic(connection)) => {
                session.connection().is(connection)
            }
            (Self::Tcp(session), Connection::Tcp { number, .. }) => session.number() == *number,
            _ => false,
        }
    }

    /// Requests that a flow continues through it.
    ///
    /// # Errors
    /// When the tunnel is gone, or its other end resumes no flows.
    pub async fn ask_again(
        &self,
        request: &Request,
        class: &ClassPlan,
        again: Resumption,
    ) -> Result<Stream, StreamError> {
        match self {
            Self::Quic(session) => session.ask_again(request, class, again).await,
            Self::Tcp(session) => session.ask_again(request, class, again).await,
        }
    }

    /// Requests a flow of the given class. The response arrives on the stream. Waits while the peer's limit of flows
    /// is reached.
    ///
    /// # Errors
    /// When the tunnel is gone.
    pub async fn ask(&self, request: &Request, class: &ClassPlan) -> Result<Stream, StreamError> {
        match self {
            Self::Quic(session) => session.ask(request, class).await,
            Self::Tcp(session) => session.ask(request, class).await,
        }
    }
}

/// Whether the tunnel is open.
#[derive(Debug, Clone)]
enum State {
    Open(OpenTunnel),
    /// It has been gone, or has accepted no new flows, since this instant.
    Gone(Instant),
}

impl State {
    fn way(&self) -> Option<&OpenTunnel> {
        match self {
            Self::Open(way) => Some(way).filter(|way| way.is_open()),
            Self::Gone(_) => None,
        }
    }
}

impl Link {
    /// Whether both are the same tunnel, not only tunnels to the same peer.
    pub fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.probe_carrier, &other.probe_carrier)
    }

    /// The tunnel for a new flow, if it is open or opens within the timeout. The timeout begins
    /// when the tunnel closed, so flows do not wait for a tunnel that has been closed for longer.
    pub async fn way(&self) -> Option<OpenTunnel> {
        let mut state = self.state.clone();
        let since = match *state.borrow() {
            State::Open(_) => Instant::now(),
            State::Gone(since) => since,
        };
        let open = state.wait_for(|state| state.way().is_some());
        let found = time::timeout_at(since + self.patience, open).await;
        let way = found.ok()?.ok()?.way().cloned()?;
        Some(self.probe_carrier.take().unwrap_or(way))
    }

    /// Waits until the tunnel is open, and returns it. None: it will not open any more.
    pub async fn open(&self) -> Option<OpenTunnel> {
        let mut state = self.state.clone();
        state.wait_for(|state| state.way().is_some()).await.ok()?.way().cloned()
    }
}
