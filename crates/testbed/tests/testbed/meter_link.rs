//! A link's measurement over emulated links. Results are computed from the receiving kernel's
//! timestamps: a busy machine makes a train late, but its packets' times stay right.

use midhop_experiment::Scenario;
use midhop_testbed::lab::{Links, Network};
use midhop_testbed::meter::link::{
    LinkDirection, LinkError, LinkLimits, LinkOptions, LinkReport, measure,
};
use midhop_testbed::meter::{Server, ServerOptions};
use midhop_units::{Duration, Seed};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads")
}

fn options(address: SocketAddr) -> LinkOptions {
    LinkOptions::within(address.ip().to_string(), address.port(), Duration::from_s(100))
}

fn serving(links: Option<LinkLimits>) -> ServerOptions {
    ServerOptions { links, ..ServerOptions::default() }
}

fn network(link: &str) -> Network {
    let text = format!(
        "title = \"a link\"\nduration = \"60 s\"\n\
         [nodes]\nclient = {{}}\nserver = {{}}\n\
         [links.link]\nbetween = [\"client\", \"server\"]\n{link}\n"
    );
    let scenario = Scenario::parse("test.toml", &text).expect("a scenario");
    let mut network =
        Network::build(&scenario.plans().expect("a plan")[0], Links::Emulated).expect("built");
    network.start(Seed(7)).expect("started");
    network
}

/// Measures `link` from its first node to its second, and returns its lines of progress.
fn measured(
    link: &str,
    family: usize,
    change: impl FnOnce(&mut LinkOptions) + Send,
) -> (LinkReport, Vec<String>) {
    let network = network(link);
    let node = |name: &str| network.node(name).expect("a node").clone();
    let home = |name: &str| network.home(name).expect("an address")[family];
    let (client, server) = (node("client"), node("server"));
    let address: IpAddr = home("server");
    let bind = || {
        // Listens on every address of the server: answers must come from the address that was
        // asked.
        let any = SocketAddr::from(([0u16; 8], 0));
        Server::bind(ServerOptions {
            listen: any,
            once: true,
            ..serving(Some(LinkLimits::default()))
        })
    };
    let listening = server.run(bind).expect("entered").expect("listening");
    let mut options = options(SocketAddr::new(address, listening.address().port()));
    change(&mut options);
    let lines = Arc::new(Mutex::new(Vec::new()));
    let on_line = {
        let lines = Arc::clone(&lines);
        Arc::new(move |line: &str| lines.lock().expect("no panic").push(line.to_owned()))
    };
    let report = std::thread::scope(|scope| {
        let served =
            scope.spawn(|| server.run(|| runtime().block_on(listening.run())).expect("entered"));
        let report = client.run(|| runtime().block_on(measure(&options, on_line)));
        served.join().expect("no panic").expect("served once");
        report.expect("entered").expect("measured")
    });
    network.finish().expect("finished");
    let lines = std::mem::take(&mut *lines.lock().expect("no panic"));
    (report, lines)
}

fn near(what: &str, value: f64, expected: f64, part: f64) {
    assert!((value / expected - 1.0).abs() < part, "{what}: {value} is not about {expected}");
}

fn check_loss(way: &LinkDirection, truth: f64) {
    // Twice as wide as the 95 % interval: with that interval itself, the test would fail by chance
    // once in twenty times.
    let (low, high) = (way.loss_low_ratio, way.loss_high_ratio);
    let (below, above) = (way.loss_ratio - low, high - way.loss_ratio);
    let within = way.loss_ratio - 2.0 * below <= truth && truth <= way.loss_ratio + 2.0 * above;
    assert!(within && high < 0.05, "{truth} is not in the interval of {way:?}");
}

/// What was sent, as a line of progress reports it. Unit: Mbit.
fn sent(line: &str) -> Option<f64> {
    line.split_once(": sent ")?.1.split_once(" Mbit, ")?.0.parse().ok()
}

/// What was received, likewise.
fn received(line: &str) -> Option<f64> {
    line.split_once(", received ")?.1.split_once(" Mbit in ")?.0.parse().ok()
}

