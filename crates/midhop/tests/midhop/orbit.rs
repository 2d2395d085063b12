//! `midhop orbit` from a user's view.

use midhop_experiment::Scenario;
use midhop_path::rate::LinkRate;
use std::process::{Command, Output};

fn midhop(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_midhop"))
        .arg("orbit")
        .args(arguments)
        .output()
        .expect("the program starts")
}

fn good(arguments: &[&str]) -> String {
    let output = midhop(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

/// The output on standard error, and the exit code.
fn refused(arguments: &[&str]) -> (String, Option<i32>) {
    let output = midhop(arguments);
    assert!(output.stdout.is_empty(), "{arguments:?} prints something");
    (String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code())
}

const ATLANTIC: [&str; 8] = [
    "--constellation",
    "iridium",
    "--from",
    "51.4,10.5",
    "--to",
    "40.8,-74.0",
    "--duration",
    "3min",
];

#[test]
fn a_route_is_a_curve_and_a_table_or_json() {
    let text = good(&[&["route"][..], &ATLANTIC].concat());
    let mut lines = text.lines();
    assert_eq!(
        lines.next(),
        Some(
            "iridium (66 satellites), 51.4°N 10.5°E to 40.8°N 74°W, 180 s from second 0.000, \
             choice: keep"
        )
    );
    assert!(lines.next().is_some_and(|line| line.starts_with("one way ")), "{text}");
    assert_eq!(lines.next().map(|line| line.chars().count()), Some(72), "{text}");
    assert!(text.contains("without any way 0.000 s"), "{text}");

    let json = good(&[&["route", "--json"][..], &ATLANTIC].concat());
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["orbit"]["satellites"], 66);
    assert_eq!(json["samples"][0]["time_s"], 0.0);
    let handovers = json["handovers"].as_array().expect("an array");
    let user = handovers.iter().find(|handover| handover["links"][0] == "user");
    let user = user.expect("the satellite over Germany sets within three minutes");
    assert_ne!(user["from"][0], user["to"][0]);
}

#[test]
fn a_trace_is_a_scenario_with_the_same_delays() {
    let route = good(&[&["trace", "--form", "csv"][..], &ATLANTIC].concat());
    let sample: Vec<u64> = route
        .lines()
        .nth(1)
        .and_then(|line| line.strip_prefix("0.000,"))
        .expect("a sample at zero")
        .split(',')
        .map(|number| number.parse().expect("a number"))
        .collect();
    let whole = good(&[&["trace", "--rate", "5Mbit/s"][..], &ATLANTIC].concat());
    let plans = Scenario::parse("orbit.toml", &whole).and_then(|scenario| scenario.plans());
    let plan = plans.unwrap_or_else(|error| panic!("{error}")).swap_remove(0);
    let delay = |link: usize| serde_json::to_value(&plan.links[link].down.delay).expect("JSON");
    let first = delay(0)["trace"][0][1].as_str().expect("a delay").to_owned();
    let first: midhop_units::Duration = first.parse().expect("a delay");
    assert_eq!(first.as_ns(), sample.iter().sum::<u64>());
    let LinkRate::Constant(rate) = plan.links[0].down.rate else { panic!("a rate") };
    assert_eq!(rate.bits_per_s(), 5_000_000);

    let hops = good(&[&["trace", "--form", "hops"][..], &ATLANTIC].concat());
    let plans = Scenario::parse("orbit.toml", &hops).and_then(|scenario| scenario.plans());
    let plan = plans.unwrap_or_else(|error| panic!("{error}")).swap_remove(0);
    let names: Vec<&str> = plan.links.iter().map(|link| link.name.as_str()).collect();
    assert_eq!(names, ["feeder", "isl", "user"]);
    assert_eq!(plan.transfers[0].route.len(), 3);
}

#[test]
fn a_trace_with_handovers_has_a_node_for_each_satellite_and_runs() {
    let route = good(&[&["route", "--json"][..], &ATLANTIC].concat());
    let route: serde_json::Value = serde_json::from_str(&route).expect("JSON");
    let changes = route["handovers"].as_array().expect("an array");
    let moments = |link: &str| -> Vec<f64> {
        let of = |change: &&serde_json::Value| {
            change["links"].as_array().is_some_and(|links| links.iter().any(|it| it == link))
        };
        changes.iter().filter(of).filter_map(|change| change["time_s"].as_f64()).collect()
    };
    let text = good(&[&["trace", "--form", "handovers", "--step", "10s"][..], &ATLANTIC].concat());
    let scenario = Scenario::parse("orbit.toml", &text).unwrap_or_else(|error| panic!("{error}"));
    let plan = scenario.plans().unwrap_or_else(|error| panic!("{error}")).swap_remove(0);
    for (host, link) in [("user", "user"), ("gateway", "feeder")] {
        let of_link = |name: &str| name.starts_with(&format!("{link}-"));
        let taken = plan.handovers.iter().filter(|it| of_link(&it.takes));
        let taken: Vec<f64> = taken.map(|it| it.at.as_s_f64()).collect();
        assert_eq!(taken, moments(link), "{text}");
        assert!(!taken.is_empty(), "a satellite sets within three minutes");
        // Each satellite is a node, with a link to the host that it serves.
        let links = plan.links.iter().filter(|it| of_link(&it.name)).count();
        assert_eq!(links, taken.len() + 1, "{host}: {text}");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("handovers.toml");
    std::fs::write(&file, &text).expect("writable");
    let mut run = Command::new(env!("CARGO_BIN_EXE_midhop"));
    let run = run.args(["sim", "run", "--json"]).arg(&file).output().expect("the program starts");
    let record = String::from_utf8_lossy(&run.stdout).into_owned();
    let record: serde_json::Value = serde_json::from_str(&record)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&run.stderr)));
    let record = if record.is_array() { &record[0] } else { &record };
    assert_eq!(record["handovers"]["count"], plan.handovers.len(), "{record}");

    // With a gap in the path there is no handover, and the form is refused.
    let gone = ["--mask", "20", "--duration", "20min"];
    let gone = [&["trace", "--form", "handovers"][..], &ATLANTIC[..6], &gone].concat();
    let (error, code) = refused(&gone);
    assert!(error.contains("there is no path from") && error.contains("hint:"), "{error}");
    assert_eq!(code, Some(64), "{error}");
}

