//! The meter end to end over loopback: data arrives unchanged, and failures are reported.

mod middle;

use middle::Middle;
use midhop_experiment::measured::Gap;
use midhop_experiment::plan::RestartPlan;
use midhop_experiment::record::FlowResult;
use midhop_experiment::spec::RestartFrom;
use midhop_testbed::meter::{
    Amount, Connections, Direction, Limits, MeterError, MeterOptions, MeterReport, Progress,
    Server, ServerOptions, Workload,
};
use midhop_units::{Bytes, Duration, Seed};
use std::net::SocketAddr;
use std::sync::Arc;

const BOTH: [Direction; 2] = [Direction::Down, Direction::Up];

/// A server that runs until the value is dropped.
struct Serving {
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn serve_with(options: ServerOptions) -> Serving {
    let server = Server::bind(options).expect("loopback");
    let address = server.address();
    let task = tokio::spawn(async move { server.run().await.expect("serves") });
    Serving { address, task }
}

fn serve() -> Serving {
    serve_with(ServerOptions {
        listen: "127.0.0.1:0".parse().expect("address"),
        ..Default::default()
    })
}

fn options(to: SocketAddr, direction: Direction, workload: Workload) -> MeterOptions {
    MeterOptions {
        direction,
        workload,
        seed: Seed(11),
        ..MeterOptions::new(to.ip().to_string(), to.port(), Amount::Bytes(0))
    }
}

fn flows(count: u32, bytes: u64) -> Workload {
    Workload::Flows { count, each: Amount::Bytes(bytes) }
}

async fn run(options: &MeterOptions) -> Result<MeterReport, MeterError> {
    midhop_testbed::meter::run(options, Arc::new(Progress::default())).await
}

async fn measure(options: &MeterOptions) -> MeterReport {
    run(options).await.expect("a report")
}

/// Checks that the parts of the report agree.
fn check(report: &MeterReport) {
    let transfer = &report.transfer;
    assert!(transfer.complete, "{transfer:#?}");
    assert!(report.clock_shared && report.warnings.is_empty(), "{:?}", report.warnings);
    assert_eq!(transfer.bytes, transfer.flows.iter().map(|flow| flow.bytes).sum());
    for flow in &transfer.flows {
        assert!(flow.hash_sent.is_some() && flow.hash_sent == flow.hash_received, "{flow:?}");
        assert!(flow.start <= flow.end && flow.client_port != 0, "{flow:?}");
        assert!(!flow.congestion.is_empty() && flow.rtt_min.is_some(), "{flow:?}");
    }
    if transfer.bytes > Bytes::ZERO {
        let total = report.series.iter().find(|s| s.quantity == "goodput" && s.flow.is_none());
        let total = total.expect("goodput of all flows");
        let interval_s = 0.1;
        let moved: f64 = total.value.iter().sum::<f64>() * interval_s * 1e6 / 8.0;
        let expected = transfer.bytes.get() as f64;
        assert!((moved - expected).abs() < 1e-6 * expected + 1.0, "{moved} of {expected}");
    }
}

fn the_error(report: &MeterReport) -> &str {
    assert!(!report.transfer.complete);
    let failed: Vec<&FlowResult> =
        report.transfer.flows.iter().filter(|flow| flow.error.is_some()).collect();
    let [flow] = failed.as_slice() else { panic!("{failed:#?}") };
    flow.error.as_deref().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_byte_arrives_whatever_the_size_and_the_number_of_flows() {
    let server = serve();
    for direction in BOTH {
        for (count, bytes) in
            [(1, 0), (1, 1), (3, 16_383), (2, 262_144), (4, 1_000_003), (1, 20_000_000)]
        {
            let report = measure(&options(server.address, direction, flows(count, bytes))).await;
            check(&report);
            assert_eq!(report.transfer.flows.len(), count as usize);
            assert!(report.transfer.flows.iter().all(|flow| flow.bytes == Bytes::new(bytes)));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_seed_decides_the_bytes() {
    let server = serve();
    let mut options = options(server.address, Direction::Down, flows(2, 5_000));
    let hashes = |report: MeterReport| -> Vec<_> {
        report.transfer.flows.into_iter().map(|flow| flow.hash_received).collect()
    };
    let first = hashes(measure(&options).await);
    assert_ne!(first[0], first[1]);
    assert_eq!(first, hashes(measure(&options).await));
    options.direction = Direction::Up;
    assert_eq!(first, hashes(measure(&options).await));
    options.seed = Seed(12);
    assert_ne!(first, hashes(measure(&options).await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ipv6_works() {
    let server = serve_with(ServerOptions {
        listen: "[::1]:0".parse().expect("address"),
        ..Default::default()
    });
    for direction in BOTH {
        check(&measure(&options(server.address, direction, flows(2, 100_000))).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_unspecified_address_serves_both_families() {
    let server = serve_with(ServerOptions {
        listen: "[::]:0".parse().expect("address"),
        ..Default::default()
    });
    for host in ["127.0.0.1", "::1"] {
        let to = SocketAddr::new(host.parse().expect("address"), server.address.port());
        check(&measure(&options(to, Direction::Down, flows(1, 1_000))).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_flows_at_once() {
    let server = serve();
    for direction in BOTH {
        let report = measure(&options(server.address, direction, flows(500, 40_000))).await;
        check(&report);
        assert_eq!(report.transfer.flows.len(), 500);
        let ids: Vec<u32> = report.transfer.flows.iter().map(|flow| flow.id).collect();
        assert_eq!(ids, (0..500).collect::<Vec<_>>());
        let own = report.series.iter().filter(|series| series.quantity == "goodput").count();
        assert_eq!(own, 33, "32 flows and their sum");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_over_new_and_persistent_connections() {
    let server = serve();
    let sizes = [50_000, 817_000, 1, 818_000, 0, 300_000, 12_345].map(Bytes::new);
    for direction in BOTH {
        for (connections, parallel, expected_flows) in [
            (Connections::Persistent, 1, 1),
            (Connections::Persistent, 3, 3),
            (Connections::New, 1, 7),
            (Connections::New, 4, 7),
            (Connections::Persistent, 50, 7),
        ] {
            let page = Workload::Page { objects: sizes.to_vec(), parallel, connections };
            let report = measure(&options(server.address, direction, page)).await;
            check(&report);
            let objects = &report.transfer.objects;
            assert_eq!(objects.iter().map(|object| object.bytes).collect::<Vec<_>>(), sizes);
            for object in objects {
                assert!(object.start <= object.first_byte && object.first_byte <= object.end);
            }
            assert!(report.transfer.flows.len() <= expected_flows);
            if parallel == 1 {
                assert_eq!(report.transfer.flows.len(), expected_flows);
                assert!(
                    objects.windows(2).all(|pair| pair[0].end <= pair[1].start),
                    "{objects:#?}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flow_limited_in_time_ends_properly() {
    let (sender, mut finished) = tokio::sync::mpsc::unbounded_channel();
    let server = serve_with(ServerOptions {
        listen: "127.0.0.1:0".parse().expect("address"),
        on_flow: Some(Box::new(move |flow| sender.send(flow.clone()).expect("the test waits"))),
        ..Default::default()
    });
    for direction in BOTH {
        let each = Amount::TimeNs(300_000_000);
        let workload = Workload::Flows { count: 2, each };
        let report = measure(&options(server.address, direction, workload)).await;
        check(&report);
        let cwnd = report.series.iter().filter(|series| series.quantity == "cwnd");
        assert!(cwnd.clone().count() == 2 && cwnd.clone().all(|series| !series.value.is_empty()));
        for _ in 0..2 {
            let flow = finished.recv().await.expect("the server tells of each flow");
            assert_eq!(flow.error, None);
            assert!(flow.sent + flow.received > Bytes::ZERO);
            // Only the sender's clock is bound to the time; the last byte may have arrived earlier.
            assert!(direction == Direction::Up || flow.took >= Duration::from_ms(300), "{flow:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_time_limit_cuts_is_incomplete_and_not_lost() {
    let server = serve();
    for direction in BOTH {
        let mut options = options(server.address, direction, flows(2, 1 << 39));
        options.time_limit = Some(Duration::from_ms(400));
        let report = measure(&options).await;
        assert!(!report.transfer.complete);
        for flow in &report.transfer.flows {
            assert!(
                flow.error.as_ref().is_some_and(|error| error.contains("time limit")),
                "{flow:?}"
            );
            // This test does not check how much arrived in the time.
            assert!(flow.bytes < Bytes::new(1 << 39) && flow.hash_sent.is_none(), "{flow:?}");
            assert!(flow.end > flow.start, "{flow:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_middle_that_cuts_with_a_clean_fin_is_found_out() {
    let server = serve();
    for direction in BOTH {
        // In the middle, and slightly beyond the length of the payload: the frames around it take
        // at least 115 bytes, so hardly more than the end mark is missing.
        for after in [300_000, 1_000_100] {
            let middle = Middle::cutting(server.address, direction, after).await;
            let report = measure(&options(middle.address, direction, flows(1, 1_000_000))).await;
            let error = the_error(&report);
            // The cut may hit an uploader while it sends or while it waits.
            let expected: &[&str] = match direction {
                Direction::Down => &["before the sender's end mark"],
                Direction::Up => &["closed the connection", "failed while"],
            };
            assert!(expected.iter().any(|text| error.contains(text)), "{direction:?}: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_that_breaks_goes_on_where_it_was_cut_off() {
    let server = serve();
    let after = Duration::from_ms(50);
    // In the middle, and so that nothing but the end mark is missing.
    for cut in [300_000, 1_000_100] {
        let middle = Middle::cutting(server.address, Direction::Down, cut).await;
        let restarts = Some(RestartPlan { most: 1, after, from: RestartFrom::Rest });
        let options = options(middle.address, Direction::Down, flows(1, 1_000_000));
        let report = measure(&MeterOptions { restarts, gaps: true, ..options }).await;
        let transfer = &report.transfer;
        assert!(transfer.complete, "{transfer:#?}");
        assert_eq!((transfer.restarts.count, transfer.restarts.discarded), (1, Bytes::ZERO));
        assert_eq!(transfer.bytes, Bytes::new(1_000_000));
        let [first, second] = &transfer.flows[..] else { panic!("{transfer:#?}") };
        assert!(first.error.is_some() && first.bytes > Bytes::ZERO, "{first:?}");
        assert_eq!(second.hash_sent, second.hash_received);
        if cut == 300_000 {
            // The flow that continues belongs to the one that broke.
            let waited = |gap: &Gap| gap.flow == 0 && gap.to.saturating_sub(gap.from) >= after;
            assert!(report.gaps.iter().any(waited), "{:?}", report.gaps);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_changed_bit_is_found_out() {
    let server = serve();
    for direction in BOTH {
        let middle = Middle::flipping(server.address, direction, 500_000).await;
        let report = measure(&options(middle.address, direction, flows(1, 1_000_000))).await;
        let error = the_error(&report);
        assert!(error.contains("bytes were changed"), "{direction:?}: {error}");
        let flow = &report.transfer.flows[0];
        assert!(flow.hash_sent.is_some() && flow.hash_sent != flow.hash_received);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_is_an_error_of_the_flow() {
    for direction in BOTH {
        let server = serve();
        let options = options(server.address, direction, flows(1, 1 << 39));
        let progress = Arc::new(Progress::default());
        let client = tokio::spawn({
            let progress = Arc::clone(&progress);
            async move { midhop_testbed::meter::run(&options, progress).await }
        });
        while progress.bytes() < Bytes::new(1_000_000) {
            tokio::task::yield_now().await;
        }
        drop(server);
        let report = client.await.expect("no panic").expect("a report");
        assert!(!the_error(&report).is_empty());
        // What had arrived before the end is not lost; in an upload, only the server knew of it.
        let bytes = report.transfer.flows[0].bytes;
        assert!(direction == Direction::Up || bytes >= Bytes::new(1_000_000), "{bytes}");
        assert_eq!(report.warnings.len(), 1, "the server's samples are missed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sender_uses_the_congestion_control_asked_for() {
    let server = serve();
    for direction in BOTH {
        for name in ["reno", "cubic"] {
            let mut options = options(server.address, direction, flows(1, 10_000));
            options.congestion = Some(name.to_owned());
            let report = measure(&options).await;
            check(&report);
            assert_eq!(report.transfer.flows[0].congestion, name);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_congestion_control_is_one_clear_error() {
    let server = serve();
    for direction in BOTH {
        for name in ["nonesuch", "a-name-that-is-longer-than-any", ""] {
            let mut options = options(server.address, direction, flows(3, 10_000));
            options.congestion = Some(name.to_owned());
            let error = run(&options).await.expect_err("refused");
            match direction {
                Direction::Down => assert!(matches!(error, MeterError::Refused(_)), "{error}"),
                Direction::Up => assert!(matches!(error, MeterError::Congestion { .. }), "{error}"),
            }
            let text = error.to_string();
            assert!(text.contains(name) && text.contains("cubic"), "{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_resolves_names_of_its_own() {
    let server = serve_with(ServerOptions {
        listen: "127.0.0.1:0".parse().expect("address"),
        resolve: Some(Box::new(|name| match name {
            "ours" => Ok("reno".to_owned()),
            other => Err(format!("{other} is none of ours")),
        })),
        ..Default::default()
    });
    let mut options = options(server.address, Direction::Down, flows(1, 10_000));
    options.congestion = Some("ours".to_owned());
    assert_eq!(measure(&options).await.transfer.flows[0].congestion, "reno");
    options.congestion = Some("theirs".to_owned());
    let error = run(&options).await.expect_err("refused").to_string();
    assert!(error.contains("theirs is none of ours"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limits_of_a_server_hold_in_both_directions() {
    let server = serve_with(ServerOptions {
        listen: "127.0.0.1:0".parse().expect("address"),
        limits: Limits { bytes: Bytes::new(1_000_000), time: Duration::from_s(1), connections: 8 },
        ..Default::default()
    });
    for direction in BOTH {
        for each in [Amount::Bytes(200_000_000), Amount::TimeNs(3_000_000_000)] {
            let workload = Workload::Flows { count: 1, each };
            let error = run(&options(server.address, direction, workload)).await;
            let error = error.expect_err("refused");
            assert!(matches!(error, MeterError::Refused(_)), "{direction:?}: {error}");
        }
        // More flows than connections: they take turns.
        check(&measure(&options(server.address, direction, flows(20, 100_000))).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_there_is_an_error_of_the_flow() {
    // Bound but not listening, so that nobody else gets the port.
    let taken = tokio::net::TcpSocket::new_v4().expect("socket");
    taken.bind("127.0.0.1:0".parse().expect("address")).expect("loopback");
    let address = taken.local_addr().expect("bound");
    let report = measure(&options(address, Direction::Down, flows(1, 1))).await;
    assert!(the_error(&report).contains("refused"), "{report:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_sent_away_and_others_go_on() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = serve();
    let mut garbage: Vec<Vec<u8>> =
        vec![b"GET / HTTP/1.1\r\n\r\n".to_vec(), b"\0".to_vec(), vec![0xff; 4096]];
    // The right preface, then: an unknown kind, a length that is too large, payload without a
    // request.
    for tail in
        [&[0x01][..], &[0xd1, 0xff, 0, 0, 0, 0, 0, 0, 0], &[0xd0, 0, 0, 0, 0, 0, 0, 0, 1, 7]]
    {
        garbage.push([b"midhop-meter/2\n".as_slice(), tail].concat());
    }
    for bytes in garbage {
        let mut stranger = tokio::net::TcpStream::connect(server.address).await.expect("connect");
        stranger.write_all(&bytes).await.expect("write");
        let mut answer = Vec::new();
        // Unread bytes make the close a reset; in both cases nothing is answered.
        let _ = stranger.read_to_end(&mut answer).await;
        assert!(answer.is_empty(), "{bytes:02x?} was answered with {answer:02x?}");
    }
    check(&measure(&options(server.address, Direction::Down, flows(1, 1_000))).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_service_is_recognised() {
    use tokio::io::AsyncWriteExt;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await;
        }
    });
    let report = measure(&options(address, Direction::Down, flows(1, 1_000))).await;
    assert!(the_error(&report).contains("does not speak the meter's protocol"), "{report:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_ends_with_the_first_client() {
    let server = Server::bind(ServerOptions {
        listen: "127.0.0.1:0".parse().expect("address"),
        once: true,
        ..Default::default()
    })
    .expect("loopback");
    let address = server.address();
    let task = tokio::spawn(server.run());
    check(&measure(&options(address, Direction::Down, flows(5, 10_000))).await);
    task.await.expect("no panic").expect("served");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_count_from_the_epoch() {
    let server = serve();
    let mut options = options(server.address, Direction::Down, flows(1, 50_000));
    options.start_delay = Duration::from_ms(150);
    options.bind = Some("127.0.0.1".parse().expect("address"));
    let report = measure(&options).await;
    check(&report);
    let flow = &report.transfer.flows[0];
    assert!(flow.start >= Duration::from_ms(150), "{}", flow.start);
    let first = report.series.iter().find(|series| series.quantity == "cwnd").expect("samples");
    assert!(first.time_s[0] >= flow.start.as_s_f64(), "{first:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_survives_json() {
    let server = serve();
    let report = measure(&options(server.address, Direction::Up, flows(2, 300_000))).await;
    let text = serde_json::to_string(&report).expect("JSON");
    let back: MeterReport = serde_json::from_str(&text).expect("own JSON");
    assert_eq!(back.transfer, report.transfer);
    assert_eq!(back.series.len(), report.series.len());
    for (back, series) in back.series.iter().zip(&report.series) {
        assert_eq!(
            (&back.quantity, back.flow, &back.unit),
            (&series.quantity, series.flow, &series.unit)
        );
        assert_eq!(
            (back.time_s.len(), back.value.len()),
            (series.time_s.len(), series.value.len())
        );
    }
}
