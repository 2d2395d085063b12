//! Rules from top to bottom, and what a firewall may decide.

use super::*;
use crate::config::{Dscp, Plan, Ports};
use ipnet::IpNet;
use proptest::{collection::vec, prelude::*};
use std::net::IpAddr;

fn policy(text: &str) -> Plan {
    Plan::read("midhopd.toml", text).unwrap_or_else(|error| panic!("{error}"))
}

fn flow<'a>(source: &str, destination: &str, interface: Option<&'a str>) -> FlowKey<'a> {
    FlowKey {
        source: source.parse().expect(source),
        destination: destination.parse().expect(destination),
        interface,
        peer: None,
        dscp: 0,
    }
}

#[test]
fn the_first_rule_that_matches_decides() {
    let plan = policy(
        r#"
        [legs.sat0]
        congestion = "hybla-plus"
        [[rules]]
        match = { destination_port = 22, source = "10.0.0.7/32" }
        action = "split"
        accept = "early"
        legs.sat0 = { congestion = "bbr", pacing = "1 Mbit/s" }
        [[rules]]
        match = { destination_port = [22, 179] }
        action = "bypass"
        [[rules]]
        match = { interface = "guest0", destination = "fd00::/8" }
        action = "reject"
    "#,
    );
    let of = |source: &str, destination: &str, interface| {
        let decision = plan.policy.decide(&flow(source, destination, interface));
        (decision.action, decision.accept, decision.rule)
    };
    let after = Accept::AfterConnect;
    assert_eq!(of("10.0.0.7:9", "192.0.2.1:22", None), (Action::Split, Accept::Early, Some(0)));
    assert_eq!(of("10.0.0.8:9", "192.0.2.1:22", None), (Action::Bypass, after, Some(1)));
    assert_eq!(of("10.0.0.8:9", "192.0.2.1:80", None), (Action::Split, after, None));
    assert_eq!(of("[fd01::1]:9", "[fd02::1]:80", Some("guest0")), (Action::Reject, after, Some(2)));
    assert_eq!(of("[fd01::1]:9", "[fd02::1]:80", Some("lan0")), (Action::Split, after, None));
    assert_eq!(
        of("[::ffff:10.0.0.7]:9", "[::ffff:192.0.2.1]:22", None),
        (Action::Split, Accept::Early, Some(0))
    );

    let decision = plan.policy.decide(&flow("10.0.0.7:9", "192.0.2.1:22", None));
    let leg = plan.leg(&decision, "192.0.2.1".parse().expect("address"), Some("sat0"));
    assert_eq!((leg.name.as_str(), leg.congestion.as_deref()), ("sat0", Some("bbr")));
    assert!(leg.pacing.is_some());
    let decision = plan.policy.decide(&flow("10.0.0.8:9", "192.0.2.1:80", None));
    let leg = plan.leg(&decision, "192.0.2.1".parse().expect("address"), Some("sat0"));
    assert_eq!(leg.congestion.as_deref(), Some("hybla-plus"));
}

#[test]
fn firewall_statements_are_those_of_nft() {
    let plan = policy(
        r#"
        [[rules]]
        match = { destination_port = [22, "100-200", "150-300", 301] }
        action = "bypass"
        [[rules]]
        match = { source = ["10.0.0.0/8", "10.1.0.0/16", "fd00::/8"], interface = "lan0", dscp = "ef" }
        action = "bypass"
        [[rules]]
        match = { source = "192.0.2.0/24", destination = "fd00::/8" }
        action = "bypass"
        [[rules]]
        match = { source = "192.0.2.0/24" }
        action = "split"
        [[rules]]
        match = { source = "192.0.2.128/25" }
        action = "bypass"
        [[rules]]
        match = { source = "198.51.100.0/24" }
        action = "bypass"
    "#,
    );
    let statements: Vec<String> = plan
        .policy
        .firewall_bypasses()
        .iter()
        .map(|found| found.text(ClientTuple::Packet))
        .collect();
    assert_eq!(
        statements,
        [
            "tcp dport { 22, 100-301 }",
            "iifname { \"lan0\" } ip saddr { 10.0.0.0/8 } ip dscp { 46 }",
            "iifname { \"lan0\" } ip6 saddr { fd00::/8 } ip6 dscp { 46 }",
            "ip saddr { 198.51.100.0/24 }",
        ]
    );
}

#[test]
fn a_bypass_of_everything_is_an_empty_match() {
    let plan = policy("[[rules]]\naction = \"bypass\"");
    let bypasses = plan.policy.firewall_bypasses();
    assert_eq!(bypasses.len(), 1);
    assert_eq!(bypasses[0].text(ClientTuple::Original), "");
    assert!(policy("").policy.firewall_bypasses().is_empty());
}

