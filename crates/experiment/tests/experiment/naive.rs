//! Naive proxies and restarts as written, and which of them are refused.

use midhop_experiment::naive::{Forwards, Holds, NaiveAccept};
use midhop_experiment::plan::RestartPlan;
use midhop_experiment::{Plan, Scenario};
use midhop_units::{Bytes, Duration};

/// Three nodes in a line, `b` with the proxy `box`, and a transfer of `amount`.
fn plans(amount: &str, more: &str) -> Result<Vec<Plan>, String> {
    let text = format!(
        "title = \"t\"\nduration = \"30 s\"\n[nodes]\na = {{}}\nb = {{ pep = \"box\" }}\nc = {{}}\n\
         [links.l]\nbetween = [\"a\", \"b\"]\nrate = \"10 Mbit/s\"\n\
         [links.m]\nbetween = [\"b\", \"c\"]\n\
         [transfers.t]\nfrom = \"a\"\nto = \"c\"\n{amount}\n{more}"
    );
    let plans = Scenario::parse("t.toml", &text).and_then(|scenario| scenario.plans());
    plans.map_err(|error| format!("{error}\n{}", error.hint.clone().unwrap_or_default()))
}

const FILE: &str = "bytes = \"1 MB\"";
const BOX: &str = "[naive.box]\nbuffer = \"1 MB\"\n";

#[test]
fn defaults_are_filled_in_and_a_naive_proxy_splits_the_way() {
    let more = format!("{BOX}legs.m = {{ timer = \"1 s\", congestion = \"cubic\" }}\n");
    let plan = plans(FILE, &more).unwrap_or_else(|error| panic!("{error}")).swap_remove(0);
    assert_eq!(Plan::from_json(&plan.to_json().expect("JSON")).expect("a plan"), plan);
    let naive = &plan.naive["box"];
    assert_eq!(naive.buffer, Bytes::new(1_000_000));
    let (written, other) = (naive.leg(Some("m")), naive.leg(Some("l")));
    let window = Some(Bytes::new(65_535));
    assert_eq!((written.timer, written.window), (Some(Duration::from_s(1)), window));
    assert_eq!((other.timer, other.window), (None, window));
    let names = [written, other].map(|leg| leg.tuning.algorithm.clone());
    assert_eq!(names, ["cubic", "reno"]);
    // The proxy repairs losses behind it: they use no capacity of the narrow link before it.
    let goodput = |change: &str| {
        let plans = plans(FILE, &format!("{BOX}[vary]\n\"links.m.loss\" = [0.2]\n{change}"));
        let plan = plans.unwrap_or_else(|error| panic!("{error}")).swap_remove(0);
        plan.transfers[0].limit.as_ref().expect("a limit").goodput.mbit_per_s()
    };
    let (through, without) = (goodput(""), goodput("\"nodes.b.pep\" = [\"none\"]\n"));
    assert!((without / through - 0.8).abs() < 1e-6, "{without} and {through} Mbit/s");
}

#[test]
fn what_pepsal_does_is_an_option_each() {
    let naive = |more: &str| {
        let box_ = format!("[naive.box]\nbuffer = \"8 KiB\"\n{more}");
        let mut plans = plans(FILE, &box_).unwrap_or_else(|error| panic!("{error}"));
        plans.swap_remove(0).naive.remove("box").expect("it is there")
    };
    let plain = naive("");
    assert_eq!((plain.holds, plain.accept, plain.cork), (Holds::All, NaiveAccept::Early, false));
    assert_eq!(plain.accepted, None);
    let pepsal = naive(
        "holds = \"each\"\naccept = \"after-connect\"\ndialled = true\ncork = true\n\
         legs.m = { congestion = \"hybla-linux\" }\nlegs.l = { window = \"20 kB\" }\n",
    );
    assert_eq!((pepsal.holds, pepsal.accept), (Holds::Each, NaiveAccept::AfterConnect));
    assert!(pepsal.cork);
    assert_eq!(pepsal.accepted.expect("another").algorithm, "cubic");
    assert_eq!(pepsal.legs["m"].tuning.algorithm, "hybla-linux");
    // A proxy with a small store stops reading: its windows are the kernel's.
    assert_eq!(pepsal.legs["m"].window, None);
    assert_eq!(pepsal.legs["l"].window, Some(Bytes::new(20_000)));
}

