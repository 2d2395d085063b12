//! The tunnels in a scenario's tables, and what is filled in.

use crate::pep::LegCongestion;
use crate::{Plan, Scenario};
use midhop_config::ConfigError;
use midhop_pep::config::{Config, Fallback, Moves};
use midhop_units::Duration;
use std::net::IpAddr;
use std::path::PathBuf;

const PAIR: &str = r#"
title = "a pair"
duration = "30 s"
[nodes]
client = {}
terminal = { pep = "term" }
gateway = { pep = "gw" }
server = {}
[links.lan]
between = ["client", "terminal"]
[links.satellite]
between = ["terminal", "gateway"]
delay = "300 ms"
down = { rate = "20 Mbit/s", loss = 0.01 }
up = { rate = "5 Mbit/s" }
[links.internet]
between = ["gateway", "server"]
rate = "1 Gbit/s"
[peps.term]
peers.gw = { node = "gateway" }
rules = [{ tunnel = "gw" }]
[peps.gw]
[transfers.file]
from = "server"
to = "client"
bytes = "1 MB"
"#;

fn plan(text: &str) -> Plan {
    plans(text).unwrap_or_else(|error| panic!("{error}")).swap_remove(0)
}

fn plans(text: &str) -> Result<Vec<Plan>, ConfigError> {
    Scenario::parse("pair.toml", text)?.plans()
}

/// The configuration of the proxy on `node`.
fn configuration(plan: &Plan, node: &str) -> Config {
    let node = plan.node(node).expect("a node");
    let pep = &plan.peps[node.pep.as_ref().expect("a proxy")];
    let mut config = pep.configuration([]);
    node.tunnels.as_ref().expect("a tunnel").complete(&mut config, pep, "/run/pki");
    config
}

#[test]
fn three_lines_make_a_pair() {
    let plan = plan(PAIR);
    let near: Config = toml::from_str(
        r#"
        rules = [{ tunnel = "gw" }]
        [tunnel]
        certificate = "/run/pki/terminal.midhop.pem"
        key = "/run/pki/terminal.midhop.key"
        authority = "/run/pki/ca.pem"
        [peers.gw]
        name = "gateway.midhop"
        address = "10.0.2.2:4433"
        rate = "5 Mbit/s"
        rate_in = "20 Mbit/s"
        rtt = "600 ms"
        "#,
    )
    .expect("TOML");
    let far: Config = toml::from_str(
        r#"
        [tunnel]
        certificate = "/run/pki/gateway.midhop.pem"
        key = "/run/pki/gateway.midhop.key"
        authority = "/run/pki/ca.pem"
        listen = ["10.0.2.2:4433"]
        targets = ["10.0.0.0/8", "fd00::/8"]
        [peers.terminal]
        name = "terminal.midhop"
        rate = "20 Mbit/s"
        rate_in = "5 Mbit/s"
        rtt = "600 ms"
        "#,
    )
    .expect("TOML");
    assert_eq!(configuration(&plan, "terminal"), near);
    assert_eq!(configuration(&plan, "gateway"), far);
    assert!(plan.node("client").expect("a client").tunnels.is_none());
    let again = Plan::from_json(&plan.to_json().expect("JSON")).expect("a plan");
    assert_eq!(again, plan);
    // A limit does not depend on the transport of the bytes.
    let without = self::plan(
        &PAIR
            .replace("peers.gw = { node = \"gateway\" }\n", "")
            .replace("rules = [{ tunnel = \"gw\" }]\n", ""),
    );
    assert_eq!(plan.transfers[0].limit, without.transfers[0].limit);
    assert!(without.nodes.iter().all(|node| node.tunnels.is_none()));
}

