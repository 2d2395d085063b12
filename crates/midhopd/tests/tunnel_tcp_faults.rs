//! What becomes of the flows of a near end that dies while its tunnel is over TCP.

mod ends;
mod flows;
mod program;
mod stage;

use ends::{Authority, far_config, near_config};
use flows::{block, hear_break, pass};
use nix::sys::signal::Signal;
use program::{Desk, Running, log_of};
use stage::{Family, Stage, nft};
use std::io::ErrorKind;

/// The two ends, of which neither takes the tunnel for broken within a test.
fn pair() -> (Desk, Desk, Authority) {
    const PATIENT: &str = "rtt = \"20 ms\"\ntimeout = \"300 s\"\nkeepalive = \"100 s\"\n";
    let authority = Authority::new(&["near", "far"]);
    let far = Desk::new(&far_config(Family::V4, &authority, PATIENT));
    let rule = "otherwise = \"reject\"\n";
    let near = near_config(Family::V4, &authority, "accept = \"early\"\n", PATIENT, rule);
    (Desk::new(&near), far, authority)
}

/// The host of a process that was killed says so.
#[test]
fn a_near_end_that_is_killed_is_gone_at_once() {
    let Some(stage) = Stage::set() else { return };
    block(&stage);
    let (near_desk, far_desk, _authority) = pair();
    let _far = Running::start_in(&stage.server, &far_desk);
    let near = Running::start(&stage, &near_desk);
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    pass(&client, &server);
    near.signal(Signal::SIGKILL);
    assert_eq!(hear_break(&client), ErrorKind::ConnectionReset);
    assert_eq!(hear_break(&server), ErrorKind::ConnectionReset);
}

/// The far end's host hears nothing of the near end's death, as when that one's host loses its power. Once it
/// has come again the flows of its earlier life end.
#[test]
fn a_near_end_whose_host_vanished_and_comes_again_leaves_no_flows_behind() {
    let Some(stage) = Stage::set() else { return };
    block(&stage);
    let (near_desk, far_desk, _authority) = pair();
    let _far = Running::start_in(&stage.server, &far_desk);
    let near = Running::start(&stage, &near_desk);
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    pass(&client, &server);
    let log = log_of(&far_desk);
    let come = log.split("a peer has come over TCP").nth(1).expect("it came over TCP");
    let from = come.split("from=").nth(1).and_then(|from| from.split_whitespace().next());
    let port = from.and_then(|from| from.rsplit(':').next()).expect("a port");
    nft(&stage.server, "add table inet vanished");
    for (hook, side) in [("input", "sport"), ("output", "dport")] {
        let chain =
            format!("add chain inet vanished {hook} {{ type filter hook {hook} priority 0; }}");
        nft(&stage.server, &chain);
        nft(&stage.server, &format!("add rule inet vanished {hook} tcp {side} {port} drop"));
    }
    near.signal(Signal::SIGKILL);
    assert_ne!(near.end(), Some(0));
    let _near = Running::start(&stage, &near_desk);
    let (client, others_server) = stage.flow(&listener);
    pass(&client, &others_server);
    assert_eq!(hear_break(&server), ErrorKind::ConnectionReset);
    // Those of its new life live.
    pass(&client, &others_server);
}
