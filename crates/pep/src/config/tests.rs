//! Configurations that make sense, and those that do not.

use super::*;
use crate::policy::FlowKey;
use proptest::prelude::*;
use std::net::IpAddr;

fn plan(text: &str) -> Plan {
    Plan::read("midhopd.toml", text).unwrap_or_else(|error| panic!("{error}\n{:?}", error.hint))
}

/// Key and message of the error that `text` gives.
fn refusal(text: &str) -> (String, String) {
    match Plan::read("midhopd.toml", text) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(error) => {
            assert!(error.hint.is_some() || error.key.is_none(), "no hint: {error}");
            (error.key.clone().unwrap_or_default(), error.to_string())
        }
    }
}

#[test]
fn an_empty_file_means_the_defaults() {
    let config: Config = toml::from_str("").expect("empty");
    assert_eq!(config, Config::default());
    let plan = plan("");
    assert_eq!(plan.legs.len(), 1);
    assert!(plan.intercept.interfaces.is_empty() && plan.explicit.socks5.is_empty());
}

#[test]
fn defaults_are_visible_when_printed_and_survive_it() {
    let text = r#"
        [intercept]
        interfaces = "lan0"
        [legs.sat0]
        congestion = "hybla-plus"
        rtt0 = "25 ms"
        [[rules]]
        match = { destination_port = [22, "8000-8999"], dscp = "ef", source = "10.0.0.0/8" }
        action = "bypass"
    "#;
    let config: Config = toml::from_str(text).expect("valid");
    let printed = toml::to_string(&config).expect("printable");
    assert_eq!(toml::from_str::<Config>(&printed).expect("readable"), config);
    for default in ["accept = \"after-connect\"", "flows = 20000", "idle = \"600 s\""] {
        assert!(printed.contains(default), "{default} is not in:\n{printed}");
    }
}

#[test]
fn a_leg_is_the_interface_of_its_name_unless_configured() {
    let plan = plan(
        r#"
        [legs.sat0]
        rate = "20 Mbit/s"
        rtt = "600 ms"
        [legs.islands]
        prefixes = ["10.1.0.0/16", "2001:db8::/32"]
        [legs.atoll]
        prefixes = "10.1.7.0/24"
        interface = "sat0"
        buffer = "8 MiB"
    "#,
    );
    let leg = |address: &str, interface| {
        plan.leg_of(address.parse::<IpAddr>().expect(address), interface).name.as_str()
    };
    assert_eq!(leg("192.0.2.1", Some("sat0")), "sat0");
    assert_eq!(leg("192.0.2.1", Some("eth0")), "other");
    assert_eq!(leg("192.0.2.1", None), "other");
    assert_eq!(leg("10.1.2.3", Some("sat0")), "islands");
    assert_eq!(leg("10.1.2.3", None), "islands");
    assert_eq!(leg("::ffff:10.1.2.3", None), "islands");
    assert_eq!(leg("2001:db8::1", Some("eth0")), "islands");
    assert_eq!(leg("10.1.7.3", Some("sat0")), "atoll");
    assert_eq!(leg("10.1.7.3", Some("eth0")), "islands");
    let buffers: Vec<_> = plan.legs.iter().map(|leg| leg.buffer.map(Bytes::get)).collect();
    assert_eq!(buffers, [Some(8 << 20), None, Some(4_500_000), None]);
}

#[test]
fn a_near_source_is_offered_what_keeps_the_far_leg_full_and_no_more() {
    let both = plan("[legs.sat0]\nrate = \"20 Mbit/s\"\nrtt = \"600 ms\"\n[legs.lan0]");
    for leg in &both.legs {
        let expected = if leg.name == "sat0" { 4_500_000 } else { 1_500_000 };
        assert_eq!(leg.window, Some(Bytes::new(expected)), "{}", leg.name);
    }
    let uneven = plan(
        "[legs.sat0]\nrate = \"5 Mbit/s\"\nrate_in = \"20 Mbit/s\"\nrtt = \"600 ms\"\n[legs.lan0]",
    );
    let of = |leg: &LegPlan| (leg.buffer.map(Bytes::get), leg.window.map(Bytes::get));
    let [lan, sat, other] = &uneven.legs[..] else { panic!("{:?}", uneven.legs) };
    assert_eq!(of(sat), (Some(1_125_000), Some(4_500_000)), "each way has a product of its own");
    assert_eq!((of(lan), of(other)), ((None, Some(375_000)), (None, Some(375_000))));
    let unmeasured = plan("[legs.lan0]");
    assert!(unmeasured.legs.iter().all(|leg| leg.window.is_none()));
}

