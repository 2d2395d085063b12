//! Changes by a router's administrator, changes of its interfaces, and attackers, while the daemon
//! serves.

use crate::stage::{Family, PATIENCE, Stage, nft, receive_all, send_all, until};
use midhop_pep::config::Plan;
use midhop_testbed::namespace::{Namespace, veth};
use midhopd::data_plane::DataPlane;
use midhopd::ledger::{Counter, Ledger};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::Stdio;

fn sum(proxy: &DataPlane, count: fn(&Ledger) -> &Counter) -> u64 {
    proxy.ledgers().iter().map(|ledger| count(ledger).value()).sum()
}

fn splits(proxy: &DataPlane) -> u64 {
    sum(proxy, |ledger| &ledger.flows)
}

/// Carries bytes over a flow. Returns whether the flow was split.
fn is_split(stage: &Stage, proxy: &DataPlane, listener: &TcpListener) -> bool {
    let before = splits(proxy);
    let (client, server) = stage.flow(listener);
    send_all(&client, b"question");
    assert_eq!(receive_all(&server), b"question");
    send_all(&server, b"answer");
    assert_eq!(receive_all(&client), b"answer");
    splits(proxy) > before
}

fn rules(namespace: &Namespace, text: &str) {
    let mut nft =
        namespace.command("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().expect("nft");
    nft.stdin.take().expect("its input").write_all(text.as_bytes()).expect("writing");
    assert!(nft.wait().expect("an end").success(), "refused: {text}");
}

fn shell(namespace: &Namespace, line: &str) -> String {
    let output = namespace.command("sh").args(["-c", line]).output().expect("a shell");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const NEIGHBOURS: &str = "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept";

/// A filter without connection tracking drops packets for the daemon's sockets. Flows then pass by,
/// as without the daemon, and are taken again once the administrator permits these packets.
fn dropped_here(family: Family, accept: &str) {
    let Some(stage) = Stage::set() else { return };
    let chain = format!(
        "table inet adm {{\n chain i {{\n type filter hook input priority filter; policy drop\n \
         iifname \"lo\" accept\n {NEIGHBOURS}\n }}\n}}\n"
    );
    rules(&stage.gateway, &chain);
    let proxy = stage.proxy(&format!("accept = \"{accept}\"\n"));
    let listener = stage.listen(family);
    assert!(!is_split(&stage, &proxy, &listener), "the first flow passes by in the end");
    let passed = || sum(&proxy, |ledger| &ledger.bypassed_by_watchdog);
    until("no more flows are taken", || {
        assert!(!is_split(&stage, &proxy, &listener));
        passed() > 0
    });
    nft(&stage.gateway, "insert rule inet adm i socket transparent 1 accept");
    until("flows are intercepted again", || is_split(&stage, &proxy, &listener));
}

#[test]
fn packets_dropped_on_this_host_let_flows_pass_ipv4() {
    dropped_here(Family::V4, "after-connect");
}

#[test]
fn packets_dropped_on_this_host_let_flows_pass_ipv6() {
    dropped_here(Family::V6, "after-connect");
}

/// The daemon's own packets are dropped at the output.
fn refused_here(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let chain = format!(
        "table inet adm {{\n chain o {{\n type filter hook output priority filter; policy drop\n \
         oifname \"lo\" accept\n {NEIGHBOURS}\n }}\n}}\n"
    );
    rules(&stage.gateway, &chain);
    let proxy = stage.proxy("");
    let listener = stage.listen(family);
    for _ in 0..5 {
        assert!(!is_split(&stage, &proxy, &listener), "nothing gets out but what is forwarded");
    }
    assert!(sum(&proxy, |ledger| &ledger.bypassed_by_watchdog) > 0, "no more are tried");
}

#[test]
fn packets_that_may_not_leave_let_flows_pass_ipv4() {
    refused_here(Family::V4);
}

#[test]
fn packets_that_may_not_leave_let_flows_pass_ipv6() {
    refused_here(Family::V6);
}

/// `flush ruleset`, as a firewall's service runs it at a restart, removes the daemon's table too.
#[test]
fn a_flushed_ruleset_has_the_table_again() {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy("");
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    nft(&stage.gateway, "flush ruleset");
    until("the table is there again", || {
        shell(&stage.gateway, "nft list tables").contains("midhop_main")
    });
    until("flows are split again", || is_split(&stage, &proxy, &listener));
    send_all(&client, b"through all of it");
    assert_eq!(receive_all(&server), b"through all of it");
}

/// Rules that are added later are followed: stateful ones, and routing rules for an interface.
fn followed(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy("");
    let listener = stage.listen(family);
    let table = || shell(&stage.gateway, "nft list table inet midhop_main");
    assert!(!table().contains("ct zone"), "nobody uses connection tracking here");
    assert!(is_split(&stage, &proxy, &listener));
    let chain = format!(
        "table inet adm {{\n chain i {{\n type filter hook input priority filter; policy drop\n \
         ct state established,related accept\n iifname \"lo\" accept\n {NEIGHBOURS}\n }}\n}}\n"
    );
    rules(&stage.gateway, &chain);
    until("the table follows", || table().contains("ct zone"));
    until("flows are split again", || is_split(&stage, &proxy, &listener));

    let ip = if family == Family::V4 { "ip -4" } else { "ip -6" };
    shell(&stage.gateway, &format!("{ip} rule add iif lan0 pref 100 lookup 100"));
    let copies = || {
        let rules = shell(&stage.gateway, &format!("{ip} rule"));
        rules.lines().filter(|line| line.starts_with("100:") && line.contains("iif lo")).count()
    };
    until("the rule has a copy", || copies() == 1);
    shell(&stage.gateway, &format!("{ip} rule del iif lan0 pref 100"));
    until("the copy goes with it", || copies() == 0);
}

#[test]
fn rules_that_come_later_are_followed_ipv4() {
    followed(Family::V4);
}

#[test]
fn rules_that_come_later_are_followed_ipv6() {
    followed(Family::V6);
}

/// Replaces the link between client and gateway by another one.
fn relink(stage: &Stage, name: &str) {
    shell(&stage.gateway, "ip link del lan0");
    let [client, gateway] = veth(&stage.client, name, &stage.gateway, name, 1500).expect("a link");
    let (near, far) = (IpAddr::from([10, 0, 1, 2]), IpAddr::from([10, 0, 1, 1]));
    stage.client.add_address(name, near, 24).expect("an address");
    stage.gateway.add_address(name, far, 24).expect("an address");
    stage.client.add_route(IpAddr::from([0; 4]), 0, far).expect("a route");
    stage.client.add_neighbour(name, far, gateway.mac).expect("a neighbour");
    stage.gateway.add_neighbour(name, near, client.mac).expect("a neighbour");
}

/// An interface disappears and appears again, like ppp0.
#[test]
fn an_interface_that_comes_again_is_intercepted() {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy("");
    let listener = stage.listen(Family::V4);
    assert!(is_split(&stage, &proxy, &listener));
    relink(&stage, "lan0");
    assert!(is_split(&stage, &proxy, &listener));
}

/// An interface that does not exist yet, like ppp0 at boot, delays neither the others nor a reload.
#[test]
fn an_interface_that_comes_late_is_intercepted_and_holds_up_no_reload() {
    let Some(stage) = Stage::set() else { return };
    let config = |rule: &str| {
        format!("[intercept]\ninterfaces = [\"late0\", \"lan0\"]\n[[rules]]\naction = \"{rule}\"\n")
    };
    let proxy = stage.start(&config("split"));
    let listener = stage.listen(Family::V4);
    assert!(is_split(&stage, &proxy, &listener), "by the interface that is there");
    for (rule, splits) in [("bypass", false), ("split", true)] {
        let plan = Plan::read("test.toml", &config(rule)).expect("a plan");
        stage.gateway.run(|| proxy.reload(plan)).expect("entering").expect("a reload");
        assert_eq!(is_split(&stage, &proxy, &listener), splits, "{rule}");
    }
    relink(&stage, "late0");
    assert!(is_split(&stage, &proxy, &listener), "by the one that came");
}

fn client_socket(stage: &Stage, family: Family, port: u16) -> Socket {
    socket_of(stage, SocketAddr::new(family.client(), port))
}

/// A socket on the client's host.
fn socket_of(stage: &Stage, own: SocketAddr) -> Socket {
    let open = || Socket::new(Domain::for_address(own), Type::STREAM, Some(Protocol::TCP));
    let socket = stage.client.run(open).expect("entering").expect("a socket");
    socket.set_reuse_address(true).expect("an option");
    socket.bind(&own.into()).expect("an address");
    socket
}

/// Another program on the proxy listens at the client's source port: the flow passes by, and works.
fn taken_port(family: Family, accept: &str) {
    const PORT: u16 = 40_123;
    let Some(stage) = Stage::set() else { return };
    let any = if family == Family::V4 { IpAddr::from([0; 4]) } else { IpAddr::from([0u16; 8]) };
    let taken = stage.gateway.run(|| TcpListener::bind(SocketAddr::new(any, PORT)));
    let _taken = taken.expect("entering").expect("a listener");
    let proxy = stage.proxy(&format!("accept = \"{accept}\"\n"));
    let listener = stage.listen(family);
    let client = client_socket(&stage, family, PORT);
    let server = listener.local_addr().expect("an address");
    client.connect_timeout(&server.into(), PATIENCE).expect("a connection");
    let (server, _) = listener.accept().expect("its other end");
    let client: std::net::TcpStream = client.into();
    send_all(&client, b"hello");
    assert_eq!(receive_all(&server), b"hello");
    assert_eq!(splits(&proxy), 0, "it passed by");
    assert_eq!(sum(&proxy, |ledger| &ledger.bypassed_by_limit), 1);
}

#[test]
fn a_port_that_is_taken_here_lets_the_flow_pass_ipv4() {
    taken_port(Family::V4, "after-connect");
}

#[test]
fn a_port_that_is_taken_here_lets_the_flow_pass_early_ipv4() {
    taken_port(Family::V4, "early");
}

#[test]
fn a_port_that_is_taken_here_lets_the_flow_pass_ipv6() {
    taken_port(Family::V6, "after-connect");
}

/// Connection attempts that get no response, from one source to many targets: others' flows are
/// split.
fn abandoned(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy("[limits]\npending = 64\n");
    // Addresses behind the server at which no host is, and nothing reports that.
    nft(&stage.server, "add table inet hole");
    nft(&stage.server, "add chain inet hole i { type filter hook prerouting priority -300; }");
    nft(&stage.server, "add rule inet hole i tcp dport 9 drop");
    let attempts: Vec<Socket> = (0..100)
        .map(|number| {
            let socket = client_socket(&stage, family, 20_000 + number);
            socket.set_nonblocking(true).expect("a mode");
            let target = SocketAddr::new(family.server(), 9);
            assert!(
                socket
                    .connect(&target.into())
                    .is_err_and(|error| { error.raw_os_error() == Some(nix::libc::EINPROGRESS) })
            );
            socket
        })
        .collect();
    until("many wait", || sum(&proxy, |ledger| &ledger.held) >= 8);
    assert!(sum(&proxy, |ledger| &ledger.held) <= 16, "one source and one target have a part only");
    let (client, server) = strangers(&stage, family);
    let listener = stage.server.run(|| TcpListener::bind(SocketAddr::new(server, 0)));
    let listener = listener.expect("entering").expect("a listener");
    let before = splits(&proxy);
    let socket = socket_of(&stage, SocketAddr::new(client, 0));
    let target = listener.local_addr().expect("an address");
    socket.connect_timeout(&target.into(), PATIENCE).expect("a connection");
    let (server, _) = listener.accept().expect("its other end");
    send_all(&socket.into(), b"hello");
    assert_eq!(receive_all(&server), b"hello");
    assert_eq!(splits(&proxy), before + 1, "another client's flow to another server is split");
    drop(attempts);
}

/// Another address of the client, in another network, and one of the server.
fn strangers(stage: &Stage, family: Family) -> (IpAddr, IpAddr) {
    let (client, server, length) = match family {
        Family::V4 => ("10.0.5.2", "10.0.6.2", 32),
        Family::V6 => ("fd00:0:0:5::2", "fd00:0:0:6::2", 128),
    };
    for (inside, device, address, via) in [
        (&stage.client, "lan0", client, family.client()),
        (&stage.server, "wan0", server, family.server()),
    ] {
        inside.add_address("lo", address.parse().expect("an address"), length).expect("an address");
        shell(&stage.gateway, &format!("ip route add {address}/{length} via {via} dev {device}"));
    }
    (client.parse().expect("an address"), server.parse().expect("an address"))
}

#[test]
fn abandoned_attempts_have_a_part_of_the_places_ipv4() {
    abandoned(Family::V4);
}

#[test]
fn abandoned_attempts_have_a_part_of_the_places_ipv6() {
    abandoned(Family::V6);
}

/// TCP Fast Open: the SYN carries data, and a cookie that only the server knows.
fn fast_open(family: Family, accept: &str) {
    const MSG_FASTOPEN: i32 = 0x2000_0000;
    let Some(stage) = Stage::set() else { return };
    stage.client.set_sysctl("net.ipv4.tcp_fastopen", "5").expect("a parameter");
    stage.server.set_sysctl("net.ipv4.tcp_fastopen", "1027").expect("a parameter");
    let proxy = stage.proxy(&format!("accept = \"{accept}\"\n"));
    let listener = stage.listen(family);
    let address = listener.local_addr().expect("an address");
    for round in 0..2 {
        let client = stage
            .client
            .run(|| Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP)));
        let client = client.expect("entering").expect("a socket");
        client.set_read_timeout(Some(PATIENCE)).expect("a time");
        let sent = client.send_to_with_flags(b"early data", &address.into(), MSG_FASTOPEN);
        assert_eq!(sent.expect("sending with the SYN"), 10, "{round}");
        let client: std::net::TcpStream = client.into();
        client.shutdown(std::net::Shutdown::Write).expect("an end");
        let (server, _) = listener.accept().expect("its other end");
        assert_eq!(receive_all(&server), b"early data");
        send_all(&server, b"answer");
        assert_eq!(receive_all(&client), b"answer");
    }
    assert_eq!(splits(&proxy), 2);
}

