//! `midhop report` and `midhop compare` with measurements without a scenario, from a user's view.

use midhop_testkit::quantities_as_text;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

const TCP_UP: &str = "tcp_up.json";

/// Output of iperf 3.12.
fn iperf3(name: &str) -> String {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../experiment/tests/experiment/iperf3");
    place.join(name).display().to_string()
}

fn midhop(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_midhop")).args(arguments).output().expect("midhop starts")
}

/// The output of a call that succeeds.
fn printed(arguments: &[&str]) -> String {
    let output = midhop(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

/// The error of a call that is refused: exactly one, with a hint.
fn refused(arguments: &[&str]) -> String {
    let output = midhop(arguments);
    let errors = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(64), "{arguments:?}: {errors}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    let begin = |with: &str| errors.lines().filter(|line| line.starts_with(with)).count();
    // An error in a scenario shows its line instead.
    let hints = begin("hint: ") + begin("  |");
    assert!(begin("error: ") == 1 && hints > 0, "{errors}");
    errors
}

fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}

fn lacks(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(!text.contains(part), "{part:?} is in\n{text}");
    }
}

/// A scenario like the tests in `iperf3/`, with one upload.
const TWIN: &str = "title = \"Twin\"\nduration = \"10 s\"\nseeds = 1\n[nodes]\nclient = {}\nserver = {}\n\
     [links.link]\nbetween = [\"client\", \"server\"]\ndelay = \"20 ms\"\n\
     down = { rate = \"20 Mbit/s\", loss = \"0.3 %\" }\nup = { rate = \"8 Mbit/s\" }\n\
     [transfers.upload]\nfrom = \"client\"\nto = \"server\"\nopens = \"from\"\nseconds = 3\ncongestion = \"reno\"\n";

#[test]
fn tests_of_iperf3_are_a_table() {
    let table = printed(&["report", &iperf3(TCP_UP)]);
    has(
        &table,
        &[
            "iperf3 to 10.0.0.2, measured by iperf3 3.12\n",
            "throughout: congestion reno, flows 1\n",
            "7.49",
            "3.06",
            "57",
            "of limit: not known without --limit",
        ],
    );
    lacks(&table, &["seed", "simulated", "INVALID", "Not the whole experiment"]);
    let both = printed(&["report", &iperf3("tcp_bidir.json")]);
    has(&both, &["up ", "down ", "6.90", "9.25"]);
    let datagrams = printed(&["report", &iperf3("udp_down.json")]);
    has(&datagrams, &["datagrams down", "19.55", "down: 347 of 3876 datagrams lost (8.95 %)"]);
    // The same test twice counts as two runs of it.
    let csv = printed(&["report", &iperf3(TCP_UP), &iperf3(TCP_UP), "--csv"]);
    assert_eq!(csv.lines().count(), 3, "{csv}");
    has(&csv, &["iperf3"]);
    let twice = printed(&["report", &iperf3(TCP_UP), &iperf3(TCP_UP)]);
    lacks(&twice, &["no randomness"]);
}

#[test]
fn a_page_names_who_measured() {
    let place = tempfile::tempdir().expect("a directory");
    let page = place.path().join("own.html").display().to_string();
    printed(&["report", &iperf3("tcp_down_three.json"), "--out", &page]);
    let page = std::fs::read_to_string(page).expect("a page");
    has(
        &page,
        &[
            "Measured by iperf3: comparison",
            "Measured by iperf3: over time",
            "iperf3 3.12",
            "Measured between two hosts, without a scenario",
            "1 measurement",
            "down · ",
            "run 1",
        ],
    );
    lacks(
        &page,
        &[
            "To run it again",
            "Plan, every default",
            "seed 1",
            "physical limit.",
            "every byte that was compared",
            "0 processors",
        ],
    );
}

