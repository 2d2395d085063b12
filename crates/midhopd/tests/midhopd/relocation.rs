//! Live flows move from one gateway to another, with their connections.
//!
//! ```text
//!          lan0 – lan0 gateway wan0 – wan0
//!   client                |                server
//!          lan1 – lan0  second  wan0 – wan1
//! ```
//!
//! Client and server change their routes from the one to the other.

use crate::ends::Authority;
use crate::flows::{EndedFlow, exchange, fill, reset};
use crate::program::{Running, Setup, log_of, midhopd, traces};
use crate::stage::{
    Family, PATIENCE, ReadOnce, Stage, nft, noise, pass, receive_all, send_all, until, until_within,
};
use crate::survival::{kill_data_plane, relayed};
use midhop_path::DirectionSpec;
use midhop_status::control::answer::MoveOutcome;
use midhop_testbed::emulator::{Emulator, Wire};
use midhop_testbed::namespace::{Namespace, VethEnd, veth};
use midhop_units::{Bytes, Seed};
use nix::sys::signal::Signal;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::process::{Child, Output, Stdio};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant, SystemTime};

/// Where the second gateway listens for the first.
pub const LISTEN: &str = "10.0.7.2:4433";

/// A stage with a second gateway.
pub struct Place {
    /// The link between the gateways, if it is emulated. It ends before the namespaces do.
    _between: Option<Emulator>,
    pub stage: Stage,
    pub second: Namespace,
    pub authority: Authority,
}

fn at(family: Family, net: u8, host: u8) -> IpAddr {
    match family {
        Family::V4 => [10, 0, net, host].into(),
        Family::V6 => [0xfd00, 0, 0, net.into(), 0, 0, 0, host.into()].into(),
    }
}

pub fn ip(host: &Namespace, family: Family, words: &str) {
    let mut command = host.command("ip");
    command.arg(if family == Family::V4 { "-4" } else { "-6" });
    command.args(words.split_whitespace()).stdin(Stdio::null());
    assert!(command.status().expect("ip starts").success(), "ip refused: {words}");
}

/// A fast link between two hosts, with a delay.
fn emulated(name: &str, first: &Namespace, second: &Namespace, delay: &str) -> Emulator {
    let keys = format!("rate = \"1 Gbit/s\"\nqueue = \"8 MiB\"\ndelay = \"{delay}\"");
    let spec: DirectionSpec = toml::from_str(&keys).expect("a direction");
    let plan = spec.resolve("1 s".parse().expect("a time")).expect("a plan");
    let hub = Namespace::create("hub").expect("a namespace for the link");
    let [one, _] = veth(first, name, &hub, "link0", 1500).expect("the link");
    let [other, _] = veth(second, name, &hub, "link1", 1500).expect("the link");
    for (host, net, end) in [(first, 2, &other), (second, 1, &one)] {
        host.add_neighbour(name, at(Family::V4, 7, net), end.mac).expect("a neighbour");
    }
    let wire = Wire {
        name: name.to_owned(),
        first: "link0".to_owned(),
        second: "link1".to_owned(),
        nodes: ["gateway".to_owned(), "second".to_owned()],
        mtu: 1500,
        down: plan.clone(),
        up: plan,
        ack_filters: [None, None],
        posts: Default::default(),
        burst: Bytes::MAX,
    };
    let clock = nix::time::ClockId::CLOCK_MONOTONIC.now().expect("a clock");
    let epoch = midhop_units::Instant::START + Duration::from(clock).into();
    Emulator::start(&hub, wire, Seed(7), epoch).expect("an emulated link")
}

impl Place {
    pub fn set() -> Option<Self> {
        Self::set_apart(None)
    }