#[test]
fn passes_are_listed_with_the_longest_gap() {
    let at = ["--at", "51.4,10.5"];
    let text = good(&[&["pass", "--constellation", "iridium"][..], &at].concat());
    assert!(text.contains("never without a satellite"), "{text}");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("vanguard.tle");
    let elements = "VANGUARD 1\n\
        1 00005U 58002B   00179.78495062  .00000023  00000-0  28098-4 0  4753\n\
        2 00005  34.2682 348.7242 1859667 331.7664  19.3264 10.82419157413667\n";
    std::fs::write(&file, elements).expect("writable");
    let tle = ["pass", "--duration", "12h", "--step", "10s", "--tle"];
    let text = good(&[&tle[..], &[file.to_str().expect("text"), "--at", "0,0"]].concat());
    assert!(text.contains("VANGUARD 1"), "{text}");
    assert!(text.contains("% of the time"), "{text}");
    let tle = [&tle[..], &[file.to_str().expect("text"), "--at", "0,0"]].concat();
    let (text, code) = refused(&[&tle[..], &["--epoch", "2030-01-01T00:00:00Z"]].concat());
    assert!(text.contains("days from the newest of the elements"), "{text}");
    assert_eq!(code, Some(64));
}

/// A ring of satellites over the equator, in the generator's format.
#[test]
fn a_network_of_hypatia_is_followed_as_it_is_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        std::fs::write(directory.path().join(name), text).expect("writable");
    };
    let line = |number: u32, anomaly: f64| {
        let checked = |line: String| {
            let sum: u32 =
                line.chars().map(|c| if c == '-' { 1 } else { c.to_digit(10).unwrap_or(0) }).sum();
            format!("{line}{}", sum % 10)
        };
        let first = checked(format!(
            "1 {:05}U 00000ABC 00001.00000000  .00000000  00000-0  00000+0 0    0",
            number + 1
        ));
        let second = checked(format!(
            "2 {:05}   0.0000   0.0000 0000001   0.0000 {anomaly:8.4} 15.19000000    0",
            number + 1
        ));
        format!("Ring {number}\n{first}\n{second}\n")
    };
    let ring: String = (0..36).map(|number| line(number, f64::from(number) * 10.0)).collect();
    write("tles.txt", &format!("1 36\n{ring}"));
    let isls: String = (0..36).map(|number| format!("{number} {}\n", (number + 1) % 36)).collect();
    write("isls.txt", &isls);
    write("description.txt", "max_gsl_length_m=1500000.0\nmax_isl_length_m=5000000.0\n");
    write("ground_stations.txt", "0,Quito,0.0,-78.5,0.0,0,0,0\n1,Macapa,0.0,-51.0,0.0,0,0,0\n");
    let path = directory.path().to_str().expect("text");
    let places = ["--from", "Quito", "--to", "Macapa", "--duration", "10s", "--json"];
    let own = good(&[&["route", "--hypatia", path][..], &places].concat());
    let own: serde_json::Value = serde_json::from_str(&own).expect("JSON");
    let way: Vec<String> = serde_json::from_value(own["first"].clone()).expect("names");
    assert!(way.len() >= 2 && way.iter().all(|name| name.starts_with("Ring ")), "{way:?}");

    // Forwarding along our own path gives our own delays; where packets are dropped, there is no
    // path.
    let numbers: Vec<u32> = way.iter().map(|name| name[5..].parse().expect("a number")).collect();
    let mut state = format!("36,37,{},0,0\n", numbers[0]);
    for pair in numbers.windows(2) {
        state.push_str(&format!("{},37,{},0,0\n", pair[0], pair[1]));
    }
    let last = numbers[numbers.len() - 1];
    std::fs::create_dir(directory.path().join("dynamic_state_100ms_for_10s")).expect("writable");
    write("dynamic_state_100ms_for_10s/fstate_0.txt", &format!("{state}{last},37,37,0,0\n"));
    write("dynamic_state_100ms_for_10s/fstate_5000000000.txt", &format!("{last},37,-1,-1,-1\n"));
    let theirs = good(&[&["route", "--forwarding", "--hypatia", path][..], &places].concat());
    let theirs: serde_json::Value = serde_json::from_str(&theirs).expect("JSON");
    assert_eq!(theirs["samples"][0], own["samples"][0]);
    assert_eq!(theirs["gaps"], serde_json::json!([{ "from_s": 5.0, "until_s": 10.0 }]));

    // Inconsistent files are refused, with the file and the line.
    let faulty = |file: &str, text: &str, reason: &str| {
        let before = std::fs::read_to_string(directory.path().join(file)).unwrap_or_default();
        write(file, text);
        let forwarded = &["route", "--forwarding", "--hypatia", path][..];
        let (errors, code) = refused(&[forwarded, &places].concat());
        assert!(errors.contains(reason), "{file}: {errors}");
        assert_eq!(code, Some(64), "{file}: {errors}");
        write(file, &before);
    };
    faulty("isls.txt", &format!("{isls}0 36\n"), "a link of isls.txt is 0 36");
    faulty("isls.txt", &format!("{isls}0 4294967295\n"), "36 satellites, numbered from 0");
    faulty("isls.txt", &format!("{isls}0 -1\n"), "isls, line 37");
    faulty("tles.txt", &format!("1 37\n{ring}"), "1 37, and 36 satellites follow");
    faulty("tles.txt", &ring, "tles.txt, line 1");
    faulty("tles.txt", &format!("1 36\n{}", &ring[..3000]), "tles.txt, line 1");
    let fstate = "dynamic_state_100ms_for_10s/fstate_0.txt";
    faulty(fstate, "36,37,38,0,0\n", "line 1");
    faulty(fstate, "36,37,0,0", "line 1");
    faulty(fstate, "36,37,0,0,0\n0,37,20,0,0\n20,37,37,0,0\n", "forwards from 0 to 20");
    faulty("dynamic_state_100ms_for_10s/fstate_end.txt", &state, "has no time");
}

