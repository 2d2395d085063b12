//! Listeners for clients that request the proxy: HTTP CONNECT and SOCKS5.
//!
//! A separate thread accepts clients, reads their requests ([`handshake`]), opens the far side and hands both to the
//! data plane. There such a flow is like any other, with one exception: the server sees this host's address.
//!
//! The client's address decides whether it may connect, before anything is read from it ([`entry`]).
//!
//! Invariant: a client whose request is incomplete, not allowed or not connected never reaches the data plane. There
//! are at most `limits.pending` clients in the handshake, and each has at most `explicit.request_timeout` for its
//! request.

mod dial;
mod entry;
pub mod handshake;
mod http;
mod socks;

use crate::{
    ends::Ends,
    failure::Failure,
    handover::{HandedFlow, Handover},
    ledger::Party,
    leg::{self, Egress},
    survival::left::LeftDoors,
    tunnel::{directory::RequestedFlow, directory::Tunnels},
};
use bytes::Bytes;
use dial::{DialedSide, Dialled};
use entry::Entry;
use handshake::{Handshake, Protocol, State, Target};
use midhop_lookup::Resolver;
use midhop_pep::config::Plan;
use midhop_status::health::Health;
use socket2::SockRef;
use std::{
    io,
    net::{SocketAddr, TcpListener},
    os::fd::{AsRawFd, RawFd},
    rc::Rc,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{Semaphore, watch},
    task::{LocalSet, spawn_local},
    time,
};

/// The most that is read from a client at once. No more than this can follow its request, and a new
/// socket to the server always accepts as much.
const PIECE: usize = 4096;
/// How long a refused client may take to read the reason.
const FAREWELL: Duration = Duration::from_secs(2);
/// Pause of accepting when there are no descriptors left.
const REST: Duration = Duration::from_millis(100);

/// Opened listeners, before anything is served.
#[derive(Debug, Default)]
pub struct Listeners(Vec<(Protocol, TcpListener)>);

impl Listeners {
    /// Listens at the plan's addresses. Listeners that a previous process has left are used again.
    ///
    /// # Errors
    /// When an address cannot be listened on.
    pub fn open(plan: &Plan, left: Option<&LeftDoors>) -> Result<Self, Failure> {
        let mut opened = Vec::new();
        for (protocol, key, addresses) in [
            (Protocol::HttpConnect, "explicit.http_connect", &plan.explicit.http_connect),
            (Protocol::Socks5, "explicit.socks5", &plan.explicit.socks5),
        ] {
            for &address in addresses.iter() {
                let listener = match left.and_then(|left| left.take(address)) {
                    Some(listener) => listener,
                    None => crate::daemon::listen(address, key)?,
                };
                opened.push((protocol, listener));
            }
        }
        Ok(Self(opened))
    }

    /// Their descriptors.
    pub fn descriptors(&self) -> Vec<RawFd> {
        self.0.iter().map(|(_, listener)| listener.as_raw_fd()).collect()
    }

    /// Serves them on a separate thread.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn serve(
        self,
        plan: watch::Receiver<Arc<Plan>>,
        handover: Handover,
        tunnels: Arc<Tunnels>,
        health: Arc<Health>,
    ) -> Result<Explicit, Failure> {
        let (stage, staged) = watch::channel(Stage::Open);
        if self.0.is_empty() {
            return Ok(Explicit { stage, thread: None });
        }
        let failure =
            |error: io::Error| Failure::run("explicit listeners cannot be served").because(error);
        let thread = thread::Builder::new()
            .name("explicit".to_owned())
            .spawn(move || {
                midhop_process::confine::thread();
                health.run("the explicit listeners' thread", || {
                    let egress = Egress::open()?;
                    let entry = Entry::new(places(&plan.borrow()));
                    let resolver = Resolver::new(tunnels.lookups.clone());
                    let context = Rc::new(ExplicitContext {
                        plan,
                        handover,
                        tunnels,
                        egress,
                        resolver,
                        entry,
                    });
                    run(self.0, &context, staged, &health)
                })
            })
            .map_err(failure)?;
        Ok(Explicit { stage, thread: Some(thread) })
    }
}

fn places(plan: &Plan) -> usize {
    usize::try_from(plan.limits.pending).unwrap_or(Semaphore::MAX_PERMITS)
}

/// Served listeners. Dropping this ends them and every unfinished handshake.
#[derive(Debug)]
pub struct Explicit {
    stage: watch::Sender<Stage>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    Closing,
    Ended,
}

impl Explicit {
    /// Accepts no new clients from now on. Unfinished handshakes go on.
    pub fn close(&self) {
        self.stage.send_replace(Stage::Closing);
    }
}

impl Drop for Explicit {
    fn drop(&mut self) {
        self.stage.send_replace(Stage::Ended);
        match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => {}
            Some(Ok(Err(error))) => tracing::error!(%error, "explicit listeners ended early"),
            Some(Err(_)) => tracing::error!("explicit listeners panicked"),
        }
    }
}

/// State that the clients of one daemon share.
#[derive(Debug)]
struct ExplicitContext {
    plan: watch::Receiver<Arc<Plan>>,
    handover: Handover,
    tunnels: Arc<Tunnels>,
    egress: Egress,
    resolver: Resolver,
    entry: Entry,
}