#[test]
fn an_emulated_satellite_link_is_found() {
    let link = "delay = \"300 ms\"\n\
                down = { rate = \"8 Mbit/s\", loss = { mean = \"1 %\", burst = \"2 packets\" } }\n\
                up = { rate = \"2 Mbit/s\" }";
    let (report, lines) = measured(link, 0, |options| {
        options.loss_time = Duration::from_s(6);
        options.tcp_time = Duration::from_s(1);
    });
    let all = format!("{report:#?}\n{lines:#?}");
    near("down", report.down.rate_bit_per_s, 8e6, 0.05);
    near("up", report.up.rate_bit_per_s, 2e6, 0.05);
    near("round trip", report.rtt_min_s, 0.6, 0.02);
    near("round trip", report.rtt_median_s, 0.6, 0.02);
    check_loss(&report.down, 0.01);
    assert_eq!(report.up.packets_lost, 0, "{all}");
    assert!(report.down.packets_lost > 0 && report.down.packets_sent > 3_000, "{all}");
    assert!(report.down.loss_burst_mean_packets.is_some_and(|burst| burst > 1.2), "{all}");
    for way in [&report.down, &report.up] {
        // A sender that others load may be too slow for the link in each long train; the report
        // names it then.
        let why = way.rate_at_least_because.as_deref();
        assert!(why.is_none_or(|why| why.contains("the sending host")), "{all}");
        assert_eq!((way.reordered_ratio, way.duplicate_ratio), (0.0, 0.0), "{all}");
        assert!(way.tcp_goodput_bit_per_s.is_some_and(|goodput| goodput < 8e6), "{all}");
        assert!(way.tcp_congestion.is_some(), "{all}");
    }
    for phase in ["round trip", "rate down", "rate up", "loss down", "loss up", "TCP flow up"] {
        assert!(lines.iter().any(|line| line.contains(phase)), "{phase:?} is missing in {all}");
    }
    // Each phase reports what passed in it: a TCP flow in one direction each, trains in the other
    // as well.
    for (phase, passed) in [
        ("rate down", received as fn(&str) -> _),
        ("loss up", sent),
        ("TCP flow down", received),
        ("TCP flow up", sent),
    ] {
        let moved: f64 =
            lines.iter().filter(|line| line.contains(phase)).filter_map(|line| passed(line)).sum();
        assert!(moved > 0.0, "nothing passed in {phase:?}: {all}");
    }
    // A scenario accepts the link that it prints, and that link is much like the measured one.
    let tables = report.tables();
    let (_, link) = tables.split_once("[links.").expect("a link");
    let text = format!(
        "title = \"t\"\nduration = \"10 s\"\n[nodes]\nterminal = {{}}\ngateway = {{}}\n[links.{link}"
    );
    let scenario =
        Scenario::parse("printed.toml", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(scenario.plans().expect("a plan").len(), 1);
}

#[test]
fn a_link_over_ipv6_with_a_short_queue_is_found() {
    let link = "delay = \"10 ms\"\nqueue = \"30 kB\"\n\
                down = { rate = \"3 Mbit/s\" }\nup = { rate = \"700 kbit/s\" }";
    let (report, _) = measured(link, 1, |options| {
        options.tcp_time = Duration::ZERO;
        options.loss_time = Duration::from_s(2);
    });
    near("down", report.down.rate_bit_per_s, 3e6, 0.05);
    near("up", report.up.rate_bit_per_s, 7e5, 0.05);
    assert_eq!(report.down.tcp_goodput_bit_per_s, None);
}

/// Trains that such a link needs seconds to carry, and messages that wait behind them.
#[test]
fn a_slow_and_lossy_link_is_measured_within_its_time() {
    let link = "delay = \"300 ms\"\nrate = \"64 kbit/s\"\nloss = \"5 %\"\nqueue = \"64 kB\"";
    let (report, lines) = measured(link, 0, |options| {
        let (host, port) = (options.host.clone(), options.port);
        *options = LinkOptions::within(host, port, Duration::from_s(30));
    });
    let all = format!("{report:#?}\n{lines:#?}");
    assert!(report.took_s <= report.time_s_max, "{all}");
    assert_eq!(report.time_s_max, 30.0);
    assert!((0.6..1.0).contains(&report.rtt_min_s), "{all}");
    near("down", report.down.rate_bit_per_s, 64e3, 0.25);
    let left_out = report.warnings.iter().filter(|note| note.contains("there was no time left"));
    assert!(left_out.count() > 0, "{all}");
}

/// A server on loopback that runs as long as the runtime.
fn serve(options: ServerOptions) -> SocketAddr {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::bind(ServerOptions { listen, ..options }).expect("listening");
    let address = server.address();
    tokio::spawn(server.run());
    address
}

async fn failed(address: SocketAddr) -> LinkError {
    measure(&options(address), Arc::new(|_: &str| {})).await.expect_err("not measured")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unserved_host_is_reported() {
    let error = failed(serve(serving(None))).await;
    assert!(matches!(error, LinkError::Refused(_)), "{error}");
    // A peer that closes at the first frame, as an older server does.
    let older = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listening");
    let address = older.local_addr().expect("an address");
    tokio::spawn(async move { while older.accept().await.is_ok() {} });
    let error = failed(address).await;
    assert!(matches!(error, LinkError::NoService { .. }), "{error}");
    // A port on which nobody listens.
    let error = failed(SocketAddr::from(([127, 0, 0, 1], 1))).await;
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_datagrams_and_an_old_host_give_different_errors() {
    // The path there passes TCP only.
    let server = serve(serving(Some(LinkLimits::default())));
    let door = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listening");
    let address = door.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut near, _)) = door.accept().await {
            let mut far = tokio::net::TcpStream::connect(server).await.expect("served");
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
        }
    });
    let error = failed(address).await;
    assert!(matches!(error, LinkError::Blocked { attached: false, .. }), "{error}");
    assert!(error.to_string().contains("none reaches it"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_get_no_datagram() {
    let address = serve(serving(Some(LinkLimits::default())));
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("bound");
    stranger.connect(address).expect("connected");
    let mut hello = b"MHL\x01".to_vec();
    hello.resize(53, 0);
    for kind in 0..=6 {
        hello[20] = kind;
        stranger.send(&hello).expect("sent");
    }
    for junk in [&b""[..], b"MHL", &[0xff; 1400]] {
        stranger.send(junk).expect("sent");
    }
    // The exchange is over before the far end has received anything.
    let mut options = options(address);
    options.pings = (3, Duration::from_ms(10));
    options.rate_time = Duration::from_ms(200);
    options.loss_time = Duration::from_ms(200);
    options.tcp_time = Duration::ZERO;
    options.time_max = Duration::from_s(60);
    let slow = LinkLimits { rate: midhop_units::Rate::from_mbit_per_s(2), ..LinkLimits::default() };
    let other = serve(serving(Some(slow)));
    options.port = other.port();
    let report = measure(&options, Arc::new(|_: &str| {})).await.expect("measured");
    // The fastest train of a server limits the rate that is found.
    let why = report.down.rate_at_least_because.as_deref();
    assert_eq!(why, Some("it is the fastest that is tried"), "{report:?}");
    assert!(report.down.rate_bit_per_s < 2.2e6, "{report:?}");
    stranger.set_nonblocking(true).expect("set");
    let answer = stranger.recv(&mut [0; 64]);
    assert!(answer.is_err(), "a stranger got an answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_at_once_are_bounded() {
    let address = serve(serving(Some(LinkLimits { sessions: 1, ..LinkLimits::default() })));
    let mut options = options(address);
    options.pings = (40, Duration::from_ms(50));
    let first = options.clone();
    let (opened, mut openings) = tokio::sync::mpsc::unbounded_channel();
    let first = tokio::spawn(async move {
        let on_line = Arc::new(move |_: &str| {
            // Nobody receives later lines.
            let _ = opened.send(());
        });
        measure(&first, on_line).await
    });
    openings.recv().await.expect("the first has a session");
    let error = measure(&options, Arc::new(|_: &str| {})).await.expect_err("refused");
    assert!(error.to_string().contains("1 links are being measured"), "{error}");
    first.abort();
}
