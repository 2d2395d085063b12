//! What somebody who wrote a scenario wrongly gets to read.

use midhop_config::KeyPath;
use midhop_experiment::congestion::LegCongestion;
use midhop_experiment::{PepFault, Scenario};

/// A scenario without a fault; the tests put one in.
const GOOD: &str = r#"title = "a test"
duration = "30 s"

[nodes]
client = {}
gateway = { pep = "gw" }
server = {}
island = {}

[links.sat]
between = ["client", "gateway"]
down = { rate = "20 Mbit/s", loss = 0.01 }
delay = "300 ms"

[links.net]
between = ["gateway", "server"]
delay = "10 ms"

[peps.gw]
legs.sat = { congestion = "hybla-plus" }

[transfers.page]
from = "server"
to = "client"
objects = ["50 kB", "817 kB"]

[transfers.bulk]
from = "client"
to = "server"
seconds = 10
"#;

/// The error of [`GOOD`] with `old` replaced by `new` and `more` appended: where, which key, what,
/// and the hint.
fn error(old: &str, new: &str, more: &str, set: &[&str]) -> (String, String) {
    assert!(GOOD.contains(old), "{old} is not in the text");
    let text = GOOD.replacen(old, new, 1) + more;
    let plans = Scenario::parse("lab.toml", &text).and_then(|mut scenario| {
        set.iter().try_for_each(|assignment| scenario.set(assignment))?;
        scenario.plans()
    });
    let error = plans.expect_err("it is wrong");
    let first = error.to_string().lines().next().unwrap_or_default().to_owned();
    (first, error.hint.unwrap_or_default())
}

#[track_caller]
fn check(old: &str, new: &str, message: &str, hint: &str) {
    assert_eq!(error(old, new, "", &[]), (message.to_owned(), hint.to_owned()));
}

#[track_caller]
fn check_vary(vary: &str, message: &str, hint: &str) {
    assert_eq!(error("", "", vary, &[]), (message.to_owned(), hint.to_owned()));
}

#[track_caller]
fn check_set(set: &str, message: &str, hint: &str) {
    assert_eq!(error("", "", "", &[set]), (message.to_owned(), hint.to_owned()));
}

#[test]
fn the_text_itself_is_without_fault() {
    let plans = Scenario::parse("lab.toml", GOOD).and_then(|scenario| scenario.plans());
    assert_eq!(plans.map(|plans| plans.len()), Ok(1));
}

#[test]
fn unknown_keys() {
    check(
        "objects =",
        "objekts =",
        "lab.toml:25:1: transfers.page.objekts: unknown key",
        "did you mean `objects`?",
    );
    check(
        "rate = \"20 Mbit/s\"",
        "rat = \"20 Mbit/s\"",
        "lab.toml:12:10: links.sat.down.rat: unknown key",
        "did you mean `rate`?",
    );
    check(
        "pep = \"gw\"",
        "peps = \"gw\"",
        "lab.toml:6:13: nodes.gateway.peps: unknown key",
        "did you mean `pep`? (known keys: `pep`, `agents`, `programs`, `tcp`)",
    );
}

#[test]
fn names_that_do_not_exist() {
    check(
        "\"client\", \"gateway\"",
        "\"client\", \"gatway\"",
        "lab.toml:11:22: links.sat.between.1: no node is called `gatway`",
        "did you mean `gateway`? (nodes: `client`, `gateway`, `island`, `server`)",
    );
    check(
        "from = \"server\"",
        "from = \"servr\"",
        "lab.toml:23:8: transfers.page.from: no node is called `servr`",
        "did you mean `server`? (nodes: `client`, `gateway`, `island`, `server`)",
    );
    check(
        "pep = \"gw\"",
        "pep = \"qw\"",
        "lab.toml:6:19: nodes.gateway.pep: no proxy `qw` is defined",
        "did you mean `gw`?",
    );
    check(
        "duration = \"30 s\"",
        "duration = \"30 s\"\nrun = [\"page\", \"bulc\"]",
        "lab.toml:3:16: run.1: no transfer is called `bulc`",
        "did you mean `bulk`? (transfers: `bulk`, `page`)",
    );
    check(
        "delay = \"300 ms\"",
        "delay = \"300 ms\"\npreset = \"gio\"",
        "lab.toml:14:10: links.sat.preset: no preset is called `gio`",
        "did you mean `geo`? (presets: `geo`, `starlink`, `leo-bent-pipe`, `ntn-phone`)",
    );
}

