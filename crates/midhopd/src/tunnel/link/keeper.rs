//! Opens the tunnel to a peer that this daemon connects to, measures it, and opens it again when it
//! is gone.
//!
//! Invariant: a tunnel is open whenever it can be. Attempts follow at growing intervals, the first
//! at once. `choice` selects QUIC or TCP.

use super::backlog::Backlog;
use super::choice::Choice;
use super::link_rate::LinkRate;
use super::probe_carrier::ProbeCarrier;
use super::refused;
use super::{Link, State};
use crate::ledger::{Repaired, Tunnel};
use crate::tunnel::carrier_rates::CarrierRate;
use crate::tunnel::quic::QuicEndpoint;
use crate::tunnel::reopen::{self, FailedSocket};
use crate::tunnel::session::QuicSession;
use crate::tunnel::shards::Shard;
use crate::tunnel::{fallback, transport};
use crate::worker::Worker;
use midhop_pep::budget::BudgetPart;
use midhop_pep::config::PeerPlan;
use midhop_pki::identity::Identity;
use midhop_pki::trouble::PeerTrouble;
use midhop_tunnel::{http3::Code, quic::ConnectionError};
use midhop_units::{Bytes, Rate};
use std::cell::RefCell;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{self, Instant};

/// Pause between two attempts: the first, and the maximum.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
const PAUSE_MOST: Duration = Duration::from_secs(30);
const UNREADABLE: &str = "it cannot be read any more";
/// How long the last packets to a peer may take to leave, when its tunnel is not kept any more.
const LAST_WORDS: Duration = Duration::from_secs(3);
/// Interval at which the measurements of the kernel and of QUIC are booked.
const LOOK: Duration = Duration::from_secs(1);
/// Interval at which the carriers of a tunnel divide its rate.
const DIVIDE: Duration = Duration::from_millis(250);
/// The largest segment that the path carries, headers included. Unit: bytes.
const SEGMENT: u64 = 1500;

/// The parameters of a link, before it runs.
#[derive(Debug)]
pub struct LinkKeeper {
    /// The peer that it connects to.
    pub peer: PeerPlan,
    /// The peer's address.
    pub address: SocketAddr,
    /// Its socket; none: it is bound when the link begins.
    pub socket: Option<UdpSocket>,
    /// This daemon's identity, now and after a reload.
    pub identity: watch::Receiver<Arc<Identity>>,
}

impl LinkKeeper {
    /// Creates the link, and the task that keeps it until `end`.
    pub fn begin(
        self,
        worker: Rc<Worker>,
        end: impl Future<Output = ()>,
    ) -> (Link, impl Future<Output = ()>) {
        let (sender, state) = watch::channel(State::Gone(Instant::now()));
        let patience = Duration::from_nanos(self.peer.patience.as_ns());
        let probe_carrier = Rc::<ProbeCarrier>::default();
        let link = Link { state, probe_carrier: probe_carrier.clone(), patience };
        (link, self.keep_until(end, worker, sender, probe_carrier))
    }

    async fn keep_until(
        mut self,
        end: impl Future<Output = ()>,
        worker: Rc<Worker>,
        link: watch::Sender<State>,
        probe_carrier: Rc<ProbeCarrier>,
    ) {
        let socket = self.socket.take();
        let current = RefCell::default();
        tokio::select! {
            never = self.keep(&worker, socket, &link, &probe_carrier, &current) => match never {},
            () = end => {}
        }
        link.send_replace(State::Gone(Instant::now()));
        let Some(endpoint): Option<QuicEndpoint> = current.take() else { return };
        // The check whether the peer may stay closes its tunnels. The last packets leave before the
        // socket is closed.
        let _ = time::timeout(LAST_WORDS, endpoint.wait_idle()).await;
        reopen::forget(&worker, Some(endpoint.local_addr()));
        endpoint.fail();
    }

