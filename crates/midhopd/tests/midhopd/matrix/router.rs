//! A stage whose gateway is a router with two uplinks, and servers at both of its sides.
//!
//! `client lan0 – lan0 gateway wan0, wan1 – wan0, wan1 server`; the server has a further address
//! that both uplinks lead to.

use super::cases::{Case, Probe};
use crate::stage::{Family, PATIENCE, Stage};
use midhop_testbed::namespace::{Namespace, veth};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time after which a SYN without a response counts as dropped.
const SILENCE: Duration = Duration::from_secs(2);
/// More than one segment, so that more than a handshake passes.
const BYTES: usize = 100_000;

/// The router and its neighbours.
pub struct Router {
    pub stage: Stage,
}

/// The outcome of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It carried its bytes; with the address that the server saw, and whether the port was the
    /// client's own.
    Connected { seen: IpAddr, port_kept: bool },
    /// It ended with this error.
    Failed(ErrorKind),
}

impl Router {
    /// Sets one up; `None` if this user may create no namespaces on the host.
    pub fn set(case: &Case) -> Option<Self> {
        let stage = Stage::set()?;
        let [gateway, server] =
            veth(&stage.gateway, "wan1", &stage.server, "wan1", 1500).expect("a second uplink");
        for family in [Family::V4, Family::V6] {
            let (prefix, whole) = if family == Family::V4 { (24, 32) } else { (64, 128) };
            let any = if family == Family::V4 { IpAddr::from([0; 4]) } else { [0u16; 8].into() };
            stage.gateway.add_address("wan1", at(family, 3, 1), prefix).expect("an address");
            stage.server.add_address("wan1", at(family, 3, 2), prefix).expect("an address");
            stage.server.add_address("lo", at(family, 9, 2), whole).expect("an address");
            stage.gateway.add_route(any, 0, at(family, 2, 2)).expect("a default route");
            stage.gateway.add_neighbour("wan1", at(family, 3, 2), server.mac).expect("a neighbour");
            stage.server.add_neighbour("wan1", at(family, 3, 1), gateway.mac).expect("a neighbour");
        }
        let router = Self { stage };
        router.administer(case);
        for port in [80, 81] {
            serve(&router.stage.server, port);
        }
        serve(&router.stage.client, 80);
        Some(router)
    }

    /// Applies the administrator's configuration.
    fn administer(&self, case: &Case) {
        let gateway = &self.stage.gateway;
        if !case.rules.is_empty() {
            // `nft` requires each brace on a line of its own.
            feed(gateway.command("nft").args(["-f", "-"]), &case.rules.replace("} }", "}\n}"));
        }
        for (tables, program) in case
            .tables
            .iter()
            .flat_map(|it| [(it, "iptables-nft-restore"), (it, "ip6tables-nft-restore")])
        {
            // IPv6 has no broadcast.
            let v6 = program.starts_with("ip6");
            let lines = tables.lines().filter(|line| !(v6 && line.contains("BROADCAST")));
            let text: String = lines.map(|line| format!("{line}\n")).collect();
            feed(&mut gateway.command(program), &text);
        }
        for line in case.commands.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let status = gateway.command("sh").args(["-c", line]).status().expect("a shell");
            assert!(status.success(), "{}: {line}", case.name);
        }
        if case.interfaces.contains("br0") {
            // The bridge has another hardware address than the port had.
            let mac = [2, 0, 0, 0, 0, 1];
            for family in [Family::V4, Family::V6] {
                let client = &self.stage.client;
                let change = format!(
                    "ip neigh replace {} lladdr {} dev lan0 nud permanent",
                    at(family, 1, 1),
                    mac.map(|byte| format!("{byte:02x}")).join(":")
                );
                assert!(
                    client.command("sh").args(["-c", &change]).status().expect("a shell").success()
                );
            }
            let learn = "for i in 4 6; do ip -$i neigh show dev lan0 | while read a word mac rest; do \
                         ip -$i neigh replace $a lladdr $mac dev br0; done; done";
            assert!(gateway.command("sh").args(["-c", learn]).status().expect("a shell").success());
        }
    }

    /// Tries a connection.
    pub fn try_out(&self, family: Family, probe: Probe, patient: bool) -> (Fate, Duration) {
        let (from, to) = match probe {
            Probe::Out(port) => (&self.stage.client, SocketAddr::new(at(family, 2, 2), port)),
            Probe::Far(port) => (&self.stage.client, SocketAddr::new(at(family, 9, 2), port)),
            Probe::In(port) => (&self.stage.server, SocketAddr::new(at(family, 1, 2), port)),
            Probe::Forwarded(port) => (&self.stage.server, SocketAddr::new(at(family, 2, 1), port)),
            Probe::Hairpin(port) => (&self.stage.client, SocketAddr::new(at(family, 2, 1), port)),
        };
        let patience = if patient { PATIENCE } else { SILENCE };
        let start = Instant::now();
        let connected =
            from.run(|| TcpStream::connect_timeout(&to, patience)).expect("entering a namespace");
        let took = start.elapsed();
        let fate = connected.and_then(|stream| talk(&stream)).unwrap_or_else(|error| {
            Fate::Failed(match error.kind() {
                // A read that times out reports another error.
                ErrorKind::WouldBlock => ErrorKind::TimedOut,
                kind => kind,
            })
        });
        (fate, took)
    }

    /// The content of the gateway's firewall and routing policy, without counters.
    pub fn traces(&self) -> String {
        let mut traces = String::new();
        for line in [
            "nft -s list ruleset",
            "ip rule",
            "ip -6 rule",
            "ip route show table all",
            "ip -6 route show table all",
        ] {
            let output = self.stage.gateway.command("sh").args(["-c", line]).output();
            let output = output.expect("a shell").stdout;
            // Routes that the kernel adds by itself appear and disappear.
            let lines = String::from_utf8_lossy(&output).into_owned();
            traces.extend(
                lines.lines().filter(|line| !line.contains("fe80")).map(|line| format!("{line}\n")),
            );
        }
        traces
    }
}