#[test]
fn interfaces_of_a_proxy() {
    check(
        "legs.sat =",
        "legs.satt =",
        "lab.toml:20:6: peps.gw.legs.satt: no link of `gateway` is called `satt`",
        "did you mean `sat`? (its links: `net`, `sat`)",
    );
    check(
        "{ congestion = \"hybla-plus\" }",
        "{ interface = \"nett\" }",
        "lab.toml:20:26: peps.gw.legs.sat.interface: no link of `gateway` is called `nett`",
        "did you mean `net`? (its links: `net`, `sat`)",
    );
    check(
        "[peps.gw]",
        "[peps.gw]\nintercept.interfaces = [\"net\", \"lan\"]",
        "lab.toml:20:32: peps.gw.intercept.interfaces.1: no link of `gateway` is called `lan`",
        "its links: `net`, `sat`",
    );
    let with_prefix = GOOD.replacen("legs.sat = {", "legs.far = { prefixes = \"10.0.0.0/8\",", 1);
    let plans = Scenario::parse("lab.toml", &with_prefix).and_then(|scenario| scenario.plans());
    assert_eq!(plans.map(|plans| plans.len()), Ok(1));
}

#[test]
fn keys_that_the_proxy_would_refuse() {
    /// A proxy's configuration, as far as this test needs one.
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Proxy {
        legs: std::collections::BTreeMap<String, Leg>,
    }
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Leg {
        congestion: String,
    }
    let sound = |_: Proxy| Ok(());
    let scenario = |text: &str| Scenario::parse("lab.toml", text).expect("it is TOML");
    assert_eq!(scenario(GOOD).check_peps(LegCongestion::Names, sound), Ok(()));
    let wrong = GOOD.replacen("{ congestion =", "{ conjestion =", 1);
    let error = scenario(&wrong).check_peps(LegCongestion::Names, sound).expect_err("no such key");
    assert_eq!((error.line, error.key.as_deref()), (20, Some("peps.gw.legs.sat.conjestion")));
    assert_eq!(error.hint.as_deref(), Some("did you mean `congestion`?"));
    // Where it does not run, nobody minds.
    let unused = wrong.replacen("pep = \"gw\"", "pep = \"none\"", 1);
    assert_eq!(scenario(&unused).check_peps(LegCongestion::Names, sound), Ok(()));
    // A case of an axis may be wrong where the file is not.
    let varied = GOOD.to_owned() + "[vary]\n\"peps.gw.legs.sat.congestion\" = [\"bbr\", 7]";
    let error =
        scenario(&varied).check_peps(LegCongestion::Names, sound).expect_err("a number is no name");
    assert_eq!(error.line, 32);
    // What reads well may still make no sense to the proxy, which knows only its own keys.
    let refuse = |proxy: Proxy| match proxy.legs["sat"].congestion.as_str() {
        "bbr" => Err(PepFault {
            key: KeyPath::of(["legs", "sat", "congestion"]),
            message: "not today".to_owned(),
            hint: None,
        }),
        _ => Ok(()),
    };
    assert_eq!(scenario(GOOD).check_peps(LegCongestion::Names, refuse), Ok(()));
    let varied = GOOD.to_owned() + "[vary]\n\"peps.gw.legs.sat.congestion\" = [\"reno\", \"bbr\"]";
    let error = scenario(&varied)
        .check_peps(LegCongestion::Names, refuse)
        .expect_err("one case is refused");
    assert_eq!((error.line, error.key.as_deref()), (32, Some("peps.gw.legs.sat.congestion")));
}

#[test]
fn tables_of_congestion_control_in_rules() {
    let more = "[[peps.gw.rules]]\naction = \"split\"\n\
        legs.sat.congestion = { algorithm = \"cubic\", initial_window = 50 }\n";
    let (message, hint) = error("", "", more, &[]);
    assert_eq!(
        message,
        "lab.toml:33:10: peps.gw.rules.0.legs.sat.congestion: in a rule a congestion control is a name"
    );
    assert_eq!(hint, "a table stands at the leg: legs.sat.congestion, outside of rules");
}

