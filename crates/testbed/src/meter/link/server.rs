//! The server's end of a link's measurement.

use super::end::LinkEnd;
use super::message::LinkMessage;
use super::socket;
use super::train::{RATE_MAX, Train};
use super::wire::{Datagram, Kind, Token};
use crate::meter::client::random;
use crate::meter::connection::Connection;
use crate::meter::error::FlowError;
use crate::meter::message::{Refusal, RefusalReason};
use crate::meter::wire::ControlFrame;
use midhop_units::Rate;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The longest session.
const SESSION_MAX: Duration = Duration::from_secs(120);
/// The longest pause between messages of a client in a session: the longest train and the queues
/// before it.
const SILENT_MAX: Duration = Duration::from_secs(60);
/// Most trains of a session.
const TRAINS_MAX: u32 = 100;
/// Pause after a failure to read the socket.
const TROUBLED: Duration = Duration::from_millis(100);

/// Limits of link measurements at a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkLimits {
    /// Sessions at once; more are refused.
    pub sessions: usize,
    /// The fastest train that it sends or takes.
    pub rate: Rate,
}

impl Default for LinkLimits {
    fn default() -> Self {
        Self { sessions: 4, rate: RATE_MAX }
    }
}

/// The sessions of a server.
#[derive(Debug)]
pub(in crate::meter) struct LinkSessions {
    limits: LinkLimits,
    /// None where the port was in use.
    socket: Option<tokio::net::UdpSocket>,
    sessions: Mutex<BTreeMap<Token, Session>>,
}

#[derive(Debug)]
struct Session {
    /// The server's address on the TCP connection, at which datagrams come.
    local: SocketAddr,
    client: IpAddr,
    /// Set once the client's datagrams have arrived.
    end: Option<Arc<LinkEnd>>,
}

/// An open session, which ends when this value is dropped.
struct Open<'a> {
    links: &'a LinkSessions,
    token: Token,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.links.sessions().remove(&self.token);
    }
}

/// The socket for new clients, at `address`.
pub(in crate::meter) fn bind(address: SocketAddr) -> io::Result<std::net::UdpSocket> {
    socket::shared(address)
}

impl LinkSessions {
    /// A server's sessions. Without limits it accepts none.
    pub(in crate::meter) fn new(
        limits: Option<LinkLimits>,
        socket: Option<std::net::UdpSocket>,
    ) -> io::Result<Self> {
        let socket = socket.map(tokio::net::UdpSocket::from_std).transpose()?;
        let limits = limits.unwrap_or(LinkLimits { sessions: 0, rate: Rate::ZERO });
        Ok(Self { limits, socket, sessions: Mutex::default() })
    }

    /// Whether a session is under way.
    pub(in crate::meter) fn busy(&self) -> bool {
        !self.sessions().is_empty()
    }

    /// Receives from the port without end: the first datagrams of sessions. All others are ignored.
    pub(in crate::meter) async fn receive(&self) {
        let Some(socket) = &self.socket else { return std::future::pending().await };
        let mut buffer = [0; 2048];
        loop {
            match socket.recv_from(&mut buffer).await {
                Ok((length, from)) => self.attach(&buffer[..length], from),
                Err(_) => tokio::time::sleep(TROUBLED).await,
            }
        }
    }

    fn attach(&self, bytes: &[u8], from: SocketAddr) {
        let Some(hello) = Datagram::decode(bytes).filter(|read| read.kind == Kind::Hello) else {
            return;
        };
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        let mut sessions = self.sessions();
        let Some(session) = sessions.get_mut(&hello.token) else { return };
        if session.client != from.ip() || session.end.is_some() {
            return;
        }
        match LinkEnd::start(session.local, from, hello.token, true) {
            Ok(end) => {
                end.send(Kind::Seen, 0);
                session.end = Some(Arc::new(end));
            }
            Err(error) => tracing::warn!(%error, "cannot open a socket for a link's measurement"),
        }
    }

