//! Flows that go through three daemons: from one tunnel into the next.
//!
//! `client – gateway with the first – server's host with the second, the third, and the server`

use crate::ends::{self, Authority, TARGETS, far_config, near_config};
use crate::flows::{KNOWN_LINK, block, duties, exchange, pass, read_until_error, unblock};
use crate::program::{Running, Setup};
use crate::stage::{self, Family, Stage, until};
use crate::visitor::{Shown, Visitor};
use midhop_tunnel::cause::Cause;
use midhop_tunnel::connect::{Request, Response};
use midhop_tunnel::target::Target;
use midhopd::data_plane::DataPlane;
use midhopd::ledger::{Counter, Ledger};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

const FAMILY: Family = Family::V4;
/// The address at which the third daemon listens.
const LAST: &str = "10.0.2.2:4434";
const EARLY: &str = "accept = \"early\"\n";
/// A tunnel that is given up soon, but not because of a busy machine.
const QUICK: &str = "keepalive = \"500 ms\"\ntimeout = \"4 s\"\n";

/// The second daemon's configuration besides its listener: the third daemon as a peer, and a rule
/// that sends flows there.
fn onwards(otherwise: &str) -> String {
    onwards_with(otherwise, QUICK, "")
}

/// The same; `peer` adds to the third daemon's table.
fn onwards_with(otherwise: &str, timing: &str, peer: &str) -> String {
    format!(
        "{timing}[peers.last]\naddress = \"{LAST}\"\n{timing}{peer}[[rules]]\n\
         match.destination = \"10.0.2.0/24\"\ntunnel = \"last\"\notherwise = \"{otherwise}\"\n"
    )
}

fn last_config(authority: &Authority, timing: &str) -> String {
    let own = authority.table("last", &format!("listen = \"{LAST}\"\n{TARGETS}"));
    format!("{own}[peers.far]\n{timing}")
}

struct Chain {
    near: DataPlane,
    middle: DataPlane,
    last: DataPlane,
    _authority: Authority,
}

impl Chain {
    fn start(stage: &Stage, accept: &str) -> Self {
        Self::start_with(stage, accept, QUICK, "")
    }

    /// The same with other timeouts for peers. `peer` adds to the tables of the peers to which
    /// flows are sent.
    fn start_with(stage: &Stage, accept: &str, timing: &str, peer: &str) -> Self {
        let authority = Authority::new(&["near", "far", "last"]);
        let last = stage::start(&stage.server, &last_config(&authority, timing));
        let middle = stage::start(
            &stage.server,
            &far_config(FAMILY, &authority, &onwards_with("reject", timing, peer)),
        );
        let rule = "otherwise = \"reject\"\n";
        let near = near_config(FAMILY, &authority, accept, &format!("{timing}{peer}"), rule);
        let near = stage.start(&near);
        let chain = Self { near, middle, last, _authority: authority };
        until("the second tunnel is open", || {
            let peers = midhopd::snapshot::Source::of(&chain.middle).take().peers;
            peers["last"].tunnels == 1
        });
        chain
    }

    /// A count of all three ledgers.
    fn sums(&self, count: fn(&Ledger) -> &Counter) -> [u64; 3] {
        [&self.near, &self.middle, &self.last]
            .map(|end| end.ledgers().iter().map(|it| count(it).value()).sum())
    }
}

#[test]
fn bytes_pass_three_proxies_both_ways() {
    let Some(stage) = Stage::set() else { return };
    for accept in [EARLY, "accept = \"after-connect\"\n"] {
        let chain = Chain::start(&stage, accept);
        let listener = stage.listen(FAMILY);
        let (client, server) = stage.flow(&listener);
        exchange(&client, &server, 10_000_000);
        until("all three have booked an end in order", || chain.sums(|it| &it.ended) == [1; 3]);
        assert_eq!(chain.sums(|it| &it.bytes_up), [10_000_000; 3]);
        assert_eq!(chain.sums(|it| &it.bytes_down), [10_000_000; 3]);
    }
}

/// The middle of a chain keeps no bytes: when the tunnel changes its carrier, a flow stays with the
/// carrier that it has.
#[test]
fn flows_of_a_chain_stay_where_they_are_when_their_tunnel_changes() {
    let Some(stage) = Stage::set() else { return };
    block(&stage);
    let chain = Chain::start(&stage, EARLY);
    let listener = stage.listen(FAMILY);
    // The response to the first request announces what later requests may ask for.
    let flows = [(); 2].map(|()| {
        let flow = stage.flow(&listener);
        pass(&flow.0, &flow.1);
        flow
    });
    let tcp_tunnels = || midhopd::snapshot::Source::of(&chain.near).take().peers["far"].tcp_tunnels;
    assert_eq!(tcp_tunnels(), 1);
    unblock(&stage);
    let begun = std::time::Instant::now();
    while midhopd::snapshot::Source::of(&chain.near).take().peers["far"].carrier
        != Some(midhop_status::snapshot::Carrier::Quic)
    {
        assert!(begun.elapsed() < Duration::from_secs(100), "it does not return to UDP");
        std::thread::sleep(Duration::from_millis(100));
    }
    // A new flow uses the other carrier, and these stay.
    let (client, server) = stage.flow(&listener);
    pass(&client, &server);
    for (client, server) in &flows {
        pass(client, server);
    }
    assert_eq!(chain.sums(|it| &it.resumed), [0; 3]);
    assert_eq!(chain.sums(|it| &it.not_resumed), [0; 3]);
    assert_eq!(chain.sums(|it| &it.resumptions_refused), [0; 3]);
    assert_eq!(tcp_tunnels(), 1);
}