    async fn keep(
        &self,
        worker: &Rc<Worker>,
        socket: Option<UdpSocket>,
        link: &watch::Sender<State>,
        probe_carrier: &Rc<ProbeCarrier>,
        current: &RefCell<Option<QuicEndpoint>>,
    ) -> Infallible {
        let mut failed = FailedSocket::not(format!("the socket towards {} (UDP)", self.peer.name));
        let mut socket = socket.map_or_else(|| reopen::towards(self.address), Ok);
        loop {
            let why = match socket.and_then(|socket| self.endpoint(worker, socket)) {
                Ok(endpoint) => {
                    failed.is_back();
                    *current.borrow_mut() = Some(endpoint.clone());
                    let choice = Choice::new(self, worker, endpoint.clone(), probe_carrier.clone());
                    let keep = self.keep_by(worker, &choice, &endpoint, link);
                    tokio::pin!(keep);
                    tokio::select! {
                        () = &mut keep => {}
                        () = endpoint.failed() => {
                            failed.report(worker, &UNREADABLE);
                            // A tunnel over TCP does not need the socket, and is kept to its end.
                            keep.await;
                        }
                    }
                    link.send_replace(State::Gone(Instant::now()));
                    *current.borrow_mut() = None;
                    reopen::forget(worker, Some(endpoint.local_addr()));
                    io::Error::other(UNREADABLE)
                }
                Err(error) => error,
            };
            failed.rest(worker, &why).await;
            socket = reopen::towards(self.address);
        }
    }

    fn endpoint(&self, worker: &Worker, socket: UdpSocket) -> io::Result<QuicEndpoint> {
        let identity = self.identity.borrow().clone();
        let shard = Shard::alone(transport::keys(&identity));
        let ledger = worker.ledger.clone();
        let endpoint = transport::endpoint(socket, None, &identity, shard, ledger)?;
        worker.endpoints.borrow_mut().push(endpoint.clone());
        Ok(endpoint)
    }

    /// Keeps a tunnel as long as the socket works.
    async fn keep_by(
        &self,
        worker: &Worker,
        choice: &Choice<'_>,
        endpoint: &QuicEndpoint,
        link: &watch::Sender<State>,
    ) {
        let mut pause = PAUSE_FIRST;
        // Before anything else is tried: TCP is for paths on which UDP does not pass.
        while !endpoint.has_failed() {
            match choice.open().await {
                Ok(way) => {
                    pause = PAUSE_FIRST;
                    let mut way = Some(way);
                    while let Some(now) = way {
                        link.send_replace(State::Open(now.clone()));
                        worker.tunnels.resumable_flows.move_all(&self.peer.name);
                        way = choice.follow(&now).await;
                    }
                    link.send_replace(State::Gone(Instant::now()));
                }
                Err(_) if endpoint.has_failed() => {}
                Err(why) => {
                    let trouble = refused::trouble_in(&why).cloned();
                    let trouble =
                        trouble.unwrap_or_else(|| PeerTrouble::unreachable(self.address, &why));
                    let hint = trouble.hint;
                    tracing::warn!(peer = self.peer.name, %why, hint, ?pause, "a tunnel cannot be opened");
                    worker.ledger.missed(&self.peer.name, trouble, pause);
                }
            }
            if !endpoint.has_failed() {
                time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MOST);
            }
        }
    }
}

/// Books what a session measures until it is gone. Returns the reason.
pub async fn follow(worker: &Worker, peer: &str, session: &QuicSession) -> ConnectionError {
    let connection = session.connection();
    let mut ticks = time::interval(LOOK);
    let number = connection.number();
    let mut held = BudgetPart::new(worker.relay_context.budget.clone());
    let gone = connection.closed();
    tokio::pin!(gone);
    let pace = session.pace();
    let mut repaired = Repaired::default();
    let mut backlog = Backlog::default();
    let mut waited = worker.waited();
    let mut portion = portion(worker, peer, connection.remote_address());
    let mut divisions = time::interval(DIVIDE);
    let mut link_rate = LinkRate::new(configured(worker, peer));
    let why = loop {
        tokio::select! {
            why = &mut gone => break why,
            _ = divisions.tick(), if portion.is_some() => {
                let sent = connection.stats().udp_tx;
                let headers = pace.overhead().get().saturating_mul(sent.datagrams);
                let sent = Bytes::new(sent.bytes.saturating_add(headers));
                pace.bound(portion.as_mut().and_then(|portion| portion.look(sent)));
                link_rate.take(worker.tunnels.reported.of(peer), pace);
            }
            _ = ticks.tick() => {
                held.set(session.held(pace.in_flight().get()));
                repaired = connection.repaired().map_or(repaired, Repaired::from);
                let before = std::mem::replace(&mut waited, worker.waited());
                // If this thread waits for a processor most of the time, the path could carry more.
                let is_held_up = waited.saturating_sub(before) > LOOK / 2;
                if backlog.look(pace).1 && !is_held_up {
                    connection.report_backlog(LOOK);
                }
                worker.ledger.measured(peer, number, measured(session, repaired, &link_rate));
                link_rate.look(peer, pace);
                if !session.is_open() && session.is_idle() {
                    // It accepts no new flows, and its last flow has ended.
                    session.close(Code::NO_ERROR);
                }
            }
        }
    };
    repaired = connection.repaired().map_or(repaired, Repaired::from);
    worker.ledger.measured(peer, number, measured(session, repaired, &link_rate));
    if session.is_broken() {
        worker.ledger.broke_rule(peer);
    }
    worker.ledger.gone(peer, number);
    why
}

