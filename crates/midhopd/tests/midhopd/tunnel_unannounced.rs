//! A far end that announces nothing, and a near end that waits for the announcement.
//!
//! `client – gateway with the near end – server's host with a proxy that is part of the test`

use crate::ends::{Authority, PORT, near_config};
use crate::flows::read_until_error;
use crate::host::Host;
use crate::program::{Running, Setup, wording_of};
use crate::stage::{Family, Stage, until};
use midhop_tunnel::http3::Settings;
use std::io::ErrorKind;
use std::thread::scope;

/// Flows wait for a peer's announcement no longer than for the peer itself.
#[test]
fn a_peer_that_does_not_announce_what_it_serves_holds_no_flow_for_ever() {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far"]);
    let at = format!("10.0.2.2:{PORT}");
    let (host, _) = Host::new(&stage.server, &at, &authority, "far", Settings::own());
    let peer = "request = \"template\"\nkeepalive = \"500 ms\"\ntimeout = \"2 s\"\n";
    let near = near_config(
        Family::V4,
        &authority,
        "accept = \"early\"\n",
        peer,
        "otherwise = \"reject\"\n",
    );
    let near = Setup::new(&near);
    let guest = scope(|scope| {
        let guest = scope.spawn(|| host.welcome(b""));
        let running = Running::start(&stage, &near);
        (guest.join().expect("a tunnel"), running)
    });
    let listener = stage.listen(Family::V4);
    for _ in 0..2 {
        // The second flow is reset as soon as it exists, perhaps while the client still connects.
        let kind = match stage.connect(listener.local_addr().expect("an address")) {
            Ok(client) => read_until_error(&client),
            Err(error) => error.kind(),
        };
        assert_eq!(kind, ErrorKind::ConnectionReset);
    }
    let warnings =
        || wording_of(&near).matches("a peer has not announced which requests it serves").count();
    until("it is logged", || warnings() > 0);
    assert_eq!(warnings(), 1, "once");
    assert!(guest.0.connection.close_reason().is_none(), "the tunnel itself is sound");
}
