//! The flows of a near end that dies while its tunnel uses TCP.

use crate::ends::PORT;
use crate::flows::{block, pass, read_until_error};
use crate::pair::{Pair, REJECT};
use crate::program::output_in;
use crate::stage::{Family, Stage, nft};
use nix::sys::signal::Signal;
use std::io::ErrorKind;
use std::process::Command;

/// The tunnel times out at neither end within a test.
const PATIENT: &str = "rtt = \"20 ms\"\ntimeout = \"300 s\"\nkeepalive = \"100 s\"\n";

/// The host of a killed process reports its end.
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

/// The far end's host is not informed of the near end's death, as if the near end's host had lost
/// its power. Once the near end connects again, the flows of its earlier process end.
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
    // The fourth word is the local address of the connection.
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
    // The flows of the new process continue.
    pass(&client, &others_server);
}
