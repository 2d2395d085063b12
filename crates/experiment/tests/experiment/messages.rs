//! The error messages for mistakes in scenarios.

use insta::assert_snapshot;
use midhop_config::ConfigError;
use midhop_experiment::Scenario;
use midhop_experiment::pep::LegCongestion;

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

/// The error of a text as the user reads it: place, key, message and hint.
fn read_of(text: &str, set: &[&str]) -> String {
    let plans = Scenario::parse("lab.toml", text).and_then(|mut scenario| {
        set.iter().try_for_each(|assignment| scenario.set(assignment))?;
        scenario.plans()
    });
    let error = plans.expect_err("it is wrong");
    let first = error.to_string().lines().next().unwrap_or_default().to_owned();
    let hint = error.hint.map(|hint| format!("\nhint: {hint}"));
    first + &hint.unwrap_or_default()
}

/// A paragraph for each fault: what was written, and the message.
fn paragraphs(read: impl IntoIterator<Item = (String, String)>) -> String {
    let paragraphs: Vec<String> = read
        .into_iter()
        .map(|(written, read)| format!("> {}\n{read}", written.replace('\n', "\n> ")))
        .collect();
    paragraphs.join("\n\n")
}

/// The messages for [`GOOD`] with the first of each two replaced by the second.
fn changed(changes: &[(&str, &str)]) -> String {
    paragraphs(changes.iter().map(|(old, new)| {
        assert!(GOOD.contains(old), "{old} is not in the text");
        let written = if new.is_empty() { format!("without {old}") } else { (*new).to_owned() };
        (written, read_of(&GOOD.replacen(old, new, 1), &[]))
    }))
}

/// The messages for [`GOOD`] with each of these added at its end.
fn added(texts: &[&str]) -> String {
    paragraphs(
        texts.iter().map(|more| ((*more).to_owned(), read_of(&(GOOD.to_owned() + more), &[]))),
    )
}

/// The messages for [`GOOD`] with `more` at its end, and one key set from outside.
fn set_with(more: &str, assignments: &[&str]) -> String {
    paragraphs(
        assignments
            .iter()
            .map(|set| ((*set).to_owned(), read_of(&(GOOD.to_owned() + more), &[set]))),
    )
}

#[test]
fn the_text_itself_is_without_fault() {
    let plans = Scenario::parse("lab.toml", GOOD).and_then(|scenario| scenario.plans());
    assert_eq!(plans.map(|plans| plans.len()), Ok(1));
}

#[test]
fn unknown_keys() {
    assert_snapshot!(changed(&[
        ("objects =", "objekts ="),
        ("rate = \"20 Mbit/s\"", "rat = \"20 Mbit/s\""),
        ("pep = \"gw\"", "peps = \"gw\""),
    ]));
}

#[test]
fn names_that_do_not_exist() {
    assert_snapshot!(changed(&[
        ("\"client\", \"gateway\"", "\"client\", \"gatway\""),
        ("from = \"server\"", "from = \"servr\""),
        ("pep = \"gw\"", "pep = \"qw\""),
        ("duration = \"30 s\"", "duration = \"30 s\"\nrun = [\"page\", \"bulc\"]"),
        ("delay = \"300 ms\"", "delay = \"300 ms\"\npreset = \"gio\""),
    ]));
}

#[test]
fn interfaces_of_a_proxy() {
    assert_snapshot!(changed(&[
        ("legs.sat =", "legs.satt ="),
        ("{ congestion = \"hybla-plus\" }", "{ interface = \"nett\" }"),
        ("[peps.gw]", "[peps.gw]\nintercept.interfaces = [\"net\", \"lan\"]"),
    ]));
    let with_prefix = GOOD.replacen("legs.sat = {", "legs.far = { prefixes = \"10.0.0.0/8\",", 1);
    let plans = Scenario::parse("lab.toml", &with_prefix).and_then(|scenario| scenario.plans());
    assert_eq!(plans.map(|plans| plans.len()), Ok(1));
}

