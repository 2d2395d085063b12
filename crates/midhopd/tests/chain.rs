//! Flows that go through three daemons: from one tunnel into the next.
//!
//! `client – gateway with the first – server's host with the second, the third, and the server`

mod ends;
mod program;
mod stage;
mod visitor;

use ends::{Authority, far_config, near_config};
use midhop_pep::config::Plan;
use midhop_tunnel::cause::Cause;
use midhop_tunnel::connect::{Request, Response};
use midhop_tunnel::target::Target;
use midhopd::daemon::DataPlane;
use midhopd::ledger::{Count, Ledger};
use program::{Desk, Running};
use stage::{Family, Stage, hear, noise, say, until};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::scope;
use visitor::{Shown, Visitor};

const FAMILY: Family = Family::V4;
/// Where the third one listens.
const LAST: &str = "10.0.2.2:4434";
const EARLY: &str = "accept = \"early\"\n";
const QUICK: &str = "keepalive = \"500 ms\"\ntimeout = \"2 s\"\n";

/// What the second one has beside its listener: the third as a peer, and a rule by which flows go there.
fn onwards(otherwise: &str) -> String {
    format!(
        "{QUICK}[peers.last]\naddress = \"{LAST}\"\n{QUICK}[[rules]]\n\
         match.destination = \"10.0.2.0/24\"\ntunnel = \"last\"\notherwise = \"{otherwise}\"\n"
    )
}

fn last_config(authority: &Authority, more: &str) -> String {
    let own = authority.table("last", &format!("listen = \"{LAST}\"\n"));
    format!("{own}[peers.far]\n{QUICK}{more}")
}

fn start(stage: &Stage, config: &str) -> DataPlane {
    let plan = Plan::read("test.toml", config).unwrap_or_else(|error| panic!("{error}"));
    let started = stage.server.run(|| DataPlane::start(plan)).expect("entering the server");
    started.unwrap_or_else(|error| panic!("a proxy does not start: {error}"))
}

struct Chain {
    near: DataPlane,
    middle: DataPlane,
    last: DataPlane,
    _authority: Authority,
}

impl Chain {
    fn start(stage: &Stage, accept: &str) -> Self {
        let authority = Authority::new(&["near", "far", "last"]);
        let last = start(stage, &last_config(&authority, ""));
        let middle = start(stage, &far_config(FAMILY, &authority, &onwards("reject")));
        let rule = "otherwise = \"reject\"\n";
        let near = near_config(FAMILY, &authority, accept, QUICK, rule);
        let near = stage.try_proxy(&near).expect("a proxy");
        let chain = Self { near, middle, last, _authority: authority };
        until("the second tunnel is open", || {
            let peers = midhopd::snapshot::Source::of(&chain.middle).take().peers;
            peers["last"].tunnels == 1
        });
        chain
    }

    /// A count of all three ledgers.
    fn sums(&self, count: fn(&Ledger) -> &Count) -> [u64; 3] {
        [&self.near, &self.middle, &self.last]
            .map(|end| end.ledgers().iter().map(|it| count(it).value()).sum())
    }
}

/// Reads up to what is no end.
fn hear_break(mut stream: &TcpStream) -> ErrorKind {
    loop {
        match stream.read(&mut [0; 1 << 16]) {
            Ok(0) => panic!("a truncated stream ended as if it were whole"),
            Ok(_) => {}
            Err(error) => return error.kind(),
        }
    }
}

#[test]
fn bytes_pass_three_proxies_both_ways() {
    let Some(stage) = Stage::set() else { return };
    for accept in [EARLY, "accept = \"after-connect\"\n"] {
        let chain = Chain::start(&stage, accept);
        let listener = stage.listen(FAMILY);
        let (client, server) = stage.flow(&listener);
        let (up, down) = (noise(1, 10_000_000), noise(2, 10_000_000));
        scope(|scope| {
            scope.spawn(|| say(&client, &up));
            scope.spawn(|| say(&server, &down));
            let heard = scope.spawn(|| hear(&server));
            assert!(hear(&client) == down, "what the server said");
            assert!(heard.join().expect("the server") == up, "what the client said");
        });
        until("all three have booked an end in order", || chain.sums(|it| &it.ended) == [1; 3]);
        assert_eq!(chain.sums(|it| &it.bytes_up), [10_000_000; 3]);
        assert_eq!(chain.sums(|it| &it.bytes_down), [10_000_000; 3]);
    }
}

#[test]
fn half_closes_pass_three_proxies() {
    let Some(stage) = Stage::set() else { return };
    let chain = Chain::start(&stage, EARLY);
    let listener = stage.listen(FAMILY);
    let reply = noise(3, 2_000_000);
    for from_server in [false, true] {
        let (client, server) = stage.flow(&listener);
        let (first, second) = if from_server { (server, client) } else { (client, server) };
        say(&first, b"that is all");
        assert_eq!(hear(&second), b"that is all");
        scope(|scope| {
            scope.spawn(|| say(&second, &reply));
            assert!(hear(&first) == reply, "the whole answer after the half-close");
        });
    }
    until("the flows have ended in order", || chain.sums(|it| &it.ended) == [2; 3]);
}