#[test]
fn a_hop_that_stores_has_a_buffer_for_each_flow() {
    let box_ = |holds: &str| {
        format!("[naive.box]\nbuffer = \"8 MB\"\nforwards = \"bundles\"\nholds = \"{holds}\"\n")
    };
    let mut stored = plans(FILE, &box_("each")).unwrap_or_else(|error| panic!("{error}"));
    let naive = stored.swap_remove(0).naive.remove("box").expect("it is there");
    assert_eq!(naive.forwards, Forwards::Bundles);
    let refused = plans(FILE, &box_("all")).expect_err("a store of all").to_string();
    assert!(
        refused.contains("naive.box.forwards") && refused.contains("holds = \"each\""),
        "{refused}"
    );
}

#[test]
fn what_begins_again_waits_a_second_where_nothing_else_is_configured() {
    let restarts = |keys: &str| {
        let plans = plans(&format!("{FILE}\n{keys}"), BOX);
        plans.unwrap_or_else(|error| panic!("{error}"))[0].transfers[0].restarts
    };
    assert_eq!(restarts(""), None);
    let after = Duration::from_s(1);
    assert_eq!(
        restarts("restarts = 3"),
        Some(RestartPlan { most: 3, after, from: Default::default() })
    );
    let after = Duration::from_ms(50);
    let written = restarts("restarts = 3\nrestart_after = \"50 ms\"");
    assert_eq!(written, Some(RestartPlan { most: 3, after, from: Default::default() }));
}

#[test]
fn what_cannot_be_is_refused_where_it_stands() {
    let mut wrong = Vec::new();
    for (amount, more, line, expected) in [
        (FILE, "", "t.toml:5:13: nodes.b.pep", "no proxy `box` is defined"),
        (
            FILE,
            "[naive.bux]\nbuffer = \"1 MB\"\n",
            "t.toml:5:13: nodes.b.pep",
            "did you mean `bux`?",
        ),
        (FILE, "[naive.box]\n", "t.toml:16:8: naive.box", "key `buffer` is missing"),
        (
            FILE,
            "[naive.box]\nbuffer = \"1 kB\"\n",
            "t.toml:17:10: naive.box.buffer",
            "at least 1500 B",
        ),
        (
            FILE,
            "[naive.box]\nbuffer = \"1 MB\"\nlegs.n.window = \"9 kB\"\n",
            "t.toml:18:6: naive.box.legs.n",
            "no link is called `n`",
        ),
        (
            FILE,
            "[naive.box]\nbuffer = \"1 MB\"\nlegs.m.window = \"9 B\"\n",
            "t.toml:18:17: naive.box.legs.m.window",
            "1500 B to",
        ),
        (
            FILE,
            "[naive.box]\nbuffer = \"1 MB\"\nlegs.m.timer = \"1 ms\"\n",
            "t.toml:18:16: naive.box.legs.m.timer",
            "10 ms to 60 s",
        ),
        (
            FILE,
            "[naive.box]\nbuffer = \"1 MB\"\nlegs.m.congestion = \"cubik\"\n",
            "t.toml:18:21: naive.box.legs.m.congestion",
            "did you mean `cubic`?",
        ),
        (
            FILE,
            "[naive.box]\nbuffer = \"1 MB\"\nwhen_full = \"reset\"\n",
            "t.toml:18:1: naive.box.when_full",
            "unknown key",
        ),
        (
            FILE,
            "[naive.box]\nbuffer = \"1 MB\"\n[peps.box]\n",
            "t.toml:16:8: naive.box",
            "a table of [peps] too",
        ),
        (
            FILE,
            "[naive.box]\nbuffer = \"1 MB\"\n[naive.none]\nbuffer = \"1 MB\"\n",
            "t.toml:18:8: naive.none",
            "stands for no proxy",
        ),
        (
            "seconds = 5\nrestarts = 1",
            BOX,
            "t.toml:16:12: transfers.t.restarts",
            "for a time has nothing to begin again",
        ),
        ("bytes = \"1 MB\"\nrestarts = 0", BOX, "t.toml:16:12: transfers.t.restarts", "1 to 1000"),
        (
            "bytes = \"1 MB\"\nrestart_after = \"1 s\"",
            BOX,
            "t.toml:16:17: transfers.t.restart_after",
            "add `restarts`",
        ),
    ] {
        let error = plans(amount, more).expect_err(more);
        wrong.extend((!error.starts_with(line) || !error.contains(expected)).then_some(error));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