    /// The same, with this delay between the gateways, one way.
    pub fn set_apart(delay: Option<&str>) -> Option<Self> {
        let stage = Stage::set()?;
        let second = Namespace::create("second").expect("a namespace");
        // As most hosts have them: more than this in the queues of a flow takes a moment to move.
        for (host, key) in [(&stage.gateway, "rmem"), (&stage.gateway, "wmem"), (&second, "rmem")] {
            host.set_sysctl(&format!("net.ipv4.tcp_{key}"), "4096 131072 6291456")
                .expect("a limit");
        }
        let between = |one: &Namespace, name: &str, other: &Namespace, end: &str| {
            veth(one, name, other, end, 1500).expect("a link")
        };
        let [lan, own_lan] = between(&stage.client, "lan1", &second, "lan0");
        let [wan, own_wan] = between(&stage.server, "wan1", &second, "wan0");
        let _between = match delay {
            Some(delay) => Some(emulated("peer0", &stage.gateway, &second, delay)),
            None => {
                between(&stage.gateway, "peer0", &second, "peer0");
                None
            }
        };
        stage.gateway.add_address("peer0", at(Family::V4, 7, 1), 24).expect("an address");
        second.add_address("peer0", at(Family::V4, 7, 2), 24).expect("an address");
        for family in [Family::V4, Family::V6] {
            let whole = if family == Family::V4 { 32 } else { 128 };
            let neighbour = |host: &Namespace, device: &str, ip: IpAddr, end: &VethEnd| {
                host.add_neighbour(device, ip, end.mac).expect("a neighbour");
            };
            second.add_address("lan0", at(family, 11, 1), whole).expect("an address");
            second.add_address("wan0", at(family, 12, 1), whole).expect("an address");
            ip(&second, family, &format!("route add {} dev lan0", family.client()));
            ip(&second, family, &format!("route add {} dev wan0", family.server()));
            neighbour(&second, "lan0", family.client(), &lan);
            neighbour(&second, "wan0", family.server(), &wan);
            neighbour(&stage.client, "lan1", at(family, 11, 1), &own_lan);
            neighbour(&stage.server, "wan1", at(family, 12, 1), &own_wan);
        }
        Some(Self { _between, stage, second, authority: Authority::new(&["old", "new"]) })
    }

    /// From now on packets go by the first gateway again.
    pub fn change_routes_back(&self) {
        for family in [Family::V4, Family::V6] {
            let (lan, wan) = (at(family, 1, 1), at(family, 2, 1));
            ip(&self.stage.client, family, &format!("route replace default via {lan} dev lan0"));
            ip(&self.stage.server, family, &format!("route replace default via {wan} dev wan0"));
        }
    }

    /// From now on packets go by the second gateway.
    pub fn change_routes(&self) {
        for family in [Family::V4, Family::V6] {
            self.change_routes_of(family);
        }
    }

    /// The same, for one address family.
    pub fn change_routes_of(&self, family: Family) {
        let (lan, wan) = (at(family, 11, 1), at(family, 12, 1));
        let hosts = [(&self.stage.client, lan, "lan1"), (&self.stage.server, wan, "wan1")];
        scope(|scope| {
            for (host, next, device) in hosts {
                let words = format!("route replace default via {next} dev {device} onlink");
                scope.spawn(move || ip(host, family, &words));
            }
        });
    }

    pub fn old_setup(&self, more: &str) -> Setup {
        let own = self.authority.table("old", "");
        Setup::new(&format!(
            "[intercept]\ninterfaces = \"lan0\"\n[daemon]\nworkers = 2\n{own}[peers.new]\naddress = \"{LISTEN}\"\n{more}"
        ))
    }

    pub fn new_setup(&self, more: &str) -> Setup {
        let own = self.authority.table("new", &format!("listen = \"{LISTEN}\"\n"));
        Setup::new(&format!(
            "[intercept]\ninterfaces = \"lan0\"\n[daemon]\nworkers = 2\n{own}[peers.old]\n{more}"
        ))
    }

    pub fn start(&self, old: &Setup, new: &Setup) -> [Running; 2] {
        let new = Running::start_in(&self.second, new);
        let running = Running::start(&self.stage, old);
        until("the tunnel is open", || old.peer("new").tunnels >= 1);
        [running, new]
    }
}

pub const ACCEPT: &str = "moves = \"accept\"\n";

/// Starts `midhopd move` for flows.
pub fn begin_to_move(setup: &Setup, flows: &str) -> Child {
    begin_to_move_to("new", setup, flows)
}

