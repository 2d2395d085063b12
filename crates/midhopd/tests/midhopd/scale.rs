//! Many idle flows: the memory of each, and that queries of their state delay no worker.
//!
//! `make scale` prints the figures for 100,000.

use crate::pages::{self, metric, page};
use crate::program::{Running, Setup};
use crate::stage::{Family, PATIENCE, Stage, until};
use crate::strangers::resident;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::net::{TcpListener, TcpStream};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

/// Listeners of each family: clients have some 28,000 ports for each of them.
const LISTENERS: usize = 4;
/// Flows that begin, or end, at a time.
const TOGETHER: usize = 64;

/// Unit: KiB. The kernel's memory for sockets, for their buffers and their own structures.
fn kernel_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/slabinfo").unwrap_or_default();
    let tcp = text.lines().filter(|line| {
        let name = line.split(' ').next().unwrap_or_default();
        [
            "TCP",
            "TCPv6",
            "sock_inode_cache",
            "tcp_bind_bucket",
            "tcp_bind2_bucket",
            "filp",
            "eventpoll_epi",
        ]
        .contains(&name)
    });
    let bytes = tcp.filter_map(|line| {
        let mut words = line.split_whitespace().skip(2);
        let (count, size): (u64, u64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(count * size)
    });
    bytes.sum::<u64>() / 1024
}

/// Number of ends that the kernels of both sides gave up reporting to the other side. A host that
/// loses packets for lack of memory, with many orphaned sockets, does so within seconds. The proxy
/// then keeps the flow until its keep-alive expires.
fn given_up(stage: &Stage) -> String {
    let read = || std::fs::read_to_string("/proc/thread-self/net/netstat");
    let counted = [("client", &stage.client), ("server", &stage.server)].map(|(name, host)| {
        let text = host.run(read).expect("entering").expect("a kernel that counts");
        let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
        let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let counts = names.split(' ').zip(values.split(' '));
        let aborted = counts.filter(|(name, count)| name.starts_with("TCPAbort") && *count != "0");
        format!("{name} {:?}", aborted.collect::<Vec<_>>())
    });
    let lost = std::fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    format!("{counted:?}; packets of each processor, and how many of them were lost:\n{lost}")
}

/// Ends all flows, few enough at a time that a small and busy host loses no end.
fn end(stage: &Stage, mut kept: Vec<(TcpStream, TcpStream)>) {
    while !kept.is_empty() {
        kept.truncate(kept.len().saturating_sub(TOGETHER));
        let since = Instant::now();
        loop {
            let left = metric(&page(&stage.gateway, "/metrics"), "midhop_flows");
            if left <= kept.len() as u64 {
                break;
            }
            let surplus = left - kept.len() as u64;
            assert!(since.elapsed() < PATIENCE, "{surplus} flows do not end: {}", given_up(stage));
            sleep(Duration::from_millis(10));
        }
    }
}

fn idle(flows: usize) {
    let Some(stage) = Stage::set() else { return };
    // Both ends of each flow belong to this process.
    let wanted = 2 * flows as u64 + 1024;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    // It is the limit of the whole process: other tests may need what is available.
    if soft < wanted && setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted.max(hard)).is_err() {
        midhop_testkit::skipped(format!("{wanted} open files"));
        return;
    }
    let setup = Setup::new(&format!(
        "[intercept]\ninterfaces = \"lan0\"\n[limits]\nflows = {}\n[admin]\nlisten = \"127.0.0.1:{}\"\n\
         [legs.lan0]\nbuffer = \"64 KiB\"\n[legs.wan0]\nbuffer = \"64 KiB\"\n",
        flows + 100,
        pages::ADMIN.1
    ));
    let daemon = Running::start(&stage, &setup);
    let before = (resident(daemon.id()), kernel_kib());
    let families = [Family::V4, Family::V6];
    let listeners: Vec<TcpListener> =
        (0..2 * LISTENERS).map(|number| stage.listen(families[number % 2])).collect();
    let mut kept = Vec::with_capacity(flows);
    while kept.len() < flows {
        let count = TOGETHER.min(flows - kept.len());
        let listener = &listeners[kept.len() / TOGETHER % listeners.len()];
        let address = listener.local_addr().expect("an address");
        scope(|scope| {
            // One thread inside the namespace connects them all, because entering takes a thread.
            let clients = scope.spawn(|| {
                stage.client.run(|| {
                    let connect = |_| TcpStream::connect_timeout(&address, PATIENCE);
                    (0..count).map(connect).collect::<Result<Vec<_>, _>>()
                })
            });
            let servers: Vec<_> =
                (0..count).map(|_| listener.accept().expect("a connection").0).collect();
            let clients = clients.join().expect("clients").expect("entering").expect("connections");
            kept.extend(clients.into_iter().zip(servers));
        });
    }
    until("all are split", || {
        metric(&page(&stage.gateway, "/metrics"), "midhop_flows") == flows as u64
    });
    let grown =
        (resident(daemon.id()).saturating_sub(before.0), kernel_kib().saturating_sub(before.1));
    // Repeated queries delay nothing: new flows are served meanwhile.
    for _ in 0..10 {
        let status = page(&stage.gateway, "/status.json");
        assert!(status.contains("\"busiest\""), "{status}");
        let (client, server) = stage.flow(&listeners[0]);
        drop((client, server));
    }
    // The workers' heartbeats, in time or late.
    sleep(Duration::from_secs(1));
    let metrics = page(&stage.gateway, "/metrics");
    let per_flow = |kib: u64| kib as f64 / flows as f64;
    println!(
        "{flows} idle flows, load {}",
        std::fs::read_to_string("/proc/loadavg").unwrap_or_default()
    );
    println!("{:<40} {:>8.2} KiB a flow", "midhopd, resident", per_flow(grown.0));
    println!("{:<40} {:>8.2} KiB a flow", "kernel, all ends of it", per_flow(grown.1));
    for line in metrics.lines().filter(|line| line.starts_with("midhop_worker_delay_seconds")) {
        println!("{line}");
    }
    // An idle flow has two sockets, a task and a book: no buffers.
    assert!(grown.0 <= 16 * flows as u64 + 16 * 1024, "{} KiB for {flows} flows", grown.0);
    end(&stage, kept);
    setup.assert_no_errors();
}

#[test]
fn a_thousand_idle_flows_take_no_buffers() {
    idle(1000);
}

#[test]
#[ignore = "takes minutes: make scale"]
fn figures() {
    let wanted = std::env::var("MIDHOP_SCALE_FLOWS").ok();
    idle(wanted.and_then(|text| text.parse().ok()).unwrap_or(100_000));
}