#[test]
fn what_a_table_sets_itself_stays() {
    let text = PAIR
        .replace(
            "{ node = \"gateway\" }",
            "{ node = \"gateway\", rate = \"4 Mbit/s\", congestion = \"hybla-plus\" }",
        )
        .replace(
            "[peps.gw]\n",
            "[peps.gw]\ntunnel = { listen = \"0.0.0.0:443\", key = \"mine\" }\n\
             peers.user = { node = \"terminal\", rtt = \"610 ms\" }\n",
        );
    let plan = plan(&text);
    let near = configuration(&plan, "terminal");
    let far = configuration(&plan, "gateway");
    let peer = &near.peers["gw"];
    assert_eq!(peer.rate.map(|rate| rate.to_string()).as_deref(), Some("4 Mbit/s"));
    assert_eq!(peer.rate_in.map(|rate| rate.to_string()).as_deref(), Some("20 Mbit/s"));
    assert_eq!(peer.congestion.as_deref(), Some("hybla-plus"));
    assert_eq!(peer.address, "10.0.2.2:443".parse().ok());
    let peer = &far.peers["user"];
    assert_eq!(peer.rtt, Some(Duration::from_ms(610)));
    assert_eq!(peer.name.as_deref(), Some("terminal.midhop"));
    assert_eq!(*far.tunnel.listen, ["0.0.0.0:443".parse().expect("an address")]);
    assert_eq!(far.tunnel.key, Some(PathBuf::from("mine")));
    assert_eq!(far.peers.len(), 1);
    assert_eq!(far.tunnel.targets.len(), 2);
    // An empty list is not the same as a missing one.
    let text = text.replace("tunnel = {", "tunnel = { targets = [],");
    assert!(configuration(&self::plan(&text), "gateway").tunnel.targets.is_empty());
}

#[test]
fn both_ends_may_go_to_the_other() {
    let text = PAIR.replace(
        "[peps.gw]\n",
        "[peps.gw]\npeers.user = { node = \"terminal\" }\nrules = [{ tunnel = \"user\" }]\n",
    );
    let plan = plan(&text);
    let address = |node: &str, peer: &str| {
        configuration(&plan, node).peers[peer].address.map(|address| address.to_string())
    };
    assert_eq!(address("terminal", "gw").as_deref(), Some("10.0.2.2:4433"));
    assert_eq!(address("gateway", "user").as_deref(), Some("10.0.2.1:4433"));
    assert_eq!(
        plan.node("terminal").and_then(|it| it.tunnels.as_ref()).expect("one").listen.len(),
        1
    );
}

/// The scenario of a chain that comes with the program: terminal, gateway, exchange.
const CHAIN: &str = include_str!("../../../../scenarios/chain.toml");

#[test]
fn the_middle_of_a_chain_has_two_tunnels() {
    let mut scenario = Scenario::parse("chain.toml", CHAIN).expect("a scenario");
    scenario.set("setup=chain").expect("a case");
    let plan = scenario.plans().expect("plans").swap_remove(0);
    let mid: Config = toml::from_str(
        r#"
        rules = [{ tunnel = "next" }]
        [intercept]
        interfaces = []
        [tunnel]
        certificate = "/run/pki/gateway.midhop.pem"
        key = "/run/pki/gateway.midhop.key"
        authority = "/run/pki/ca.pem"
        listen = ["10.0.3.2:4433"]
        targets = ["10.0.0.0/8", "fd00::/8"]
        [peers.next]
        name = "exchange.midhop"
        address = "10.0.1.2:4433"
        congestion = "bbr3"
        rate = "100 Mbit/s"
        rate_in = "100 Mbit/s"
        rtt = "200 ms"
        [peers.terminal]
        name = "terminal.midhop"
        rate = "10 Mbit/s"
        rate_in = "10 Mbit/s"
        rtt = "540 ms"
        "#,
    )
    .expect("TOML");
    assert_eq!(configuration(&plan, "gateway"), mid);
    let [near, hop] = ["terminal", "exchange"].map(|node| configuration(&plan, node));
    assert_eq!(near.peers["gateway"].address, "10.0.3.2:4433".parse().ok());
    assert_eq!(*hop.tunnel.listen, ["10.0.1.2:4433".parse().expect("an address")]);
    assert_eq!(hop.peers["back"].name.as_deref(), Some("gateway.midhop"));
    assert_eq!(hop.peers["back"].address, None, "it comes to us");
}