/// The same, to this peer.
pub fn begin_to_move_to(peer: &str, setup: &Setup, flows: &str) -> Child {
    let mut command = midhopd();
    command.args(["move", "--json", "--to", peer, "--flows", flows, "--socket"]);
    command.arg(setup.socket()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("midhopd starts")
}

pub fn outcome_of(output: &Output) -> MoveOutcome {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

pub fn move_flows(setup: &Setup, flows: &str) -> (Option<i32>, MoveOutcome) {
    let output = begin_to_move(setup, flows).wait_with_output().expect("an end");
    (output.status.code(), outcome_of(&output))
}

/// Why flows stay on a host that is too busy: each is in order, and another command moves them.
const TOO_BUSY: [&str; 3] = ["busy", "peer-silent", "time"];

/// Moves this many flows, which are all, to a peer. On a busy host one command may not come to all of them.
pub fn move_all(from: &Setup, peer: &str, flows: u64) {
    let mut moved = 0;
    until_within(6 * PATIENCE, "all have moved", || {
        let output = begin_to_move_to(peer, from, "all").wait_with_output().expect("an end");
        // Without a tunnel it is refused: the end that starts first finds nobody, and opens its own a while later.
        let Ok(outcome) = serde_json::from_slice::<MoveOutcome>(&output.stdout) else {
            return false;
        };
        moved += outcome.moved;
        let others = outcome.stayed.keys().filter(|why| !TOO_BUSY.contains(&&***why)).count();
        assert!(outcome.lost == 0 && others == 0, "{outcome:?}\n{}", log_of(from));
        moved == flows
    });
}

pub fn moved(setup: &Setup) -> [u64; 3] {
    let totals = setup.status().moved_flows_total;
    ["away", "here", "lost"].map(|name| totals[name])
}

/// Unit: bytes. What live flows have relayed.
pub fn relayed_bytes(setup: &Setup) -> u64 {
    setup.flows().iter().map(|flow| flow.up_bytes + flow.down_bytes).sum()
}

fn live_flows_move(family: Family) {
    let Some(place) = Place::set() else { return };
    let (old, new) = (place.old_setup(""), place.new_setup(ACCEPT));
    let [first, second] = place.start(&old, &new);
    let stage = &place.stage;
    let listener = stage.listen(family);
    let mut idle: Vec<_> = (0..20).map(|_| relayed(stage, &listener)).collect();
    let mut ended_by_client = relayed(stage, &listener);
    ended_by_client.0.shutdown(Shutdown::Write).expect("ending");
    let mut ended_by_server = relayed(stage, &listener);
    ended_by_server.1.shutdown(Shutdown::Write).expect("ending");
    assert_eq!(ended_by_client.1.read_once(&mut [0]).expect("an end"), 0);
    assert_eq!(ended_by_server.0.read_once(&mut [0]).expect("an end"), 0);
    let full = [relayed(stage, &listener), relayed(stage, &listener)];
    let written = [fill(&full[0].0), fill(&full[1].1)];
    let busy: Vec<_> = (0..6).map(|_| relayed(stage, &listener)).collect();
    let before = relayed_bytes(&old) + (1 << 20);
    scope(|scope| {
        for (number, (client, server)) in busy.iter().enumerate() {
            scope.spawn(move || exchange(client, server, 8_000_000 << (number % 3)));
        }
        until("the transfers have begun", || relayed_bytes(&old) > before);
        let (code, outcome) = move_flows(&old, "all");
        place.change_routes();
        assert_eq!(outcome.lost, 0, "{outcome:?}");
        assert_eq!(outcome.moved + outcome.stayed.values().sum::<u64>(), outcome.matching);
        assert_eq!(code, Some(if outcome.moved == outcome.matching { 0 } else { 1 }));
        // One that is at its end may stay.
        let others: Vec<_> =
            outcome.stayed.keys().filter(|why| !["ended", "busy"].contains(&&***why)).collect();
        assert!(others.is_empty() && outcome.moved >= 24, "{outcome:?}\n{}", log_of(&new));
        assert_eq!(moved(&old), [outcome.moved, 0, 0]);
        assert_eq!(moved(&new), [0, outcome.moved, 0]);
    });
    for (client, server) in &mut idle {
        pass(client, server);
    }
    let (client, server) = &mut ended_by_client;
    server.write_all(b"the answer").expect("writing");
    server.shutdown(Shutdown::Write).expect("ending");
    assert_eq!(receive_all(client), b"the answer");
    let (client, server) = &mut ended_by_server;
    send_all(client, b"late");
    assert_eq!(receive_all(server), b"late");
    for ((from, to), bytes) in
        [(&full[0].0, &full[0].1), (&full[1].1, &full[1].0)].iter().zip(written)
    {
        from.shutdown(Shutdown::Write).expect("ending");
        assert_eq!(receive_all(to).len(), bytes);
    }
    until("the flows have ended", || new.status().flows <= idle.len() as u64 + 2);
    let (client, mut server) = idle.pop().expect("one");
    reset(client);
    assert_eq!(server.read_once(&mut [0]).expect_err("a reset").kind(), ErrorKind::ConnectionReset);
    let (client, server) = idle.pop().expect("one");
    exchange(&client, &server, 300_000);
    // They outlive a data plane of the new place as any others do.
    kill_data_plane(&second);
    for (client, server) in &mut idle {
        pass(client, server);
    }
    drop((idle, full, ended_by_client, ended_by_server));
    for (running, setup, host) in [(first, &old, &stage.gateway), (second, &new, &place.second)] {
        running.signal(Signal::SIGTERM);
        assert_eq!(running.end(), Some(0), "{}", log_of(setup));
        assert_eq!(traces(host), [""; 0], "left behind");
    }
}

#[test]
fn live_flows_move_ipv4() {
    live_flows_move(Family::V4);
}

#[test]
fn live_flows_move_ipv6() {
    live_flows_move(Family::V6);
}

/// As on many routers: connections are tracked, and what belongs to none is dropped.
const STATEFUL: &str = "table inet admin {
  chain input {
    type filter hook input priority filter; policy drop;
    ct state established,related accept
    udp dport 4433 accept
    meta l4proto { icmp, icmpv6 } accept
    iifname lo accept
  }
  chain forward {
    type filter hook forward priority filter; policy drop;
    ct state established,related accept
    iifname lan0 ct state new tcp flags & (fin|syn|rst|ack) == syn accept
  }
}";

#[test]
fn flows_move_between_hosts_that_track_connections() {
    let Some(place) = Place::set() else { return };
    for host in [&place.stage.gateway, &place.second] {
        nft(host, STATEFUL);
    }
    let (old, new) = (place.old_setup(""), place.new_setup(ACCEPT));
    let _running = place.start(&old, &new);
    let listener = place.stage.listen(Family::V4);
    let mut flows: Vec<_> = (0..6).map(|_| relayed(&place.stage, &listener)).collect();
    let (code, outcome) = move_flows(&old, "all");
    place.change_routes();
    assert_eq!((code, outcome.moved), (Some(0), 6), "{outcome:?}");
    for (number, (client, server)) in flows.iter_mut().enumerate() {
        // Either end may be the first that sends.
        if number % 2 == 0 { pass(client, server) } else { pass(server, client) }
    }
    for (client, server) in &flows {
        exchange(client, server, 300_000);
    }
}

#[test]
fn a_thousand_flows_move() {
    const FLOWS: usize = 1000;
    let Some(place) = Place::set() else { return };
    let (old, new) = (place.old_setup(""), place.new_setup(ACCEPT));
    let _running = place.start(&old, &new);
    let listener = place.stage.listen(Family::V4);
    let mut flows: Vec<_> = (0..FLOWS).map(|_| relayed(&place.stage, &listener)).collect();
    let begun = Instant::now();
    let mut moves = 0;
    // On a busy host one command may end before it has come to all.
    let mut moved = 0;
    while moved < FLOWS as u64 {
        let (_, outcome) = move_flows(&old, "all");
        assert_eq!((outcome.lost, outcome.matching + moved), (0, FLOWS as u64), "{outcome:?}");
        (moves, moved) = (moves + 1, moved + outcome.moved);
        assert!(begun.elapsed() < PATIENCE * 5, "{outcome:?}\n{}", log_of(&new));
    }
    place.change_routes();
    eprintln!("{moves} commands, {:?}", begun.elapsed());
    for (client, server) in &mut flows {
        pass(client, server);
    }
}

/// What still arrives at the old place is forwarded to the new one: no route has to change for flows to go on.
#[test]
fn flows_go_on_before_the_routes_change() {
    let Some(place) = Place::set() else { return };
    let (old, new) = (place.old_setup(""), place.new_setup(ACCEPT));
    let [first, second] = place.start(&old, &new);
    let listener = place.stage.listen(Family::V4);
    let mut idle: Vec<_> = (0..40).map(|_| relayed(&place.stage, &listener)).collect();
    let busy: Vec<_> = (0..4).map(|_| relayed(&place.stage, &listener)).collect();
    let before = relayed_bytes(&old) + (1 << 20);
    scope(|scope| {
        for (client, server) in &busy {
            scope.spawn(move || exchange(client, server, 30_000_000));
        }
        until("the transfers have begun", || relayed_bytes(&old) > before);
        let mut came = 0;
        // On a busy host one command may not come to all of them.
        until("all have moved that are not at their ends", || {
            let (_, outcome) = move_flows(&old, "all");
            assert_eq!(outcome.lost, 0, "{outcome:?}");
            came += outcome.moved;
            outcome.stayed.keys().all(|why| why == "ended")
        });
        assert!(came >= 40, "{came}\n{}", log_of(&new));
    });
    for (number, (client, server)) in idle.iter_mut().enumerate() {
        if number % 2 == 0 { pass(client, server) } else { pass(server, client) }
    }
    // Also in the middle of a change: one end has changed its route, the other has not.
    let (lan, device) = (at(Family::V4, 11, 1), "lan1");
    let words = format!("route replace default via {lan} dev {device} onlink");
    ip(&place.stage.client, Family::V4, &words);
    for (client, server) in &mut idle {
        pass(client, server);
    }
    place.change_routes();
    for (client, server) in &mut idle {
        pass(client, server);
    }
    drop((idle, busy));
    for (running, setup, host) in
        [(first, &old, &place.stage.gateway), (second, &new, &place.second)]
    {
        running.signal(Signal::SIGTERM);
        assert_eq!(running.end(), Some(0), "{}", log_of(setup));
        assert_eq!(traces(host), [""; 0], "left behind");
    }
}

#[test]
fn a_move_waits_for_its_time() {
    let Some(place) = Place::set() else { return };
    let (old, new) = (place.old_setup(""), place.new_setup(ACCEPT));
    let _running = place.start(&old, &new);
    let listener = place.stage.listen(Family::V4);
    let (mut client, mut server) = relayed(&place.stage, &listener);
    let socket = old.socket();
    let move_at = |time: &str| {
        let mut command = midhopd();
        command.args(["move", "--to", "new", "--flows", "all", "--at", time, "--socket"]);
        command.arg(&socket).output().expect("midhopd starts")
    };
    for (time, why) in [("2020-01-01T00:00:00Z", "past"), ("noon", "2026-11-29T12:00:00Z")] {
        let output = move_at(time);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(64) && error.contains(why), "{error}");
    }
    assert_eq!(moved(&old), [0; 3]);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time");
    let soon = now.as_secs() + 2;
    let text = time::OffsetDateTime::from_unix_timestamp(soon.cast_signed()).expect("a time");
    let (hour, minute, second) = text.to_hms();
    let output = move_at(&format!("{}T{hour:02}:{minute:02}:{second:02}Z", text.date()));
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let end = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time");
    assert!(end.as_secs() >= soon, "it did not wait");
    place.change_routes();
    pass(&mut client, &mut server);
}

