//! Tables of tunnels and peers: their meaning, and which are refused.

use super::*;
use crate::config::{Action, Plan};
use crate::policy::FlowKey;

const OWN: &str =
    "[tunnel]\ncertificate = \"own.pem\"\nkey = \"own.key\"\nauthority = \"ca.pem\"\n";

fn plan(text: &str) -> Plan {
    Plan::read("test.toml", text).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn windows_hold_some_round_trips_of_the_link() {
    let text = format!(
        "{OWN}[peers.ground]\naddress = \"192.0.2.1:443\"\nrate = \"20 Mbit/s\"\n\
         rate_in = \"150 Mbit/s\"\nrtt = \"600 ms\"\n[peers.second]\naddress = \"192.0.2.2:443\"\n"
    );
    let plan = plan(&text);
    let [ground, second] = plan.peers.as_slice() else { panic!("{:?}", plan.peers) };
    assert_eq!(ground.identity, "ground");
    assert_eq!(ground.send_window, Bytes::new(9_000_000));
    assert_eq!(ground.flow_window, Bytes::new((1 << 28) / STUCK_FLOWS));
    assert_eq!(ground.receive_window, Bytes::new(1 << 28));
    assert!(second.flow_window >= Bytes::new(2 * 10_500_000));
}

#[test]
fn scarce_memory_makes_windows_small_but_not_slow() {
    let link = "address = \"192.0.2.1:443\"\nrate = \"10 Mbit/s\"\nrtt = \"600 ms\"\n";
    for (memory, window) in [("1 GiB", 2_250_000), ("8 MiB", 1 << 20), ("2 MiB", 1 << 19)] {
        let limits = format!("[limits]\nmemory = \"{memory}\"\n");
        let ground = &plan(&format!("{limits}{OWN}[peers.ground]\n{link}")).peers[0];
        assert_eq!(ground.flow_window, Bytes::new(window), "{memory}");
        assert_eq!(ground.send_window, Bytes::new(4_500_000), "{memory}");
    }
}

#[test]
fn a_rate_that_is_known_is_kept_and_any_other_searched() {
    for (keys, algorithm) in [
        ("", Algorithm::BbrV3),
        ("rate_in = \"20 Mbit/s\"\n", Algorithm::BbrV3),
        ("rate = \"20 Mbit/s\"\n", Algorithm::KnownRate),
        ("rate = \"20 Mbit/s\"\ncongestion = \"hybla-plus\"\n", Algorithm::HyblaPlus),
        ("rate = \"20 Mbit/s\"\ncommitted = \"5 Mbit/s\"\n", Algorithm::Cubic),
        ("committed = \"5 Mbit/s\"\ncongestion = \"reno\"\n", Algorithm::Reno),
    ] {
        let plan = plan(&format!("{OWN}[peers.ground]\naddress = \"192.0.2.1:443\"\n{keys}"));
        assert_eq!(plan.peers[0].congestion, algorithm, "{keys}");
    }
}

#[test]
fn a_peer_stands_for_the_clients_that_are_its_own() {
    let text = format!(
        "{OWN}listen = \"0.0.0.0:443\"\n[peers.ground]\n\
         transparent = [\"10.1.0.0/16\", \"2001:db8::/32\"]\n[peers.second]\n"
    );
    let plan = plan(&text);
    let [ground, other] = plan.peers.as_slice() else { panic!("{:?}", plan.peers) };
    for (client, may) in [
        ("10.1.2.3:4", true),
        ("[::ffff:10.1.2.3]:4", true),
        ("[2001:db8::7]:65535", true),
        ("10.2.0.1:4", false),
        ("[2001:db9::7]:4", false),
        ("10.1.2.3:0", false),
    ] {
        let client = client.parse().expect("an address");
        assert_eq!(ground.may_stand_for(client), may, "{client}");
        assert!(!other.may_stand_for(client));
    }
}

#[test]
fn a_tunnel_falls_back_unless_configured_otherwise() {
    let peer = "[peers.ground]\naddress = \"192.0.2.1:443\"\n";
    for (own, keys, meant) in [
        ("", "", [Fallback::Tcp, Fallback::Tcp]),
        ("fallback = \"off\"\n", "", [Fallback::Off, Fallback::Tcp]),
        ("fallback = \"tcp\"\n", "fallback = \"off\"\n", [Fallback::Tcp, Fallback::Off]),
        ("fallback = \"only\"\n", "fallback = \"only\"\n", [Fallback::Only; 2]),
    ] {
        let plan = plan(&format!("{OWN}{own}{peer}{keys}"));
        assert_eq!([plan.tunnel.fallback, plan.peers[0].fallback], meant, "{own}{keys}");
    }
}

#[test]
fn losses_are_repaired_where_it_is_configured() {
    for (keys, repair) in [
        ("", Repair::Off),
        ("repair = \"auto\"\n", Repair::Auto),
        ("repair = \"always\"\n", Repair::Always),
        ("repair = \"off\"\n", Repair::Off),
    ] {
        let plan = plan(&format!("{OWN}[peers.ground]\naddress = \"192.0.2.1:443\"\n{keys}"));
        assert_eq!(plan.peers[0].repair, repair, "{keys}");
    }
    let text = format!("{OWN}[peers.ground]\naddress = \"192.0.2.1:443\"\nrepair = \"on\"\n");
    let error = Plan::read("test.toml", &text).expect_err("no such word");
    assert_eq!(error.key.as_deref(), Some("peers.ground.repair"), "{error}");
}

#[test]
fn flows_are_asked_for_as_the_peer_serves_them_unless_configured_otherwise() {
    for (keys, form) in [
        ("", RequestForm::Auto),
        ("request = \"classic\"\n", RequestForm::Classic),
        ("request = \"template\"\n", RequestForm::Template),
    ] {
        let plan = plan(&format!("{OWN}[peers.ground]\naddress = \"192.0.2.1:443\"\n{keys}"));
        assert_eq!(plan.peers[0].request, form, "{keys}");
    }
    let text = format!("{OWN}[peers.ground]\naddress = \"192.0.2.1:443\"\nrequest = \"post\"\n");
    let error = Plan::read("test.toml", &text).expect_err("no such form");
    assert_eq!(error.key.as_deref(), Some("peers.ground.request"), "{error}");
}

#[test]
fn rules_name_peers_and_what_comes_instead() {
    let text = format!(
        "{OWN}[peers.ground]\naddress = \"192.0.2.1:443\"\n\
         [[rules]]\nmatch.destination_port = 80\ntunnel = \"ground\"\naccept = \"early\"\n\
         [[rules]]\ntunnel = \"ground\"\notherwise = \"bypass\"\n"
    );
    let plan = plan(&text);
    for (port, otherwise) in [(80, Action::Split), (81, Action::Bypass)] {
        let decision = plan.policy.decide(&FlowKey {
            source: ([10, 0, 0, 1], 1000).into(),
            destination: ([10, 0, 0, 2], port).into(),
            interface: None,
            peer: None,
            dscp: 0,
        });
        assert_eq!(decision.action, Action::Split);
        let route = plan.route(&decision).expect("a tunnel");
        assert_eq!((route.peer.as_str(), route.otherwise), ("ground", otherwise));
    }
}

#[test]
fn what_makes_no_tunnel_is_refused_by_its_key() {
    let peer = "[peers.ground]\naddress = \"192.0.2.1:443\"\n";
    for (text, key) in [
        (peer.to_owned(), "tunnel.certificate"),
        (format!("{OWN}listen = \"0.0.0.0:443\"\n"), "tunnel.listen"),
        (format!("{OWN}[peers.ground]\n"), "peers.ground"),
        (format!("{OWN}{peer}name = \"-x\"\n"), "peers.ground.name"),
        (format!("{OWN}{peer}name = \"192.0.2.1\"\n"), "peers.ground.name"),
        (
            format!("{OWN}{peer}[peers.b]\nname = \"ground\"\naddress = \"[::1]:1\"\n"),
            "peers.ground.name",
        ),
        (format!("{OWN}{peer}[legs.ground]\n"), "peers.ground"),
        (format!("{OWN}{peer}window = \"64 KiB\"\n"), "peers.ground.window"),
        (format!("{OWN}{peer}keepalive = \"60 s\"\n"), "peers.ground.keepalive"),
        (format!("{OWN}{peer}rtt = \"61 s\"\n"), "peers.ground.rtt"),
        (format!("{OWN}{peer}resume = \"61 min\"\n"), "peers.ground.resume"),
        (format!("{OWN}{peer}flows = 0\n"), "peers.ground.flows"),
        (format!("{OWN}{peer}connections = 0\n"), "peers.ground.connections"),
        (format!("{OWN}connect_timeout = \"0 s\"\n{peer}"), "tunnel.connect_timeout"),
        ("[tunnel]\nrevoked = \"crl.pem\"\n".to_owned(), "tunnel.revoked"),
        (
            format!("{OWN}{peer}[[rules]]\nmatch.peer = \"hub\"\naction = \"reject\"\n"),
            "rules.0.match.peer",
        ),
        (format!("{OWN}{peer}transparent = \"10.0.0.0/8\"\n"), "peers.ground.transparent"),
        (format!("{OWN}{peer}fallback = \"udp\"\n"), "peers.ground.fallback"),
        (format!("{OWN}fallback = \"on\"\n{peer}"), "tunnel.fallback"),
        (format!("{OWN}{peer}committed = \"0 bit/s\"\n"), "peers.ground.committed"),
        (
            format!("{OWN}{peer}rate = \"1 Mbit/s\"\ncommitted = \"2 Mbit/s\"\n"),
            "peers.ground.committed",
        ),
        (
            format!("{OWN}{peer}committed = \"2 Mbit/s\"\ncongestion = \"bbr3\"\n"),
            "peers.ground.committed",
        ),
        (format!("{OWN}{peer}congestion = \"fast\"\n"), "peers.ground.congestion"),
        (format!("{OWN}{peer}congestion = \"xcp\"\n"), "peers.ground.congestion"),
        (format!("{OWN}{peer}congestion = \"known-rate\"\n"), "peers.ground.congestion"),
        (format!("{OWN}{peer}[[rules]]\ntunnel = \"hub\"\n"), "rules.0.tunnel"),
        (
            format!("{OWN}{peer}[[rules]]\naction = \"split\"\notherwise = \"bypass\"\n"),
            "rules.0.otherwise",
        ),
        (
            format!("{OWN}{peer}[[rules]]\naction = \"bypass\"\ntunnel = \"ground\"\n"),
            "rules.0.tunnel",
        ),
    ] {
        let error = Plan::read("test.toml", &text).expect_err(&text);
        let named = error.key.clone().unwrap_or_default();
        let either = named == key || (key == "peers.ground.name" && named == "peers.b.name");
        assert!(either && error.hint.is_some(), "{key}: {error}");
    }
}

#[test]
fn a_peer_speaks_for_its_own_clients_and_for_nobody_else() {
    let text = format!(
        "{OWN}listen = \"0.0.0.0:443\"\n[peers.a]\nclients = [\"10.1.0.0/16\", \"fd01::/16\"]\n\
         transparent = \"10.2.0.0/16\"\n[peers.b]\n"
    );
    let plan = plan(&text);
    let [a, b] = [&plan.peers[0], &plan.peers[1]];
    for (client, speaks, stands) in [
        ("10.1.0.1:1", true, false),
        ("[::ffff:10.1.0.1]:1", true, false),
        ("[fd01::1]:1", true, false),
        ("10.2.0.1:1", true, true),
        ("10.3.0.1:1", false, false),
        ("[fd02::1]:1", false, false),
    ] {
        let client = client.parse().expect(client);
        assert_eq!(
            (a.may_speak_for(client), a.may_stand_for(client)),
            (speaks, stands),
            "{client}"
        );
        assert!(!b.may_speak_for(client), "{client}");
    }
}

#[test]
fn what_follows_from_another_table_is_no_change_of_a_peer() {
    let of = |more: &str| plan(&format!("{OWN}listen = \"0.0.0.0:443\"\n[peers.a]\n{more}"));
    let before = of("");
    // A second peer halves the windows of the first.
    let after = of("[peers.b]\n");
    assert_ne!(before.peers[0], after.peers[0]);
    assert!(before.peers[0].is_written_as(&after.peers[0]));
    assert!(!before.peers[0].is_written_as(&of("flows = 9\n").peers[0]));
    // Who reports its rate is no part of an open tunnel.
    let [silent, reported] = ["", "modem.address = \"192.0.2.9:854\"\n"]
        .map(|modem| of(&format!("rate = \"9 Mbit/s\"\n{modem}")));
    assert!(silent.peers[0].is_written_as(&reported.peers[0]));
}