#[test]
fn a_peer_that_cannot_be_is_refused_by_its_key() {
    for (from, to, expected) in [
        ("node = \"gateway\"", "node = \"gatewy\"", "did you mean `gateway`?"),
        ("node = \"gateway\"", "node = \"terminal\"", "own node"),
        ("node = \"gateway\"", "node = \"server\"", "no proxy with tunnels runs on `server`"),
        ("gateway = { pep = \"gw\" }", "gateway = { pep = \"none\" }", "no proxy with tunnels"),
        ("rules = [{ tunnel = \"gw\" }]\n", "", "no rule of either end"),
        ("terminal", "te_rm", "`te_rm` cannot be the name in a certificate"),
    ] {
        let error = plans(&PAIR.replace(from, to)).expect_err(to);
        let text = format!("{error} {:?}", error.hint);
        assert_eq!(error.key.as_deref(), Some("peps.term.peers.gw.node"), "{text}");
        assert!(text.contains(expected) && error.line == 20, "{text}");
    }
}

#[test]
fn a_table_is_judged_with_what_will_be_filled_in() {
    let checked = |text: &str| {
        Scenario::parse("pair.toml", text).expect("a scenario").check_peps(LegCongestion::Names)
    };
    assert_eq!(checked(PAIR), Ok(()));
    for (peer, key) in [
        ("node = \"gateway\", window = \"1 B\"", "window"),
        ("node = \"gateway\", windw = \"1 MB\"", "windw"),
        ("node = 7", "node"),
    ] {
        let error = checked(&PAIR.replace("node = \"gateway\"", peer)).expect_err(peer);
        let place = (error.line, error.key.as_deref());
        assert_eq!(place, (20, Some(&*format!("peps.term.peers.gw.{key}"))), "{error}");
    }
}

/// The pair, with `keys` in each end's table of its peer.
fn with_modems(near: &str, far: &str) -> String {
    PAIR.replace("{ node = \"gateway\" }", &format!("{{ node = \"gateway\", {near} }}")).replace(
        "[peps.gw]\n",
        &format!("[peps.gw]\npeers.user = {{ node = \"terminal\", {far} }}\n"),
    )
}

#[test]
fn a_modem_without_an_address_is_the_laboratory_s() {
    let text = with_modems("modem = { least = \"1 Mbit/s\" }", "modem = {}");
    let plan = plan(&text);
    let modem = |node: &str, peer: &str| configuration(&plan, node).peers[peer].modem.clone();
    let near = modem("terminal", "gw").expect("a modem");
    assert_eq!(near.address, "127.0.0.1:854".parse().ok());
    assert_eq!(near.least.map(|rate| rate.to_string()).as_deref(), Some("1 Mbit/s"));
    assert_eq!(modem("gateway", "user").expect("a modem").address, "127.0.0.1:854".parse().ok());
    // In a record it has the form in which it was written, and the same meaning.
    let again = Plan::from_json(&plan.to_json().expect("JSON")).expect("a plan");
    assert_eq!(again, plan);
    let record = plan.to_json().expect("JSON");
    assert_eq!(record.pointer("/peps/gw/peers/user/modem"), Some(&serde_json::json!({})));
    let checked = Scenario::parse("pair.toml", &text).expect("a scenario");
    assert_eq!(checked.check_peps(LegCongestion::Names), Ok(()));
    // A modem with an address, or a file, is not the laboratory's.
    for own in ["address = \"127.0.0.1:9854\"", "file = \"/run/modem\""] {
        let plan = self::plan(&with_modems(&format!("modem = {{ {own} }}"), "modem = {}"));
        let tunnels = plan.node("terminal").and_then(|node| node.tunnels.as_ref());
        assert_eq!(tunnels.expect("a tunnel").peers[0].modem, None, "{own}");
        let kept = configuration(&plan, "terminal").peers["gw"].modem.clone().expect("a modem");
        assert_ne!(kept.address, "127.0.0.1:854".parse().ok(), "{own}");
    }
}

