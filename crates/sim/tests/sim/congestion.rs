//! The congestion control that a scenario configures reaches the senders, and shows in what they
//! send.

use crate::scenes::{FILE, plan};
use midhop_experiment::congestion::{OpeningPlan, Own};
use midhop_experiment::record::{Record, TransferResult};
use midhop_path::Direction;
use midhop_sim::hop::Hop;
use midhop_sim::packet::{Body, Packet};
use midhop_sim::watch::{Sight, Watcher};
use midhop_sim::{Options, run, run_watched};
use midhop_units::{Bytes, Duration, Instant, Rate};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

fn quick(more: &str, set: &[&str]) -> Record {
    let options =
        Options { checking: set.contains(&"transfers.file.bytes=1 MB"), ..Options::default() };
    let result = run(&plan(more, set), &options);
    let (record, _) = result.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(record.validity.faults, Vec::<String>::new());
    record
}

fn file(congestion: &str, set: &[&str]) -> TransferResult {
    let own = congestion_of("file", congestion);
    let set = [&[own.as_str()], set].concat();
    let record = quick(FILE, &set);
    assert!(record.transfers[0].complete, "{:?}", record.transfers[0]);
    record.transfers[0].clone()
}

fn congestion_of(transfer: &str, congestion: &str) -> String {
    format!("transfers.{transfer}.congestion={congestion}")
}

fn queue_max(record: &Record) -> u64 {
    let down = record.links.iter().find(|it| it.name == "satellite" && it.direction == "down");
    down.map_or(0, |down| down.queue_bytes_max)
}

#[test]
fn a_plan_shows_all_that_an_algorithm_is_given() {
    let tuning = |congestion: &str| {
        let set = congestion_of("file", congestion);
        plan(FILE, &[&set]).transfers[0].tuning.clone()
    };
    let cubic = tuning("cubic").expect("one of ours");
    assert_eq!((cubic.slow_start.as_deref(), cubic.initial_window), (Some("hystart"), 10));
    assert_eq!((cubic.opening, cubic.pacing), (OpeningPlan::Burst, false));
    let spread = tuning("{ algorithm = \"reno\", opening = \"initial-spreading\" }");
    assert!(spread.expect("one of ours").pacing, "what is spread is paced");
    assert!(tuning("hybla-plus").expect("one of ours").pacing, "as the program asks the kernel");
    let hybla = tuning("{ algorithm = \"hybla\", rtt0 = \"50 ms\" }").expect("one of ours").own;
    assert_eq!(hybla.rtt0(), Some(Duration::from_ms(50)));
    let known = tuning("known-rate").expect("one of ours").own;
    let Own::KnownRate { link, rate, .. } = known else { panic!("{known:?}") };
    assert_eq!((link.as_str(), rate), ("satellite", Rate::from_mbit_per_s(20)));
    let search = tuning("{ algorithm = \"cubic\", slow_start = \"search\" }");
    assert_eq!(search.expect("one of ours").slow_start.as_deref(), Some("search"));
    assert_eq!(tuning("illinois"), None, "some kernel may know it");
}

#[test]
fn a_larger_initial_window_is_quicker() {
    let small = file("{ algorithm = \"cubic\", initial_window = 2 }", &[]);
    let large = file("{ algorithm = \"cubic\", initial_window = 40 }", &[]);
    assert!(large.took + Duration::from_ms(200) < small.took, "{} {}", large.took, small.took);
}

#[test]
fn a_connection_begins_as_it_is_configured() {
    let geo = ["links.satellite.delay=290 ms", "transfers.file.bytes=1 MB"];
    let burst = file("cubic", &geo);
    let resumed = file(
        "{ algorithm = \"cubic\", opening = \"careful-resume\", saved_window = \"1.5 MB\", \
         saved_rtt = \"600.4 ms\" }",
        &geo,
    );
    let jumped = file("{ algorithm = \"cubic\", opening = \"jump\", rate = \"18 Mbit/s\" }", &geo);
    // The receiver's own window begins at 64 kB and grows with the data that arrives, as in Linux,
    // so that it limits the jump: 691 segments take flights of 45, 106, 228 and the rest instead of
    // seven flights starting from ten. Spreading a flight over a round trip costs that gain again.
    // Between proxies, whose windows are open, both gain whole flights (`pep`).
    let rtt = Duration::from_us(600_400);
    assert!(jumped.took + rtt < burst.took, "{} {}", jumped.took, burst.took);
    // After the jump, slow start continues from the 45 in flight: one flight less than from ten.
    assert!(resumed.took < burst.took, "{} {}", resumed.took, burst.took);
    assert!(jumped.took < resumed.took, "{} {}", jumped.took, resumed.took);
}

/// Notes when segments with data are handed to a link on their way to the client.
#[derive(Debug)]
struct Departures {
    link: &'static str,
    seen: Rc<RefCell<Vec<Instant>>>,
}

