//! A client, this daemon and a server in three rooms: real connections through the real data plane.
//!
//! ```text
//! client  eth0 ─── lan0  proxy  wan0 ─── eth0  server
//!         .2       .1           .1       .2
//! ```

use crate::{CheckState, Finding, StartTrial, Trial, room::ProbeNamespace};
use midhop_pep::config::Plan;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    path::Path,
    thread,
    time::Duration,
};

/// Longer than any step takes, so that a step that hangs becomes a finding.
const PATIENCE: Duration = Duration::from_secs(5);
const PATIENCE_MS: u16 = 5_000;
/// More than sockets buffer by default, so that the bytes really pass through.
const BYTES: usize = 1 << 20;
const PORT: u16 = 7777;
/// A port on which nobody listens.
const CLOSED_PORT: u16 = 7778;

struct Rooms {
    client: ProbeNamespace,
    proxy: ProbeNamespace,
    server: ProbeNamespace,
}

/// One address family's addresses.
struct Addresses {
    family: &'static str,
    length: u8,
    client: IpAddr,
    lan: IpAddr,
    wan: IpAddr,
    server: IpAddr,
}

/// Proves interception in both ways of accepting, over IPv4 and IPv6.
pub(crate) fn examine(start: StartTrial) -> Vec<Finding> {
    let families: Vec<Addresses> = [("IPv4", "10.77", 24), ("IPv6", "fd77:", 64)]
        .into_iter()
        .filter(|(family, ..)| *family == "IPv4" || Path::new("/proc/net/if_inet6").exists())
        .map(|(family, net, length)| addresses(family, net, length))
        .collect();
    let rooms = match furnish(&families) {
        Ok(rooms) => rooms,
        Err(error) => {
            let hint = "see what is missing above";
            let detail = format!("no rooms to try it in: {error}");
            return vec![Finding::of("interception", CheckState::No, detail, hint)];
        }
    };
    let mut findings = Vec::new();
    for (accept, verdict) in [("early", CheckState::No), ("after-connect", CheckState::Could)] {
        findings.extend(prove(&rooms, &families, start, (accept, verdict)));
    }
    findings
}

fn addresses(family: &'static str, net: &str, length: u8) -> Addresses {
    let address = |side: u8, host: u8| -> IpAddr {
        let text = if length == 24 {
            format!("{net}.{side}.{host}")
        } else {
            format!("{net}{side}::{host}")
        };
        text.parse().unwrap_or(IpAddr::from([0, 0, 0, 0]))
    };
    Addresses {
        family,
        length,
        client: address(0, 2),
        lan: address(0, 1),
        wan: address(1, 1),
        server: address(1, 2),
    }
}

fn furnish(families: &[Addresses]) -> io::Result<Rooms> {
    let rooms = Rooms {
        client: ProbeNamespace::new()?,
        proxy: ProbeNamespace::new()?,
        server: ProbeNamespace::new()?,
    };
    rooms.proxy.set("net.ipv4.ip_forward", "1")?;
    for interface in ["all", "default"] {
        rooms.proxy.set(&format!("net/ipv4/conf/{interface}/rp_filter"), "0")?;
    }
    if families.iter().any(|family| family.client.is_ipv6()) {
        rooms.proxy.set("net.ipv6.conf.all.forwarding", "1")?;
    }
    rooms.proxy.wire("lan0", &rooms.client, "eth0")?;
    rooms.proxy.wire("wan0", &rooms.server, "eth0")?;
    for own in families {
        rooms.proxy.address("lan0", own.lan, own.length)?;
        rooms.proxy.address("wan0", own.wan, own.length)?;
        rooms.client.address("eth0", own.client, own.length)?;
        rooms.server.address("eth0", own.server, own.length)?;
        rooms.client.default_route(own.lan)?;
        rooms.server.default_route(own.wan)?;
    }
    Ok(rooms)
}