#[test]
fn a_known_leg_is_shared_and_hybla_starts_at_its_share_unless_configured() {
    let of = |text: &str| {
        let plan = plan(&format!("[legs.s]\nrate = \"20 Mbit/s\"\n{text}"));
        (plan.legs[0].share, plan.legs[0].start)
    };
    assert_eq!(of("rtt = \"600 ms\"\ncongestion = \"hybla-plus\""), (true, Start::Rate));
    assert_eq!(of("rtt = \"600 ms\"\ncongestion = \"bbr\""), (true, Start::Slow));
    assert_eq!(of("congestion = \"hybla-plus\""), (true, Start::Slow), "no round trip is known");
    let leg = "rtt = \"600 ms\"\ncongestion = \"hybla-plus\"\n";
    assert_eq!(of(&format!("{leg}start = \"slow\"")), (true, Start::Slow));
    assert_eq!(of(&format!("{leg}share = false")), (false, Start::Slow));
    assert_eq!(plan("[legs.s]\nrtt = \"600 ms\"").legs[0].start, Start::Slow);
    let plan = plan(
        "[legs.s]\nrate = \"20 Mbit/s\"\nrtt = \"600 ms\"\ncongestion = \"hybla-plus\"\n\
         [[rules]]\nmatch = { destination_port = 80 }\naction = \"split\"\nlegs.s = { congestion = \"bbr\" }",
    );
    let flow = FlowKey {
        source: ([10, 0, 0, 1], 1).into(),
        destination: ([10, 0, 0, 2], 80).into(),
        interface: None,
        peer: None,
        dscp: 0,
    };
    let decision = plan.policy.decide(&flow);
    let leg = plan.leg(&decision, flow.destination.ip(), Some("s"));
    assert_eq!((leg.congestion.as_deref(), leg.start), (Some("bbr"), Start::Slow));
}

#[test]
fn a_small_product_of_rate_and_rtt_still_gives_the_least_buffer() {
    let plan = plan("[legs.lan0]\nrate = \"1 Mbit/s\"\nrtt = \"1 ms\"");
    assert_eq!(plan.legs[0].buffer, Some(plan.limits.flow_buffer));
}