impl Watcher for Departures {
    fn see(&mut self, now: Instant, hop: &Hop, sight: Sight, packet: &Packet) {
        let Body::Segment(segment) = &packet.body else { return };
        let there = hop.name == self.link && hop.way == Direction::Down && sight == Sight::Entered;
        if there && segment.length > 0 {
            self.seen.borrow_mut().push(now);
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// When data leaves over a link, counted from the first of it. Unit: ms.
fn departures(link: &'static str, more: &str, set: &[&str]) -> Vec<f64> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let watcher = Departures { link, seen: seen.clone() };
    let result = run_watched(&plan(more, set), &Options::default(), vec![Box::new(watcher)]);
    result.unwrap_or_else(|error| panic!("{error}"));
    let seen = seen.borrow();
    seen.iter().take(100).map(|at| at.saturating_since(seen[0]).as_ms_f64()).collect()
}

/// There are as many gaps as segments in the round trip, at any sender; no burst at the start hides
/// them.
#[test]
fn a_first_window_that_is_spread_leaves_over_a_round_trip() {
    // The server over all links, and a proxy at the gateway over its own.
    for (proxy, window, link, rtt_ms) in [
        (false, 10, "internet", 70.4),
        (false, 32, "internet", 70.4),
        (true, 10, "satellite", 50.4),
    ] {
        let left = |opening: &str| {
            let congestion = format!(
                "{{ algorithm = \"reno\", opening = \"{opening}\", initial_window = {window} }}"
            );
            let (leg, set) = if proxy {
                (
                    format!("[peps.gw]\nlegs.satellite.congestion = {congestion}\n"),
                    "nodes.gateway.pep=gw",
                )
            } else {
                (String::new(), &*congestion_of("file", &congestion))
            };
            departures(link, &format!("{FILE}{leg}"), &[set])
        };
        let (spread, burst) = (left("initial-spreading"), left("burst"));
        let first = &spread[..window];
        let gap_ms = rtt_ms / window as f64;
        for (number, at_ms) in first.iter().enumerate() {
            let due_ms = number as f64 * gap_ms;
            assert!((at_ms - due_ms).abs() < 0.2 * gap_ms, "{number} of {link}: {first:?}");
        }
        // Slow start continues with the acknowledgements, which arrive as evenly.
        assert!(spread[window] > rtt_ms - 0.5 * gap_ms, "{} after {first:?}", spread[window]);
        assert!(spread[window + 2] > spread[window] + 0.5 * gap_ms, "{}", spread[window + 2]);
        assert!(burst[window - 1] < 1.0, "{:?}", &burst[..window]);
    }
}

#[test]
fn what_ends_slow_start_decides_what_is_lost() {
    let lost = |slow_start: &str| {
        let congestion = format!("{{ algorithm = \"reno\", slow_start = \"{slow_start}\" }}");
        let set = ["links.satellite.delay=290 ms", "transfers.file.bytes=12 MB"];
        let file = file(&congestion, &set);
        file.flows[0].retransmissions as f64 * 1500.0 / (20e6 / 8.0 * 0.6004)
    };
    // In products of the link's rate and round-trip time. The queue holds one: doubling continues
    // for the two round trips that a full path takes until the first loss is reported.
    let classic = lost("classic");
    assert!((1.8..2.2).contains(&classic), "{classic} products are lost");
    // SEARCH compares windows of 3.5 round trips: the loss happens before.
    assert_eq!(lost("search"), classic);
    // A rise of the round trip slows growth to a quarter per round.
    let slower = lost("hystart++");
    assert!(slower > 0.0 && slower < classic / 2.0, "{slower} to {classic}");
    // A rise ends slow start at once.
    assert_eq!(lost("hystart"), 0.0);
}

#[test]
fn flows_of_known_rate_share_their_leg_and_fill_it_through_losses() {
    let text = "[transfers.a]\nfrom = \"server\"\nto = \"client\"\nseconds = 5\nflows = 2\n\
                congestion = \"known-rate\"\n\
                [transfers.b]\nfrom = \"server\"\nto = \"client\"\nseconds = 5\n\
                congestion = { algorithm = \"known-rate\", link = \"satellite\" }\n";
    let record = quick(text, &["links.satellite.down.loss=0.01"]);
    let bytes: Vec<u64> = record
        .transfers
        .iter()
        .flat_map(|transfer| transfer.flows.iter().map(|flow| flow.bytes.get()))
        .collect();
    let all: u64 = bytes.iter().sum();
    assert_eq!(bytes.len(), 3);
    // 20 Mbit/s carry 12.06 MB of payload in five seconds.
    assert!(all > 10_500_000, "{bytes:?}");
    for flow in &bytes {
        assert!((all / 4..all * 5 / 12).contains(flow), "{bytes:?}");
    }
    assert!(queue_max(&record) < 60_000, "nobody overbooks it: {}", queue_max(&record));
}

const XCP: &str = "[nodes.near]\n[links.access]\nbetween = [\"gateway\", \"near\"]\n\
    rate = \"1 Gbit/s\"\ndelay = \"2 ms\"\n\
    [transfers.far]\nfrom = \"server\"\nto = \"client\"\nseconds = 18\ncongestion = \"xcp\"\n\
    [transfers.near]\nfrom = \"near\"\nto = \"client\"\nseconds = 10\nstart = \"8 s\"\n\
    congestion = \"xcp\"\n";
const ROUTER: &str = "links.satellite.down.aqm=xcp";

#[test]
fn xcp_shares_evenly_between_round_trips_and_keeps_the_queue_short() {
    // Round trips of 54 and 250 ms.
    let set = [ROUTER, "links.internet.delay=100 ms"];
    let record = quick(XCP, &set);
    let flow = |name: &str| {
        let found = record.transfers.iter().find(|it| it.name == name);
        found.expect("it ran")
    };
    let (far, near) = (flow("far"), flow("near"));
    assert_eq!((far.flows[0].retransmissions, near.flows[0].retransmissions), (0, 0));
    // 2.41 MB a second of payload: the far one alone for 8 s, then half for 10 s.
    let shared = 10.0 * 2.41e6 / 2.0;
    let ratio = near.bytes.get() as f64 / shared;
    assert!((0.8..1.1).contains(&ratio), "near has {ratio} of its share");
    let ratio = far.bytes.get() as f64 / (8.0 * 2.41e6 + shared);
    assert!((0.8..1.05).contains(&ratio), "far has {ratio} of its share");
    // In an interval, routers distribute 0.4 of the spare bandwidth and 0.1 of the arriving
    // traffic. Senders that do not pace send that as one burst: half of the 625 kB that the longer
    // path holds.
    assert!(queue_max(&record) <= 312_500 + 2 * 1500, "{}", queue_max(&record));
    // Paced and alone, the flow follows the control law itself. The measurement is half an interval
    // old, and a response takes effect after one and a half round trips, so the fluid model
    // overshoots by a queue of 0.27 products.
    let paced = XCP.replace("\"xcp\"", "{ algorithm = \"xcp\", pacing = true }");
    let alone = [&set[..], &["run=[\"far\"]"]].concat();
    let record = quick(&paced, &alone);
    assert!(queue_max(&record) < 170_000, "{}", queue_max(&record));
}

#[test]
fn an_xcp_flow_learns_its_window_in_a_few_round_trips() {
    let geo = ["links.satellite.delay=290 ms", "transfers.file.bytes=12 MB", ROUTER];
    let took = |name: &str, loss: &str| file(name, &[&geo[..], &[loss]].concat()).took;
    let clean = "links.satellite.down.loss=0";
    // 5 s at full rate, and the round trips until then.
    let xcp = took("xcp", clean);
    assert!(xcp < Duration::from_s(10), "{xcp}");
    let lossy = "links.satellite.down.loss=0.005";
    let halving = took("xcp", lossy);
    let keeping = took("{ algorithm = \"xcp\", keep_on_loss = true }", lossy);
    assert!(keeping + Duration::from_s(1) < halving, "{keeping} {halving}");
}

#[test]
fn dvegas_with_reports_of_its_terminals_queue_never_fills_it() {
    let text = "[transfers.push]\nfrom = \"terminal\"\nto = \"server\"\nseconds = 10\n";
    let run = |congestion: &str| {
        let set = congestion_of("push", congestion);
        let record = quick(text, &[&set, "links.satellite.delay=250 ms"]);
        let up = record.links.iter().find(|it| it.name == "satellite" && it.direction == "up");
        let dropped = up.expect("the link").drops.values().sum::<u64>();
        (dropped, up.map_or(0, |up| up.queue_bytes_max), record.transfers[0].bytes)
    };
    // 20 Mbit/s over 520.4 ms: the queue holds one product.
    let product = 1_301_000;
    let (deaf, ..) = run("dvegas");
    assert!(deaf > 0, "slow start overruns a queue that nobody tells of");
    let (dropped, queue, bytes) = run("{ algorithm = \"dvegas\", queue_feedback = true }");
    // Slow start ends with the first round after which a segment too many waits.
    assert_eq!(dropped, 0);
    assert!(queue < product, "{queue}");
    // 8.5 of ten seconds: slow start takes seven round trips, starting from ten segments.
    assert!(bytes > Bytes::new(17_000_000), "{bytes}");
}

#[test]
fn a_proxy_with_dvegas_gets_reports_of_the_queue_at_its_own_link() {
    let run = |congestion: &str| {
        let text = format!(
            "[transfers.pull]\nfrom = \"server\"\nto = \"client\"\nseconds = 10\n\
             [peps.gw]\nlegs.satellite = {{ congestion = {congestion} }}\n"
        );
        let record = quick(&text, &["nodes.gateway.pep=gw", "links.satellite.delay=250 ms"]);
        let down = record.links.iter().find(|it| it.name == "satellite" && it.direction == "down");
        let dropped = down.expect("the link").drops.values().sum::<u64>();
        (dropped, record.transfers[0].bytes)
    };
    let (deaf, _) = run("\"dvegas\"");
    assert!(deaf > 0, "slow start overruns a queue that nobody tells of");
    let (dropped, bytes) = run("{ algorithm = \"dvegas\", queue_feedback = true }");
    assert_eq!(dropped, 0);
    assert!(bytes > Bytes::new(16_000_000), "{bytes}");
}