/// Runs the data plane with one way of accepting and sends connections through it.
fn prove(
    rooms: &Rooms,
    families: &[Addresses],
    start: StartTrial,
    (accept, missing): (&str, CheckState),
) -> Vec<Finding> {
    let name = |what: &str| format!("{what} ({accept})");
    let hint = if accept == "early" {
        "see what is missing above"
    } else {
        "use accept = \"early\" on this host"
    };
    let text = format!(
        "[intercept]\ninterfaces = \"lan0\"\naccept = \"{accept}\"\n\
         [daemon]\nworkers = 1\n[legs.lan0]\n[legs.wan0]\n"
    );
    let started = Plan::read("trial", &text)
        .map_err(|error| error.to_string())
        .and_then(|plan| rooms.proxy.run(|| start(plan)).map_err(|error| error.to_string())?);
    let data_plane = match started {
        Ok(data_plane) => data_plane,
        Err(error) => {
            return vec![Finding::of(&name("interception"), missing, error, hint)];
        }
    };
    let mut findings = Vec::new();
    for own in families {
        let name = name(&format!("interception, {}", own.family));
        findings.push(match carry(rooms, own, &*data_plane, accept == "early") {
            Ok(detail) => Finding::yes(&name, detail),
            Err(error) => Finding::of(&name, missing, error.to_string(), hint),
        });
    }
    // The interception has to be removed in the namespace where it was installed.
    if let Err(error) = rooms.proxy.run(move || drop(data_plane)) {
        findings.push(Finding::of(&name("removal"), missing, error.to_string(), hint));
    }
    findings
}

/// One connection that works, and one that is refused.
fn carry(
    rooms: &Rooms,
    own: &Addresses,
    data_plane: &dyn Trial,
    early: bool,
) -> io::Result<String> {
    let before = data_plane.taken();
    let listener = rooms.server.run(|| TcpListener::bind((own.server, PORT)))??;
    let (seen, client) = thread::scope(|scope| -> io::Result<(SocketAddr, SocketAddr)> {
        let echo = scope.spawn(|| echo_once(&listener));
        let client = rooms.client.run(|| talk(SocketAddr::new(own.server, PORT)))?;
        let seen = echo.join().map_err(|_| io::Error::other("the server panicked"))?;
        // The client's error is more informative than the server's.
        client.and_then(|client| seen.map(|seen| (seen, client)))
    })?;
    if seen != client {
        return Err(io::Error::other(format!("the server saw {seen} instead of {client}")));
    }
    if data_plane.taken() == before {
        return Err(io::Error::other("the connection passed by: nothing was intercepted"));
    }
    let target = SocketAddr::new(own.server, CLOSED_PORT);
    let ended = match rooms.client.run(|| TcpStream::connect_timeout(&target, PATIENCE))? {
        Err(error) => error.kind(),
        // A proxy that accepts early can only reset afterwards.
        Ok(mut stream) if early => {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.read(&mut [0]).map_or_else(|error| error.kind(), |_| ErrorKind::UnexpectedEof)
        }
        Ok(_) => return Err(io::Error::other("a closed port looked like an open one")),
    };
    let reset = early && ended == ErrorKind::ConnectionReset;
    if !reset && ended != ErrorKind::ConnectionRefused {
        return Err(io::Error::other(format!("a closed port gave \"{ended}\"")));
    }
    let refusal = if reset { "a closed port resets" } else { "refused stays refused" };
    Ok(format!("{BYTES} bytes there and back, server saw {seen}, {refusal}"))
}

/// Serves one client: sends back everything once it has received all of it.
fn echo_once(listener: &TcpListener) -> io::Result<SocketAddr> {
    let mut wait = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    if poll(&mut wait, PollTimeout::from(PATIENCE_MS))? == 0 {
        return Err(io::Error::new(ErrorKind::TimedOut, "no client reached the server"));
    }
    let (mut stream, peer) = listener.accept()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut sent = Vec::new();
    stream.read_to_end(&mut sent)?;
    stream.write_all(&sent)?;
    Ok(peer)
}

/// Exchanges data with the echo server; returns the client's own address.
fn talk(server: SocketAddr) -> io::Result<SocketAddr> {
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let own = stream.local_addr()?;
    let sent: Vec<u8> = (0..BYTES).map(|number| (number % 251) as u8).collect();
    stream.write_all(&sent)?;
    stream.shutdown(Shutdown::Write)?;
    let mut received = Vec::new();
    stream.read_to_end(&mut received)?;
    if received == sent {
        Ok(own)
    } else {
        Err(io::Error::other(format!("{} of {BYTES} bytes came back right", received.len())))
    }
}