#[test]
fn a_peer_that_may_not_move_flows_is_refused() {
    let Some(place) = Place::set() else { return };
    let (old, new) = (place.old_setup(""), place.new_setup(""));
    let _running = place.start(&old, &new);
    let listener = place.stage.listen(Family::V4);
    let (mut client, mut server) = relayed(&place.stage, &listener);
    let output = begin_to_move(&old, "all").wait_with_output().expect("an end");
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("moves = \"accept\""), "{error}");
    pass(&mut client, &mut server);
    assert_eq!((moved(&old), moved(&new)), ([0; 3], [0; 3]));
}

#[test]
fn a_flow_that_the_new_place_would_not_split_stays() {
    let Some(place) = Place::set() else { return };
    let rule = format!(
        "{ACCEPT}[[rules]]\nmatch.destination_port = 1\naction = \"split\"\n[[rules]]\naction = \"bypass\"\n"
    );
    let (old, new) = (place.old_setup(""), place.new_setup(&rule));
    let _running = place.start(&old, &new);
    let listener = place.stage.listen(Family::V4);
    let mut flows: Vec<_> = (0..3).map(|_| relayed(&place.stage, &listener)).collect();
    let port = flows[0].0.local_addr().expect("an address").port();
    let (code, outcome) = move_flows(&old, &format!("source_port={port}"));
    assert_eq!((code, outcome.matching, outcome.moved), (Some(1), 1, 0));
    assert_eq!(outcome.stayed, [("peer-policy".to_owned(), 1)].into());
    for (client, server) in &mut flows {
        pass(client, server);
    }
}

