//! Servers that see the client's own address though its flow came by a tunnel.
//!
//! `client – gateway with one proxy – ground with the other – origin`, whose way back is by the ground.

mod ends;
mod flows;
mod program;
mod stage;

use ends::{Authority, far_config, near_config};
use flows::{duties, exchange};
use midhop_testbed::namespace::{Namespace, veth};
use program::{Desk, Running, errors, log_of, traces};
use stage::{Family, Stage, hear, say, until};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;

const EARLY: &str = "accept = \"early\"\n";
const REJECT: &str = "otherwise = \"reject\"\n";

/// The stage with one more host behind its server's, which is the ground here.
struct Ground {
    origin: Namespace,
    stage: Stage,
}

fn at(family: Family, net: u8, host: u8) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([10, 0, net, host]),
        Family::V6 => IpAddr::from([0xfd00, 0, 0, u16::from(net), 0, 0, 0, u16::from(host)]),
    }
}

impl Ground {
    fn set() -> Option<Self> {
        let stage = Stage::set()?;
        let origin = Namespace::create("origin").expect("a namespace for the origin");
        let macs = veth(&stage.server, "out0", &origin, "out0", 1500).expect("the origin's link");
        for family in [Family::V4, Family::V6] {
            let (prefix, any) = match family {
                Family::V4 => (24, IpAddr::from([0, 0, 0, 0])),
                Family::V6 => (64, IpAddr::from([0u16; 8])),
            };
            let (near, far) = (at(family, 3, 1), at(family, 3, 2));
            stage.server.add_address("out0", near, prefix).expect("the ground's address");
            origin.add_address("out0", far, prefix).expect("the origin's address");
            origin.add_route(any, 0, near).expect("the way back");
            origin.add_neighbour("out0", near, macs[0].mac).expect("a neighbour");
            stage.server.add_neighbour("out0", far, macs[1].mac).expect("a neighbour");
            let out = at(family, 3, 0);
            stage.gateway.add_route(out, prefix, family.server()).expect("the way out");
        }
        Some(Self { origin, stage })
    }

    fn listen(&self, family: Family) -> TcpListener {
        let address = SocketAddr::new(at(family, 3, 2), 0);
        self.origin.run(|| TcpListener::bind(address)).expect("entering").expect("a listener")
    }

    /// A flow to the origin, and whom that sees.
    fn flow(&self, listener: &TcpListener) -> (TcpStream, TcpStream, SocketAddr) {
        let (client, server) = self.stage.flow(listener);
        let seen = server.peer_addr().expect("a peer");
        (client, server, seen)
    }
}

fn far_desk(family: Family, authority: &Authority, more: &str) -> Desk {
    let debug = "[log]\nlevel = \"debug\"\n";
    Desk::new(&format!("{}{debug}", far_config(family, authority, more)))
}

fn client_is_seen(family: Family) {
    let Some(ground) = Ground::set() else { return };
    let authority = Authority::new(&["near", "far"]);
    let allowed = "transparent = [\"10.0.1.0/24\", \"fd00:0:0:1::/64\"]\n";
    let far = far_desk(family, &authority, allowed);
    let running = Running::start_in(&ground.stage.server, &far);
    let near = near_config(family, &authority, EARLY, "", REJECT);
    let near = ground.stage.start(&near);
    let listener = ground.listen(family);
    let (client, server, seen) = ground.flow(&listener);
    let own = client.local_addr().expect("an address");
    assert_eq!(seen, own, "the server sees the client itself, port and all");
    exchange(&client, &server, 3_000_000);
    until("it is logged", || log_of(&far).contains(&format!("client={own} from={own}")));
    // It went by the tunnel, and a reset passes as ever.
    let flows = || near.ledgers().iter().map(|it| it.ended.value()).sum::<u64>();
    until("the flow is booked", || flows() == 1);
    let mut flow = || {
        let (client, server, _) = ground.flow(&listener);
        (client, server)
    };
    duties::resets(&mut flow, true);
    // Nothing is left of it in the system.
    drop((client, near));
    assert!(!traces(&ground.stage.server).is_empty());
    running.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(running.end(), Some(0));
    assert_eq!(traces(&ground.stage.server), [""; 0], "left behind");
}

#[test]
fn the_server_sees_the_client_ipv4() {
    client_is_seen(Family::V4);
}

#[test]
fn the_server_sees_the_client_ipv6() {
    client_is_seen(Family::V6);
}

/// What a refusing or silent server does is told as if its client had asked itself.
#[test]
fn refusals_pass_as_ever() {
    let Some(ground) = Ground::set() else { return };
    let authority = Authority::new(&["near", "far"]);
    let far = far_desk(Family::V4, &authority, "transparent = \"10.0.1.0/24\"\n");
    let _far = Running::start_in(&ground.stage.server, &far);
    let mode = "accept = \"after-connect\"\n";
    let near = near_config(Family::V4, &authority, mode, "", REJECT);
    let _near = ground.stage.start(&near);
    let closed = SocketAddr::new(at(Family::V4, 3, 2), 9);
    // Until there is a tunnel a flow is rejected, which looks the same.
    until("the far end has been asked", || {
        let error = ground.stage.connect(closed).expect_err("nobody listens");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        log_of(&far).contains("cause=Refused")
    });
    assert!(log_of(&far).contains("client=10.0.1.2:"), "{}", log_of(&far));
}

/// A peer stands for its own clients, and for nobody else's: their flows are the ground's own.
#[test]
fn a_peer_cannot_claim_what_is_not_its_own() {
    let Some(ground) = Ground::set() else { return };
    let authority = Authority::new(&["near", "far"]);
    for allowed in ["", "transparent = [\"10.0.9.0/24\", \"10.0.1.3/32\", \"fd00:0:0:1::/64\"]\n"] {
        let far = far_desk(Family::V4, &authority, allowed);
        let _far = Running::start_in(&ground.stage.server, &far);
        let near = near_config(Family::V4, &authority, EARLY, "", REJECT);
        let _near = ground.stage.start(&near);
        let listener = ground.listen(Family::V4);
        let (client, server, seen) = ground.flow(&listener);
        assert_eq!(seen.ip(), at(Family::V4, 3, 1), "{allowed}");
        say(&client, b"a question");
        assert_eq!(hear(&server), b"a question");
        // Whose it is, is known all the same.
        let own = client.local_addr().expect("an address");
        let said = format!("client={own} from=this host");
        until("it is logged", || log_of(&far).contains(&said));
    }
}

/// Without the privilege the daemon does not start, instead of failing each flow.
#[test]
fn want_of_privilege_is_told_at_the_start() {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far"]);
    let far = far_desk(Family::V4, &authority, "transparent = \"10.0.1.0/24\"\n");
    let mut command = std::process::Command::new("setpriv");
    command
        .args(
            ["--inh-caps", "--ambient-caps", "--bounding-set"].map(|it| format!("{it}=-net_admin")),
        )
        .arg(env!("CARGO_BIN_EXE_midhopd"))
        .arg("--config")
        .arg(far.config())
        .stdin(Stdio::null());
    let output = match stage.server.run(|| command.output()).expect("entering") {
        Ok(output) => output,
        Err(error) => return midhop_skips::skipped(format!("there is no setpriv: {error}")),
    };
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    let said = errors(&output);
    assert!(said.contains("CAP_NET_ADMIN") && said.contains("peers.NAME.transparent"), "{said}");
    assert_eq!(traces(&stage.server), [""; 0], "left behind");
}
