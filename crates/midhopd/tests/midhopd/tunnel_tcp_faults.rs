//! What becomes of the flows of a near end that dies while its tunnel is over TCP.

use crate::ends::PORT;
use crate::flows::{block, pass, read_until_error};
use crate::pair::{Pair, REJECT};
use crate::program::output_in;
use crate::stage::{Family, Stage, nft};
use nix::sys::signal::Signal;
use std::io::ErrorKind;
use std::process::Command;

/// Neither end takes the tunnel for broken within a test.
const PATIENT: &str = "rtt = \"20 ms\"\ntimeout = \"300 s\"\nkeepalive = \"100 s\"\n";

/// The host of a process that was killed reports its end.
#[test]
fn a_near_end_that_is_killed_is_gone_at_once() {
    let Some(stage) = Stage::set() else { return };
    block(&stage);
    let pair = Pair::new(PATIENT, PATIENT, REJECT);
    let [near, _far] = pair.start(&stage);
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    pass(&client, &server);
    near.signal(Signal::SIGKILL);
    assert_eq!(read_until_error(&client), ErrorKind::ConnectionReset);
    assert_eq!(read_until_error(&server), ErrorKind::ConnectionReset);
}

/// The far end's host learns nothing of the near end's death, as when that one's host loses its power. Once it
/// has come again the flows of its earlier life end.
#[test]
fn a_near_end_whose_host_vanished_and_comes_again_leaves_no_flows_behind() {
    let Some(stage) = Stage::set() else { return };
    block(&stage);
    let pair = Pair::new(PATIENT, PATIENT, REJECT);
    let [near, _far] = pair.start(&stage);
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    pass(&client, &server);
    let mut sockets = Command::new("ss");
    sockets.args(["-Htn", &format!("dport = :{PORT}")]);
    let sockets = output_in(&stage.gateway, &mut sockets).stdout;
    let sockets = String::from_utf8(sockets).expect("text");
    // The fourth word is its own end of the connection.
    let from = sockets.split_whitespace().nth(3).expect("a connection");
    let port = from.rsplit(':').next().expect("a port");
    nft(&stage.server, "add table inet vanished");
    for (hook, side) in [("input", "sport"), ("output", "dport")] {
        let chain =
            format!("add chain inet vanished {hook} {{ type filter hook {hook} priority 0; }}");
        nft(&stage.server, &chain);
        nft(&stage.server, &format!("add rule inet vanished {hook} tcp {side} {port} drop"));
    }
    near.signal(Signal::SIGKILL);
    assert_ne!(near.end(), Some(0));
    let _near = pair.start_near(&stage);
    let (client, others_server) = stage.flow(&listener);
    pass(&client, &others_server);
    assert_eq!(read_until_error(&server), ErrorKind::ConnectionReset);
    // Those of its new life live.
    pass(&client, &others_server);
}