/// A flow goes on here, or both of its ends have been reset.
pub fn lives_or_is_reset((client, server): &mut (TcpStream, TcpStream)) -> bool {
    let mut received = [0; 4];
    let passed = client
        .write_all(b"ping")
        .and_then(|()| server.read_exact(&mut received))
        .and_then(|()| server.write_all(b"pong"))
        .and_then(|()| client.read_exact(&mut received));
    let Err(error) = passed else { return true };
    let is_reset = |kind| matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
    assert!(is_reset(error.kind()), "a flow neither goes on nor is reset: {error}");
    for mut end in [&*client, &*server] {
        let error = end.read_once(&mut received).map(|count| count > 0);
        assert!(
            matches!(&error, Ok(false)) || error.as_ref().is_err_and(|it| is_reset(it.kind())),
            "the other end lives on: {error:?}"
        );
    }
    false
}

/// The new place falls silent between the announcement of flows, and the old place's word that they go.
fn flows_stay_if_the_new_place_falls_silent(old_dies: bool) {
    // Far enough for it to be stopped in between.
    let Some(place) = Place::set_apart(Some("500 ms")) else { return };
    let (old, new) = (place.old_setup(""), place.new_setup(ACCEPT));
    let [first, second] = place.start(&old, &new);
    let listener = place.stage.listen(Family::V6);
    let mut flows: Vec<_> = (0..8).map(|_| relayed(&place.stage, &listener)).collect();
    let mut moving = begin_to_move(&old, "all");
    until("the flows are announced", || stands_still(&place.second, Family::V6));
    // The answer leaves, and the states come a second later.
    sleep(Duration::from_millis(300));
    second.stop_data_plane();
    until("a flow stands still", || stands_still(&place.stage.gateway, Family::V6));
    if old_dies {
        // The next data plane has them go on.
        kill_data_plane(&first);
        for (client, server) in &mut flows {
            pass(client, server);
        }
        let _ = moving.wait();
    } else {
        let output = moving.wait_with_output().expect("an end");
        let outcome = outcome_of(&output);
        assert_eq!((output.status.code(), outcome.moved, outcome.lost), (Some(1), 0, 0));
        assert_eq!(outcome.stayed, [("peer-silent".to_owned(), 8)].into());
        for (client, server) in &mut flows {
            pass(client, server);
        }
    }
    second.signal_data_plane(Signal::SIGCONT);
}