#[test]
fn impossible_values_are_refused_by_key() {
    for (text, key, part) in [
        ("[legs.s]\nrate = \"0 bit/s\"", "legs.s.rate", "not above zero"),
        ("[legs.s]\npacing = \"0 bit/s\"", "legs.s.pacing", "not above zero"),
        ("[legs.s]\nrate_in = \"0 bit/s\"", "legs.s.rate_in", "not above zero"),
        ("[legs.s]\nshare = true", "legs.s.share", "no rate to divide"),
        ("[legs.s]\nrate = \"1 Mbit/s\"\nstart = \"rate\"", "legs.s.start", "unknown share"),
        (
            "[legs.s]\nrate = \"1 Mbit/s\"\nrtt = \"1 s\"\nstart = \"rate\"",
            "legs.s.start",
            "only hybla-plus",
        ),
        ("[legs.s]\nrtt = \"0 s\"", "legs.s.rtt", "not above zero"),
        ("[legs.s]\nrtt = \"600 s\"", "legs.s.rtt", "longer than a minute"),
        ("[legs.s]\nbuffer = \"4095 B\"", "legs.s.buffer", "less than 4096"),
        ("[legs.s]\nfallback = \"cubic\"", "legs.s.fallback", "nothing"),
        ("[legs.s]\ncongestion = \"a b\"", "legs.s.congestion", "cannot be"),
        ("[legs.s]\nkeepalive = { idle = \"10 ms\" }", "legs.s.keepalive.idle", "between"),
        ("[legs.s]\nuser_timeout = \"900 ms\"", "legs.s.user_timeout", "between"),
        ("[legs.s]\nkeepalive = { count = 128 }", "legs.s.keepalive.count", "127"),
        ("[legs.a-name-too-long-for-it]", "legs.a-name-too-long-for-it", "interface"),
        ("[legs.s]\ninterface = \"x\\\"y\"", "legs.s.interface", "cannot be"),
        ("[legs.other]", "legs.other", "no leg takes"),
        ("[legs.a]\n[legs.b]\ninterface = \"a\"", "legs.b.interface", "\"a\" already"),
        (
            "[legs.a]\nprefixes=\"10.0.0.0/8\"\n[legs.b]\nprefixes=\"10.0.0.0/8\"",
            "legs.b.prefixes",
            "\"a\" already",
        ),
        ("[limits]\nflows = 0", "limits.flows", "not above zero"),
        ("[limits]\npending = 0", "limits.pending", "not above zero"),
        ("[limits]\nlinger = \"2 h\"", "limits.linger", "more than"),
        ("[limits]\nflow_buffer = \"1 kB\"", "limits.flow_buffer", "less than"),
        ("[limits]\nmemory = \"500 kB\"", "limits.memory", "two directions"),
        ("[daemon]\nworkers = 5000", "daemon.workers", "more than"),
        ("[intercept]\ninterfaces = [\"\"]", "intercept.interfaces", "cannot be"),
        ("[intercept]\ninstance = \"A b\"", "intercept.instance", "table"),
        ("[intercept]\nmark = 0x0f", "intercept.mark", "fewer than 5 bits"),
        ("[intercept]\nzone = 65535", "intercept.zone", "zones of our own"),
        ("[intercept]\npreference = 32763", "intercept.preference", "before the main table"),
        ("[intercept.hooks]\nhold = 100", "intercept.hooks.hold", "after NAT of the source"),
        ("[intercept]\ntable = 254", "intercept.table", "of our own"),
        ("[intercept]\nport = 0", "intercept.port", "port 0"),
        ("[intercept]\nport = 65535\n[legs.s]", "intercept.port", "one port per leg"),
        ("[explicit]\nsocks5 = \"[::]:1080\"\nclients = []", "explicit.clients", "no client"),
        ("[explicit]\nsocks5 = \"127.0.0.1:9310\"", "admin.listen", "twice"),
        ("[explicit]\nrequest_timeout = \"0 s\"", "explicit.request_timeout", "zero"),
        ("[[rules]]\ntunnel = \"hub\"", "rules.0.tunnel", "there is no peer"),
        ("[[rules]]\nmatch = {}", "rules.0", "no action"),
        ("[[rules]]\naction = \"assist\"", "rules.0.action", "no interface is set"),
        ("[assist]\ninterfaces = \"s\"\ncache = \"0 B\"", "assist.cache", "nothing"),
        ("[assist]\nthreshold = 0", "assist.threshold", "nothing"),
        ("[assist]\nrepair = \"none\"", "assist.repair", "no agent"),
        ("[assist]\nrepair = \"d-proxy\"", "assist.repair", "with another"),
        (
            "[assist.peer]\nlisten = \"10.0.0.1:7\"\naddress = \"10.0.0.2:7\"\nkey = \"k\"",
            "assist.peer",
            "nothing is repaired with a peer",
        ),
        (
            "[assist]\nrepair = \"d-proxy\"\n[assist.peer]\nlisten = \"0.0.0.0:7\"\n\
             address = \"10.0.0.2:7\"\nkey = \"k\"",
            "assist.peer.listen",
            "no host's",
        ),
        (
            "[assist]\nrepair = \"d-proxy\"\n[assist.peer]\nlisten = \"10.0.0.1:7\"\n\
             address = \"[fd00::2]:7\"\nkey = \"k\"",
            "assist.peer.address",
            "cannot be the far end",
        ),
        (
            "[assist]\nrepair = \"d-proxy\"\n[assist.peer]\nlisten = \"10.0.0.1:7\"\n\
             address = \"10.0.0.2:7\"\nkey = \"k\"\nhold = \"0 s\"",
            "assist.peer.hold",
            "nothing",
        ),
        (
            "[assist.ack_decimation]\nkeep_one_in = 1",
            "assist.ack_decimation.keep_one_in",
            "out of range",
        ),
        ("[assist.ack_spacing]", "assist.ack_spacing.rate", "do nothing"),
        ("[assist.ack_spacing]\nrebuild = \"1 B\"", "assist.ack_spacing.rebuild", "impossible"),
        ("[assist]\ninterfaces = \"a b/c\"", "assist.interfaces", "cannot be"),
        (
            "[assist]\ninterfaces = \"s\"\n[[rules]]\naction = \"assist\"\naccept = \"early\"",
            "rules.0.accept",
            "split",
        ),
        ("[[rules]]\naction = \"bypass\"\naccept = \"early\"", "rules.0.accept", "split"),
        (
            "[legs.s]\n[[rules]]\naction = \"split\"\nlegs.t.congestion = \"bbr\"",
            "rules.0.legs.t",
            "no leg \"t\"",
        ),
    ] {
        let (found, message) = refusal(text);
        assert_eq!(found, key, "{message}");
        assert!(message.contains(part), "\"{part}\" is not in \"{message}\"");
    }
}

#[test]
fn values_of_the_wrong_kind_are_refused() {
    for text in [
        "[legs.s]\nprefixes = \"10.0.0.0/33\"",
        "[legs.s]\nprefixes = \"example.org\"",
        "[legs.s]\nrate = 20",
        "[[rules]]\nmatch = { destination_port = 0 }\naction = \"bypass\"",
        "[[rules]]\nmatch = { destination_port = \"20-10\" }\naction = \"bypass\"",
        "[[rules]]\nmatch = { dscp = 64 }\naction = \"bypass\"",
        "[[rules]]\naction = \"drop\"",
        "[intercept]\naccept = \"late\"",
        "[limits]\nflows = -1",
        "[admin]\nlisten = \"9310\"",
        "legs = 3",
    ] {
        assert!(Plan::read("midhopd.toml", text).is_err(), "accepted:\n{text}");
    }
}