#[test]
fn names_that_cannot_be() {
    check(
        "[links.sat]",
        "[links.sat-of-the-north]",
        "lab.toml:10:8: links.sat-of-the-north: `sat-of-the-north` is too long for the name of an \
         interface",
        "a link's name is its interface's: at most 15 letters, digits, '-', '_' and '.'",
    );
    for (name, reason) in [
        ("\"a b\"", "is no name for an interface"),
        ("\"a/b\"", "is no name for an interface"),
        ("lo", "is a name that the kernel keeps for itself"),
        ("\"..\"", "is a name that the kernel keeps for itself"),
        ("\"\"", "is empty"),
    ] {
        let (message, _) = error("[links.sat]", &format!("[links.{name}]"), "", &[]);
        assert!(message.ends_with(reason), "{message}");
    }
    check(
        "[peps.gw]",
        "[peps.none]\n[peps.gw]",
        "lab.toml:19:7: peps.none: `none` stands for no proxy at all",
        "give it another name",
    );
}

#[test]
fn amounts() {
    let hint = "add one of: objects = [\"50 kB\", …], bytes = \"5 MB\", seconds = 20";
    check(
        "seconds = 10",
        "",
        "lab.toml:27:12: transfers.bulk: nothing says how much is sent",
        hint,
    );
    check(
        "seconds = 10",
        "bytes = \"1 MB\"\nseconds = 10",
        "lab.toml:31:11: transfers.bulk.seconds: `bytes` and `seconds` exclude each other",
        "keep one of them",
    );
    check(
        "seconds = 10",
        "seconds = 31",
        "lab.toml:30:11: transfers.bulk.seconds: the run ends after 30 s already",
        "raise `duration` or ask for less",
    );
    check(
        "seconds = 10",
        "seconds = -1",
        "lab.toml:30:11: transfers.bulk.seconds: a transfer lasts longer than nothing",
        "such as 20 or 0.5",
    );
    check(
        "seconds = 10",
        "seconds = 10\nflows = 0",
        "lab.toml:31:9: transfers.bulk.flows: 0 connections are impossible",
        "1 to 10000",
    );
    check(
        "seconds = 10",
        "seconds = 10\nparallel = 2",
        "lab.toml:31:12: transfers.bulk.parallel: `parallel` is for pages of `objects`",
        "bytes and seconds go over `flows` connections at once",
    );
    check(
        "[\"50 kB\", \"817 kB\"]",
        "[\"50 kB\", \"0 B\"]",
        "lab.toml:25:21: transfers.page.objects.1: an object without a byte",
        "",
    );
    check(
        "[\"50 kB\", \"817 kB\"]",
        "[]",
        "lab.toml:25:11: transfers.page.objects: a page of 0 objects is impossible",
        "1 to 10000 objects",
    );
    check(
        "duration = \"30 s\"",
        "duration = \"30 s\"\nseeds = 0",
        "lab.toml:3:9: seeds: a cell cannot run 0 times",
        "1 to 10000",
    );
    check(
        "seconds = 10",
        "seconds = 10\ncongestion = \"cu bic\"",
        "lab.toml:31:14: transfers.bulk.congestion: `cu bic` is no name of a congestion control",
        "a name as the kernel gives it, such as cubic or bbr",
    );
}

#[test]
fn ways_and_links() {
    check(
        "from = \"server\"",
        "from = \"island\"",
        "lab.toml:23:8: transfers.page.from: no links lead from `island` to `client`",
        "add a link, or see whether `between` names the right nodes",
    );
    check(
        "to = \"client\"",
        "to = \"server\"",
        "lab.toml:24:6: transfers.page.to: a node cannot send to itself",
        "data goes from one node to another",
    );
    check(
        "\"client\", \"gateway\"",
        "\"client\", \"client\"",
        "lab.toml:11:11: links.sat.between: both ends are the same node",
        "a link joins two different nodes",
    );
    // What is impossible only in the light of other keys, said for one direction and for both.
    let (message, _) = error("20 Mbit/s", "0 bit/s", "", &[]);
    assert!(message.starts_with("lab.toml:12:17: links.sat.down.rate: "), "{message}");
    let (message, _) = error("300 ms", "3 h", "", &[]);
    assert!(message.starts_with("lab.toml:13:9: links.sat.delay: "), "{message}");
    let (message, _) = error("loss = 0.01", "queue = \"1e9 BDP\"", "", &[]);
    assert!(message.starts_with("lab.toml:12:38: links.sat.down.queue: "), "{message}");
    // Two links between the same nodes are no fault.
    let text = GOOD.to_owned() + "[links.spare]\nbetween = [\"client\", \"gateway\"]\n";
    assert!(Scenario::parse("lab.toml", &text).and_then(|scenario| scenario.plans()).is_ok());
}

