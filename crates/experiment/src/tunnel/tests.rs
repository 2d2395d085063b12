//! What a scenario's tables say of tunnels, and what is filled in.

use crate::{PepFault, Plan, Scenario};
use midhop_config::ConfigError;
use std::collections::BTreeMap;

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

/// What the proxy of `node` reads.
fn configuration(plan: &Plan, node: &str) -> toml::Table {
    let node = plan.node(node).expect("a node");
    let table = &plan.peps[node.pep.as_ref().expect("a proxy")];
    node.tunnels.as_ref().expect("a tunnel").configuration(table, "/run/pki")
}

#[test]
fn three_lines_make_a_pair() {
    let plan = plan(PAIR);
    let near: toml::Table = toml::from_str(
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
    let far: toml::Table = toml::from_str(
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
    // A limit knows nothing of what carries the bytes.
    let without = self::plan(
        &PAIR
            .replace("peers.gw = { node = \"gateway\" }\n", "")
            .replace("rules = [{ tunnel = \"gw\" }]\n", ""),
    );
    assert_eq!(plan.transfers[0].limit, without.transfers[0].limit);
    assert!(without.nodes.iter().all(|node| node.tunnels.is_none()));
}

#[test]
fn what_a_table_says_itself_stays() {
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
    let text = |table: &toml::Table, path: &[&str]| {
        let (first, rest) = path.split_first().expect("a key");
        let value = rest.iter().try_fold(table.get(*first)?, |value, key| value.get(*key));
        value?.as_str().map(str::to_owned)
    };
    for (table, path, wanted) in [
        (&near, ["peers", "gw", "rate"], "4 Mbit/s"),
        (&near, ["peers", "gw", "rate_in"], "20 Mbit/s"),
        (&near, ["peers", "gw", "congestion"], "hybla-plus"),
        (&near, ["peers", "gw", "address"], "10.0.2.2:443"),
        (&far, ["peers", "user", "rtt"], "610 ms"),
        (&far, ["peers", "user", "name"], "terminal.midhop"),
    ] {
        assert_eq!(text(table, &path).as_deref(), Some(wanted), "{path:?}");
    }
    assert_eq!(text(&far, &["tunnel", "listen"]).as_deref(), Some("0.0.0.0:443"));
    assert_eq!(text(&far, &["tunnel", "key"]).as_deref(), Some("mine"));
    assert_eq!(far["peers"].as_table().expect("peers").len(), 1, "{far}");
}

#[test]
fn both_ends_may_go_to_the_other() {
    let text = PAIR.replace(
        "[peps.gw]\n",
        "[peps.gw]\npeers.user = { node = \"terminal\" }\nrules = [{ tunnel = \"user\" }]\n",
    );
    let plan = plan(&text);
    let address = |node: &str, peer: &str| {
        configuration(&plan, node)["peers"][peer]["address"].as_str().map(str::to_owned)
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
    let mid: toml::Table = toml::from_str(
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
    assert_eq!(near["peers"]["gateway"]["address"].as_str(), Some("10.0.3.2:4433"));
    assert_eq!(hop["tunnel"]["listen"], toml::Value::from(vec!["10.0.1.2:4433"]));
    assert_eq!(hop["peers"]["back"]["name"].as_str(), Some("gateway.midhop"));
    assert!(hop["peers"]["back"].get("address").is_none(), "it comes to us: {hop}");
}

#[test]
fn a_peer_that_cannot_be_is_refused_by_its_key() {
    for (from, to, said) in [
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
        assert!(text.contains(said) && error.line == 20, "{text}");
    }
}

#[test]
fn a_proxy_judges_its_table_with_what_will_be_filled_in() {
    type Peer = BTreeMap<String, String>;
    #[derive(serde::Deserialize)]
    struct Table {
        #[serde(default)]
        tunnel: BTreeMap<String, String>,
        #[serde(default)]
        peers: BTreeMap<String, Peer>,
    }
    let seen = std::cell::RefCell::new(Vec::new());
    let legs = crate::congestion::LegCongestion::Names;
    let text = PAIR.replace("{ node = \"gateway\" }", "{ node = \"gateway\", window = \"1 B\" }");
    let scenario = Scenario::parse("pair.toml", &text).expect("a scenario");
    let error = scenario
        .check_peps(legs, |table: Table| {
            seen.borrow_mut().push((table.tunnel.len(), table.peers.clone()));
            match table.peers.get("gw") {
                None => Ok(()),
                Some(_) => Err(PepFault {
                    key: midhop_config::KeyPath::of(["peers", "gw", "window"]),
                    message: "too small".to_owned(),
                    hint: None,
                }),
            }
        })
        .expect_err("a fault");
    assert_eq!((error.line, error.key.as_deref()), (20, Some("peps.term.peers.gw.window")));
    let seen = seen.into_inner();
    assert_eq!(seen[0], (0, BTreeMap::new()), "the far end says nothing of tunnels");
    assert_eq!(seen[1].0, 3, "certificate, key, authority");
    let keys: Vec<&String> = seen[1].1["gw"].keys().collect();
    assert_eq!(keys, ["address", "window"]);
}