#[test]
fn a_rule_for_a_peer_matches_what_comes_by_its_tunnel_and_is_never_the_firewall_s() {
    let plan = policy(
        r#"
        [tunnel]
        certificate = "a"
        key = "b"
        authority = "c"
        listen = ["0.0.0.0:443", "[::]:443"]
        [peers.one]
        [peers.two]
        [peers.three]
        [[rules]]
        match = { peer = "one", destination = ["10.0.0.0/8", "fd00::/8"] }
        action = "reject"
        [[rules]]
        match = { peer = ["two", "three"] }
        action = "bypass"
        [[rules]]
        match = { destination = ["10.0.0.0/8", "fd00::/8"] }
        action = "bypass"
    "#,
    );
    for (source, destination) in [("10.9.0.1:9", "10.0.0.1:80"), ("[fd09::1]:9", "[fd00::1]:80")] {
        for (peer, rule) in [(Some("one"), 0), (Some("two"), 1), (Some("three"), 1), (None, 2)] {
            let key = FlowKey { peer, ..flow(source, destination, None) };
            assert_eq!(plan.policy.decide(&key).rule, Some(rule), "{peer:?}");
        }
    }
    // The firewall sees no peers. A rule for a peer must neither let packets pass there nor keep another rule from
    // doing so.
    let statements: Vec<String> = plan
        .policy
        .firewall_bypasses()
        .iter()
        .map(|found| found.text(ClientTuple::Packet))
        .collect();
    assert_eq!(statements, ["ip daddr { 10.0.0.0/8 }", "ip6 daddr { fd00::/8 }"]);
    assert!(plan.policy.firewall_stops().is_empty());
}

fn prefix() -> impl Strategy<Value = IpNet> {
    // Few bits, so that prefixes often nest and meet.
    (any::<bool>(), 0u8..4, 6u8..=8).prop_map(|(v4, bits, len)| {
        if v4 {
            IpNet::new(IpAddr::from([bits, 0, 0, 0]), len).expect("fits")
        } else {
            let mut octets = [0; 16];
            octets[0] = bits;
            IpNet::new(IpAddr::from(octets), len).expect("fits")
        }
    })
}

fn rule() -> impl Strategy<Value = PolicyRule> {
    let ports = (1u16..6, 0u16..3).prop_filter_map("port", |(a, n)| Ports::new(a, a + n));
    let interface = prop_oneof![Just("a".to_owned()), Just("b".to_owned())];
    let action = prop_oneof![Just(Action::Split), Just(Action::Bypass), Just(Action::Reject)];
    let dscp = (0u8..3).prop_filter_map("dscp", Dscp::new);
    (
        vec(prefix(), 0..3),
        vec(prefix(), 0..3),
        vec(ports, 0..3),
        vec(interface, 0..2),
        vec(Just("p".to_owned()), 0..2),
        vec(dscp, 0..2),
        action,
    )
        .prop_map(|(source, destination, ports, interface, peer, dscp, action)| PolicyRule {
            class: None,
            matches: Match {
                source: OneOrMany(source),
                destination: OneOrMany(destination),
                source_port: OneOrMany::default(),
                destination_port: OneOrMany(ports),
                interface: OneOrMany(interface),
                peer: OneOrMany(peer),
                dscp: OneOrMany(dscp),
            },
            action,
            tunnel: None,
            accept: None,
            legs: Vec::new(),
        })
}

proptest! {
    /// The daemon would bypass whatever the firewall lets pass.
    #[test]
    fn a_firewall_bypass_is_a_bypass(
        rules in vec(rule(), 0..6), v4: bool, from in 0u8..4, to in 0u8..4, port in 1u16..8,
        interface in prop_oneof![Just("a"), Just("b"), Just("c")], dscp in 0u8..4,
        endpoint in 0u8..4,
    ) {
        let address = |first: u8| -> IpAddr {
            if v4 { [first, 0, 0, 1].into() } else {
                let mut octets = [0u8; 16];
                octets[0] = first;
                octets[15] = 1;
                octets.into()
            }
        };
        let policy = Policy::new(rules, Accept::Early, [SocketAddr::new(address(endpoint), 7)]);
        let key = FlowKey {
            source: SocketAddr::new(address(from), 1000),
            destination: SocketAddr::new(address(to), port),
            interface: Some(interface),
            peer: None,
            dscp,
        };
        let passed = policy.firewall_bypasses().iter().any(|bypass| bypass.covers(&key));
        let decision = policy.decide(&key);
        prop_assert!(passed || (to, port) != (endpoint, 7), "a tunnel over TCP");
        prop_assert!(!passed || decision.action == Action::Bypass, "{decision:?}");
        // A rule is used only if none above it matches.
        if let Some(number) = decision.rule {
            prop_assert!(policy.rules[..number].iter().all(|rule| !rule.matches.covers(&key)));
        }
        prop_assert_eq!(decision, policy.decide(&key));
    }
}
