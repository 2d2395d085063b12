//! Servers that see the client's own address though its flow uses a tunnel.
//!
//! `client – gateway with one proxy – ground with the other – origin`, whose route back leads
//! through the ground.

use crate::ends::{Authority, far_config, near_config};
use crate::flows::{duties, exchange};
use crate::ground::{Ground, at};
use crate::pages::{ADMIN, metric, page};
use crate::program::{Running, Setup, errors, log_of, traces, wording_of};
use crate::stage::{Family, Stage, receive_all, send_all, until};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::Stdio;

const EARLY: &str = "accept = \"early\"\n";
const REJECT: &str = "otherwise = \"reject\"\n";

fn far_setup(family: Family, authority: &Authority, more: &str) -> Setup {
    let debug = "[log]\nlevel = \"debug\"\n";
    let admin = format!("[admin]\nlisten = \"127.0.0.1:{}\"\n", ADMIN.1);
    Setup::new(&format!("{}{debug}{admin}", far_config(family, authority, more)))
}

fn client_is_seen(family: Family) {
    let Some(ground) = Ground::set() else { return };
    let authority = Authority::new(&["near", "far"]);
    let allowed = "transparent = [\"10.0.1.0/24\", \"fd00:0:0:1::/64\"]\n";
    let far = far_setup(family, &authority, allowed);
    let running = Running::start_in(&ground.stage.server, &far);
    let near = near_config(family, &authority, EARLY, "", REJECT);
    let near = ground.stage.start(&near);
    let listener = ground.listen(family);
    let (client, server, seen) = ground.flow(&listener);
    let own = client.local_addr().expect("an address");
    assert_eq!(seen, own, "the server sees the client itself, port and all");
    until("the far end lists it as the client's", || {
        far.flows().iter().any(|flow| flow.client == own)
    });
    exchange(&client, &server, 3_000_000);
    // It used the tunnel, and a reset passes as usual.
    let flows = || near.ledgers().iter().map(|it| it.ended.value()).sum::<u64>();
    until("the flow is booked", || flows() == 1);
    let mut flow = || {
        let (client, server, _) = ground.flow(&listener);
        (client, server)
    };
    duties::resets(&mut flow, true);
    // Nothing of it is left in the system.
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

/// The refusal or silence of a server is reported as if its client had connected itself.
#[test]
fn refusals_pass_as_ever() {
    let Some(ground) = Ground::set() else { return };
    let authority = Authority::new(&["near", "far"]);
    let far = far_setup(Family::V4, &authority, "transparent = \"10.0.1.0/24\"\n");
    let _far = Running::start_in(&ground.stage.server, &far);
    let mode = "accept = \"after-connect\"\n";
    let near = near_config(Family::V4, &authority, mode, "", REJECT);
    let _near = ground.stage.start(&near);
    let closed = SocketAddr::new(at(Family::V4, 3, 2), 9);
    // Until the tunnel is open a flow is rejected, which looks the same.
    until("the far end has been asked", || {
        let error = ground.stage.connect(closed).expect_err("nobody listens");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        far.status().refused_total["refused"] > 0
    });
    assert!(wording_of(&far).contains("client=10.0.1.2:"), "{}", log_of(&far));
}

/// A peer may use its own clients' addresses, and no others: flows of other clients have the
/// ground's own address.
#[test]
fn a_peer_cannot_claim_what_is_not_its_own() {
    let Some(ground) = Ground::set() else { return };
    let authority = Authority::new(&["near", "far"]);
    for allowed in ["", "transparent = [\"10.0.9.0/24\", \"10.0.1.3/32\", \"fd00:0:0:1::/64\"]\n"] {
        let far = far_setup(Family::V4, &authority, allowed);
        let _far = Running::start_in(&ground.stage.server, &far);
        let near = near_config(Family::V4, &authority, EARLY, "", REJECT);
        let _near = ground.stage.start(&near);
        let listener = ground.listen(Family::V4);
        let (client, server, seen) = ground.flow(&listener);
        assert_eq!(seen.ip(), at(Family::V4, 3, 1), "{allowed}");
        send_all(&client, b"a question");
        assert_eq!(receive_all(&server), b"a question");
        let page = page(&ground.stage.server, "/metrics");
        assert_eq!(metric(&page, "midhop_claims_ignored_total{of=\"client\"}"), 1, "{allowed}");
        // The claimed address is logged all the same.
        let own = client.local_addr().expect("an address");
        assert!(wording_of(&far).contains(&format!("claims={own} ")), "{}", log_of(&far));
    }
}

/// Without the privilege the daemon does not start, instead of failing each flow.
#[test]
fn want_of_privilege_is_reported_at_the_start() {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far"]);
    let far = far_setup(Family::V4, &authority, "transparent = \"10.0.1.0/24\"\n");
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
        Err(error) => return midhop_testkit::skipped(format!("there is no setpriv: {error}")),
    };
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    let message = errors(&output);
    assert!(
        message.contains("CAP_NET_ADMIN") && message.contains("peers.NAME.transparent"),
        "{message}"
    );
    assert_eq!(traces(&stage.server), [""; 0], "left behind");
}