#[test]
fn mistakes_are_reported_with_a_way_out() {
    let there = ["--from", "51.4,10.5", "--to", "40.8,-74.0"];
    for (arguments, message) in [
        (&["route", "--constellation", "irridium"][..], "did you mean \"iridium\"?"),
        (&["route", "--constellation", "onboard-study"], "seen up to 47.5° north and south"),
        (&["route", "--constellation", "oneweb"], "both must see the same one"),
        (&["route", "--tle", "absent.tle"], "cannot read absent.tle"),
        (&["route"], "--constellation <NAME>"),
        (&["route", "--constellation", "iridium", "--forwarding"], "goes with --hypatia"),
        (&["route", "--constellation", "iridium", "--mask", "-1"], "0 to 89 degrees"),
        (&["route", "--constellation", "iridium", "--mask", "NaN"], "0 to 89 degrees"),
        (&["route", "--constellation", "iridium", "--step", "1ns"], "--step is 1 ns"),
        (&["route", "--constellation", "iridium", "--duration", "0s"], "more than no time"),
    ] {
        let (text, code) = refused(&[arguments, &there].concat());
        assert!(text.contains(message), "{text}");
        assert_eq!(code, Some(64), "{text}");
    }
    let (text, code) = refused(&["pass", "--constellation", "iridium", "--at", "91,0"]);
    assert!(text.contains("--at is 91"), "{text}");
    assert_eq!(code, Some(64));
    let (text, code) =
        refused(&["pass", "--constellation", "iridium", "--at", "Berlin", "--duration", "1min"]);
    assert!(text.contains("hint: write it as 51.4,10.5"), "{text}");
    assert_eq!(code, Some(64));
}
