//! Emulated links between real kernels: delay, rate, order, loss and queues of UDP packets.
//!
//! Delays are bounded below by physics (no packet is early). Counts are compared with the
//! emulator's own, from both sides. No test depends on how late a busy machine is.

use midhop_experiment::Scenario;
use midhop_testbed::emulator::{Emulator, Wire};
use midhop_testbed::lab::{Links, Network, NetworkReport};
use midhop_testbed::namespace::{Namespace, veth};
use midhop_units::Seed;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A marker's number: above that of any packet.
const MARKER: u32 = u32::MAX;
/// UDP and IPv4 headers.
const HEADERS: usize = 28;
const PACKET: usize = 1000;

/// One packet as it was received.
struct Received {
    number: u32,
    flight: Duration,
    since_start: Duration,
}

/// The result of sending a burst of `count` packets from server to client.
struct Burst {
    received: Vec<Received>,
    markers: u64,
    report: NetworkReport,
}

fn network(link: &str) -> Network {
    let text = format!(
        "title = \"a test\"\nduration = \"60 s\"\n\
         [nodes]\nclient = {{}}\nserver = {{}}\n\
         [links.link]\nbetween = [\"client\", \"server\"]\n{link}\n"
    );
    let scenario = Scenario::parse("test.toml", &text).expect("a scenario");
    let plans = scenario.plans().expect("a plan");
    let mut network = Network::build(&plans[0], Links::Emulated).expect("built");
    network.start(Seed(7)).expect("started");
    network
}

fn socket(namespace: &Namespace, address: IpAddr) -> UdpSocket {
    let bound = namespace.run(|| UdpSocket::bind(SocketAddr::new(address, 0)));
    let socket = bound.expect("entered").expect("bound");
    // On a busy machine, the receiver may not read for long: its socket must hold a whole burst.
    let room = 4 << 20;
    setsockopt(&socket, RcvBufForce, &room)
        .or_else(|_| setsockopt(&socket, RcvBuf, &room))
        .expect("room to receive");
    socket
}

/// Sends `count` packets at once over a link, then markers until one has arrived. The link keeps
/// the order, so all packets that survived have arrived by then.
fn burst(link: &str, family: usize, count: u32) -> Burst {
    let network = network(link);
    let node = |name: &str| network.node(name).expect("a node").clone();
    let home = |name: &str| network.home(name).expect("an address")[family];
    let (client, server) = (node("client"), node("server"));
    let (from, to) = (socket(&server, home("server")), socket(&client, home("client")));
    from.connect(to.local_addr().expect("an address")).expect("connected");
    let done = AtomicBool::new(false);
    let start = Instant::now();
    let (mut received, mut markers) = (Vec::new(), 0);
    let mut buffer = [0; 2000];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in (0..count).chain(std::iter::repeat(MARKER)) {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                from.send(&packet(number, start.elapsed())).expect("sent");
                if number == MARKER {
                    // This pause measures nothing: it only keeps markers from filling the queue.
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        });
        while markers == 0 {
            let length = to.recv(&mut buffer).expect("received");
            let (number, sent) = read(&buffer[..length]);
            if number == MARKER {
                markers += 1;
                continue;
            }
            let since_start = start.elapsed();
            received.push(Received { number, flight: since_start - sent, since_start });
        }
        done.store(true, Ordering::Relaxed);
    });
    let report = network.finish().expect("finished");
    to.set_nonblocking(true).expect("set");
    while to.recv(&mut buffer).is_ok() {
        markers += 1;
    }
    Burst { received, markers, report }
}

/// A packet with its number and its sending time; the remaining bytes are derived from the number.
fn packet(number: u32, sent: Duration) -> [u8; PACKET - HEADERS] {
    let mut bytes = [number.to_le_bytes()[0] ^ 0x5a; PACKET - HEADERS];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes[4..12].copy_from_slice(&(sent.as_nanos() as u64).to_le_bytes());
    bytes
}

fn read(bytes: &[u8]) -> (u32, Duration) {
    assert_eq!(bytes.len(), PACKET - HEADERS);
    let number = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
    let sent = u64::from_le_bytes(bytes[4..12].try_into().expect("eight bytes"));
    let sent = Duration::from_nanos(sent);
    assert_eq!(bytes[12..], packet(number, sent)[12..], "other bytes than were sent");
    (number, sent)
}