#[test]
fn keys_that_the_proxy_would_refuse() {
    let scenario = |text: &str| Scenario::parse("lab.toml", text).expect("it is TOML");
    let checked = |text: &str| scenario(text).check_peps(LegCongestion::Names);
    let at = |error: &ConfigError| (error.line, error.key.clone().unwrap_or_default());
    assert_eq!(checked(GOOD), Ok(()));
    let wrong = GOOD.replacen("{ congestion =", "{ conjestion =", 1);
    for error in [checked(&wrong), scenario(&wrong).plans().map(drop)] {
        let error = error.expect_err("no such key");
        assert_eq!(at(&error), (20, "peps.gw.legs.sat.conjestion".to_owned()));
        let hint = error.hint.unwrap_or_default();
        assert!(hint.starts_with("did you mean `congestion`?"), "{hint}");
    }
    // A proxy that runs nowhere is not checked.
    let unused = wrong.replacen("pep = \"gw\"", "pep = \"none\"", 1);
    assert_eq!(checked(&unused), Ok(()));
    assert!(scenario(&unused).plans().is_ok());
    // A case of an axis may be wrong although the file is right.
    let varied = GOOD.to_owned() + "[vary]\n\"peps.gw.legs.sat.congestion\" = [\"bbr\", 7]";
    assert_eq!(checked(&varied).expect_err("a number is no name").line, 32);
    // A value of the right form may still be refused by the proxy, which knows only its own keys.
    let varied = GOOD.to_owned()
        + "[vary]\n\"peps.gw.legs.sat.congestion\" = [\"reno\", \"by-its-long-name\"]";
    let error = checked(&varied).expect_err("one case is refused");
    assert_eq!(at(&error), (32, "peps.gw.legs.sat.congestion".to_owned()));
    assert!(scenario(&varied).plans().is_ok(), "it is midhopd that refuses it");
}

#[test]
fn tables_of_congestion_control_in_rules() {
    let more = "[[peps.gw.rules]]\naction = \"split\"\n\
        legs.sat.congestion = { algorithm = \"cubic\", initial_window = 50 }";
    assert_snapshot!(added(&[more]));
}

#[test]
fn names_that_cannot_be() {
    assert_snapshot!(changed(&[
        ("[links.sat]", "[links.sat-of-the-north]"),
        ("[links.sat]", "[links.\"a b\"]"),
        ("[links.sat]", "[links.\"a/b\"]"),
        ("[links.sat]", "[links.lo]"),
        ("[links.sat]", "[links.\"..\"]"),
        ("[links.sat]", "[links.\"\"]"),
        ("[peps.gw]", "[peps.none]\n[peps.gw]"),
    ]));
}

#[test]
fn amounts() {
    let page = "[\"50 kB\", \"817 kB\"]";
    assert_snapshot!(changed(&[
        ("seconds = 10", ""),
        ("seconds = 10", "bytes = \"1 MB\"\nseconds = 10"),
        ("seconds = 10", "seconds = 31"),
        ("seconds = 10", "seconds = -1"),
        ("seconds = 10", "seconds = 10\nflows = 0"),
        ("seconds = 10", "seconds = 10\nparallel = 2"),
        (page, "[\"50 kB\", \"0 B\"]"),
        (page, "[]"),
        ("duration = \"30 s\"", "duration = \"30 s\"\nseeds = 0"),
        ("seconds = 10", "seconds = 10\ncongestion = \"cu bic\""),
    ]));
}

#[test]
fn ways_and_links() {
    // The last ones are only impossible together with other keys, written for one direction and for
    // both.
    assert_snapshot!(changed(&[
        ("from = \"server\"", "from = \"island\""),
        ("to = \"client\"", "to = \"server\""),
        ("\"client\", \"gateway\"", "\"client\", \"client\""),
        ("20 Mbit/s", "0 bit/s"),
        ("300 ms", "3 h"),
        ("loss = 0.01", "queue = \"1e9 BDP\""),
    ]));
    // Two links between the same nodes are allowed.
    let text = GOOD.to_owned() + "[links.spare]\nbetween = [\"client\", \"gateway\"]\n";
    assert!(Scenario::parse("lab.toml", &text).and_then(|scenario| scenario.plans()).is_ok());
}

