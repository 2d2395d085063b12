//! Agents as written, and which of them are refused.

use midhop_experiment::agents::{AckFilter, PlannedAgent, Role, SackRule};
use midhop_experiment::{Plan, Scenario};

/// Three nodes in a line; `b` has the agents `at_b`.
fn plans(at_b: &str, agents: &str) -> Result<Vec<Plan>, String> {
    let text = format!(
        "title = \"t\"\nduration = \"30 s\"\n[nodes]\na = {{}}\nb = {{ agents = [{at_b}] }}\nc = {{}}\n\
         [links.l]\nbetween = [\"a\", \"b\"]\nrate = \"10 Mbit/s\"\n\
         [links.m]\nbetween = [\"b\", \"c\"]\n{agents}"
    );
    let plans = Scenario::parse("t.toml", &text).and_then(|scenario| scenario.plans());
    plans.map_err(|error| format!("{error}\n{}", error.hint.clone().unwrap_or_default()))
}

fn at_b(names: &str, agents: &str) -> Vec<PlannedAgent> {
    let plans = plans(names, agents).unwrap_or_else(|error| panic!("{error}"));
    let again = Plan::from_json(&plans[0].to_json().expect("JSON")).expect("a plan");
    assert_eq!(again, plans[0]);
    plans[0].node("b").expect("it is there").agents.clone()
}

#[test]
fn defaults_are_filled_in_for_each_node() {
    let agents = at_b("\"thin\"", "[agents.thin]\nkind = \"ack-filter\"\n");
    let links = vec!["l".to_owned(), "m".to_owned()];
    let role = Role::AckFilter(AckFilter { links, sack: SackRule::Covered });
    assert_eq!(agents, [PlannedAgent { name: "thin".to_owned(), role }]);
    let agents = at_b(
        "\"thin\"",
        "[agents.thin]\nkind = \"ack-filter\"\nlinks = [\"m\"]\nsack = \"keep\"\n",
    );
    let role = Role::AckFilter(AckFilter { links: vec!["m".to_owned()], sack: SackRule::Keep });
    assert_eq!(agents[0].role, role);
}

#[test]
fn which_agents_stand_where_can_be_varied() {
    let more =
        "[agents.thin]\nkind = \"ack-filter\"\n[vary]\n\"nodes.b.agents\" = [[], [\"thin\"]]\n";
    let plans = plans("", more).expect("can be run");
    let counts: Vec<usize> =
        plans.iter().map(|plan| plan.node("b").expect("there").agents.len()).collect();
    assert_eq!(counts, [0, 1]);
}

#[test]
fn what_cannot_be_is_refused_where_it_stands() {
    let thin = "[agents.thin]\nkind = \"ack-filter\"\n";
    let mut wrong = Vec::new();
    for (names, agents, line, expected) in [
        ("\"thinn\"", thin, "t.toml:5:17: nodes.b.agents.0", "did you mean `thin`?"),
        ("\"x\"", "", "t.toml:5:17: nodes.b.agents.0", "write a table [agents.x]"),
        ("\"thin\", \"thin\"", thin, "t.toml:5:25: nodes.b.agents.1", "there twice"),
        ("", "[agents.x]\nkind = \"ack-filtr\"\n", "t.toml:13:8: agents.x.kind", "ack-filtr"),
        ("", "[agents.x]\n", "t.toml:12:9: agents.x", "key `kind` is missing"),
        (
            "",
            "[agents.x]\nkind = \"snoop\"\nlinks = []\n",
            "t.toml:14:9: agents.x.links: without links it would do nothing",
            "leave `links` out for all of its node's",
        ),
        (
            "",
            "[agents.x]\nkind = \"ack-filter\"\nsak = 1\n",
            "t.toml:14:1: agents.x.sak",
            "did you mean `sack`?",
        ),
        (
            "",
            "[agents.\"a.b\"]\nkind = \"ack-filter\"\n",
            "t.toml:12:9: agents.",
            "no name for an agent",
        ),
        (
            "\"thin\"",
            "[agents.thin]\nkind = \"ack-filter\"\nlinks = [\"l\", \"n\"]\n",
            "t.toml:14:15: agents.thin.links.1",
            "no link of `b` is called `n`",
        ),
        (
            "",
            "[agents.x]\nkind = \"ack-filter\"\nhold = \"1 ms\"\n",
            "t.toml:14:8: agents.x.hold",
            "it takes links, sack",
        ),
        (
            "",
            "[agents.x]\nkind = \"ack-decimation\"\nkeep_one_in = 1\n",
            "t.toml:14:15: agents.x.keep_one_in",
            "2 to 64",
        ),
        (
            "",
            "[agents.x]\nkind = \"ack-decimation\"\nhold = \"2 s\"\n",
            "t.toml:14:8: agents.x.hold",
            "too long",
        ),
        ("", "[agents.x]\nkind = \"ack-spacing\"\n", "t.toml:12:9: agents.x", "do nothing"),
        (
            "",
            "[agents.x]\nkind = \"ack-spacing\"\nrebuild = \"100 B\"\n",
            "t.toml:14:11: agents.x.rebuild",
            "536 B",
        ),
        (
            "\"thin\", \"also\"",
            "[agents.thin]\nkind = \"ack-filter\"\n[agents.also]\nkind = \"ack-filter\"\n",
            "t.toml:5:25: nodes.b.agents.1",
            "a second ack-filter",
        ),
    ] {
        let error = plans(names, agents).expect_err(agents);
        wrong.extend((!error.starts_with(line) || !error.contains(expected)).then_some(error));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
