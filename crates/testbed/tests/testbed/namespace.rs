//! Namespaces can reach each other, and are removed completely.

use midhop_linux::nft;
use midhop_linux::sock_diag::{Diag, destroy};
use midhop_testbed::namespace::{Namespace, NamespaceError, veth};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

/// Two namespaces joined by a pair, with static neighbours.
fn pair() -> Result<(Namespace, Namespace), NamespaceError> {
    let (a, b) = (Namespace::create("a")?, Namespace::create("b")?);
    let [end_a, end_b] = veth(&a, "to-b", &b, "to-a", 1500)?;
    for (address_a, address_b, prefix) in
        [("10.1.0.1", "10.1.0.2", 24), ("fd00:1::1", "fd00:1::2", 64)]
    {
        let (address_a, address_b) = (ip(address_a), ip(address_b));
        a.add_address("to-b", address_a, prefix)?;
        b.add_address("to-a", address_b, prefix)?;
        a.add_neighbour("to-b", address_b, end_b.mac)?;
        b.add_neighbour("to-a", address_a, end_a.mac)?;
    }
    Ok((a, b))
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// The host's devices and named namespaces.
fn host() -> String {
    let links = Command::new("ip").args(["-o", "link"]).output().expect("ip runs").stdout;
    let named: Vec<_> = std::fs::read_dir("/run/netns")
        .map(|entries| entries.flatten().map(|entry| entry.file_name()).collect())
        .unwrap_or_default();
    format!("{} {named:?}", String::from_utf8_lossy(&links))
}

#[test]
fn two_namespaces_talk_tcp_over_ipv4_and_ipv6() {
    let before = host();
    let (a, b) = pair().expect("the pair is made");
    for address in ["10.1.0.2", "fd00:1::2"] {
        let listener = b
            .run(|| TcpListener::bind(SocketAddr::new(ip(address), 0)))
            .expect("b is entered")
            .expect("b listens");
        let target = listener.local_addr().expect("a port");
        let client = std::thread::scope(|scope| {
            let server = scope.spawn(move || {
                let (mut stream, peer) = listener.accept().expect("a connection");
                let mut word = [0; 5];
                stream.read_exact(&mut word).expect("five bytes");
                stream.write_all(&word).expect("five bytes back");
                peer
            });
            let mut stream =
                a.run(|| TcpStream::connect(target)).expect("a is entered").expect("connected");
            stream.write_all(b"hello").expect("written");
            let mut word = [0; 5];
            stream.read_exact(&mut word).expect("read");
            assert_eq!(&word, b"hello");
            server.join().expect("no panic")
        });
        assert_eq!(client.ip(), ip(address.replace(":2", ":1").replace("0.2", "0.1").as_str()));
    }
    assert_eq!(host(), before, "the host shows something of the lab");
}

#[test]
fn hosts_that_advertise_small_packets_are_sent_such() {
    let (a, b) = pair().expect("the pair is made");
    b.advertise_packets(1024).expect("routes are changed");
    // Timestamps take 12 bytes of each; an MSS limits what the other end sends.
    for (address, sent, received) in [("10.1.0.2", 972, 1448), ("fd00:1::2", 952, 1428)] {
        let listener = b
            .run(|| TcpListener::bind(SocketAddr::new(ip(address), 0)))
            .expect("b is entered")
            .expect("b listens");
        let target = listener.local_addr().expect("a port");
        let stream =
            a.run(|| TcpStream::connect(target)).expect("a is entered").expect("connected");
        let (accepted, _) = listener.accept().expect("a connection");
        let size =
            |stream: &TcpStream| socket2::SockRef::from(stream).tcp_mss().expect("an option");
        assert_eq!((size(&stream), size(&accepted)), (sent, received), "{address}");
    }
}

#[test]
fn a_socket_begins_without_pacing_whatever_the_host_prefers() {
    let node = Namespace::create("node").expect("a namespace");
    let read = || std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    let default = node.run(read).expect("entered").expect("readable");
    assert_eq!(default.trim(), "reno");
}

/// A client, a router and a server.
fn routed() -> [Namespace; 3] {
    let [client, router, server] =
        ["client", "router", "server"].map(|name| Namespace::create(name).expect("made"));
    let wires = [(&client, "left", 1), (&server, "right", 2)];
    for (end, device, net) in wires {
        let [own, far] = veth(&router, device, end, "up", 1500).expect("a pair");
        for (text, prefix, route) in
            [(format!("10.1.{net}."), 24, "10.1.0.0"), (format!("fd00:1:{net}::"), 64, "fd00:1::")]
        {
            let (router_ip, end_ip) = (ip(&format!("{text}1")), ip(&format!("{text}2")));
            router.add_address(device, router_ip, prefix).expect("added");
            end.add_address("up", end_ip, prefix).expect("added");
            router.add_neighbour(device, end_ip, far.mac).expect("added");
            end.add_neighbour("up", router_ip, own.mac).expect("added");
            let length = if router_ip.is_ipv4() { 16 } else { 32 };
            end.add_route(ip(route), length, router_ip).expect("added");
        }
    }
    [client, router, server]
}

/// The router between `client` and `server` loses data that the server sends, and later what the client sends: routes have
/// changed. So the reset of the server's connection is not next in sequence, and the client's challenge leads nowhere.
#[test]
fn a_router_that_resets_strays_answers_the_challenge_of_a_reset() {
    let [client, router, server] = routed();
    let rule = |text: &str| router.run(|| nft::run(text)).expect("entered").expect("nft");
    for address in ["10.1.2.2", "fd00:1:2::2"] {
        let listen = || TcpListener::bind(SocketAddr::new(ip(address), 0));
        let listener = server.run(listen).expect("entered").expect("listens");
        let target = listener.local_addr().expect("a port");
        let connect = || TcpStream::connect(target);
        let connected = || client.run(connect).expect("entered").expect("connected");
        let (mut stream, mut other) = (connected(), connected());
        let [(mut accepted, from), (mut other_accepted, _)] =
            [0; 2].map(|_| listener.accept().expect("a connection"));
        rule(
            "table inet loss {\nchain passing {\ntype filter hook forward priority filter + 10;\n\
             iifname right meta length > 200 drop\n}\n}\n",
        );
        accepted.write_all(&[1; 1000]).expect("written");
        rule("add rule inet loss passing iifname left drop");
        let ways = [("left", from, target), ("right", target, from)];
        router.reset_strays(&ways).expect("the rule is there");
        let reset = || {
            let mut found = None;
            Diag::open()?.dump(|socket| {
                if (socket.local, socket.remote) == (target, from) {
                    found = Some(socket.cookie);
                }
            })?;
            destroy(target, from, found.expect("a socket"))
        };
        server.run(reset).expect("entered").expect("destroyed");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        let error = stream.read(&mut [0; 1]).expect_err("nothing arrives");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{address}: {error}");
        // Other connections pass.
        rule("delete table inet loss");
        other.write_all(b"hello").expect("written");
        let mut word = [0; 5];
        other_accepted.read_exact(&mut word).expect("read");
        assert_eq!(&word, b"hello");
    }
}

#[test]
fn a_router_that_drops_strays_forwards_all_others() {
    let [client, router, server] = routed();
    for address in ["10.1.2.2", "fd00:1:2::2"] {
        let listen = || TcpListener::bind(SocketAddr::new(ip(address), 0));
        let listener = server.run(listen).expect("entered").expect("listens");
        let target = listener.local_addr().expect("a port");
        let connected = || {
            let stream = client.run(|| TcpStream::connect(target)).expect("entered");
            (stream.expect("connected"), listener.accept().expect("a connection"))
        };
        let (mut stray, (mut stray_accepted, from)) = connected();
        let (mut other, (mut other_accepted, _)) = connected();
        router.drop_strays(&[("left", from, target)]).expect("the rule is there");
        let mut word = [0; 5];
        stray.write_all(b"stray").expect("written");
        other.write_all(b"other").expect("written");
        other_accepted.read_exact(&mut word).expect("read");
        assert_eq!(&word, b"other");
        assert_eq!(midhop_linux::sockopt::unread(&stray_accepted).expect("a count"), 0);
        for _ in 0..2 {
            router.forget_strays().expect("there are none any more");
        }
        stray_accepted.read_exact(&mut word).expect("read");
        assert_eq!(&word, b"stray");
    }
}

#[test]
fn a_command_runs_inside() {
    let (a, _b) = pair().expect("the pair is made");
    let output = a.command("ip").args(["-o", "-br", "link"]).output().expect("ip runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names: Vec<_> = text.lines().filter_map(|line| line.split(['@', ' ']).next()).collect();
    assert_eq!(names, ["lo", "to-b"]);
    assert!(
        text.lines().any(|line| line.starts_with("to-b") && line.contains("LOWER_UP")),
        "{text}"
    );
}

#[test]
fn a_device_is_gone_with_its_namespace() {
    let (a, b) = pair().expect("the pair is made");
    drop(b);
    // The kernel dismantles a namespace in the background: ask until its end of the pair is gone.
    let deadline = Instant::now() + Duration::from_secs(30);
    while a.set_up("to-b").is_ok() {
        assert!(Instant::now() < deadline, "the device outlived the namespace of its peer");
        std::thread::sleep(midhop_testkit::POLL);
    }
}

#[test]
fn a_wrong_parameter_and_a_missing_device_are_named_in_the_error() {
    let a = Namespace::create("a").expect("made");
    let error = a.set_sysctl("net.ipv4.no_such_thing", "1").expect_err("refused").to_string();
    assert!(error.contains("net.ipv4.no_such_thing") && error.contains(" a:"), "{error}");
    let error = a.set_up("eth7").expect_err("refused").to_string();
    assert!(error.contains("eth7"), "{error}");
    assert!(matches!(a.set_up("eth7"), Err(NamespaceError::Device { .. })));
}