#[test]
fn flows_stay_if_the_new_place_falls_silent_at_once() {
    flows_stay_if_the_new_place_falls_silent(false);
}

#[test]
fn flows_go_on_if_their_place_dies_and_the_new_one_is_silent() {
    flows_stay_if_the_new_place_falls_silent(true);
}

/// What is not announced does not stand still.
#[test]
fn flows_do_not_wait_for_a_place_that_is_silent() {
    let Some(place) = Place::set() else { return };
    let (old, new) = (place.old_setup(""), place.new_setup(ACCEPT));
    let [_first, second] = place.start(&old, &new);
    let listener = place.stage.listen(Family::V4);
    let mut flows: Vec<_> = (0..8).map(|_| relayed(&place.stage, &listener)).collect();
    second.stop_data_plane();
    let mut moving = begin_to_move(&old, "all");
    let mut passed = 0;
    until("the command has ended", || {
        for (client, server) in &mut flows {
            pass(client, server);
        }
        passed += 1;
        assert!(!stands_still(&place.stage.gateway, Family::V4));
        moving.try_wait().expect("waiting").is_some()
    });
    assert!(passed > 1);
    let outcome = outcome_of(&moving.wait_with_output().expect("an end"));
    assert_eq!(outcome.stayed, [("peer-silent".to_owned(), 8)].into());
    second.signal_data_plane(Signal::SIGCONT);
}

