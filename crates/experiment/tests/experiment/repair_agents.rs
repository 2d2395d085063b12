//! Snoop and D-Proxy as written, and which of them are refused.

use midhop_experiment::agents::{DProxy, Role, Snoop};
use midhop_experiment::{Plan, Scenario};
use midhop_units::{Bytes, Duration};

fn plan(nodes: &str, agents: &str) -> Result<Plan, String> {
    let text = format!(
        "title = \"t\"\nduration = \"30 s\"\n[nodes]\n{nodes}\n\
         [links.l]\nbetween = [\"a\", \"b\"]\n[links.m]\nbetween = [\"b\", \"c\"]\n{agents}"
    );
    let plans = Scenario::parse("t.toml", &text).and_then(|scenario| scenario.plans());
    let with_hint = |error: midhop_config::ConfigError| {
        format!("{error}\n{}", error.hint.clone().unwrap_or_default())
    };
    plans.map(|mut plans| plans.swap_remove(0)).map_err(with_hint)
}

fn role(plan: &Plan, node: &str) -> Role {
    plan.node(node).expect("there").agents[0].role.clone()
}

#[test]
fn what_snoop_caches_is_resolved() {
    let nodes = "a = {}\nb = { agents = [\"s\"] }\nc = {}";
    let plan = plan(
        nodes,
        "[agents.s]\nkind = \"snoop\"\nlinks = [\"l\"]\ncache = \"1 MB\"\nthreshold = 1\n\
         timer_min = \"20 ms\"\n",
    );
    let plan = plan.unwrap_or_else(|error| panic!("{error}"));
    let expected = Snoop {
        links: vec!["l".to_owned()],
        cache: Bytes::new(1_000_000),
        threshold: 1,
        timer_min: Duration::from_ms(20),
        ..Snoop::default()
    };
    assert_eq!(role(&plan, "b"), Role::Snoop(expected));
    assert_eq!(Plan::from_json(&plan.to_json().expect("JSON")).expect("a plan"), plan);
}

#[test]
fn the_halves_of_a_d_proxy_know_each_other() {
    let nodes = "a = { agents = [\"d\"] }\nb = {}\nc = { agents = [\"d\"] }";
    let plan =
        plan(nodes, "[agents.d]\nkind = \"d-proxy\"\npeers = [\"a\", \"c\"]\nhold = \"2 s\"\n");
    let plan = plan.unwrap_or_else(|error| panic!("{error}"));
    for (node, peer) in [("a", "c"), ("c", "a")] {
        let hold = Duration::from_s(2);
        let expected = DProxy { peer: peer.to_owned(), hold, ..DProxy::default() };
        assert_eq!(role(&plan, node), Role::DProxy(expected));
    }
}

#[test]
fn what_cannot_be_is_refused_with_a_hint() {
    let at_b = "a = {}\nb = { agents = [\"x\"] }\nc = {}";
    let pair = "[agents.x]\nkind = \"d-proxy\"\npeers = [\"a\", \"b\"]\n";
    let snoop = "[agents.x]\nkind = \"snoop\"\n";
    let with_proxy = "a = {}\nb = { agents = [\"x\"], pep = \"p\" }\nc = {}";
    for (nodes, agents, key, expected) in [
        (at_b, format!("{snoop}threshold = 0\n"), "agents.x.threshold", "from 1 to 1000"),
        (at_b, format!("{snoop}cache = \"100 B\"\n"), "agents.x.cache", "at least 1500 B"),
        (at_b, format!("{snoop}idle = \"0 s\"\n"), "agents.x.idle", "from 1 ms to 1 h"),
        (at_b, format!("{snoop}hold = \"1 s\"\n"), "agents.x.hold", "links, cache, threshold"),
        (with_proxy, format!("{snoop}[peps.p]\n"), "nodes.b.agents.0", "beside the proxy's"),
        (with_proxy, format!("{snoop}[peps.p]\n"), "`x` cannot", "node of the proxy `p`"),
        (with_proxy, format!("{pair}[peps.p]\n"), "`x` cannot", "node of the proxy `p`"),
        (at_b, "[agents.x]\nkind = \"d-proxy\"\n".to_owned(), "agents.x", "peers = [\"gateway\""),
        (at_b, pair.replace("[\"a\", \"b\"]", "[\"b\"]"), "agents.x.peers", "between two nodes"),
        (at_b, pair.replace("\"b\"", "\"c\""), "nodes.b.agents.0", "a and c"),
        (at_b, pair.replace("\"a\"", "\"z\""), "nodes.b.agents.0", "no node"),
        (at_b, pair.to_owned(), "nodes.b.agents.0", "write `a = { agents = [\"x\"] }` as well"),
    ] {
        let error = plan(nodes, &agents).expect_err(&agents);
        assert!(error.contains(key) && error.contains(expected), "{agents}: {error}");
    }
}
