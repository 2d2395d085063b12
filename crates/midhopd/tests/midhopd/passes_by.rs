//! Traffic that the proxy does not understand passes unchanged. Flows that it splits keep their
//! class of service.

#![allow(unsafe_code, reason = "two socket options have no safe face")]

use crate::ends::Authority;
use crate::host;
use crate::stage::{Family, PATIENCE, ReadOnce, Stage, noise, receive_all, send_all};
use crate::visitor;
use midhop_testbed::namespace::Namespace;
use midhop_tunnel::http3::ALPN;
use midhopd::data_plane::DataPlane;
use nix::libc;
use quinn::crypto::rustls::QuicClientConfig;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Stdio;
use std::sync::Arc;

fn split(proxy: &DataPlane) -> u64 {
    proxy.ledgers().iter().map(|ledger| ledger.flows.value()).sum()
}

/// The SYNs that the firewall let pass without the daemon, by reason.
fn passed(proxy: &DataPlane) -> Vec<(String, u64)> {
    let total = proxy.passed().expect("it intercepts").total();
    total.into_iter().filter(|(_, count)| *count > 0).collect()
}

fn socket(inside: &Namespace, address: SocketAddr, protocol: Protocol) -> Socket {
    inside
        .run(|| Socket::new(Domain::for_address(address), Type::STREAM, Some(protocol)))
        .expect("entering")
        .expect("a socket")
}

/// A connection whose sockets are configured by `prepare`.
fn connected(
    stage: &Stage,
    family: Family,
    protocol: Protocol,
    prepare: impl Fn(&Socket, SockAddr),
) -> (TcpStream, TcpStream) {
    let address = SocketAddr::new(family.server(), 0);
    let listener = socket(&stage.server, address, protocol);
    prepare(&listener, SocketAddr::new(family.client(), 0).into());
    listener.bind(&address.into()).expect("an address");
    listener.listen(1).expect("a backlog");
    let listener: TcpListener = listener.into();
    let address = listener.local_addr().expect("an address");
    let client = socket(&stage.client, address, protocol);
    prepare(&client, address.into());
    client.connect_timeout(&address.into(), PATIENCE).expect("a connection");
    let (server, _) = listener.accept().expect("its other end");
    (client.into(), server)
}

fn talk((client, server): &(TcpStream, TcpStream)) {
    send_all(client, b"question");
    assert_eq!(receive_all(server), b"question");
    send_all(server, b"answer");
    assert_eq!(receive_all(client), b"answer");
}

fn mptcp(family: Family) {
    let Some(stage) = Stage::set() else { return };
    for accept in ["early", "after-connect"] {
        let proxy = stage.proxy(&format!("accept = \"{accept}\"\n"));
        let sides = connected(&stage, family, Protocol::MPTCP, |_, _| {});
        talk(&sides);
        assert_eq!(split(&proxy), 0, "Multipath TCP passed by");
        assert_eq!(passed(&proxy), [("multipath".to_owned(), 1)]);
        // MPTCP_INFO fails on a connection that fell back to plain TCP. So the options have arrived
        // unchanged.
        let mut info = [0u8; 256];
        let mut info_length = u32::try_from(info.len()).expect("a length");
        // SAFETY: the kernel writes at most `info_length` bytes, all inside `info`.
        let result = unsafe {
            libc::getsockopt(
                sides.0.as_raw_fd(),
                284,
                1,
                info.as_mut_ptr().cast(),
                &raw mut info_length,
            )
        };
        assert_eq!(result, 0, "still Multipath TCP");
    }
}

#[test]
fn mptcp_passes_untouched_ipv4() {
    mptcp(Family::V4);
}

#[test]
fn mptcp_passes_untouched_ipv6() {
    mptcp(Family::V6);
}