#[test]
fn what_is_varied() {
    check_vary(
        "[vary]\n\"links.sta.down.loss\" = [0, 1]",
        "lab.toml:32:26: links.sta.down.loss: `links` has no `sta` that could be changed",
        "did you mean `sat`? (known: `sat`, `net`)",
    );
    check_vary(
        "[vary]\n\"links.sat.down.los\" = [0, 1]",
        "lab.toml:32:25: links.sat.down.los: unknown key",
        "did you mean `loss`?",
    );
    let (message, _) = error("", "", "[vary]\n\"links.sat.down.loss\" = [0, 1.5]", &[]);
    assert!(message.starts_with("lab.toml:32:29: links.sat.down.loss: "), "{message}");
    check_vary(
        "[vary]\n\"peps.gw.legs.sta.congestion\" = [\"bbr\"]",
        "lab.toml:32:34: peps.gw.legs.sta.congestion: `peps.gw.legs` has no `sta` that could be \
         changed",
        "did you mean `sat`?",
    );
    check_vary(
        "[vary]\n\"title.x\" = [1]",
        "lab.toml:32:14: title.x: `title` is a string, not a table",
        "",
    );
    check_vary(
        "[vary]\nseeds = []",
        "lab.toml:32:1: vary.seeds: an axis without a value leaves nothing to run",
        "give it a value or take it out",
    );
    check_vary("[vary]\nseeds = [1, 2, 1]", "lab.toml:32:16: vary.seeds: `1` is there twice", "");
    check_vary(
        "[vary]\nseeds = 1",
        "lab.toml:32:9: vary.seeds: an axis is an array of values, or a table of named cases",
        "write \"links.sat.down.loss\" = [0, 0.01], or proxy = { none = {}, gateway = { \
         nodes.gateway.pep = \"gw\" } }",
    );
    check_vary(
        "[vary.load]\nfew = 1",
        "lab.toml:32:7: vary.load.few: a case is a table of what it changes",
        "write it as { \"transfers.page.congestion\" = \"bbr\" }",
    );
    let axes: String = (0..9)
        .map(|n| {
            format!(
                "a{n} = {{ {} }}\n",
                (0..9).map(|c| format!("c{c} = {{}}")).collect::<Vec<_>>().join(", ")
            )
        })
        .collect();
    let (message, hint) = error("", "", &format!("[vary]\n{axes}"), &[]);
    assert!(message.ends_with("cells times seeds make more than 20000 runs"), "{message}");
    assert_eq!(hint, "vary less at once, or take fewer seeds");
}

#[test]
fn what_is_set_from_outside() {
    check_set(
        "links.sat.delay=fast",
        "--set:1:19: links.sat.delay: \"fast\" is not a time such as \"300 ms\", or a table such as { \
         trace = [[\"0 s\", \"20 ms\"], [\"15 s\", \"35 ms\"]] }",
        "",
    );
    check_set(
        "links.sta.delay=1 ms",
        "--set:1:19: links.sta.delay: `links` has no `sta` that could be changed",
        "did you mean `sat`? (known: `sat`, `net`)",
    );
    let example = "write it as --set links.satellite.down.rate=\"20 Mbit/s\"";
    check_set("duration", "--set:1:1: no value is given", example);
    check_set("duration=", "--set:1:1: no value is given", example);
    check_set("=1", "--set:1:1: `` is not a dotted key such as links.satellite.rate", example);
    let (message, _) = error("", "", "", &["links.sat={ between = "]);
    assert!(message.starts_with("--set:1:"), "{message}");
    let (message, hint) = error("", "", "[vary.load]\na = {}\nb = {}", &["load=c"]);
    assert_eq!(message, "--set:1:1: axis `load` has no case `c`");
    assert_eq!(hint, "cases: `a`, `b`");
}

#[test]
fn keys_that_act_on_nothing() {
    let own =
        "[vary]\nx = { a = { links.net.down.delay = \"1 ms\", links.net.up.delay = \"1 ms\" } }\n";
    let (message, hint) = error("", "", own, &["links.net.delay=2 ms"]);
    let told = "links.net.delay: acts on nothing: both directions have a `delay` of their own";
    assert_eq!(message, format!("--set:1:19: {told}"));
    assert_eq!(hint, "change `links.net.down.delay` and `links.net.up.delay`, or take them out");
    let one =
        "[vary]\nx = { a = { links.net.down.delay = \"1 ms\", links.net.delay = \"2 ms\" } }\n";
    assert!(Scenario::parse("lab.toml", &(GOOD.to_owned() + one)).expect("right").plans().is_ok());
}

