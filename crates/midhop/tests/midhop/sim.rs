//! `midhop sim` from the command line: exit codes, places of output, continuing after an
//! interruption.

use midhop_experiment::record::{Environment, Record};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const SCENARIO: &str = r#"title = "a file over a link"
duration = "20 s"

[nodes]
client = {}
server = {}

[links.link]
between = ["client", "server"]
rate = "20 Mbit/s"
delay = "10 ms"

[transfers.file]
from = "server"
to = "client"
bytes = "100 kB"
"#;

fn midhop(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_midhop"))
        .args(arguments)
        .current_dir(directory)
        .output()
        .expect("midhop starts")
}

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("file.toml"), SCENARIO).expect("written");
    directory
}

fn as_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn records(text: &str) -> Vec<Record> {
    text.lines().map(|line| Record::from_json(line).expect("a record")).collect()
}

#[test]
fn a_run_gives_the_same_record_every_time() {
    let directory = directory();
    let run = || {
        let output =
            midhop(directory.path(), &["sim", "run", "file.toml", "--json", "--seeds", "3"]);
        assert!(output.status.success(), "{}", as_text(&output.stderr));
        let mut records = records(&as_text(&output.stdout));
        for record in &mut records {
            assert!(record.transfers[0].complete && record.environment.runner == "sim");
            // Everything that depends on the machine and its clocks.
            record.environment = Environment::default();
        }
        records
    };
    let first = run();
    assert_eq!(first.len(), 3);
    assert_eq!(first, run());
}

#[test]
fn the_table_is_the_only_output_without_a_terminal() {
    let directory = directory();
    let output = midhop(directory.path(), &["sim", "run", "file.toml", "--out", "records"]);
    assert!(as_text(&output.stdout).contains("goodput"), "{}", as_text(&output.stdout));
    assert_eq!(as_text(&output.stderr), "");
    let file = fs::read_to_string(directory.path().join("records/0000.json")).expect("kept");
    assert!(Record::from_json(&file).expect("a record").validity.is_valid());
}

#[test]
fn what_is_wrong_is_reported_before_anything_runs() {
    let directory = directory();
    for (arguments, reason) in [
        (&["--set", "links.link.rte=1 Mbit/s"][..], "did you mean `rate`?"),
        (&["--set", "transfers.file.congestion=fastest"], "`fastest`"),
        (&["--set", "nodes.client.programs=[\"true\"]"], "runs programs"),
        (&["--jobs", "0"], "--jobs"),
        (&["--set", "transfers.file.congestion=bbrv3"], "did you mean `bbr3`?"),
    ] {
        let output = midhop(directory.path(), &[&["sim", "run", "file.toml"], arguments].concat());
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        assert!(
            as_text(&output.stderr).contains(reason),
            "{arguments:?}: {}",
            as_text(&output.stderr)
        );
        assert_eq!(as_text(&output.stdout), "");
    }
}

#[test]
fn the_lab_refuses_what_only_a_simulation_has() {
    let directory = directory();
    let naive = "naive.box={ buffer = \"1 MB\", legs.link = { timer = \"1 s\" } }";
    let thin = "agents.thin={ kind = \"ack-decimation\" }";
    let noise = "traffic.noise={ kind = \"bulk\", from = \"server\", to = \"client\", \
        congestion = \"dvegas\" }";
    let spread = "transfers.file.congestion={ algorithm = \"cubic\", slow_start = \"search\" }";
    let xcp = "transfers.file.congestion={ algorithm = \"xcp\" }";
    for (set, reason) in [
        (&[noise][..], "congestion control of traffic.noise, or its parameters: dvegas"),
        (&[spread], "congestion control of transfers.file, or its parameters: cubic"),
        (&["transfers.file.congestion=dvegas"], "transfers.file, or its parameters: dvegas"),
        (&["nodes.client.tcp.packet=1024 B"], "all hosts have the same `packet`"),
        (&["links.link.aqm=xcp"], "the lab has no router for XCP (links.link)"),
        (&[xcp, "links.link.aqm=xcp"], "transfers.file, or its parameters: xcp"),
        (
            &[naive, "nodes.client.pep=box"],
            "no kernel repairs by a timer alone (naive.box.legs.link)",
        ),
        (
            &["transfers.file.congestion={ algorithm = \"hybla-plus\", growth_max = 3.0 }"],
            "transfers.file, or its parameters: hybla-plus",
        ),
    ] {
        let set: Vec<&str> = set.iter().flat_map(|set| ["--set", set]).collect();
        for command in ["run", "up"] {
            let arguments = [&["lab", command, "file.toml"], &set[..]].concat();
            let output = midhop(directory.path(), &arguments);
            let error = as_text(&output.stderr);
            assert_eq!(output.status.code(), Some(64), "{arguments:?}: {error}");
            assert!(error.contains(reason), "{arguments:?}: {error}");
            assert!(error.contains("midhop sim run"), "{arguments:?}: {error}");
            assert_eq!(as_text(&output.stdout), "");
        }
        let output = midhop(directory.path(), &[&["sim", "run", "file.toml"], &set[..]].concat());
        assert!(output.status.success(), "{set:?}: {}", as_text(&output.stderr));
    }
    // An agent that no node names has no effect.
    let output =
        midhop(directory.path(), &["lab", "up", "file.toml", "--set", thin, "--set", noise]);
    assert!(as_text(&output.stderr).contains("traffic.noise"), "{}", as_text(&output.stderr));
}