#[test]
fn an_unknown_key_is_refused_with_its_place_and_the_nearest_known_one() {
    let error = Plan::read("midhopd.toml", "[limits]\n\nflosw = 3\n").expect_err("unknown key");
    assert_eq!((error.line, error.key.as_deref()), (3, Some("limits.flosw")));
    assert!(error.hint.as_deref().is_some_and(|hint| hint.contains("`flows`")), "{error:?}");
}

#[test]
fn a_reload_takes_what_it_can_and_names_the_rest() {
    let old = plan("[legs.sat0]");
    let asked = plan(
        "[intercept]\nqueue = 9\naccept = \"early\"\ninterfaces = \"lan0\"\n[limits]\nflows = 7\n\
         [admin]\nlisten = []\n[legs.sat1]\n[[rules]]\naction = \"reject\"",
    );
    let (new, kept) = old.reloaded(asked.clone());
    assert_eq!(kept, ["intercept.queue", "admin.listen", "intercept.interfaces"]);
    assert_eq!((new.intercept.queue, new.limits.flows), (old.intercept.queue, 7));
    assert!(new.intercept.interfaces.is_empty());
    assert_eq!((&new.legs, &new.policy), (&asked.legs, &asked.policy));
    assert_eq!(old.reloaded(old.clone()), (old.clone(), Vec::new()));
    let other = plan("[intercept]\ninterfaces = [\"lan0\", \"lan1\"]");
    let (new, kept) = plan("[intercept]\ninterfaces = \"lan0\"").reloaded(other.clone());
    assert_eq!((new, kept), (other, Vec::new()));
}

#[test]
fn congestion_controls_are_replaced_in_legs_and_rules() {
    let mut plan = plan(
        r#"
        [legs.sat0]
        congestion = "hybla-plus"
        fallback = "cubic"
        [legs.eth0]
        [[rules]]
        match.destination_port = 5001
        action = "split"
        legs.eth0.congestion = "vegas"
        legs.sat0.pacing = "2 Mbit/s"
    "#,
    );
    let mut asked = Vec::new();
    let replaced: Result<(), String> = plan.replace_congestion(|leg| {
        asked.push((leg.name.clone(), leg.congestion.clone().unwrap_or_default()));
        Ok(Some("cubic".to_owned()))
    });
    assert_eq!(replaced, Ok(()));
    let asked: Vec<_> = asked.iter().map(|(leg, name)| (leg.as_str(), name.as_str())).collect();
    assert_eq!(asked, [("sat0", "hybla-plus"), ("eth0", "vegas"), ("sat0", "hybla-plus")]);
    let named: Vec<_> = plan.legs.iter().map(|leg| leg.congestion.as_deref()).collect();
    assert_eq!(named, [None, Some("cubic"), None]);
}

proptest! {
    #[test]
    fn no_text_panics(text: String) {
        let _ = Plan::read("midhopd.toml", &text);
    }

    #[test]
    fn every_address_has_a_leg(
        address: [u8; 16], v4: [u8; 4], lens in proptest::collection::vec((any::<[u8; 4]>(), 0u8..=32), 0..6)
    ) {
        let mut text = String::new();
        for (number, (net, len)) in lens.iter().enumerate() {
            let net = IpNet::new(IpAddr::from(*net), *len).expect("fits").trunc();
            text.push_str(&format!("[legs.l{number}]\nprefixes = \"{net}\"\n"));
        }
        if let Ok(plan) = Plan::read("midhopd.toml", &text) {
            let address_v4 = IpAddr::from(v4);
            let chosen = plan.leg_of(address_v4, Some("any"));
            let longest = plan.legs.iter().flat_map(|leg| &leg.prefixes)
                .filter(|prefix| prefix.contains(&address_v4)).map(|prefix| prefix.prefix_len()).max();
            prop_assert_eq!(chosen.prefixes.first().map(|prefix| prefix.prefix_len()), longest);
            let _ = plan.leg_of(IpAddr::from(address), None);
        }
    }
}

#[test]
fn what_only_a_simulation_can_do_is_refused() {
    for text in [
        "[legs.s]\ncongestion = { algorithm = \"cubic\", slow_start = \"search\" }",
        "[legs.s]\n[[rules]]\naction = \"split\"\nlegs.s.congestion = { algorithm = \"bbr\" }",
    ] {
        let error = Plan::read("midhopd.toml", text).expect_err(text).to_string();
        assert!(error.contains("tables are for `midhop sim`"), "{error}");
    }
}