/// Signs every segment of a connection with `far` (RFC 2385).
fn sign(socket: &Socket, far: &SockAddr) {
    const KEY: &[u8] = b"a shared secret";
    let mut option = [0u8; 216];
    // SAFETY: an address is plain bytes, of the length that it states.
    let address =
        unsafe { std::slice::from_raw_parts(far.as_ptr().cast::<u8>(), far.len() as usize) };
    option[..address.len()].copy_from_slice(address);
    option[130..132].copy_from_slice(&u16::try_from(KEY.len()).expect("short").to_ne_bytes());
    option[136..136 + KEY.len()].copy_from_slice(KEY);
    // SAFETY: the pointer and the length describe `option`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, 14, option.as_ptr().cast(), 216)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

fn md5(family: Family) {
    let Some(stage) = Stage::set() else { return };
    for accept in ["early", "after-connect"] {
        let proxy = stage.proxy(&format!("accept = \"{accept}\"\n"));
        talk(&connected(&stage, family, Protocol::TCP, |socket, far| sign(socket, &far)));
        assert_eq!(split(&proxy), 0, "signed segments passed by");
        assert_eq!(passed(&proxy), [("signed".to_owned(), 1)]);
    }
}

#[test]
fn md5_signed_passes_untouched_ipv4() {
    md5(Family::V4);
}

#[test]
fn md5_signed_passes_untouched_ipv6() {
    md5(Family::V6);
}

fn udp(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let _proxy = stage.proxy("");
    let bind = |inside: &Namespace, address| {
        let socket = inside
            .run(|| UdpSocket::bind(SocketAddr::new(address, 0)))
            .expect("entering")
            .expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        socket
    };
    let server = bind(&stage.server, family.server());
    let client = bind(&stage.client, family.client());
    client.send_to(b"ping", server.local_addr().expect("an address")).expect("sending");
    let mut buffer = [0; 4];
    let mut receive_one = |socket: &UdpSocket| loop {
        // A wait with a timeout is not restarted after the process was stopped and continued (`ReadOnce`).
        match socket.recv_from(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            received => break (received.expect("a datagram").1, buffer),
        }
    };
    let (from, asked) = receive_one(&server);
    assert_eq!(&asked, b"ping");
    assert_eq!(from, client.local_addr().expect("an address"));
    server.send_to(b"pong", from).expect("sending");
    assert_eq!(&receive_one(&client).1, b"pong");
}

#[test]
fn udp_passes_untouched_ipv4() {
    udp(Family::V4);
}

#[test]
fn udp_passes_untouched_ipv6() {
    udp(Family::V6);
}

#[test]
fn icmp_passes_untouched() {
    let Some(stage) = Stage::set() else { return };
    let _proxy = stage.proxy("");
    let mut socket = stage
        .client
        .run(|| Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)))
        .expect("entering")
        .expect("a raw socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    // An echo request with identifier 1, number 1, and its checksum.
    let request = [8, 0, 0xf7, 0xfd, 0, 1, 0, 1];
    let server: SockAddr = SocketAddr::new(Family::V4.server(), 0).into();
    socket.send_to(&request, &server).expect("sending");
    let mut reply = [0; 64];
    let count = socket.read_once(&mut reply).expect("a reply");
    assert_eq!(reply[count - 8..count], [0, 0, 0xff, 0xfd, 0, 1, 0, 1]);
}

/// The proxy has counted nothing of what has passed, and takes the next TCP flow.
fn takes_tcp_only(stage: &Stage, family: Family, proxy: &DataPlane) {
    assert_eq!(split(proxy), 0, "what passed was taken");
    assert!(passed(proxy).is_empty(), "what passed was counted: {:?}", passed(proxy));
    talk(&stage.flow(&stage.listen(family)));
    assert_eq!(split(proxy), 1, "the proxy does its work");
}

