//! A tunnel to a peer that we go to, as flows find it: open, or gone. What keeps it open is its `keeper`.

mod aside;
mod backlog;
mod choice;
pub mod keeper;

use self::aside::Aside;
use super::fallback;
use super::session::QuicSession;
use super::stream::{Stream, StreamError};
use midhop_pep::config::ClassPlan;
use midhop_tunnel::connect::Request;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{self, Instant};

/// A tunnel as the flows of its thread see it.
#[derive(Debug, Clone)]
pub struct Link {
    state: watch::Receiver<State>,
    aside: Rc<Aside>,
    patience: Duration,
}

/// An open tunnel, over whatever it is.
#[derive(Debug, Clone)]
pub enum OpenTunnel {
    /// HTTP/3.
    Quic(Rc<QuicSession>),
    /// HTTP/2, where UDP does not pass.
    Tcp(Rc<fallback::TcpSession>),
}

impl OpenTunnel {
    /// Whether new flows may be asked for.
    pub fn is_open(&self) -> bool {
        match self {
            Self::Quic(session) => session.is_open(),
            Self::Tcp(session) => session.is_open(),
        }
    }

    /// Asks for a flow of some class; the answer comes on the stream. Waits while the peer has as many flows as it
    /// takes.
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

/// Whether there is a tunnel.
#[derive(Debug, Clone)]
enum State {
    Open(OpenTunnel),
    /// There is none since then, or it takes no more flows.
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
    /// Whether both are the same, not only to the same peer.
    pub fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.aside, &other.aside)
    }

    /// What a new flow goes by, if it is there or comes before patience ends. Patience is for a tunnel that is about
    /// to come: where there has been none for so long, nobody waits for it.
    pub async fn way(&self) -> Option<OpenTunnel> {
        let mut state = self.state.clone();
        let since = match *state.borrow() {
            State::Open(_) => Instant::now(),
            State::Gone(since) => since,
        };
        let open = state.wait_for(|state| state.way().is_some());
        let found = time::timeout_at(since + self.patience, open).await;
        let way = found.ok()?.ok()?.way().cloned()?;
        Some(self.aside.take().unwrap_or(way))
    }
}