impl Burst {
    /// The emulator's counts for the direction of the packets.
    fn down(&self) -> &midhop_experiment::record::LinkResult {
        let down = self.report.links.iter().find(|link| link.direction == "down");
        down.expect("a link has two directions")
    }

    fn dropped(&self, cause: &str) -> u64 {
        self.down().drops.get(cause).copied().unwrap_or(0)
    }

    /// Checks that hold on every link.
    fn check_books(&self) {
        let down = self.down();
        assert_eq!(down.packets_out, self.received.len() as u64 + self.markers, "out, received");
        assert!(down.packets_out + down.drops.values().sum::<u64>() <= down.packets_in);
        assert_eq!(self.report.missed, Vec::new(), "the kernel dropped frames");
        assert_eq!(self.report.dropped, Vec::new(), "a device dropped frames");
        let lateness = down.lateness.as_ref().expect("measured");
        assert_eq!(lateness.packets, down.packets_out);
        assert!(lateness.p50 <= lateness.p99 && lateness.p99 <= lateness.max, "{lateness:?}");
        assert!(down.cpu.is_some_and(|cpu| !cpu.is_zero()));
    }

    fn assert_ordered(&self) {
        let ordered = self.received.windows(2).all(|pair| pair[0].number < pair[1].number);
        assert!(ordered, "packets have overtaken each other");
    }
}

#[test]
fn no_packet_is_early_and_none_overtakes() {
    let link = "rate = \"10 Mbit/s\"\ndelay = \"30 ms\"\nqueue = \"1 MB\"";
    for family in [0, 1] {
        let burst = burst(link, family, 200);
        burst.check_books();
        burst.assert_ordered();
        assert_eq!(burst.received.len(), 200);
        // A packet of 1,000 bytes takes 0.8 ms at 10 Mbit/s; over IPv6 20 bytes more.
        let each = Duration::from_micros(800);
        for (place, packet) in burst.received.iter().enumerate() {
            assert!(packet.flight >= Duration::from_millis(30) + each, "{:?}", packet.flight);
            let earliest = Duration::from_millis(30) + each * (place as u32 + 1);
            assert!(
                packet.since_start >= earliest,
                "packet {place} after {:?}",
                packet.since_start
            );
        }
    }
}

/// More than the smallest ring has room for: all packets wait, and none leaves before its time.
#[test]
fn a_window_that_comes_at_once_is_whole() {
    let link = "rate = \"100 Mbit/s\"\ndelay = \"40 ms\"\nqueue = \"20 MB\"";
    let burst = burst(link, 0, 6000);
    burst.check_books();
    burst.assert_ordered();
    assert_eq!(burst.received.len(), 6000);
    let least = burst.received.iter().map(|packet| packet.flight).min().expect("some");
    assert!(least >= Duration::from_micros(40_080), "{least:?}");
}

#[test]
fn what_is_lost_is_counted_and_the_same_seed_loses_the_same() {
    let link = "rate = \"100 Mbit/s\"\nqueue = \"4 MB\"\ndown = { loss = 0.2 }";
    let runs = [burst(link, 0, 300), burst(link, 0, 300)];
    let numbers = runs.each_ref().map(|run| {
        run.check_books();
        run.assert_ordered();
        let lost = 300 - run.received.len() as u64;
        // 60 on average; 5 standard deviations are 35.
        assert!((25..=95).contains(&lost), "{lost} of 300 lost at 20 %");
        assert!(run.dropped("loss") >= lost, "lost more than was dropped");
        assert_eq!(run.down().drops.len(), 1, "{:?}", run.down().drops);
        run.received.iter().map(|packet| packet.number).collect::<Vec<_>>()
    });
    assert_eq!(numbers[0], numbers[1], "one seed, two fates");
}

#[test]
fn a_full_queue_drops_its_tail() {
    let link = "rate = \"1 Mbit/s\"\ndelay = \"5 ms\"\nqueue = \"10 packets\"";
    let burst = burst(link, 0, 100);
    burst.check_books();
    burst.assert_ordered();
    let dropped = burst.dropped("queue");
    assert!(dropped >= 100 - burst.received.len() as u64, "lost more than was dropped");
    assert!(dropped > 0, "100 packets at once found room in a queue of 10");
    // At most ten packets of 1,000 bytes wait at once.
    assert!(burst.down().queue_bytes_max <= 10 * PACKET as u64, "{:?}", burst.down());
    assert!(burst.received.len() >= 11, "one in service and ten waiting must have passed");
}