#[test]
fn agents_of_the_lab_stand_at_the_ends_of_one_link() {
    let directory = directory();
    let text = "title = \"t\"\nduration = \"1 s\"\n\
        [nodes]\nclient = {}\nhub = {}\nserver = {}\n\
        [links.air]\nbetween = [\"client\", \"hub\"]\nrate = \"1 Mbit/s\"\ndelay = \"1 ms\"\n\
        [links.cable]\nbetween = [\"hub\", \"server\"]\nrate = \"1 Mbit/s\"\ndelay = \"1 ms\"\n\
        [agents.snoop]\nkind = \"snoop\"\n\
        [agents.pair]\nkind = \"d-proxy\"\npeers = [\"client\", \"server\"]\n\
        [transfers.file]\nfrom = \"server\"\nto = \"client\"\nbytes = \"10 kB\"\n";
    fs::write(directory.path().join("agents.toml"), text).expect("written");
    let ends = ["nodes.client.agents=[\"pair\"]", "nodes.server.agents=[\"pair\"]"];
    for (set, expected) in [
        (&["nodes.hub.agents=[\"snoop\"]"][..], "stands before one link (nodes.hub: snoop)"),
        (&ends, "stand at the ends of one link (nodes.client: pair)"),
    ] {
        let set: Vec<&str> = set.iter().flat_map(|set| ["--set", set]).collect();
        let lab = midhop(directory.path(), &[&["lab", "run", "agents.toml"], &set[..]].concat());
        assert_eq!(lab.status.code(), Some(64), "{}", as_text(&lab.stderr));
        assert!(as_text(&lab.stderr).contains(expected), "{}", as_text(&lab.stderr));
        let sim = midhop(directory.path(), &[&["sim", "run", "agents.toml"], &set[..]].concat());
        assert!(sim.status.success(), "{}", as_text(&sim.stderr));
    }
}

#[test]
fn records_of_other_runs_are_reported() {
    let directory = directory();
    let run = |more: &[&str]| {
        let common = ["sim", "run", "file.toml", "--out", "out"];
        let output = midhop(directory.path(), &[&common, more].concat());
        assert!(output.status.success(), "{}", as_text(&output.stderr));
        as_text(&output.stderr)
    };
    assert!(!run(&["--seeds", "3"]).contains("warning"));
    assert!(!run(&["--seeds", "3"]).contains("warning"), "they replace each other");
    let errors = run(&["--set", "links.link.delay=5 ms"]);
    assert!(errors.contains("warning: out also holds 2 records of other runs"), "{errors}");
    assert!(errors.contains("hint: "), "{errors}");
}