#[test]
fn fast_open_carries_its_data_ipv4() {
    fast_open(Family::V4, "after-connect");
    fast_open(Family::V4, "early");
}

#[test]
fn fast_open_carries_its_data_ipv6() {
    fast_open(Family::V6, "after-connect");
}

/// `accept = "learned"`: the first connection waits for its server, later ones do not. A port
/// without a listener stays refused.
fn learned(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy("accept = \"learned\"\n");
    let listener = stage.listen(family);
    let address = listener.local_addr().expect("an address");
    assert!(is_split(&stage, &proxy, &listener));
    // From now on the server's responses are dropped: a client that gets a response has got it
    // here.
    nft(&stage.server, "add table inet t");
    nft(&stage.server, "add chain inet t c { type filter hook output priority 0; }");
    nft(&stage.server, &format!("add rule inet t c tcp sport {} drop", address.port()));
    let client = stage.connect(address).expect("it is answered early");
    nft(&stage.server, "delete table inet t");
    send_all(&client, b"hello");
    let (server, _) = listener.accept().expect("a connection at last");
    assert_eq!(receive_all(&server), b"hello");
    let closed = SocketAddr::new(family.server(), 9);
    let error = stage.connect(closed).expect_err("nobody listens there");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn targets_that_accepted_are_answered_early_ipv4() {
    learned(Family::V4);
}

#[test]
fn targets_that_accepted_are_answered_early_ipv6() {
    learned(Family::V6);
}

/// Connecting to a listener's own port gives access to no connection of the daemon.
#[test]
fn a_listener_serves_no_one_who_was_not_let_in() {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy("");
    let address = SocketAddr::from(([127, 0, 0, 1], 28_008));
    let local = stage.gateway.run(|| std::net::TcpStream::connect_timeout(&address, PATIENCE));
    // The reset may arrive before the connection is reported as open.
    let read = local.expect("entering").and_then(|local| {
        local.set_read_timeout(Some(PATIENCE))?;
        std::io::Read::read(&mut &local, &mut [0])
    });
    assert!(read.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
    assert_eq!(splits(&proxy), 0);
}

/// If the kernel answers every SYN with a cookie, no client of a split flow could connect. Flows
/// pass by, and are taken again once it does not.
fn cookies(family: Family) {
    let Some(stage) = Stage::set() else { return };
    shell(&stage.gateway, "sysctl -w net.ipv4.tcp_syncookies=2");
    let proxy = stage.proxy("");
    let listener = stage.listen(family);
    for _ in 0..3 {
        assert!(!is_split(&stage, &proxy, &listener), "it passes by");
    }
    assert!(sum(&proxy, |ledger| &ledger.bypassed_by_watchdog) > 0);
    shell(&stage.gateway, "sysctl -w net.ipv4.tcp_syncookies=1");
    until("flows are taken", || is_split(&stage, &proxy, &listener));
}

#[test]
fn syn_cookies_for_everybody_let_flows_pass_ipv4() {
    cookies(Family::V4);
}

#[test]
fn syn_cookies_for_everybody_let_flows_pass_ipv6() {
    cookies(Family::V6);
}