    /// Serves one session over the connection that asked for it.
    pub(in crate::meter) async fn serve(
        &self,
        connection: &mut Connection,
        peer: SocketAddr,
    ) -> Result<(), FlowError> {
        let served = tokio::time::timeout(SESSION_MAX, self.session(connection, peer)).await;
        served.unwrap_or(Err(refused(RefusalReason::Limit, "the session took too long".to_owned())))
    }

    async fn session(
        &self,
        connection: &mut Connection,
        peer: SocketAddr,
    ) -> Result<(), FlowError> {
        let local = connection
            .socket()
            .local_addr()
            .map_err(|source| FlowError::Socket { doing: "read the local address", source })?;
        let local = SocketAddr::new(local.ip().to_canonical(), local.port());
        let open = self.open(local, peer.ip().to_canonical())?;
        let opened = LinkMessage::Opened {
            token: open.token.to_hex(),
            rate_bit_per_s_max: self.limits.rate.bits_per_s(),
        };
        answer(connection, opened).await?;
        let mut trains = 0;
        loop {
            let next = tokio::time::timeout(SILENT_MAX, connection.frame())
                .await
                .unwrap_or(Err(FlowError::Silent { seconds: SILENT_MAX.as_secs() }))?;
            let message = match next {
                None => return Ok(()),
                Some(ControlFrame::Link(message)) => *message,
                Some(other) => return Err(FlowError::Unexpected { what: other.name() }),
            };
            let end = self.sessions().get(&open.token).and_then(|session| session.end.clone());
            if matches!(message, LinkMessage::Attached {}) {
                answer(connection, LinkMessage::AttachedIs { yes: end.is_some() }).await?;
                continue;
            }
            let end = end.ok_or_else(|| {
                refused(RefusalReason::Request, "no datagram of the client's has come".to_owned())
            })?;
            let reply = match message {
                LinkMessage::Send(train) => {
                    self.admit(&train, &mut trains)?;
                    LinkMessage::Sent(end.send_train(train).await)
                }
                LinkMessage::Expect(train) => {
                    self.admit(&train, &mut trains)?;
                    end.expect(train);
                    LinkMessage::Ready {}
                }
                LinkMessage::Collect(sent) => LinkMessage::Arrived(end.collect(sent).await),
                other => return Err(FlowError::Unexpected { what: other.name() }),
            };
            answer(connection, reply).await?;
        }
    }

    fn open(&self, local: SocketAddr, client: IpAddr) -> Result<Open<'_>, FlowError> {
        if self.limits.sessions == 0 {
            let why = "this server measures no links".to_owned();
            return Err(refused(RefusalReason::Request, why));
        }
        if self.socket.is_none() {
            let why = format!("another program of the server's host has UDP port {}", local.port());
            return Err(refused(RefusalReason::Request, why));
        }
        let drawn = || random().map_err(|error| refused(RefusalReason::Limit, error.to_string()));
        let (high, low) = (drawn()?, drawn()?);
        let token = Token((u128::from(high) << 64 | u128::from(low)).to_be_bytes());
        let mut sessions = self.sessions();
        if sessions.len() >= self.limits.sessions {
            let why = format!("{} links are being measured already; try again", sessions.len());
            return Err(refused(RefusalReason::Limit, why));
        }
        sessions.insert(token, Session { local, client, end: None });
        Ok(Open { links: self, token })
    }

    fn admit(&self, train: &Train, trains: &mut u32) -> Result<(), FlowError> {
        *trains += 1;
        let why = if *trains > TRAINS_MAX {
            Some(format!("more than {TRAINS_MAX} trains"))
        } else if train.rate_bit_per_s > self.limits.rate.bits_per_s() {
            let rate = Rate::from_bits_per_s(train.rate_bit_per_s);
            Some(format!("a train of {rate} is more than the {} given here", self.limits.rate))
        } else {
            train.refusal()
        };
        why.map_or(Ok(()), |why| Err(refused(RefusalReason::Limit, why)))
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<Token, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn answer(connection: &mut Connection, message: LinkMessage) -> Result<(), FlowError> {
    connection.queue(&ControlFrame::Link(Box::new(message)));
    connection.flush().await
}

fn refused(reason: RefusalReason, detail: String) -> FlowError {
    FlowError::Refused(Refusal { reason, detail })
}