#[test]
fn a_scenario_or_a_measured_link_gives_the_limit() {
    let place = tempfile::tempdir().expect("a directory");
    let twin = place.path().join("twin.toml").display().to_string();
    std::fs::write(&twin, TWIN).expect("written");
    let table = printed(&["report", &iperf3(TCP_UP), "--limit", &twin]);
    // 7.49 of 8 x 1448/1500 Mbit/s, and half a round trip.
    has(
        &table,
        &[
            "97.7",
            "of limit: the shortest time",
            "link: link, client – server: down 20 Mbit/s, 20 ms; up 8 Mbit/s, 20 ms\n",
        ],
    );
    let errors = refused(&["report", &iperf3("tcp_down_three.json"), "--limit", &twin]);
    has(&errors, &["has no transfer like \"down\"", "it has \"upload\""]);
    let errors = refused(&["report", &iperf3(TCP_UP), "--limit", &iperf3(TCP_UP)]);
    has(&errors, &["is no measurement of a link", "midhop meter link HOST --json"]);
    let errors = refused(&["report", &iperf3(TCP_UP), "--limit", "nowhere.toml"]);
    has(&errors, &["cannot read nowhere.toml"]);
}

#[test]
fn a_simulated_run_of_the_same_shape_meets_a_test_of_iperf3() {
    let place = tempfile::tempdir().expect("a directory");
    let path = |name: &str| place.path().join(name).display().to_string();
    std::fs::write(path("twin.toml"), TWIN).expect("written");
    printed(&["sim", "run", &path("twin.toml"), "--out", &path("twin")]);
    let table = printed(&["compare", &iperf3(TCP_UP), &path("twin")]);
    has(
        &table,
        &[
            "tcp_up.json, by iperf3, \"iperf3 to 10.0.0.2\", congestion reno, flows 1\n",
            "twin, in the simulator, \"Twin\"\n",
            "up / upload",
            "7.49",
            "over 1 lines: median",
        ],
    );
    let json = printed(&["compare", &iperf3(TCP_UP), &path("twin"), "--json"]);
    let found: Value = serde_json::from_str(&json).expect("JSON");
    let ratio = found["summary"]["median"].as_f64().expect("a ratio");
    assert!((0.8..1.2).contains(&ratio), "{found}");
    // Transfers with the same name are listed apart from the others.
    let same = printed(&["compare", &iperf3("tcp_bidir.json"), &iperf3(TCP_UP)]);
    has(&same, &["only in A: down"]);
}

/// Scenarios are read in the same way in virtual time and on kernels.
#[test]
fn a_recorded_delay_is_taken_from_beside_the_scenario() {
    let place = tempfile::tempdir().expect("a directory");
    let path = |name: &str| place.path().join(name).display().to_string();
    let run = |delay: &str| {
        std::fs::write(path("own.toml"), TWIN.replace("delay = \"20 ms\"", delay))
            .expect("written");
        let record = printed(&["sim", "run", &path("own.toml"), "--json"]);
        let record: Value = serde_json::from_str(&record).expect("JSON");
        (record["plan"]["links"].clone(), record["transfers"].clone())
    };
    let inline = run("delay = { trace = [[\"0 s\", \"20 ms\"], [\"1 s\", \"50 ms\"]] }");
    std::fs::write(path("pass.csv"), "# recorded\ntime_s,delay_ms\n0,20\n1,50\n").expect("written");
    assert_eq!(run("delay = { csv_file = \"pass.csv\" }"), inline);
    std::fs::write(path("pass.csv"), "time_s,delay_ms\n0,20\n1;50\n").expect("written");
    for program in ["sim", "lab"] {
        let errors = refused(&[program, "run", &path("own.toml")]);
        has(&errors, &["own.toml:9:", "pass.csv, line 3: \"1;50\" is no time and delay"]);
    }
    std::fs::remove_file(path("pass.csv")).expect("removed");
    has(
        &refused(&["sim", "run", &path("own.toml")]),
        &["cannot read ", "pass.csv", "paths count from where"],
    );
}