/// Whether packets of any flow are dropped there.
pub fn stands_still(host: &Namespace, family: Family) -> bool {
    let set = if family == Family::V4 { "still_in4" } else { "still_in6" };
    let mut list = host.command("nft");
    list.args(["list", "set", "inet", "midhop_main", set]).stderr(Stdio::null());
    let listed = list.output().expect("nft starts").stdout;
    String::from_utf8_lossy(&listed).contains("elements")
}

#[test]
fn a_flow_lives_at_one_place_or_is_reset_whenever_the_new_one_dies() {
    let Some(place) = Place::set() else { return };
    // A tunnel whose other end has died is soon known to be gone.
    let quick = "fallback = \"off\"\nkeepalive = \"500 ms\"\ntimeout = \"4 s\"\n";
    let (old, new) = (place.old_setup(quick), place.new_setup(&format!("{ACCEPT}{quick}")));
    let running = Running::start(&place.stage, &old);
    let listener = place.stage.listen(Family::V4);
    let (mut lived, mut was_reset) = (0, 0);
    // Once the first flow is restored there, and some moments later.
    for pause_ms in [0, 5, 20, 60] {
        let mut second = Running::start_in(&place.second, &new);
        until("the tunnel is open", || new.peer("old").tunnels >= 1);
        let mut flows: Vec<_> = (0..12).map(|_| relayed(&place.stage, &listener)).collect();
        let mut moving = begin_to_move(&old, "all");
        until("a flow stands still there, or all have moved", || {
            stands_still(&place.second, Family::V4) || moving.try_wait().expect("waiting").is_some()
        });
        sleep(Duration::from_millis(pause_ms));
        second.signal(Signal::SIGKILL);
        until("it has ended", || second.has_ended());
        let output = moving.wait_with_output().expect("an end");
        eprintln!("{pause_ms} ms: {:?}", outcome_of(&output));
        for flow in &mut flows {
            if lives_or_is_reset(flow) { lived += 1 } else { was_reset += 1 }
        }
        drop(flows);
        until("the flows have ended", || old.status().flows == 0);
        drop(second);
    }
    eprintln!("{lived} flows went on, {was_reset} were reset");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0), "{}", log_of(&old));
}

#[test]
fn what_is_read_after_a_move_is_what_was_written() {
    let Some(place) = Place::set() else { return };
    let (old, new) = (place.old_setup(""), place.new_setup(ACCEPT));
    let _running = place.start(&old, &new);
    let listener = place.stage.listen(Family::V4);
    let flows: Vec<(TcpStream, TcpStream)> =
        (0..4).map(|_| relayed(&place.stage, &listener)).collect();
    let bytes = noise(9, 24 << 20);
    scope(|scope| {
        let _ended: Vec<_> = flows.iter().map(EndedFlow).collect();
        for (client, server) in &flows {
            // Nobody reads before the flows have moved: every queue is full.
            scope.spawn(|| send_all(client, &bytes));
            scope.spawn(|| send_all(server, &bytes));
        }
        let mut last = u64::MAX;
        until("all queues are full", || {
            sleep(Duration::from_millis(300));
            let now = relayed_bytes(&old);
            now > 0 && std::mem::replace(&mut last, now) == now
        });
        let (code, outcome) = move_flows(&old, "all");
        assert_eq!((code, outcome.moved), (Some(0), 4), "{outcome:?}\n{}", log_of(&new));
        place.change_routes();
        let readers: Vec<_> = flows
            .iter()
            .flat_map(|(client, server)| [client, server])
            .map(|end| scope.spawn(|| receive_all(end) == bytes))
            .collect();
        for reader in readers {
            assert!(reader.join().expect("a reader"), "a byte is missing, or another's");
        }
    });
}
