//! Wireshark's dissector reads what both ends send.

use super::{Pair, mac, mbit};
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Input for `text2pcap`: each segment from its first byte on.
fn dumped(segments: &[Vec<u8>]) -> String {
    let mut text = String::new();
    for bytes in segments {
        text.push_str("0000");
        for byte in bytes {
            let _ = write!(text, " {byte:02x}");
        }
        text.push('\n');
    }
    text
}

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// The output of a program for `input`.
fn piped(program: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("a program");
    child.stdin.take().expect("piped").write_all(input).expect("taken");
    let output = child.wait_with_output().expect("an end");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn wireshark_reads_every_message() {
    if !has("tshark") || !has("text2pcap") {
        midhop_testkit::skipped("no tshark");
        return;
    }
    let mut pair = Pair::new(mbit(20), &[mac(1)]);
    let mut segments = vec![pair.router.to_send()];
    pair.modem.on_received(pair.now, &segments[0]).expect("valid");
    pair.modem.change(pair.now, mbit(5));
    pair.modem.change_to(pair.now, mac(1), mbit(3));
    pair.modem.lose(pair.now, mac(1));
    segments.push(pair.modem.to_send());
    pair.router.on_received(pair.now, &segments[1]).expect("valid");
    pair.router.stop(pair.now);
    segments.push(pair.router.to_send());

    let captured = piped("text2pcap", &["-T", "40000,854", "-", "-"], dumped(&segments).as_bytes());
    let fields = ["dlep.message.type", "dlep.dataitem.cdrt", "_ws.expert"];
    let fields = fields.iter().flat_map(|field| ["-e", field]);
    let arguments: Vec<&str> = ["-r", "-", "-T", "fields"].into_iter().chain(fields).collect();
    let read = piped("tshark", &arguments, &captured);
    let read = String::from_utf8_lossy(&read);
    let lines: Vec<&str> = read.lines().map(str::trim_end).collect();
    assert_eq!(lines.len(), 3, "{read}");
    let messages: Vec<&str> = lines.iter().filter_map(|line| line.split('\t').next()).collect();
    assert_eq!(messages, ["1", "2,7,3,13,11", "8,4,12,5"], "{read}");
    assert_eq!(lines[1].split('\t').nth(1), Some("20000000,5000000,3000000"), "{read}");
    assert!(lines.iter().all(|line| line.split('\t').nth(2).is_none_or(str::is_empty)), "{read}");
}