fn at(family: Family, net: u8, host: u8) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([10, 0, net, host]),
        Family::V6 => IpAddr::from([0xfd00, 0, 0, u16::from(net), 0, 0, 0, u16::from(host)]),
    }
}

fn feed(command: &mut Command, text: &str) {
    let mut child = command.stdin(Stdio::piped()).spawn().expect("starting");
    child.stdin.take().expect("its input").write_all(text.as_bytes()).expect("writing");
    assert!(child.wait().expect("an end").success(), "refused: {text}");
}

/// Sends each client its address, then echoes what it sends.
fn serve(inside: &Namespace, port: u16) {
    for any in [IpAddr::from([0; 4]), IpAddr::from([0u16; 8])] {
        let listener = inside
            .run(|| {
                let domain = socket2::Domain::for_address(SocketAddr::new(any, port));
                let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
                if any.is_ipv6() {
                    socket.set_only_v6(true)?;
                }
                socket.set_reuse_address(true)?;
                socket.bind(&SocketAddr::new(any, port).into())?;
                socket.listen(64)?;
                Ok::<TcpListener, io::Error>(socket.into())
            })
            .expect("entering")
            .expect("a listener");
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || echo(stream));
            }
        });
    }
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let peer = stream.peer_addr()?;
    stream.write_all(format!("{peer}\n").as_bytes())?;
    let mut received = Vec::new();
    stream.read_to_end(&mut received)?;
    stream.write_all(&received)
}

fn talk(mut stream: &TcpStream) -> io::Result<Fate> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let own = stream.local_addr()?;
    let sent = crate::stage::noise(u64::from(own.port()), BYTES);
    stream.write_all(&sent)?;
    stream.shutdown(Shutdown::Write)?;
    let mut received = Vec::new();
    stream.read_to_end(&mut received)?;
    let end = received.iter().position(|byte| *byte == b'\n').ok_or(ErrorKind::UnexpectedEof)?;
    let seen = std::str::from_utf8(&received[..end]).ok().and_then(|line| line.parse().ok());
    let seen: SocketAddr = seen.ok_or(ErrorKind::InvalidData)?;
    if received[end + 1..] != sent[..] {
        return Err(ErrorKind::InvalidData.into());
    }
    Ok(Fate::Connected { seen: seen.ip(), port_kept: seen.port() == own.port() })
}