#[test]
fn a_modem_that_can_report_nothing_is_refused_by_its_key() {
    let pair = with_modems("modem = {}", "modem = {}");
    let dama = "up = { rate = \"5 Mbit/s\", dama = {} }";
    for (from, to, expected) in [
        ("up = { rate = \"5 Mbit/s\" }", "up = {}", "`satellite` has no rate"),
        ("up = { rate = \"5 Mbit/s\" }", dama, "granted on demand"),
    ] {
        let error = plans(&pair.replace(from, to)).expect_err(to);
        assert_eq!(error.key.as_deref(), Some("peps.term.peers.gw.modem"), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let cubic = with_modems("modem = {}, congestion = \"cubic\"", "modem = {}");
    let checked = Scenario::parse("pair.toml", &cubic).expect("a scenario");
    let error = checked.check_peps(LegCongestion::Names).expect_err("it goes by no rate");
    assert_eq!(error.key.as_deref(), Some("peps.term.peers.gw.modem"), "{error}");
}

/// Two nodes that take a client from each other; `more` is added to the first handover.
fn handover(more: &str) -> String {
    format!(
        r#"
title = "a handover"
duration = "30 s"
[nodes]
client = {{}}
left = {{ pep = "left" }}
right = {{ pep = "right" }}
server = {{}}
[links.between]
between = ["left", "right"]
rate = "1 Gbit/s"
delay = "2 ms"
[links.feeder-left]
between = ["left", "server"]
[links.feeder-right]
between = ["right", "server"]
[links.user-left]
between = ["client", "left"]
rate = "10 Mbit/s"
[links.user-right]
between = ["client", "right"]
rate = "10 Mbit/s"
[peps.left]
[peps.right]
[transfers.file]
from = "server"
to = "client"
bytes = "1 MB"
[[handovers]]
at = "1 s"
from = "left"
to = "right"
leaves = "user-left"
takes = "user-right"
{more}
"#
    )
}

#[test]
fn two_proxies_of_which_one_takes_flows_over_get_a_tunnel_for_that() {
    let plan = plan(&handover("flows = \"moved\""));
    assert!(plan.nodes.iter().all(|node| node.tunnels.is_none()), "the plan itself stays");
    let with = plan.with_tunnels_for_moves().expect("a tunnel");
    for (node, far, address) in
        [("left", "right", "10.0.0.2:4433"), ("right", "left", "10.0.0.1:4433")]
    {
        let config = configuration(&with, node);
        let peer = &config.peers[far];
        assert_eq!(peer.address, Some(address.parse().expect("an address")));
        assert_eq!((peer.moves, peer.fallback), (Moves::Accept, Fallback::Off));
        assert!(config.rules.is_empty(), "no flow takes it");
    }
    for more in ["flows = \"reset\"", "flows = \"anchored\""] {
        let plan = self::plan(&handover(more));
        assert_eq!(plan.with_tunnels_for_moves().expect("the same"), plan);
    }
}

#[test]
fn routes_lead_over_links_in_use_to_addresses_of_links_that_are_not() {
    let plan = plan(&handover("flows = \"reset\""));
    let client = plan.node("client").expect("a client").clone();
    let right = plan.nodes.iter().position(|node| node.name == "right").expect("a node");
    let left_of_client = client.interfaces.iter().find(|own| own.link == "user-left");
    let home: IpAddr = left_of_client.expect("an end").ipv4.into();
    let link = |state: usize| {
        let of_node = &plan.routes()[state][right];
        of_node.iter().find(|route| route.to == home).map(|route| route.link.clone())
    };
    assert_eq!(link(0).as_deref(), Some("between"));
    assert_eq!(link(1).as_deref(), Some("user-right"));
    let other = client.interfaces.iter().find(|own| own.link == "user-right");
    let other: IpAddr = other.expect("an end").ipv4.into();
    let of_right = |state: usize| plan.routes()[state][right].iter().any(|it| it.to == other);
    assert_eq!(
        (of_right(0), of_right(1)),
        (true, false),
        "an own link needs none while it is used"
    );
}
