//! Sessions with modems, by DLEP (RFC 8175).
//!
//! Each modem has one session, whose destinations are the links to its peers. Its reports are valid
//! as long as the session lasts, and a moment longer.

use super::Reported;
use crate::tunnel::directory::Tunnels;
use midhop_dlep::{Mac, Router, SessionError};
use midhop_linux::sockopt;
use midhop_pep::config::ModemPlan;
use midhop_pep::modem::LOOK_EVERY;
use midhop_units::{Duration, Instant};
use nix::libc;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};

/// How long a modem may take to accept a connection, or bytes that are sent to it.
const TAKES_WITHIN: time::Duration = time::Duration::from_secs(5);
/// Pause before the next attempt, when a modem was lost.
const AGAIN_AFTER: time::Duration = time::Duration::from_secs(5);
/// The hop limit that a modem sets, and accepts: it is one hop away (RFC 8175 §7.2, RFC 5082).
const HOPS: i32 = 255;
const READ_BYTES: usize = 4096;

/// Why a session is over.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("it cannot be reached: {0}")]
    Io(#[from] io::Error),
    #[error("it accepts no data for {} s", TAKES_WITHIN.as_secs())]
    Timeout,
    #[error("it has closed the connection")]
    Closed,
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Keeps a session with a modem, and opens it again when it is lost. A failure is logged once until
/// a session has been open.
pub(super) async fn keep(
    address: SocketAddr,
    links: BTreeMap<String, (Option<Mac>, ModemPlan)>,
    tunnels: Arc<Tunnels>,
) {
    let mut is_logged = false;
    loop {
        let mut reports = Reports::new(&links, &tunnels);
        let Err(error) = reports.follow(address).await;
        if reports.was_open || !is_logged {
            tracing::warn!(
                modem = %address,
                %error,
                hint = "until the modem reports again, its tunnels use peers.NAME.rate",
                "a modem reports no rates"
            );
            is_logged = true;
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

/// The reports of one session.
struct Reports<'a> {
    /// The destination that represents each peer's link.
    links: Vec<(Option<Mac>, Reported<'a>)>,
    was_open: bool,
}

impl<'a> Reports<'a> {
    fn new(links: &'a BTreeMap<String, (Option<Mac>, ModemPlan)>, tunnels: &'a Tunnels) -> Self {
        let reported = |(peer, (destination, plan)): (&'a String, &(Option<Mac>, ModemPlan))| {
            (*destination, Reported::new(peer, plan, tunnels))
        };
        Self { links: links.iter().map(reported).collect(), was_open: false }
    }

    /// Runs a session until it is lost. Its reports are applied to tunnels.
    async fn follow(&mut self, address: SocketAddr) -> Result<Infallible, Lost> {
        let mut session = Session::open(address).await?;
        loop {
            session.go_on().await?;
            self.pass_on(address, &session);
        }
    }

    fn pass_on(&mut self, address: SocketAddr, session: &Session) {
        let router = &session.router;
        if !router.is_open() {
            return;
        }
        if !std::mem::replace(&mut self.was_open, true) {
            let name = router.modem().unwrap_or_default();
            tracing::info!(modem = %address, name, "a modem reports the rates of its links");
        }
        for (destination, reported) in &mut self.links {
            if let Some(rate) = router.rate(*destination) {
                reported.put(session.now(), rate);
            }
        }
    }
}

/// A session over its connection. Dropping it announces to the modem that this end stops.
struct Session {
    router: Router,
    stream: TcpStream,
    began: tokio::time::Instant,
}

impl Session {
    async fn open(address: SocketAddr) -> Result<Self, Lost> {
        let connecting = tokio::time::timeout(TAKES_WITHIN, connect(address)).await;
        let stream = connecting.map_err(|_| Lost::Timeout)??;
        let name = concat!("midhopd ", env!("CARGO_PKG_VERSION"));
        let router = Router::new(Instant::START, name);
        let mut this = Self { router, stream, began: tokio::time::Instant::now() };
        this.send().await?;
        Ok(this)
    }

    fn now(&self) -> Instant {
        Instant::START + Duration::from(self.began.elapsed())
    }

    /// Waits until something has arrived or is due, and responds.
    async fn go_on(&mut self) -> Result<(), Lost> {
        let next = self.router.next_time().saturating_since(self.now());
        tokio::select! {
            ready = self.stream.readable() => ready?,
            () = tokio::time::sleep(LOOK_EVERY.min(next).into()) => {}
        }
        let mut buffer = [0; READ_BYTES];
        let now = self.now();
        let result = match self.stream.try_read(&mut buffer) {
            Ok(0) => return Err(Lost::Closed),
            Ok(length) => self.router.on_received(now, &buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.router.on_time(now),
            Err(error) => return Err(error.into()),
        };
        // An end is sent with its reason.
        self.send().await?;
        Ok(result?)
    }

    async fn send(&mut self) -> Result<(), Lost> {
        let bytes = self.router.to_send();
        let sending = tokio::time::timeout(TAKES_WITHIN, self.stream.write_all(&bytes)).await;
        Ok(sending.map_err(|_| Lost::Timeout)??)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.router.stop(self.now());
        // A modem that does not accept this now is not waited for.
        let _ = self.stream.try_write(&self.router.to_send());
    }
}

/// Connects to a modem, which must be one hop away.
async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let (socket, options) = if address.is_ipv4() {
        let level = libc::IPPROTO_IP;
        (TcpSocket::new_v4()?, [(level, libc::IP_TTL), (level, libc::IP_MINTTL)])
    } else {
        let level = libc::IPPROTO_IPV6;
        (TcpSocket::new_v6()?, [(level, libc::IPV6_UNICAST_HOPS), (level, libc::IPV6_MINHOPCOUNT)])
    };
    for (level, name) in options {
        sockopt::set_int(&socket, level, name, HOPS)?;
    }
    // A modem that sends nothing may be gone: if it does not acknowledge heartbeats, it counts as
    // lost.
    let patience = i32::try_from(TAKES_WITHIN.as_millis()).unwrap_or(i32::MAX);
    sockopt::set_int(&socket, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, patience)?;
    socket.set_nodelay(true)?;
    socket.connect(address).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};

    fn option(stream: &TcpStream, (level, name): (i32, i32)) -> i32 {
        let mut buffer = [0; 4];
        sockopt::read(stream, level, name, &mut buffer).expect("an option");
        i32::from_ne_bytes(buffer)
    }

    #[tokio::test]
    async fn nothing_is_taken_from_beyond_one_hop_nor_from_who_is_gone() {
        let (ip, ip6) = (libc::IPPROTO_IP, libc::IPPROTO_IPV6);
        let v6 = [(ip6, libc::IPV6_UNICAST_HOPS), (ip6, libc::IPV6_MINHOPCOUNT)];
        let families: [(IpAddr, [(i32, i32); 2]); 2] = [
            (Ipv4Addr::LOCALHOST.into(), [(ip, libc::IP_TTL), (ip, libc::IP_MINTTL)]),
            (Ipv6Addr::LOCALHOST.into(), v6),
        ];
        for (loopback, [hops, least]) in families {
            let listener = TcpListener::bind((loopback, 0)).expect("a listener");
            sockopt::set_int(&listener, hops.0, hops.1, HOPS).expect("hops");
            let stream = connect(listener.local_addr().expect("an address")).await.expect("near");
            let patience = (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT);
            let options = [hops, least, patience].map(|it| option(&stream, it));
            assert_eq!(options, [255, 255, 5_000], "{loopback}");
        }
    }
}
