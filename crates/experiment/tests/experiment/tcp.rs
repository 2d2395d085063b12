//! The TCP of hosts as written, and which of it is refused.

use midhop_experiment::tcp::{LossDetection, Rto, TcpPlan};
use midhop_experiment::{Plan, Scenario};
use midhop_units::{Bytes, Duration};

/// Three nodes in a line, a transfer from end to end.
fn plan(tcp: &str, node: &str) -> Result<Plan, String> {
    let text = format!(
        "title = \"t\"\nduration = \"30 s\"\n[nodes]\na = {{}}\nb = {{}}\nc = {{ {node} }}\n\
         [links.l]\nbetween = [\"a\", \"b\"]\nrate = \"10 Mbit/s\"\n\
         [links.m]\nbetween = [\"b\", \"c\"]\n\
         [transfers.file]\nfrom = \"c\"\nto = \"a\"\nbytes = \"1 MB\"\n[peps.p]\n{tcp}"
    );
    let plans = Scenario::parse("t.toml", &text).and_then(|scenario| scenario.plans());
    plans
        .map(|mut plans| plans.remove(0))
        .map_err(|error| format!("{error} {}", error.hint.as_deref().unwrap_or_default()))
}

fn tcp<'p>(plan: &'p Plan, node: &str) -> &'p TcpPlan {
    &plan.node(node).expect("a node").tcp
}

#[test]
fn a_node_s_own_keys_count_before_those_of_all() {
    let all = "[tcp]\npacket = \"1024 B\"\nthreshold_cache = true\nsack = false\nrto = \"rfc6298\"\ndelayed_ack = false\n";
    let plan = plan(all, "tcp = { sack = true, receive_buffer = \"64 KiB\" }").expect("can be run");
    let (a, c) = (tcp(&plan, "a"), tcp(&plan, "c"));
    assert_eq!((a.packet, a.sack, a.rto, a.receive_buffer), (1024, false, Rto::Rfc6298, None));
    assert_eq!((c.packet, c.sack, c.rto), (1024, true, Rto::Rfc6298));
    assert_eq!(c.receive_buffer, Some(Bytes::new(65_536)));
    assert_eq!((a.delayed_ack.segments, a.delayed_ack.timeout), (1, Duration::ZERO));
    assert!(a.threshold_cache && c.threshold_cache);
    // Values that are not written are Linux', and are recorded.
    assert_eq!((a.window_scaling, a.loss_detection), (true, LossDetection::Rack));
    let json = plan.to_json().expect("has a form");
    assert_eq!(Plan::from_json(&json).expect("a plan"), plan);
}

#[test]
fn the_limit_is_that_of_the_packets_that_are_sent() {
    let framing = |tcp: &str, node: &str| {
        let plan = plan(tcp, node).expect("can be run");
        let framing = plan.transfers[0].limit.as_ref().expect("a limit").framing;
        (framing.mtu, framing.timestamps)
    };
    assert_eq!(framing("", ""), (1500, true));
    assert_eq!(framing("[tcp]\npacket = \"1024 B\"\n", ""), (1024, true));
    // Both ends must agree, and the smaller packet counts.
    assert_eq!(framing("", "tcp = { packet = \"576 B\", timestamps = false }"), (576, false));
    // A proxy may let a flow pass: of its connections and the direct one, the one with the lowest
    // overhead counts.
    let proxied = "[nodes.b]\npep = \"p\"\ntcp = { packet = \"576 B\" }\n";
    let text = "title = \"t\"\nduration = \"30 s\"\n[nodes]\na = {}\nc = {}\n[peps.p]\n\
         [links.l]\nbetween = [\"a\", \"b\"]\nrate = \"10 Mbit/s\"\n\
         [links.m]\nbetween = [\"b\", \"c\"]\n\
         [transfers.file]\nfrom = \"c\"\nto = \"a\"\nbytes = \"1 MB\"\n";
    let scenario = Scenario::parse("t.toml", &format!("{text}{proxied}")).expect("TOML");
    let plan = scenario.plans().expect("can be run").remove(0);
    assert_eq!(plan.transfers[0].limit.as_ref().expect("a limit").framing.mtu, 1500);
}

#[test]
fn what_cannot_be_is_refused_where_it_stands() {
    for (tcp, node, line, expected) in [
        ("[tcp]\npacket = \"100 B\"", "", "t.toml:18", "148 B to 1500 B"),
        ("[tcp]\npacket = \"9 kB\"", "", "t.toml:18", "impossible"),
        ("", "tcp = { receive_buffer = \"0 B\" }", "t.toml:6", "impossible"),
        ("[tcp]\nsend_buffer = \"2 GiB\"", "", "t.toml:18", "impossible"),
        ("[tcp]\ndelayed_ack = { segments = 0 }", "", "t.toml:18", "cannot answer 0"),
        ("[tcp]\ndelayed_ack = { timeout = \"2 s\" }", "", "t.toml:18", "at most 500 ms"),
        ("[tcp]\ndelayed_ack = { every = 4 }", "", "t.toml:18", "such as { segments = 4 }"),
        ("[tcp]\nsack = \"no\"", "", "t.toml:18", "sack"),
        ("[tcp]\nsak = false", "", "t.toml:18", "did you mean `sack`"),
        ("[tcp]\nsack = false\nloss_detection = \"rack\"", "", "t.toml:19", "NewReno"),
        ("[tcp]\nsack = false", "tcp = { loss_detection = \"rack\" }", "t.toml:6", "NewReno"),
        ("[tcp]\nnewreno = false", "", "t.toml:18", "add sack = false"),
        ("[tcp]\nrto = \"bsd\"", "", "t.toml:18", "bsd"),
    ] {
        let error = plan(tcp, node).expect_err(tcp);
        assert!(error.contains(line), "{tcp} {node}: {error}");
        assert!(error.contains(expected), "{tcp} {node}: {error}");
    }
}