/// A link without a rate limit between two devices of the hub.
fn wire(first: &str, second: &str) -> Wire {
    let scenario = Scenario::parse(
        "test.toml",
        "title = \"a test\"\nduration = \"1 s\"\n[nodes]\na = {}\nb = {}\n\
         [links.link]\nbetween = [\"a\", \"b\"]\n",
    );
    let plan = scenario.expect("a scenario").plans().expect("a plan").remove(0);
    Wire {
        name: "link".to_owned(),
        first: first.to_owned(),
        second: second.to_owned(),
        nodes: ["a", "b"].map(str::to_owned),
        mtu: 1500,
        down: plan.links[0].down.clone(),
        up: plan.links[0].up.clone(),
        ack_filters: [None, None],
        posts: Default::default(),
        burst: midhop_units::Bytes::MAX,
    }
}

#[test]
fn devices_that_are_missing_are_named() {
    let hub = Namespace::create("hub").expect("made");
    let error =
        Emulator::start(&hub, wire("nowhere", "nowhere"), Seed(1), midhop_units::Instant::START);
    let error = error.expect_err("there is no such device").to_string();
    assert!(error.contains("link"), "{error}");
}

/// An emulator between two nodes, with the hub and the nodes. Its epoch is the machine's start.
fn running() -> (Emulator, [Namespace; 3]) {
    let [hub, a, b] = ["hub", "a", "b"].map(|name| Namespace::create(name).expect("made"));
    veth(&a, "link", &hub, "link0", 1500).expect("a device");
    veth(&b, "link", &hub, "link1", 1500).expect("a device");
    let wire = wire("link0", "link1");
    let emulator = Emulator::start(&hub, wire, Seed(1), midhop_units::Instant::START);
    (emulator.expect("started"), [hub, a, b])
}

#[test]
fn frames_wait_at_a_link_that_is_open_until_it_begins() {
    let [hub, a, b] = ["hub", "a", "b"].map(|name| Namespace::create(name).expect("made"));
    let [at_a, _] = veth(&a, "link", &hub, "link0", 1500).expect("a device");
    let [at_b, _] = veth(&b, "link", &hub, "link1", 1500).expect("a device");
    let [of_a, of_b] = [1, 2].map(|host| IpAddr::from([10, 77, 0, host]));
    for (node, own, peer, mac) in [(&a, of_a, of_b, at_b.mac), (&b, of_b, of_a, at_a.mac)] {
        node.add_address("link", own, 24).expect("an address");
        node.add_neighbour("link", peer, mac).expect("a neighbour");
    }
    let mut emulator = Emulator::open(&hub, wire("link0", "link1"), Seed(1)).expect("open");
    let (from, to) = (socket(&b, of_b), socket(&a, of_a));
    from.connect(to.local_addr().expect("an address")).expect("connected");
    from.send(&[7]).expect("sent");
    to.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    let mut buffer = [0; 8];
    let early = to.recv(&mut buffer);
    assert!(early.is_err(), "it carries before it has begun: {early:?}");
    emulator.begin(midhop_units::Instant::START);
    to.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    // A wait with a timeout is not restarted after the process was stopped and continued (signal(7)).
    let received = loop {
        match to.recv(&mut buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            received => break received.expect("received"),
        }
    };
    assert_eq!((received, buffer[0]), (1, 7));
    drop(emulator);
    // An emulator that never begins ends like any other.
    drop(Emulator::open(&hub, wire("link0", "link1"), Seed(1)).expect("open"));
}

#[test]
fn an_emulator_that_was_kept_from_the_processor_reports_for_how_long() {
    // It has missed every tick of its clock so far.
    let (emulator, _nodes) = running();
    for direction in emulator.finish().expect("a report").directions {
        let lateness = direction.lateness.expect("measured");
        assert!(lateness.stood_still > midhop_units::Duration::from_s(1), "{lateness:?}");
    }
}

#[test]
fn an_emulator_whose_device_goes_away_ends_and_reports_it() {
    let (emulator, [hub, a, _b]) = running();
    drop(a);
    let start = Instant::now();
    while hub.run(|| nix::net::if_::if_nametoindex("link0").is_ok()).expect("visited") {
        assert!(start.elapsed() < Duration::from_secs(20), "waited in vain for the device to go");
        std::thread::sleep(midhop_testkit::POLL);
    }
    let error = emulator.finish().expect_err("it has no device").to_string();
    assert!(error.contains("link"), "{error}");
}
