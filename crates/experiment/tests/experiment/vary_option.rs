//! Axes from the command line.

use midhop_experiment::Scenario;

const TEXT: &str = "title = \"t\"\nduration = \"30 s\"\n[nodes]\na = {}\nb = {}\n\
     [links.l]\nbetween = [\"a\", \"b\"]\nrate = \"10 Mbit/s\"\n\
     [transfers.t]\nfrom = \"a\"\nto = \"b\"\nbytes = \"1 MB\"\n\
     [vary]\n\"links.l.delay\" = [\"1 ms\", \"2 ms\"]\n\
     [vary.size]\nsmall = { transfers.t.bytes = \"1 kB\" }\nlarge = { transfers.t.bytes = \"9 kB\" }\n";

fn labels(vary: &[&str]) -> Result<Vec<String>, String> {
    let plans = Scenario::parse("t.toml", TEXT).and_then(|mut scenario| {
        vary.iter().try_for_each(|assignment| scenario.vary(assignment))?;
        scenario.plans()
    });
    let plans = plans.map_err(|error| error.to_string())?;
    Ok(plans.iter().map(|plan| plan.label()).collect())
}

#[test]
fn an_axis_is_added_replaced_or_narrowed() {
    let added = labels(&["links.l.queue=10 packets,1 BDP", "size=small"]).expect("fits");
    assert_eq!(added[0], "links.l.delay=1 ms size=small links.l.queue=10 packets");
    assert_eq!(added.len(), 4);
    let replaced = labels(&["links.l.delay=5 ms,6 ms,7 ms"]).expect("fits");
    assert_eq!((replaced.len(), replaced[1].as_str()), (6, "size=small links.l.delay=6 ms"));
    let tables = labels(&["links.l.down={ loss = 0.1, delay = \"1, ms\" },{}", "size=large"]);
    assert!(tables.expect_err("no time").contains("--vary"));
    let lists = labels(&["transfers.t.flows=1,2", "links.l.delay=\"1 ms\""]).expect("fits");
    assert_eq!(lists.len(), 4);
}

#[test]
fn what_is_no_axis_is_refused() {
    for (assignment, expected) in [
        ("links.l.delay", "no values"),
        ("links.l.delay=1 ms,", "a value is empty"),
        ("links.l.dely=1 ms", "unknown key"),
        ("links.l.delay=1 ms,1 ms", "there twice"),
        ("size=tiny", "size"),
    ] {
        let error = labels(&[assignment]).expect_err(assignment);
        assert!(error.contains(expected), "{assignment}: {error}");
    }
}