#[test]
fn what_is_varied() {
    let axes = (0..9).map(|n| {
        let cases = (0..9).map(|c| format!("c{c} = {{}}")).collect::<Vec<_>>().join(", ");
        format!("\na{n} = {{ {cases} }}")
    });
    assert_snapshot!(added(&[
        "[vary]\n\"links.sta.down.loss\" = [0, 1]",
        "[vary]\n\"links.sat.down.los\" = [0, 1]",
        "[vary]\n\"links.sat.down.loss\" = [0, 1.5]",
        "[vary]\n\"peps.gw.legs.sta.congestion\" = [\"bbr\"]",
        "[vary]\n\"title.x\" = [1]",
        "[vary]\nseeds = []",
        "[vary]\nseeds = [1, 2, 1]",
        "[vary]\nseeds = 1",
        "[vary.load]\nfew = 1",
        &format!("[vary]{}", axes.collect::<String>()),
    ]));
}

#[test]
fn what_is_set_from_outside() {
    let set = [
        "links.sat.delay=fast",
        "links.sta.delay=1 ms",
        "duration",
        "duration=",
        "=1",
        "links.sat={ between = ",
        "load=c",
    ];
    assert_snapshot!(set_with("[vary.load]\na = {}\nb = {}", &set));
}

#[test]
fn keys_that_act_on_nothing() {
    let own =
        "[vary]\nx = { a = { links.net.down.delay = \"1 ms\", links.net.up.delay = \"1 ms\" } }\n";
    assert_snapshot!(set_with(own, &["links.net.delay=2 ms"]));
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
    let orbits = [
        "constellation = \"iridum\", from = [51, 10], to = [40, -74]",
        "constellation = \"iridium\", form = [51, 10], to = [40, -74]",
        "constellation = \"onboard-study\", from = [51.4, 10.5], to = [40.8, -74.0]",
        "constellation = { planes = 3, height = 5 }, from = [51, 10], to = [40, -74]",
    ];
    let orbits = orbits.map(|keys| format!("orbit = {{ {keys} }}"));
    let changes: Vec<_> =
        orbits.iter().map(|orbit| ("delay = \"300 ms\"", orbit.as_str())).collect();
    assert_snapshot!(changed(&changes));
}

/// Two satellites over a terminal; each test names the keys of a handover from one to the other.
const SATELLITES: &str = r#"title = "a test"
duration = "30 s"

[nodes]
terminal = {}
sat-a = { pep = "space" }
sat-b = { pep = "space" }
gateway = {}
island = {}

[links.user-a]
between = ["terminal", "sat-a"]
[links.user-b]
between = ["terminal", "sat-b"]
[links.user-i]
between = ["island", "sat-b"]
[links.isl]
between = ["sat-a", "sat-b"]
delay = "8 ms"
[links.feeder-a]
between = ["sat-a", "gateway"]
delay = "4 ms"
[links.feeder-b]
between = ["sat-b", "gateway"]
delay = "4 ms"

[peps.space]

[transfers.file]
from = "gateway"
to = "terminal"
bytes = "5 MB"

[[handovers]]
at = "10 s"
from = "sat-a"
to = "sat-b"
leaves = "user-a"
takes = "user-b"
"#;