#[test]
fn what_cannot_be_used_is_one_error_with_a_hint() {
    let place = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = place.path().join(name).display().to_string();
        std::fs::write(&path, text).expect("written");
        path
    };
    let whole = std::fs::read_to_string(iperf3(TCP_UP)).expect("a fixture");
    let cut = file("cut.json", &whole[..whole.len() / 2]);
    has(&refused(&["report", &cut]), &["cut.json is cut short", "come to its end"]);
    has(&refused(&["compare", &iperf3(TCP_UP), &cut]), &["cut.json is cut short"]);
    let errors = refused(&["report", &iperf3("refused.json")]);
    has(
        &errors,
        &[
            "refused.json is an iperf3 test that ended in an error: unable to connect to server",
            "run iperf3 again",
        ],
    );
    let text = file("text.json", "[ ID] Interval           Transfer     Bitrate\niperf Done.\n");
    has(&refused(&["report", &text]), &["is not a record", "run it again with --json"]);
    let other = file("other.json", "{\"a\": 1}");
    has(&refused(&["report", &other]), &["other.json is not a record", "iperf3 --json"]);
    // In a directory, JSON of other kinds is skipped, but a failed test is not.
    let table = {
        let kept = tempfile::tempdir().expect("a directory");
        std::fs::write(kept.path().join("a.json"), &whole).expect("written");
        std::fs::write(kept.path().join("b.json"), "{\"a\": 1}").expect("written");
        printed(&["report", &kept.path().display().to_string()])
    };
    has(&table, &["measured by iperf3 3.12"]);
}

/// A serving meter, killed when the value is dropped.
struct Serving(Child, String);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve() -> Serving {
    let mut child = Command::new(env!("CARGO_BIN_EXE_midhop"))
        .args([
            "meter",
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--json",
            "--link-rate-max",
            "20 Mbit/s",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("midhop starts");
    let mut line = String::new();
    let out = child.stdout.take().expect("piped");
    BufReader::new(out).read_line(&mut line).expect("a line when ready");
    let ready: Value = serde_json::from_str(&line).expect("JSON");
    let address = ready["ready"].as_str().expect("the bound address").to_owned();
    Serving(child, address)
}

/// Makes a schema refuse keys that it does not name.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(keys) => {
            if keys.contains_key("properties") {
                keys.insert("additionalProperties".to_owned(), false.into());
            }
            keys.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

/// Checks `text` against the schema that `midhop schema` prints for `kind`: there must be no other
/// keys, and no quantities as text.
fn assert_published(kind: &str, text: &str) {
    let mut schema: Value = serde_json::from_str(&printed(&["schema", kind])).expect("JSON");
    close(&mut schema);
    let schema = jsonschema::validator_for(&schema).expect("a schema");
    let value: Value = serde_json::from_str(text).expect("JSON");
    let faults: Vec<_> =
        schema.iter_errors(&value).map(|it| format!("{}: {it}", it.instance_path())).collect();
    assert_eq!(faults, Vec::<String>::new());
    assert_eq!(quantities_as_text(&value, &["warnings"]), Vec::<String>::new());
}

#[test]
fn the_meters_own_reports_hold_to_their_schemas_and_are_taken() {
    let place = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = place.path().join(name).display().to_string();
        std::fs::write(&path, text).expect("written");
        path
    };
    let server = serve();
    let host = server.1.as_str();
    let pages = printed(&["meter", "run", host, "--page", "1kB,20kB", "--json"]);
    assert_published("meter-run", &pages);
    let run =
        printed(&["meter", "run", host, "--bytes", "300kB", "--flows", "2", "--up", "--json"]);
    assert_published("meter-run", &run);
    let link = printed(&["meter", "link", host, "--time", "8", "--json"]);
    assert_published("meter-link", &link);
    let (run, link) = (file("run.json", &run), file("link.json", &link));
    let table = printed(&["report", &run]);
    has(
        &table,
        &[
            "midhop meter run to 127.0.0.1, measured by midhop meter",
            "throughout: congestion ",
            "flows 2",
        ],
    );
    let table = printed(&["report", &link]);
    has(
        &table,
        &[
            "link to 127.0.0.1, measured by midhop meter",
            "datagrams down",
            "datagrams up",
            "link: link, here – there: ",
        ],
    );
    let same = printed(&["compare", &link, &link]);
    has(&same, &["by midhop meter", "median 1.000"]);
    let page = file("page.html", "");
    printed(&["report", &link, "--out", &page]);
    has(&std::fs::read_to_string(page).expect("a page"), &["Measured by midhop meter"]);
}