#[test]
fn what_is_set_takes_effect() {
    let vary = "[vary]\n\"links.sat.down.loss\" = [0, 0.01]\n[vary.load]\na = {}\n\
                b = { transfers.page.congestion = \"bbr\" }\n";
    let text = GOOD.to_owned() + vary;
    let labels = |set: &[&str]| -> Vec<String> {
        let mut scenario = Scenario::parse("lab.toml", &text).expect("it is right");
        for assignment in set {
            scenario.set(assignment).unwrap_or_else(|error| panic!("{error}"));
        }
        let plans = scenario.plans().unwrap_or_else(|error| panic!("{error}"));
        plans.iter().map(|plan| plan.label()).collect()
    };
    assert_eq!(labels(&[]).len(), 4);
    assert_eq!(
        labels(&["load=b"]),
        ["links.sat.down.loss=0 load=b", "links.sat.down.loss=0.01 load=b"]
    );
    assert_eq!(
        labels(&["links.sat.down.loss=0.01", "load=a"]),
        ["links.sat.down.loss=0.01 load=a"]
    );
    assert_eq!(labels(&["links.sat.down.loss=0.5 %"]), ["load=a", "load=b"]);
    assert_eq!(
        labels(&["load=a", "links.sat.down.loss=0", "seeds=2", "seed=7"]),
        ["links.sat.down.loss=0 load=a seed=7", "links.sat.down.loss=0 load=a seed=8"]
    );
    let mut scenario = Scenario::parse("lab.toml", &text).expect("it is right");
    scenario.set("transfers.page.congestion=reno").expect("a name");
    for plan in scenario.plans().expect("it is right") {
        let page = plan.transfers.iter().find(|it| it.name == "page").expect("there");
        assert_eq!(page.congestion, "reno", "what is set wins over a case: {}", plan.label());
    }
    let mut scenario = Scenario::parse("lab.toml", GOOD).expect("it is right");
    scenario.set("duration = 45 s").expect("a value without quotes");
    scenario.set("nodes.gateway.pep=none").expect("no proxy");
    let plans = scenario.plans().expect("it is right");
    assert_eq!(plans[0].duration.to_string(), "45 s");
    assert!(plans[0].peps.is_empty());
    assert_eq!(plans[0].label(), "seed=1");
}

#[test]
fn more_than_a_machine_could_hold() {
    let nodes: String = (0..251).map(|n| format!("n{n} = {{}}\n")).collect();
    let text = format!("title = \"x\"\nduration = \"1 s\"\n[nodes]\n{nodes}");
    let plans = Scenario::parse("lab.toml", &text).and_then(|scenario| scenario.plans());
    assert_eq!(plans.expect_err("too many").message, "251 nodes are too many");
    let many =
        text.replacen("n250 = {}\n", "", 1).replacen("duration", "seeds = 10001\nduration", 1);
    let plans = Scenario::parse("lab.toml", &many).and_then(|scenario| scenario.plans());
    assert_eq!(plans.expect_err("too many").message, "a cell cannot run 10001 times");
}

#[test]
fn an_orbit_that_cannot_be_is_reported_where_it_stands() {
    let orbit = |keys: &str| {
        let link = format!("delay = \"300 ms\"\norbit = {{ {keys} }}");
        error("delay = \"300 ms\"", link.trim_start_matches("delay = \"300 ms\"\n"), "", &[]).0
    };
    for (keys, message) in [
        (
            "constellation = \"iridum\", from = [51, 10], to = [40, -74]",
            "links.sat.orbit.constellation: no constellation is called \"iridum\": \
             did you mean \"iridium\"?",
        ),
        (
            "constellation = \"iridium\", form = [51, 10], to = [40, -74]",
            "links.sat.orbit.form: unknown key",
        ),
        (
            "constellation = \"onboard-study\", from = [51.4, 10.5], to = [40.8, -74.0]",
            "links.sat.orbit.from: onboard-study never rises above 20° at \
             51.4°N 10.5°E: it is seen up to 47.5° north and south, and orbits inclined by 3.9° more \
             would reach it; the smallest known one that joins the two is \"iridium\" (66 satellites)",
        ),
        (
            "constellation = { planes = 3, height = 5 }, from = [51, 10], to = [40, -74]",
            "links.sat.orbit.constellation.height: unknown key",
        ),
    ] {
        // The column is that of the value in the line.
        let (place, rest) = orbit(keys)
            .split_once(": ")
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .unwrap_or_default();
        assert!(place.starts_with("lab.toml:13:"), "{place}");
        assert_eq!(rest, message);
    }
}
