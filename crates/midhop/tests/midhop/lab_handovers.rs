//! Handovers of `midhop lab` on real kernels: routes change, and live flows follow by the scenario's rule.

use crate::lab::Place;
use midhop_experiment::Record;
use midhop_experiment::handovers::HandoversResult;
use midhop_experiment::record::LinkResult;
use midhop_units::Duration;

/// Two flows over 10 Mbit/s; the client changes to `right` after one second, and back later, while they run.
fn scenario(flows: Option<&str>, family: &str) -> String {
    let back = back_s(flows);
    let bytes = each(flows);
    let pep = |name: &str| flows.map_or_else(String::new, |_| format!("pep = \"{name}\""));
    let (left, right) = (pep("left"), pep("right"));
    let live = flows.map_or_else(String::new, |live| format!("flows = \"{live}\"\n"));
    // What the server sends ahead is state that moves.
    let table = |name: &str| format!("[peps.{name}]\nlegs.feeder-{name}.buffer = \"256 kB\"\n");
    let tables = flows.map_or_else(String::new, |_| table("left") + &table("right"));
    let mut text = format!(
        "title = \"a test\"\nduration = \"60 s\"\n\
         [nodes]\nclient = {{}}\nleft = {{ {left} }}\nright = {{ {right} }}\nserver = {{}}\n{tables}\
         [links.between]\nbetween = [\"left\", \"right\"]\nrate = \"100 Mbit/s\"\ndelay = \"2 ms\"\n\
         [transfers.file]\nfrom = \"server\"\nto = \"client\"\nbytes = \"{bytes} B\"\nflows = 2\n\
         family = \"{family}\"\nrestarts = 9\nrestart_from = \"rest\"\nrestart_after = \"100 ms\"\n"
    );
    for (node, other, at) in [("left", "right", 1), ("right", "left", back)] {
        text += &format!(
            "[links.user-{node}]\nbetween = [\"client\", \"{node}\"]\nrate = \"10 Mbit/s\"\ndelay = \"5 ms\"\n\
             [links.feeder-{node}]\nbetween = [\"{node}\", \"server\"]\nrate = \"100 Mbit/s\"\ndelay = \"5 ms\"\n\
             [[handovers]]\nat = \"{at} s\"\nfrom = \"{node}\"\nto = \"{other}\"\n\
             leaves = \"user-{node}\"\ntakes = \"user-{other}\"\n\
             announced = \"200 ms\"\noutage = \"50 ms\"\ndrain = \"300 ms\"\n{live}"
        );
    }
    text
}

/// When the client changes back. Flows that moved may wait until their ends retransmit, and those that were reset connect
/// anew. Unit: seconds.
fn back_s(flows: Option<&str>) -> u64 {
    if matches!(flows, Some("moved" | "reset" | "drained")) { 9 } else { 2 }
}

/// Payload of each of the two flows, which takes at least one second longer. Unit: bytes.
fn each(flows: Option<&str>) -> u64 {
    (back_s(flows) + 1) * 1_250_000 / 2
}

/// Runs it, checks what holds for every rule, and returns what the handovers did.
fn run(flows: Option<&str>, family: &str) -> (Record, HandoversResult) {
    let record = Place::new(&scenario(flows, family)).run(&[]).remove(0);
    assert_eq!(record.validity.faults, Vec::<String>::new());
    let transfer = &record.transfers[0];
    assert!(transfer.complete, "{:?}", transfer.flows);
    assert_eq!(transfer.bytes.get(), 2 * each(flows), "{:?}", transfer.flows);
    for flow in transfer.flows.iter().filter(|flow| flow.error.is_none()) {
        assert!(flow.hash_sent.is_some() && flow.hash_sent == flow.hash_received, "{flow:?}");
    }
    let result = record.handovers.clone().expect("handovers");
    println!("{result:?}");
    assert_eq!(result.count, 2);
    // Each flow waits at least while there is no link.
    assert!(result.stalls.max >= Duration::from_ms(50), "{result:?}");
    assert!(result.stall_max >= Some(result.stalls.max), "{result:?}");
    (record, result)
}

#[test]
fn routes_change_without_a_proxy() {
    let (record, result) = run(None, "ipv4");
    let flows = (result.flows_moved, result.flows_reset, result.flows_chained);
    assert_eq!((flows, record.transfers[0].restarts.count), ((0, 0, 0), 0));
}

fn moved(family: &str) {
    let (record, result) = run(Some("moved"), family);
    assert_eq!((result.flows_moved, result.flows_reset), (4, 0), "{result:?}");
    assert!(result.state_bytes.get() > 0 && !result.freeze.p50.is_zero(), "{result:?}");
    assert_eq!(record.transfers[0].restarts.count, 0);
    // A connection belongs to the link that its packets took.
    let legs = |node: &str, link: &str| {
        record.legs.iter().find(|leg| leg.node == node && leg.link == link).is_some()
    };
    assert!(legs("left", "user-left") && !legs("right", "between"), "{:?}", record.legs);
}

#[test]
fn flows_move_to_the_next_proxy_ipv4() {
    moved("ipv4");
}

#[test]
fn flows_move_to_the_next_proxy_ipv6() {
    moved("ipv6");
}