/// A raw socket for IPsec's payloads (RFC 4303) between two hosts.
fn esp_socket(inside: &Namespace, own: IpAddr, other: IpAddr) -> Socket {
    const ESP: i32 = 50;
    let [own, other] = [own, other].map(|address| SocketAddr::new(address, 0));
    let open = || Socket::new(Domain::for_address(own), Type::RAW, Some(Protocol::from(ESP)));
    let socket = inside.run(open).expect("entering").expect("a raw socket");
    socket.bind(&own.into()).expect("an address");
    // From now on it receives only from this address.
    socket.connect(&other.into()).expect("a partner");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

/// Packets of an IPsec security association: their numbers and encrypted contents arrive unchanged.
fn esp(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy("accept = \"early\"\n");
    let [near, far] = [family.client(), family.server()];
    let client = esp_socket(&stage.client, near, far);
    let server = esp_socket(&stage.server, far, near);
    for (number, length) in [(1_u32, 16), (2, 1400)] {
        let mut packet = [0x1000_u32.to_be_bytes(), number.to_be_bytes()].concat();
        packet.extend(noise(u64::from(number), length));
        for (mut from, mut to) in [(&client, &server), (&server, &client)] {
            from.write_all(&packet).expect("sending");
            let mut received = [0; 1500];
            let count = to.read_once(&mut received).expect("a packet");
            // A raw IPv4 socket returns the header in front, which is 20 bytes without options.
            let header = if family == Family::V4 { 20 } else { 0 };
            assert!(received[header..count] == packet, "{number}: {count} bytes");
        }
    }
    takes_tcp_only(&stage, family, &proxy);
}

#[test]
fn ipsec_passes_untouched_ipv4() {
    esp(Family::V4);
}

#[test]
fn ipsec_passes_untouched_ipv6() {
    esp(Family::V6);
}

/// A client connects to a server over QUIC, on the web's port: each sees the other's address.
fn quic(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy("accept = \"early\"\n");
    let authority = Authority::new(&["server"]);
    let bind = |inside: &Namespace, address: SocketAddr| {
        inside.run(|| UdpSocket::bind(address)).expect("entering").expect("a socket")
    };
    let address = SocketAddr::new(family.server(), 443);
    let far = bind(&stage.server, address);
    let near = bind(&stage.client, SocketAddr::new(family.client(), 0));
    let client_itself = near.local_addr().expect("an address");
    let (question, answer) = (noise(1, 300_000), noise(2, 3_000_000));
    let endpoint = |socket, server| {
        let own = quinn::EndpointConfig::default();
        quinn::Endpoint::new(own, server, socket, Arc::new(quinn::TokioRuntime))
            .expect("an endpoint")
    };
    let conversation = async {
        let server = endpoint(far, Some(host::shows(&authority, "server", ALPN)));
        let client = endpoint(near, None);
        let serve = async {
            let connection = server.accept().await.expect("somebody").await.expect("a client");
            assert_eq!(connection.remote_address(), client_itself);
            let (mut send, mut receive) = connection.accept_bi().await.expect("a stream");
            let received = receive.read_to_end(question.len()).await.expect("a question");
            assert!(received == question, "what the client said");
            send.write_all(&answer).await.expect("answering");
            send.finish().expect("the end");
            connection.closed().await;
        };
        let ask = async {
            let (tls, _shown) = visitor::tls(None, ALPN);
            let tls = QuicClientConfig::try_from(tls).expect("a suite for QUIC");
            let config = quinn::ClientConfig::new(Arc::new(tls));
            let connecting = client.connect_with(config, address, "server");
            let connection = connecting.expect("a handshake begins").await.expect("a server");
            let (mut send, mut receive) = connection.open_bi().await.expect("a stream");
            send.write_all(&question).await.expect("asking");
            send.finish().expect("the end");
            let received = receive.read_to_end(answer.len()).await.expect("an answer");
            assert!(received == answer, "what the server said");
            connection.close(quinn::VarInt::from_u32(0), b"");
        };
        tokio::join!(serve, ask);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("an event loop");
    let patient = async { tokio::time::timeout(PATIENCE, conversation).await };
    runtime.block_on(patient).expect("an end in time");
    takes_tcp_only(&stage, family, &proxy);
}

#[test]
fn quic_passes_untouched_ipv4() {
    quic(Family::V4);
}

#[test]
fn quic_passes_untouched_ipv6() {
    quic(Family::V6);
}

/// Counts packets with data that have a class, and those that have another.
fn count_classes(inside: &Namespace, family: Family, from: &str, class: u8) {
    let protocol = if family == Family::V4 { "ip" } else { "ip6" };
    let rules = format!(
        "add table inet classes
         add chain inet classes input {{ type filter hook input priority 0; }}
         add rule inet classes input {protocol} saddr {from} tcp flags & psh == psh {protocol} dscp {class} counter comment \"kept\"
         add rule inet classes input {protocol} saddr {from} tcp flags & psh == psh {protocol} dscp != {class} counter comment \"lost\""
    );
    let mut nft =
        inside.command("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().expect("nft starts");
    nft.stdin.take().expect("its input").write_all(rules.as_bytes()).expect("writing");
    assert!(nft.wait().expect("an end").success());
}

fn counted(inside: &Namespace, comment: &str) -> u64 {
    let output = inside
        .command("nft")
        .args(["list", "chain", "inet", "classes", "input"])
        .output()
        .expect("nft starts");
    let text = String::from_utf8(output.stdout).expect("text");
    let line = text.lines().find(|line| line.contains(comment)).expect("the rule");
    let after = line.split("packets ").nth(1).expect("a counter");
    after.split(' ').next().expect("a number").parse().expect("a number")
}

fn dscp(family: Family, accept: &str) {
    const FORWARD: u8 = 46;
    const BACK: u8 = 26;
    let Some(stage) = Stage::set() else { return };
    let _proxy = stage.proxy(&format!("accept = \"{accept}\"\n"));
    count_classes(&stage.server, family, &family.client().to_string(), FORWARD);
    count_classes(&stage.client, family, &family.server().to_string(), BACK);
    let sides = connected(&stage, family, Protocol::TCP, |socket, far| {
        let to_client = far.as_socket().is_some_and(|far| far.ip() == family.client());
        let class = u32::from(if to_client { BACK } else { FORWARD }) << 2;
        match family {
            Family::V4 => socket.set_tos_v4(class),
            Family::V6 => socket.set_tclass_v6(class),
        }
        .expect("a class");
    });
    talk(&sides);
    for inside in [&stage.server, &stage.client] {
        assert!(counted(inside, "kept") > 0, "packets kept their class");
        assert_eq!(counted(inside, "lost"), 0, "packets lost their class");
    }
}

#[test]
fn dscp_is_kept_early_ipv4() {
    dscp(Family::V4, "early");
}

#[test]
fn dscp_is_kept_early_ipv6() {
    dscp(Family::V6, "early");
}

#[test]
fn dscp_is_kept_after_connect_ipv4() {
    dscp(Family::V4, "after-connect");
}

#[test]
fn dscp_is_kept_after_connect_ipv6() {
    dscp(Family::V6, "after-connect");
}
