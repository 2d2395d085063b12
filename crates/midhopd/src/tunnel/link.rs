//! A tunnel to a peer that we go to: opened, held open, opened again.
//!
//! Invariant: while a tunnel can be had there is one; attempts come at growing intervals, the first at
//! once.

use super::{
    Identity,
    session::Session,
    socket::{Course, Paced},
    transport,
};
use crate::worker::Worker;
use midhop_pep::config::PeerPlan;
use midhop_tunnel::http3::Code;
use quinn::Endpoint;
use std::{
    io,
    net::{SocketAddr, UdpSocket},
    rc::Rc,
    sync::Arc,
    time::Duration,
};
use tokio::{sync::watch, time};

/// Between two attempts: at first, and at most.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
const PAUSE_MOST: Duration = Duration::from_secs(30);
/// How long an attempt may take: three times a handshake over two satellites, or two lost packets.
const ATTEMPT: Duration = Duration::from_secs(10);
/// How often the kernel's and QUIC's numbers are booked.
const LOOK: Duration = Duration::from_secs(1);

/// A tunnel as the flows of its thread see it.
#[derive(Debug, Clone)]
pub struct Link {
    session: watch::Receiver<Option<Rc<Session>>>,
    patience: Duration,
}

impl Link {
    /// The tunnel, if it is there or comes before patience ends.
    pub async fn session(&self) -> Option<Rc<Session>> {
        let mut session = self.session.clone();
        let open = |it: &Option<Rc<Session>>| it.as_ref().is_some_and(|it| it.is_open());
        let found = time::timeout(self.patience, session.wait_for(open)).await;
        found.ok()?.ok()?.clone()
    }
}

/// What keeps a link, before it runs.
#[derive(Debug)]
pub struct Keeper {
    /// Whom it goes to.
    pub peer: PeerPlan,
    /// Where.
    pub address: SocketAddr,
    /// A socket for it.
    pub socket: UdpSocket,
    /// Who we are, now and after a reload.
    pub identity: watch::Receiver<Arc<Identity>>,
}

impl Keeper {
    /// The link, and what keeps it.
    pub fn begin(self, worker: Rc<Worker>) -> (Link, impl Future<Output = io::Result<()>>) {
        let (sender, session) = watch::channel(None);
        let patience = Duration::from_nanos(self.peer.patience.as_ns());
        (Link { session, patience }, self.keep(worker, sender))
    }

    async fn keep(
        self,
        worker: Rc<Worker>,
        link: watch::Sender<Option<Rc<Session>>>,
    ) -> io::Result<()> {
        let (endpoint, socket) = transport::endpoint(self.socket.try_clone()?, None)?;
        let mut pause = PAUSE_FIRST;
        loop {
            match self.open(&endpoint, &socket).await {
                Ok((session, course)) => {
                    tracing::info!(peer = self.peer.name, address = %self.address, "a tunnel is open");
                    pause = PAUSE_FIRST;
                    link.send_replace(Some(session.clone()));
                    let why = follow(&worker, &self.peer.name, &session, course).await;
                    link.send_replace(None);
                    tracing::warn!(peer = self.peer.name, %why, "a tunnel is gone");
                }
                Err(why) => {
                    tracing::warn!(peer = self.peer.name, %why, ?pause, "a tunnel cannot be opened");
                }
            }
            time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MOST);
        }
    }

    async fn open(
        &self,
        endpoint: &Endpoint,
        socket: &Arc<Paced>,
    ) -> io::Result<(Rc<Session>, Course)> {
        let identity = self.identity.borrow().clone();
        let (config, steering) = transport::client(&identity, &self.peer, self.address)?;
        let course = socket.steer(self.address, steering.pace());
        let connecting = endpoint
            .connect_with(config, self.address, &self.peer.identity)
            .map_err(io::Error::other)?;
        let connection =
            time::timeout(ATTEMPT, connecting).await.map_err(|_| io::ErrorKind::TimedOut)??;
        Ok((Session::begin(connection, &self.peer).await?, course))
    }
}

/// Books what a session measures, and keeps its course, until it is gone; says why it went.
pub async fn follow(
    worker: &Worker,
    peer: &str,
    session: &Session,
    mut course: Course,
) -> quinn::ConnectionError {
    let connection = session.connection();
    let mut ticks = time::interval(LOOK);
    let mut lost = 0;
    let gone = connection.closed();
    tokio::pin!(gone);
    loop {
        tokio::select! {
            why = &mut gone => return why,
            _ = ticks.tick() => {
                // A peer may have moved.
                course.take(connection.remote_address());
                let path = connection.stats().path;
                let fresh = path.lost_packets - lost;
                lost = path.lost_packets;
                worker.ledger.measured(peer, path.rtt, connection.min_rtt(), fresh);
                if !session.is_open() {
                    // It takes nothing new: another is opened as soon as its last flow has ended.
                    session.close(Code::NO_ERROR);
                }
            }
        }
    }
}
