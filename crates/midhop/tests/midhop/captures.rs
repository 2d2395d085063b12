//! Captures of simulated links, read by independent programs.

use midhop_experiment::record::Record;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A path over two satellites, lossy at the user's end.
const SCENARIO: &str = r#"title = "over two satellites"
duration = "60 s"

[nodes]
client = {}
sat1 = {}
sat2 = {}
server = {}

[links.user]
between = ["client", "sat1"]
rate = "10 Mbit/s"
delay = "4 ms"
down = { loss = 0.03 }

[links.isl]
between = ["sat1", "sat2"]
rate = "100 Mbit/s"
delay = "9 ms"

[links.feeder]
between = ["sat2", "server"]
rate = "100 Mbit/s"
delay = "20 ms"

[transfers.file]
from = "server"
to = "client"
bytes = "2 MB"
"#;

/// Runs the scenario with captures into `directory`/out.
fn captured(directory: &Path) -> Record {
    fs::write(directory.join("file.toml"), SCENARIO).expect("written");
    let output = Command::new(env!("CARGO_BIN_EXE_midhop"))
        .args(["sim", "run", "file.toml", "--out", "out", "--json", "--trace", "pcapng"])
        .current_dir(directory)
        .output()
        .expect("midhop starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let record = Record::from_json(&String::from_utf8_lossy(&output.stdout)).expect("a record");
    assert!(record.transfers[0].complete && record.transfers[0].flows[0].retransmissions > 20);
    record
}

/// The output of a program; none where it is not installed.
fn printed(program: &str, file: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).arg(file).output().ok()?;
    let (out, error) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program}: {out}{error}");
    Some(out.into_owned())
}

#[test]
fn each_end_of_each_link_is_an_interface_of_its_own_also_between_satellites() {
    let directory = tempfile::tempdir().expect("a directory");
    let record = captured(directory.path());
    for (link, ends) in
        [("user", ["client", "sat1"]), ("isl", ["sat1", "sat2"]), ("feeder", ["sat2", "server"])]
    {
        let counted = |way: &str| {
            let link = record.links.iter().find(|it| it.name == link && it.direction == way);
            link.map(|link| (link.packets_in, link.packets_out)).expect("a link")
        };
        // Down leads to the first end.
        let (down, up) = (counted("down"), counted("up"));
        for (end, packets) in ends.iter().zip([down.1 + up.0, down.0 + up.1]) {
            let name = format!("{link}@{end}");
            let file = directory.path().join(format!("out/0000.{name}.pcapng"));
            let fields = ["-T", "fields", "-e", "frame.interface_name", "-e", "tcp.stream", "-r"];
            let Some(text) = printed("tshark", &file, &fields) else {
                return midhop_testkit::skipped("tshark is not installed");
            };
            assert_eq!(text.lines().count() as u64, packets, "{name}");
            let expected = format!("{name}\t0");
            assert!(text.lines().all(|line| line == expected), "{name}: {text:.200}");
        }
    }
}

#[test]
fn tcptrace_counts_what_the_record_has() {
    let directory = tempfile::tempdir().expect("a directory");
    let record = captured(directory.path());
    let flow = &record.transfers[0].flows[0];
    // All packets of the server pass both: no packet is lost before the user's link.
    for name in ["feeder@server", "isl@sat1"] {
        let file = directory.path().join(format!("out/0000.{name}.pcapng"));
        let Some(text) = printed("tcptrace", &file, &["-l", "-n"]) else {
            return midhop_testkit::skipped("tcptrace is not installed");
        };
        assert!(text.contains("1 TCP connection traced:"), "{text}");
        // Two columns: of the client, which opens the connection, and of the server.
        let of_server = |what: &str| -> u64 {
            let line = text.lines().find(|line| line.contains(what)).expect(what);
            line.split_whitespace().last().and_then(|count| count.parse().ok()).expect(line)
        };
        let headers = of_server("unique bytes sent:") - flow.bytes.get();
        // The server's frames around the file: acceptance, header, and hash.
        assert_eq!(headers, 94 + 9 + 67, "{name}");
        assert_eq!(of_server("rexmt data pkts:"), flow.retransmissions, "{name}");
        let bytes = of_server("actual data bytes:") - of_server("unique bytes sent:");
        assert_eq!(of_server("rexmt data bytes:"), bytes, "{name}");
    }
}