#[test]
fn resets_pass_three_proxies() {
    let Some(stage) = Stage::set() else { return };
    let _chain = Chain::start(&stage, EARLY);
    let listener = stage.listen(FAMILY);
    for from_server in [false, true] {
        let (client, server) = stage.flow(&listener);
        let (mut resetting, mut other) =
            if from_server { (server, client) } else { (client, server) };
        resetting.write_all(b"so far").expect("writing");
        let mut heard = [0; 6];
        other.read_exact(&mut heard).expect("what came before the reset");
        socket2::SockRef::from(&resetting)
            .set_linger(Some(std::time::Duration::ZERO))
            .expect("a linger time");
        drop(resetting);
        assert_eq!(hear_break(&other), ErrorKind::ConnectionReset);
    }
}

/// A client whose flow stands still at the far end of a chain holds up no other, and loses nothing.
#[test]
fn a_reader_that_stands_still_closes_windows_all_the_way() {
    let Some(stage) = Stage::set() else { return };
    let _chain = Chain::start(&stage, EARLY);
    let listener = stage.listen(FAMILY);
    let (client, server) = stage.flow(&listener);
    server.set_nonblocking(true).expect("a mode");
    let (chunk, mut quiet, mut written) = (noise(4, 1 << 16), 0, 0);
    while quiet < 40 {
        match (&server).write(&chunk) {
            Ok(count) => (quiet, written) = (0, written + count),
            Err(_) => {
                quiet += 1;
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
    }
    let (second, other) = stage.flow(&listener);
    let bytes = noise(5, 5_000_000);
    scope(|scope| {
        scope.spawn(|| say(&other, &bytes));
        assert!(hear(&second) == bytes, "the other flow's bytes");
    });
    server.set_nonblocking(false).expect("a mode");
    server.shutdown(std::net::Shutdown::Write).expect("the end");
    assert_eq!(hear(&client).len(), written);
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
    let _last = start(&stage, &last_config(&authority, ""));
    let desk = Desk::new(&far_config(FAMILY, &authority, &onwards("reject")));
    let middle = Running::start_in(&stage.server, &desk);
    let near = near_config(FAMILY, &authority, EARLY, QUICK, "otherwise = \"reject\"\n");
    let _near = stage.try_proxy(&near).expect("a proxy");
    let listener = stage.listen(FAMILY);
    let (down, up) = (stage.flow(&listener), stage.flow(&listener));
    let bytes = noise(9, 1 << 20);
    let endless = |mut stream: &TcpStream| while stream.write_all(&bytes).is_ok() {};
    scope(|scope| {
        scope.spawn(|| endless(&down.1));
        scope.spawn(|| endless(&up.0));
        let mut chunk = vec![0; 1 << 20];
        (&down.0).read_exact(&mut chunk).expect("the download begins");
        (&up.1).read_exact(&mut chunk).expect("the upload begins");
        middle.signal(nix::sys::signal::Signal::SIGKILL);
        assert_eq!(hear_break(&down.0), ErrorKind::ConnectionReset);
        assert_eq!(hear_break(&up.1), ErrorKind::ConnectionReset);
    });
}

/// A request that has been passed on as often as any may be is told that it goes round in circles.
#[test]
fn a_request_that_came_too_far_is_a_loop() {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far", "last"]);
    let _last = start(&stage, &last_config(&authority, ""));
    let _middle = start(&stage, &far_config(FAMILY, &authority, &onwards("reject")));
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

/// The third one's rule sends flows back to the second.
#[test]
fn a_chain_that_bites_its_tail_is_refused() {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far", "last"]);
    let back = format!(
        "address = \"10.0.2.2:{}\"\n[[rules]]\ntunnel = \"far\"\notherwise = \"reject\"\n",
        ends::PORT
    );
    let own = authority.table("last", &format!("listen = \"{LAST}\"\n"));
    let last = start(&stage, &format!("{own}[peers.far]\n{back}"));
    let onwards = format!("[peers.last]\naddress = \"{LAST}\"\n[[rules]]\ntunnel = \"last\"\n");
    let middle = format!("{onwards}otherwise = \"reject\"\n");
    let middle = start(&stage, &far_config(FAMILY, &authority, &middle));
    let near = near_config(FAMILY, &authority, EARLY, "", "otherwise = \"reject\"\n");
    let _near = stage.try_proxy(&near).expect("a proxy");
    let listener = stage.listen(FAMILY);
    let client = stage.connect(listener.local_addr().expect("an address")).expect("a proxy");
    assert_eq!(hear_break(&client), ErrorKind::ConnectionReset);
    for proxy in [middle, last] {
        until("nobody keeps a place", || proxy.admission().flows() == 0);
    }
}