#[test]
fn flows_are_reset_and_the_client_requests_the_rest() {
    let (record, result) = run(Some("reset"), "ipv4");
    assert_eq!((result.flows_moved, result.flows_reset), (0, 4), "{result:?}");
    let restarts = record.transfers[0].restarts;
    assert_eq!((restarts.count, restarts.discarded.get()), (4, 0));
    // Those that begin anew take the other link.
    let carried = |link: &&LinkResult| link.name == "user-right" && link.packets_out > 0;
    assert_eq!(record.links.iter().filter(carried).count(), 2, "{:?}", record.links);
}

#[test]
#[ignore = "fails in one of 30 runs at a load of 18: a flow in its handshake at the handover is not diverted (0066)"]
fn a_drained_proxy_keeps_its_flows_for_a_while_and_gets_no_new_ones() {
    let (record, result) = run(Some("drained"), "ipv4");
    assert_eq!((result.flows_chained, result.flows_reset), (4, 4), "{result:?}");
    assert_eq!(record.transfers[0].restarts.count, 4);
}

fn anchored(family: &str) {
    let (record, result) = run(Some("anchored"), family);
    // After the second handover they are where their packets go by themselves.
    assert_eq!((result.flows_chained, result.flows_reset), (2, 0), "{result:?}");
    assert_eq!(record.transfers[0].restarts.count, 0);
    assert!(record.legs.iter().all(|leg| leg.node == "left"), "{:?}", record.legs);
}

#[test]
fn an_anchored_flow_has_its_packets_brought_to_its_proxy_ipv4() {
    anchored("ipv4");
}

#[test]
fn an_anchored_flow_has_its_packets_brought_to_its_proxy_ipv6() {
    anchored("ipv6");
}

/// Two flows over 10 Mbit/s. The client changes from `left` over `middle` to `right`, over links that leave `left` at two
/// hops. The shortest path from `left` to the client is another one then.
fn twice_anchored(family: &str) -> String {
    let mut text = format!(
        "title = \"a test\"\nduration = \"60 s\"\n[nodes]\nclient = {{}}\nserver = {{}}\n\
         [transfers.file]\nfrom = \"server\"\nto = \"client\"\nbytes = \"3 MB\"\nflows = 2\n\
         family = \"{family}\"\nrestarts = 9\n"
    );
    for node in ["left", "middle", "right"] {
        text += &format!(
            "[nodes.{node}]\npep = \"{node}\"\n[peps.{node}]\n\
             [links.user-{node}]\nbetween = [\"client\", \"{node}\"]\nrate = \"10 Mbit/s\"\ndelay = \"5 ms\"\n\
             [links.feeder-{node}]\nbetween = [\"{node}\", \"server\"]\nrate = \"100 Mbit/s\"\ndelay = \"5 ms\"\n"
        );
    }
    for (one, other) in [("left", "middle"), ("middle", "right"), ("left", "right")] {
        text += &format!(
            "[links.{one}-{other}]\nbetween = [\"{one}\", \"{other}\"]\nrate = \"100 Mbit/s\"\ndelay = \"2 ms\"\n"
        );
    }
    for (from, to, at) in [("left", "middle", 1), ("middle", "right", 2)] {
        text += &format!(
            "[[handovers]]\nat = \"{at} s\"\nfrom = \"{from}\"\nto = \"{to}\"\n\
             leaves = \"user-{from}\"\ntakes = \"user-{to}\"\noutage = \"50 ms\"\nflows = \"anchored\"\n"
        );
    }
    text
}

#[test]
fn an_anchored_proxy_s_own_packets_take_another_path_than_those_for_it() {
    for family in ["ipv4", "ipv6"] {
        let record = Place::new(&twice_anchored(family)).run(&[]).remove(0);
        assert_eq!(record.validity.faults, Vec::<String>::new());
        let transfer = &record.transfers[0];
        assert!(transfer.complete, "{family}: {:?}", transfer.flows);
        assert_eq!(transfer.restarts.count, 0, "{family}: {:?}", transfer.flows);
        let left = record.legs.iter().find(|leg| leg.link == "user-left").expect("a leg");
        assert!(left.connections == 2 && left.bytes.get() >= 6_000_000, "{left:?}");
        // The client's packets take both links there, the proxy's the third one.
        for link in ["left-middle", "middle-right", "left-right"] {
            let carried = |it: &LinkResult| it.name == link && it.packets_out > 100;
            assert!(record.links.iter().any(carried), "{link}: {:?}", record.links);
        }
    }
}

#[test]
fn what_the_lab_cannot_hand_over_is_a_usage_error() {
    let text = scenario(Some("moved"), "ipv4").replace(
        "flows = \"moved\"",
        "flows = \"moved\"\nover = { rate = \"1 Gbit/s\", delay = \"2 ms\" }",
    );
    let place = Place::new(&text);
    let output = place.lab(&["run", place.scenario().to_str().expect("a path")]);
    assert_eq!(output.status.code(), Some(64));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("the state of flows takes a link in the lab (handovers: left to right)"),
        "{said}"
    );
    let output = place.lab(&["up", place.scenario().to_str().expect("a path")]);
    assert_eq!(output.status.code(), Some(64));
}