#[test]
fn handovers() {
    let set = |text: &str, set: &[&str]| (set.join(", "), read_of(text, set));
    let second = |more: &str| {
        let text = format!(
            "{SATELLITES}[[handovers]]\nat = \"20 s\"\nfrom = \"sat-b\"\nto = \"sat-a\"\nleaves = \"user-b\"\ntakes = \"user-a\"\n"
        );
        set(&text, &[more])
    };
    let without_isl =
        SATELLITES.replace("[links.isl]\nbetween = [\"sat-a\", \"sat-b\"]\ndelay = \"8 ms\"\n", "");
    let islands = SATELLITES.replace("to = \"terminal\"\nbytes", "to = \"island\"\nbytes");
    let one = |assignment: &str| set(SATELLITES, &[assignment]);
    assert_snapshot!(paragraphs([
        one("handovers.0.at=0 s"),
        one("handovers.0.at=30 s"),
        one("handovers.0.every=50 ms"),
        one("handovers.0.every=5 s"),
        one("handovers.0.announced=11 s"),
        one("handovers.0.outage=2 h"),
        one("handovers.0.from=sat-c"),
        one("handovers.0.to=sat-a"),
        one("handovers.0.leaves=user"),
        one("handovers.0.leaves=user-b"),
        one("handovers.0.takes=user-i"),
        one("handovers.0.takes=feeder-b"),
        one("handovers.0.flows=kept"),
        one("handovers.0.over=user-a"),
        one("handovers.0.over=ils"),
        one("handovers.0.over=5"),
        one("handovers.0.over={rate=\"1 Gbit/s\", delay=\"1 ms\", mtu=1}"),
        one("handovers.0.state=2 MB"),
        set(SATELLITES, &["nodes.sat-b.pep=none", "handovers.0.flows=moved"]),
        set(&without_isl, &["handovers.0.flows=moved"]),
        set(
            &without_isl,
            &["handovers.0.flows=anchored", "handovers.0.over={rate=\"1 Gbit/s\", delay=\"1 ms\"}"]
        ),
        set(
            SATELLITES,
            &[
                "peps.space.peers={}",
                "peps.space.peers.far={node=\"gateway\"}",
                "handovers.0.flows=moved"
            ]
        ),
        second("handovers.1.takes=feeder-a"),
        set(
            &islands
                .replace(
                    "user-i]\nbetween = [\"island\", \"sat-b\"]",
                    "user-i]\nbetween = [\"island\", \"terminal\"]"
                )
                .replace(
                    "[links.feeder-b]\nbetween = [\"sat-b\", \"gateway\"]\ndelay = \"4 ms\"\n",
                    ""
                )
                .replace("[links.isl]\nbetween = [\"sat-a\", \"sat-b\"]\ndelay = \"8 ms\"\n", ""),
            &[]
        ),
        set(SATELLITES, &["transfers.file.restart_from=rest"]),
    ]));
}

#[test]
fn links_in_use_follow_from_handovers() {
    let plan = |set: &[&str]| {
        let plans = Scenario::parse("lab.toml", SATELLITES).and_then(|mut scenario| {
            set.iter().try_for_each(|assignment| scenario.set(assignment))?;
            scenario.plans()
        });
        plans.unwrap_or_else(|error| panic!("{error}")).swap_remove(0)
    };
    let moved = plan(&["handovers.0.outage=50 ms", "handovers.0.flows=anchored"]);
    let links = |crossings: &[midhop_experiment::route::Crossing]| {
        crossings.iter().map(|it| it.link.clone()).collect::<Vec<_>>()
    };
    assert_eq!(links(&moved.transfers[0].route), ["feeder-a", "user-a"]);
    let over = moved.handovers[0].over.as_ref().and_then(|over| over.link().map(str::to_owned));
    assert_eq!(over.as_deref(), Some("isl"), "the link between the two");
    let broken = moved.broken_links();
    let times = |link: &str| {
        let of = |at: &midhop_path::outage::Outage| (at.start.as_ms_f64(), at.length.as_ms_f64());
        broken[link][0].outages.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(times("user-a"), [(10_000.0, 50_000.0)]);
    assert_eq!(times("user-b"), [(0.0, 10_050.0)]);
    assert_eq!(broken.len(), 2);
    let json = moved.to_json().expect("JSON");
    assert_eq!(midhop_experiment::Plan::from_json(&json).expect("a plan"), moved);
    assert_eq!(json["handovers"][0]["outage"], "50 ms");
}