fn run(
    listeners: Vec<(Protocol, TcpListener)>,
    context: &Rc<ExplicitContext>,
    mut stage: watch::Receiver<Stage>,
    health: &Arc<Health>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let mut accepting = Vec::new();
        for (protocol, listener) in listeners {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let accepts = accept(context.clone(), protocol, listener);
            accepting.push(health.keep("accepting for an explicit listener", accepts));
        }
        // A closed channel means that the daemon is gone, which is an end as well.
        let _ = stage.wait_for(|stage| *stage != Stage::Open).await;
        accepting.iter().for_each(tokio::task::JoinHandle::abort);
        let _ = stage.wait_for(|stage| *stage == Stage::Ended).await;
        Ok(())
    })
}

async fn accept(
    context: Rc<ExplicitContext>,
    protocol: Protocol,
    listener: tokio::net::TcpListener,
) {
    loop {
        let Some(place) = context.entry.place().await else { return };
        match listener.accept().await {
            Ok((client, peer)) => {
                let admitted = context.entry.admit(&context.plan.borrow(), peer.ip(), place);
                let place = match admitted {
                    Ok(place) => place,
                    Err(why) => {
                        tracing::debug!(%peer, ?why, "a client was refused");
                        let _ = SockRef::from(&client).set_linger(Some(Duration::ZERO));
                        continue;
                    }
                };
                let context = context.clone();
                spawn_local(async move {
                    if let Err(error) = serve(&context, protocol, client, peer).await {
                        tracing::debug!(%peer, %error, "a client's connection failed before its request was served");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "explicit listeners pause: a connection could not be accepted");
                time::sleep(REST).await;
            }
        }
    }
}

/// Reads one client's request, opens the far side, and hands both to the data plane.
async fn serve(
    context: &ExplicitContext,
    protocol: Protocol,
    mut client: TcpStream,
    from: SocketAddr,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    let plan = context.plan.borrow().clone();
    let mut handshake = Handshake::new(protocol);
    let patience = plan.explicit.request_timeout.into();
    let requested = time::timeout(patience, read_request(&mut client, &mut handshake)).await;
    let Some(target) = requested.unwrap_or_else(|_| {
        handshake.handle_timeout();
        Ok(None)
    })?
    else {
        return part(client, &mut handshake).await;
    };
    let dialled = dial::dial(&plan, context, &client, from, &target).await;
    let outcome = match &dialled {
        Ok(dialled) => dialled.far.bound(),
        Err(cause) => Err(*cause),
    };
    tracing::debug!(%from, %target, ?outcome, "a client requested a connection");
    handshake.answer(outcome);
    let (Ok(dialled), State::Connected) = (dialled, handshake.state()) else {
        return part(client, &mut handshake).await;
    };
    let Dialled { far, client_leg, rule, ticket } = dialled;
    // From the response on, a broken stream must end with a reset, and not with a FIN.
    leg::guard(&client)?;
    if let Some(output) = handshake.poll_output() {
        client.write_all(&output).await?;
    }
    let first = handshake.into_rest();
    match far {
        DialedSide::Server(mut server, server_leg) => {
            leg::guard(&server)?;
            server.write_all(&first).await?;
            let (client, server) = (client.into_std()?, server.into_std()?);
            let server_leg = *server_leg;
            context.handover.carry(HandedFlow {
                client,
                server,
                client_leg,
                server_leg,
                rule,
                ticket,
            })
        }
        DialedSide::Tunnel { stream, peer, server } => {
            let (client, first) = (client.into_std()?, Bytes::from(first));
            let (client_leg, ends) = (Party::from(&client_leg), Ends { client: from, server });
            let stream = *stream;
            let asked =
                RequestedFlow { client, client_leg, peer, first, stream, ends, rule, ticket };
            context.tunnels.carry(asked)
        }
    }
}

/// Reads until the client has requested a target. None if its request is wrong or it leaves.
async fn read_request(
    client: &mut TcpStream,
    handshake: &mut Handshake,
) -> io::Result<Option<Target>> {
    let mut piece = [0; PIECE];
    while handshake.wants_input() {
        let length = client.read(&mut piece).await?;
        if length == 0 {
            return Ok(None);
        }
        handshake.handle_input(piece.get(..length).unwrap_or_default());
        if *handshake.state() == State::Refused {
            break;
        }
        if let Some(output) = handshake.poll_output() {
            client.write_all(&output).await?;
        }
    }
    Ok(match handshake.state() {
        State::Asked(target) => Some(target.clone()),
        _ => None,
    })
}

/// Sends the reason, and waits until the client has read it: closing a socket with unread bytes
/// would send a reset instead.
async fn part(mut client: TcpStream, handshake: &mut Handshake) -> io::Result<()> {
    let farewell = async {
        if let Some(output) = handshake.poll_output() {
            client.write_all(&output).await?;
        }
        client.shutdown().await?;
        let mut rest = [0; PIECE];
        while client.read(&mut rest).await? > 0 {}
        Ok(())
    };
    time::timeout(FAREWELL, farewell).await.unwrap_or(Ok(()))
}