/// A device that is full: the failure is reported, and what can be printed is printed.
#[test]
fn a_disk_that_is_full_is_reported_and_fails() {
    let directory = directory();
    let full = directory.path().join("0000.cwnd.csv");
    std::os::unix::fs::symlink("/dev/full", &full).expect("a link");
    let arguments = ["sim", "run", "file.toml", "--out", ".", "--trace", "cwnd"];
    let output = midhop(directory.path(), &arguments);
    assert_eq!(output.status.code(), Some(1), "{}", as_text(&output.stderr));
    assert!(
        as_text(&output.stderr).contains("No space left on device"),
        "{}",
        as_text(&output.stderr)
    );
    // The same where a record is to be written.
    fs::remove_file(&full).expect("removed");
    std::os::unix::fs::symlink("/dev/full", directory.path().join("0000.json.new"))
        .expect("a link");
    let output = midhop(directory.path(), &["sim", "run", "file.toml", "--out", ".", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", as_text(&output.stderr));
    assert!(as_text(&output.stderr).contains("1 of 1 records were not written"), "{output:?}");
    assert_eq!(records(&as_text(&output.stdout)).len(), 1);
    assert!(!directory.path().join("0000.json").exists(), "no record that is cut short");
}

#[test]
fn a_sweep_goes_on_where_it_was_interrupted() {
    let directory = directory();
    let sweep = |more: &[&str]| {
        let common = [
            "sim",
            "sweep",
            "file.toml",
            "--out",
            "out",
            "--json",
            "--vary",
            "links.link.delay=5 ms,50 ms",
            "--vary",
            "links.link.down.loss=0,0.01",
        ];
        let output = midhop(directory.path(), &[&common, more].concat());
        assert!(output.status.success(), "{}", as_text(&output.stderr));
        (records(&as_text(&output.stdout)), as_text(&output.stderr))
    };
    let (first, errors) = sweep(&["--seeds", "2"]);
    assert_eq!(first.len(), 8);
    assert!(!errors.contains("there already"), "{errors}");
    // As after a kill while it wrote its last but one record.
    let path = directory.path().join("out/records.jsonl");
    let text = fs::read_to_string(&path).expect("kept");
    let lines: Vec<&str> = text.lines().collect();
    fs::write(&path, lines[..6].join("\n") + "\n" + &lines[6][..200]).expect("cut");
    let (second, errors) = sweep(&["--seeds", "2"]);
    assert!(errors.contains("6 of 8 runs are there already"), "{errors}");
    let figures = |records: &[Record]| -> Vec<_> {
        records.iter().map(|it| (it.cell.clone(), it.seed, it.transfers.clone())).collect()
    };
    assert_eq!(figures(&first), figures(&second));
    let (third, errors) = sweep(&["--seeds", "3", "--confidence", "0.98"]);
    assert!(errors.contains("8 of 12 runs are there already"), "{errors}");
    assert_eq!(third.len(), 12);
    let table = |name: &str| fs::read(directory.path().join("out").join(name)).expect("written");
    let cells = as_text(&table("cells.csv"));
    assert_eq!(cells.lines().count(), 1 + 4, "{cells}");
    assert!(cells.lines().all(|line| line.contains("confidence") || line.contains(",0.98,")));
    assert_eq!(as_text(&table("runs.csv")).lines().count(), 1 + 12);
    for name in ["runs.parquet", "cells.parquet"] {
        let bytes = table(name);
        assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"), "{name}");
    }
    // A reader of records elsewhere can read these.
    let output = midhop(directory.path(), &["report", "out", "--csv"]);
    assert!(output.status.success(), "{}", as_text(&output.stderr));
}

#[test]
fn what_the_simulator_lacks_is_reported_on_its_line() {
    let directory = directory();
    let (line, varied) = ("congestion = \"bbrv3\"\n", "[vary]\nlaw = { one = {}, ");
    let varied = format!("{varied}other = {{ transfers.file.congestion = \"bbrv3\" }} }}\n");
    let lines = SCENARIO.lines().count();
    for (more, line) in [(line, lines + 1), (&varied, lines + 2)] {
        fs::write(directory.path().join("new.toml"), SCENARIO.to_owned() + more).expect("written");
        for arguments in [&["run", "new.toml"][..], &["sweep", "new.toml", "--out", "out"]] {
            let output = midhop(directory.path(), &[&["sim"], arguments].concat());
            let errors = as_text(&output.stderr);
            assert_eq!(output.status.code(), Some(64), "{errors}");
            assert!(errors.contains(&format!("new.toml:{line}:")), "{errors}");
            assert!(errors.contains("transfers.file.congestion"), "{errors}");
            assert!(errors.contains("did you mean `bbr3`?"), "{errors}");
        }
    }
    let proxied = PROXIED.replace("\"cubic\" }", "\"cubik\" }");
    let fixed = proxied.split("[vary]").next().expect("a text");
    fs::write(directory.path().join("new.toml"), fixed).expect("written");
    let output = midhop(directory.path(), &["sim", "run", "new.toml"]);
    let errors = as_text(&output.stderr);
    let line = 1 + fixed.lines().position(|line| line.contains("cubik")).expect("a line");
    assert_eq!(output.status.code(), Some(64), "{errors}");
    assert!(errors.contains(&format!("new.toml:{line}:")), "{errors}");
    assert!(errors.contains("peps.p.legs.sat.congestion"), "{errors}");
    assert!(errors.contains("did you mean `cubic`?"), "{errors}");
    let programs = "nodes.client.programs=[\"true\"]";
    let output = midhop(directory.path(), &["sim", "run", "file.toml", "--set", programs]);
    let errors = as_text(&output.stderr);
    assert!(
        errors.contains("nodes.client.programs") && errors.contains("midhop lab run"),
        "{errors}"
    );
}

const PROXIED: &str = r#"title = "a proxy and its congestion control"
duration = "5 s"
[nodes]
client = {}
gateway = { pep = "p" }
server = {}
[links.lan]
between = ["client", "gateway"]
rate = "100 Mbit/s"
delay = "1 ms"
[links.sat]
between = ["gateway", "server"]
rate = "20 Mbit/s"
delay = "50 ms"
[peps.p]
legs.sat = { congestion = "cubic" }
[transfers.file]
from = "server"
to = "client"
bytes = "200 kB"
[vary]
proxy = { on = {}, off = { "nodes.gateway.pep" = "none" } }
"peps.p.legs.sat.congestion" = ["cubic", "reno"]
"#;

#[test]
fn a_leg_may_give_its_congestion_control_more_than_a_name() {
    let directory = directory();
    let table = "{ algorithm = \"known-rate\", window = 2 }, rate = \"20 Mbit/s\"";
    let proxied = PROXIED.replace("\"cubic\" }", &format!("{table} }}"));
    let fixed = proxied.split("[vary]").next().expect("a text");
    let varied = format!(
        "{fixed}[vary.leg]\nhybla = {{ \"peps.p.legs.sat.congestion\" = \"hybla-plus\" }}\nknown = {{}}\n"
    );
    fs::write(directory.path().join("table.toml"), varied).expect("written");
    let output = midhop(directory.path(), &["sim", "run", "table.toml", "--json"]);
    assert!(output.status.success(), "{}", as_text(&output.stderr));
    let records = as_text(&output.stdout);
    assert!(records.contains("known-rate"), "{records}");
    let output = midhop(directory.path(), &["lab", "run", "table.toml"]);
    let errors = as_text(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{errors}");
    assert!(
        errors.contains("peps.p.legs.sat.congestion") && errors.contains("midhop sim"),
        "{errors}"
    );
    let wrong = fixed.replace("window", "windows");
    fs::write(directory.path().join("wrong.toml"), wrong).expect("written");
    let output = midhop(directory.path(), &["sim", "run", "wrong.toml"]);
    let errors = as_text(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{errors}");
    assert!(errors.contains("wrong.toml:") && errors.contains("windows"), "{errors}");
}

#[test]
fn a_finished_sweep_keeps_cells_that_are_the_same_run() {
    // Without the proxy, its congestion control has no effect: two cells have one plan.
    let directory = directory();
    fs::write(directory.path().join("proxied.toml"), PROXIED).expect("written");
    let sweep = || {
        let output = midhop(directory.path(), &["sim", "sweep", "proxied.toml", "--out", "out"]);
        let errors = as_text(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let table = |name: &str| {
            fs::read_to_string(directory.path().join("out").join(name)).expect("written")
        };
        (table("runs.csv"), table("cells.csv"), errors)
    };
    let (runs, cells, _) = sweep();
    assert_eq!((runs.lines().count(), cells.lines().count()), (1 + 4, 1 + 4), "{runs}");
    let (again, cells_again, errors) = sweep();
    assert!(errors.contains("4 of 4 runs are there already"), "{errors}");
    assert_eq!((again, cells_again), (runs, cells));
}

/// The blocks of a pcapng file: kind and body.
fn blocks(mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let word = |at: &[u8]| u32::from_le_bytes(at[..4].try_into().expect("four bytes"));
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let length = word(&bytes[4..]) as usize;
        assert_eq!((word(&bytes[length - 4..]) as usize, length % 4), (length, 0));
        all.push((word(bytes), bytes[8..length - 4].to_vec()));
        bytes = &bytes[length..];
    }
    all
}

#[test]
fn traces_hold_every_packet_and_tshark_opens_them() {
    let directory = directory();
    let output = midhop(
        directory.path(),
        &[
            "sim",
            "run",
            "file.toml",
            "--out",
            "out",
            "--json",
            "--trace",
            "cwnd,queue,pcapng",
            "--set",
            "links.link.down.loss=0.03",
            "--set",
            "traffic.noise={ kind = \"constant\", from = \"server\", to = \"client\", \
         rate = \"1 Mbit/s\" }",
        ],
    );
    assert!(output.status.success(), "{}", as_text(&output.stderr));
    let record = records(&as_text(&output.stdout)).swap_remove(0);
    let down = record.links.iter().find(|link| link.direction == "down").expect("a link");
    let up = record.links.iter().find(|link| link.direction == "up").expect("a link");
    let file = |name: &str| directory.path().join("out").join(name);
    let packets = |name: &str| {
        let blocks = blocks(&fs::read(file(name)).expect("captured"));
        assert_eq!((blocks[0].0, blocks[1].0), (0x0a0d_0d0a, 1));
        blocks.len() as u64 - 2
    };
    // The server is the second node: down begins there.
    assert_eq!(packets("0000.link@server.pcapng"), down.packets_in + up.packets_out);
    assert_eq!(packets("0000.link@client.pcapng"), down.packets_out + up.packets_in);
    assert_eq!(packets("0000.link.dropped.pcapng"), down.drops["loss"]);
    let lines = fs::read_to_string(file("0000.queue.csv")).expect("traced");
    let entered = lines.lines().filter(|line| line.contains(",enter,")).count() as u64;
    assert_eq!(entered, down.packets_in + up.packets_in);
    assert!(fs::read_to_string(file("0000.cwnd.csv")).expect("traced").lines().count() > 20);

    let tshark = Command::new("tshark")
        .args(["-r", file("0000.link@server.pcapng").to_str().expect("a path")])
        .args(["-o", "tcp.check_checksum:FALSE", "-T", "fields", "-e", "ip.proto"])
        .args(["-e", "tcp.flags.syn", "-e", "_ws.malformed", "-e", "tcp.srcport"])
        .args(["-e", "tcp.len", "-e", "tcp.seq"])
        .output();
    let Ok(tshark) = tshark else { return midhop_testkit::skipped("tshark is not installed") };
    assert!(tshark.status.success(), "{}", as_text(&tshark.stderr));
    let text = as_text(&tshark.stdout);
    let fields: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(fields.len() as u64, down.packets_in + up.packets_out);
    let with = |column: usize, is: &dyn Fn(&str) -> bool| {
        fields.iter().filter(|line| line.get(column).is_some_and(|field| is(field))).count() as u64
    };
    assert_eq!(with(0, &|protocol| protocol == "17"), record.traffic[0].packets_sent);
    assert_eq!(with(1, &|syn| syn == "1" || syn == "True"), 2);
    assert_eq!(with(2, &|malformed| !malformed.is_empty()), 0);
    // A sequence number that the server sends twice belongs to a retransmission.
    let mut sent: Vec<&str> = fields
        .iter()
        .filter(|line| line[3] == "7000" && line[4] != "0")
        .map(|line| line[5])
        .collect();
    let all = sent.len();
    sent.sort_unstable();
    sent.dedup();
    let again = record.transfers[0].flows[0].retransmissions;
    assert!(again > 0);
    assert_eq!((all - sent.len()) as u64, again);
}

#[test]
fn a_flow_outside_the_band_of_its_formula_is_an_unmet_expectation() {
    let directory = directory();
    let formulas = |more: &[&str]| {
        let cell = ["formulas", "--json", "--seeds", "1", "--set", "congestion=reno"];
        let sizes = ["--set", "rtt=50ms", "--set", "transfers.flow.bytes=20 MB"];
        let loss = ["--set", "loss=1 %"];
        let output = midhop(directory.path(), &[&cell[..], &sizes, &loss, more].concat());
        (output.status.code(), as_text(&output.stderr))
    };
    let (code, errors) = formulas(&[]);
    assert_eq!(code, Some(0), "{errors}");
    // A link that carries less than half of what Padhye's formula predicts, since the formula does
    // not include the link.
    let (code, errors) = formulas(&["--set", "links.path.rate=1 Mbit/s"]);
    assert_eq!(code, Some(2), "{errors}");
}