fn measured(session: &QuicSession, repaired: Repaired, link_rate: &LinkRate) -> Tunnel {
    let pace = session.pace();
    let path = session.connection().stats().path;
    Tunnel {
        rtt: path.rtt,
        rtt_min: path.min_rtt,
        window: pace.window(),
        rate: pace.rate(),
        carried: pace.carried(),
        reported: link_rate.reported(),
        in_flight: pace.in_flight(),
        streams: session.connection().flows(),
        sent_packets: path.sent_packets,
        lost_packets: path.lost_packets,
        repaired,
        is_tcp: false,
        is_closing: !session.is_open(),
    }
}

/// The same for a session over TCP.
pub async fn follow_tcp(
    worker: &Worker,
    peer: &str,
    session: &Rc<fallback::TcpSession>,
) -> Arc<str> {
    worker.fallbacks.borrow_mut().push(session.clone());
    let mut held = BudgetPart::new(worker.relay_context.budget.clone());
    let mut ticks = time::interval(LOOK);
    let (number, mut gone) = (session.number(), std::pin::pin!(session.gone()));
    let mut portion = portion(worker, peer, session.remote_address());
    let mut divisions = time::interval(DIVIDE);
    let why = loop {
        tokio::select! {
            why = &mut gone => break why,
            _ = divisions.tick(), if portion.is_some() => {
                let sent = session.sample().map_or(0, |sample| u64::from(sample.sent_segments));
                let sent = Bytes::new(sent.saturating_mul(SEGMENT));
                session.pace(portion.as_mut().and_then(|portion| portion.look(sent)));
            }
            _ = ticks.tick() => {
                session.look();
                held.set(session.held());
                worker.ledger.measured(peer, number, measured_tcp(session));
                if !session.is_open() && session.is_idle() && session.is_quiet() {
                    session.close();
                }
            }
        }
    };
    worker.ledger.measured(peer, number, measured_tcp(session));
    worker.ledger.gone(peer, number);
    worker.fallbacks.borrow_mut().retain(|other| !Rc::ptr_eq(other, session));
    why
}

/// The rate that is configured for the link to a peer.
fn configured(worker: &Worker, peer: &str) -> Option<Rate> {
    worker.plan().peers.iter().find(|it| it.name == peer)?.rate
}

/// A carrier's part in the rate of its tunnel, if the rate is known.
fn portion(worker: &Worker, peer: &str, remote: SocketAddr) -> Option<CarrierRate> {
    let rate = configured(worker, peer)?;
    Some(worker.tunnels.carrier_rates.join(peer, remote.ip(), rate))
}

fn measured_tcp(session: &fallback::TcpSession) -> Tunnel {
    let Some(sample) = session.sample() else {
        return Tunnel { is_tcp: true, ..Tunnel::default() };
    };
    let micros = |time| Duration::from_micros(u64::from(time));
    Tunnel {
        rtt: micros(sample.rtt_us),
        rtt_min: micros(sample.rtt_min_us),
        window: Bytes::new(sample.window),
        rate: None,
        carried: None,
        reported: None,
        in_flight: Bytes::new(sample.in_flight),
        streams: session.flows(),
        sent_packets: u64::from(sample.sent_segments),
        lost_packets: u64::from(sample.retransmissions),
        repaired: Repaired::default(),
        is_tcp: true,
        is_closing: !session.is_open(),
    }
}