#[test]
fn half_closes_pass_three_proxies() {
    let Some(stage) = Stage::set() else { return };
    let chain = Chain::start(&stage, EARLY);
    let listener = stage.listen(FAMILY);
    for from_server in [false, true] {
        duties::half_closes(&mut || stage.flow(&listener), from_server);
    }
    until("the flows have ended in order", || chain.sums(|it| &it.ended) == [2; 3]);
}

#[test]
fn resets_pass_three_proxies() {
    let Some(stage) = Stage::set() else { return };
    let _chain = Chain::start(&stage, EARLY);
    let listener = stage.listen(FAMILY);
    for from_server in [false, true] {
        duties::resets(&mut || stage.flow(&listener), from_server);
    }
}

/// Bytes that were acknowledged to an end that then resets reach the other end of the chain, and
/// the reset follows them.
#[test]
fn what_was_acknowledged_passes_three_proxies_before_the_reset() {
    let Some(stage) = Stage::set() else { return };
    // The timeouts suffice for a busy machine to carry what full buffers hold: no peer is given up
    // meanwhile.
    let chain = Chain::start_with(&stage, EARLY, KNOWN_LINK, "request = \"template\"\n");
    let listener = stage.listen(FAMILY);
    for from_server in [false, true] {
        for half_closed in [false, true] {
            duties::late_resets(&mut || stage.flow(&listener), from_server, half_closed);
        }
    }
    let proxies = [&chain.near, &chain.middle, &chain.last];
    until("no place is kept", || proxies.map(|it| it.admission().flows()) == [0; 3]);
}

/// A flow whose client does not read, at the far end of a chain, holds up no other flow, and loses
/// nothing.
#[test]
fn a_reader_that_stands_still_closes_windows_all_the_way() {
    let Some(stage) = Stage::set() else { return };
    let _chain = Chain::start(&stage, EARLY);
    let listener = stage.listen(FAMILY);
    duties::readers_that_stand_still(&mut || stage.flow(&listener), true);
}

#[test]
fn what_the_server_refuses_is_refused_through_three_proxies() {
    let Some(stage) = Stage::set() else { return };
    let chain = Chain::start(&stage, "accept = \"after-connect\"\n");
    let refused = stage.connect(SocketAddr::new(FAMILY.server(), 9)).expect_err("nobody listens");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(chain.sums(|it| &it.refused), [1; 3], "each has heard why");
}

#[test]
fn a_chain_whose_middle_is_killed_leaves_no_flow_that_looks_whole() {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far", "last"]);
    let _last = stage::start(&stage.server, &last_config(&authority, QUICK));
    let setup = Setup::new(&far_config(FAMILY, &authority, &onwards("reject")));
    let middle = Running::start_in(&stage.server, &setup);
    let near = near_config(FAMILY, &authority, EARLY, QUICK, "otherwise = \"reject\"\n");
    let _near = stage.start(&near);
    let listener = stage.listen(FAMILY);
    duties::no_end_that_looks_whole(&mut || stage.flow(&listener), || {
        middle.signal(nix::sys::signal::Signal::SIGKILL);
    });
}

/// A request with the maximum number of hops is refused: it is in a loop.
#[test]
fn a_request_that_came_too_far_is_a_loop() {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far", "last"]);
    let _last = stage::start(&stage.server, &last_config(&authority, QUICK));
    let _middle = stage::start(&stage.server, &far_config(FAMILY, &authority, &onwards("reject")));
    let visitor = Visitor::new(&stage.gateway);
    let shown = Shown::of(&authority, "near");
    let listener = stage.listen(FAMILY);
    let target = Target::Address(listener.local_addr().expect("an address"));
    for (hops, answer) in
        [(7, Response::Granted), (8, Cause::Loop.into()), (255, Cause::Loop.into())]
    {
        let request = Request { target: target.clone(), client: None, class: None, hops };
        assert_eq!(visitor.ask("far", &shown, &request).0, answer, "{hops}");
    }
}

/// The third daemon's rule sends flows to a fourth, whose rule sends them to the second.
#[test]
fn a_chain_that_bites_its_tail_is_refused() {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far", "last", "round"]);
    let reject = "otherwise = \"reject\"\n";
    let round_at = "10.0.2.2:4435";
    let onwards = |peer: &str, at: &str| {
        format!("[peers.{peer}]\naddress = \"{at}\"\n[[rules]]\ntunnel = \"{peer}\"\n{reject}")
    };
    let own =
        |name: &str, at: &str| authority.table(name, &format!("listen = \"{at}\"\n{TARGETS}"));
    let back = onwards("far", &format!("10.0.2.2:{}", ends::PORT));
    let round = format!("{}[peers.last]\n{back}", own("round", round_at));
    let round = stage::start(&stage.server, &round);
    let last = format!("{}[peers.far]\n{}", own("last", LAST), onwards("round", round_at));
    let last = stage::start(&stage.server, &last);
    let middle = format!("[peers.round]\n{}", onwards("last", LAST));
    let middle = stage::start(&stage.server, &far_config(FAMILY, &authority, &middle));
    let near = near_config(FAMILY, &authority, EARLY, "", reject);
    let _near = stage.start(&near);
    let listener = stage.listen(FAMILY);
    let client = stage.connect(listener.local_addr().expect("an address")).expect("a proxy");
    assert_eq!(read_until_error(&client), ErrorKind::ConnectionReset);
    for proxy in [middle, last, round] {
        until("nobody keeps a place", || proxy.admission().flows() == 0);
    }
}
