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
use crate::{
    ledger::{Repaired, Tunnel},
    relay::Part,
    worker::Worker,
};
use midhop_pep::config::PeerPlan;
use midhop_tunnel::{control::Pace, http3::Code};
use quinn::Endpoint;
use std::{
    io,
    net::{SocketAddr, UdpSocket},
    rc::Rc,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::watch,
    task::spawn_local,
    time::{self, Instant},
};

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
    state: watch::Receiver<State>,
    patience: Duration,
}

/// Whether there is a tunnel.
#[derive(Debug, Clone)]
enum State {
    Open(Rc<Session>),
    /// There is none since then, or it takes no more flows.
    Gone(Instant),
}

impl State {
    fn session(&self) -> Option<&Rc<Session>> {
        match self {
            Self::Open(session) => Some(session).filter(|session| session.is_open()),
            Self::Gone(_) => None,
        }
    }
}

impl Link {
    /// The tunnel, if it is there or comes before patience ends. Patience is for a tunnel that is about
    /// to come: where there has been none for so long, nobody waits for it.
    pub async fn session(&self) -> Option<Rc<Session>> {
        let mut state = self.state.clone();
        let since = match *state.borrow() {
            State::Open(_) => Instant::now(),
            State::Gone(since) => since,
        };
        let open = state.wait_for(|state| state.session().is_some());
        let found = time::timeout_at(since + self.patience, open).await;
        found.ok()?.ok()?.session().cloned()
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
        let (sender, state) = watch::channel(State::Gone(Instant::now()));
        let patience = Duration::from_nanos(self.peer.patience.as_ns());
        (Link { state, patience }, self.keep(worker, sender))
    }

    async fn keep(self, worker: Rc<Worker>, link: watch::Sender<State>) -> io::Result<()> {
        let identity = self.identity.borrow().clone();
        let (endpoint, socket) = transport::endpoint(self.socket.try_clone()?, None, &identity)?;
        worker.endpoints.borrow_mut().push(endpoint.clone());
        let mut pause = PAUSE_FIRST;
        loop {
            match self.open(&endpoint, &socket).await {
                Ok((session, course)) => {
                    tracing::info!(peer = self.peer.name, address = %self.address, "a tunnel is open");
                    pause = PAUSE_FIRST;
                    link.send_replace(State::Open(session.clone()));
                    self.follow(&worker, session, course).await;
                    link.send_replace(State::Gone(Instant::now()));
                }
                Err(why) => {
                    tracing::warn!(peer = self.peer.name, %why, ?pause, "a tunnel cannot be opened");
                }
            }
            time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MOST);
        }
    }

    /// Follows a session until it is gone or takes no more flows; its last ones then go on beside its
    /// successor's.
    async fn follow(&self, worker: &Rc<Worker>, session: Rc<Session>, course: Course) {
        let name = self.peer.name.clone();
        let (gone, mut is_gone) = watch::channel(false);
        let following = {
            let (worker, session, name) = (worker.clone(), session.clone(), name.clone());
            async move {
                let why = follow(&worker, &name, &session, course).await;
                tracing::warn!(peer = name, %why, "a tunnel is gone");
                gone.send_replace(true);
            }
        };
        spawn_local(following);
        tokio::select! {
            // The sender lives until it has been told.
            _ = is_gone.wait_for(|gone| *gone) => {}
            () = session.left() => tracing::info!(peer = name, "a tunnel takes no more flows"),
        }
    }

    async fn open(
        &self,
        endpoint: &Endpoint,
        socket: &Arc<Paced>,
    ) -> io::Result<(Rc<Session>, Course)> {
        let identity = self.identity.borrow().clone();
        let (config, steering) = transport::client(&identity, &self.peer, self.address)?;
        // An earlier connection may still be served to its end.
        let mut course = socket.steer_attempt(self.address, steering.pace());
        if let Some(repairs) = transport::repairs(&self.peer, self.address) {
            course.repair(repairs);
        }
        let connecting = endpoint
            .connect_with(config, self.address, &self.peer.identity)
            .map_err(io::Error::other)?;
        let connection =
            time::timeout(ATTEMPT, connecting).await.map_err(|_| io::ErrorKind::TimedOut)??;
        course.take(self.address);
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
    let number = connection.stable_id();
    let mut held = Part::new(worker.desk.budget.clone());
    let gone = connection.closed();
    tokio::pin!(gone);
    let settings = session.settings();
    tokio::pin!(settings);
    let (mut agreed, mut repaired) = (false, Repaired::default());
    let why = loop {
        tokio::select! {
            why = &mut gone => break why,
            settings = &mut settings, if !agreed => {
                course.agree(settings.repair_window);
                agreed = true;
            }
            _ = ticks.tick() => {
                // A peer may have moved.
                course.take(connection.remote_address());
                held.set(session.held(course.pace().in_flight().get()));
                repaired = course.repaired().map_or(repaired, Repaired::from);
                worker.ledger.measured(peer, number, measured(session, course.pace(), repaired));
                if !session.is_open() && session.is_idle() {
                    // It takes nothing new, and its last flow has ended.
                    session.close(Code::NO_ERROR);
                }
            }
        }
    };
    repaired = course.repaired().map_or(repaired, Repaired::from);
    worker.ledger.measured(peer, number, measured(session, course.pace(), repaired));
    worker.ledger.gone(peer, number);
    why
}

fn measured(session: &Session, pace: &Pace, repaired: Repaired) -> Tunnel {
    let path = session.connection().stats().path;
    Tunnel {
        rtt: path.rtt,
        rtt_min: path.min_rtt,
        window: pace.window(),
        rate: pace.rate(),
        in_flight: pace.in_flight(),
        streams: session.flows(),
        sent_packets: path.sent_packets,
        lost_packets: path.lost_packets,
        repaired,
    }
}
