//! What unknown clients and peers send is logged only as text: one line stays one line, and
//! contains no control sequences for a terminal.

use crate::ends::{Authority, far_config};
use crate::program::{Running, Setup, wording_of};
use crate::stage::{Family, Stage, until};
use crate::visitor::{Shown, Visitor, leave_at_once};
use midhop_tunnel::connect::{Request, Response};
use midhop_tunnel::target::Target;

/// A line break and a forged line in the log's form, and control sequences for a terminal: with
/// seven bits, with eight bits, and for the text direction.
const FORGED: &str =
    "no\n2026-01-01T00:00:00.000000Z  INFO midhopd: FORGED\r\u{1b}[2J\u{9b}2J\u{202e}";

/// Connects as a peer, and closes with a reason. The caller keeps it until the last packets have
/// left.
fn leave_as_a_peer(stage: &Stage, authority: &Authority) -> Visitor {
    let listener = stage.listen(Family::V4);
    let target = Target::Address(listener.local_addr().expect("an address"));
    let asked = Request { target, client: None, class: None, hops: 0 };
    let visitor = Visitor::new(&stage.gateway);
    let (answer, flow) = visitor.ask("far", &Shown::of(authority, "near"), &asked);
    assert_eq!(answer, Response::Granted);
    flow.connection.close(0_u32.into(), FORGED.as_bytes());
    visitor
}

fn nobody_forges(family: Family, format: &str) {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far"]);
    let log = format!("[log]\nlevel = \"debug\"\nformat = \"{format}\"\n");
    let far = Setup::new(&far_config(family, &authority, &log));
    let _running = Running::start_in(&stage.server, &far);
    let forged = || wording_of(&far).matches("FORGED").count();
    leave_at_once(&stage.client, family, FORGED);
    until("the stranger's reason is logged", || forged() > 0);
    if family == Family::V4 {
        let before = forged();
        let _peer = leave_as_a_peer(&stage, &authority);
        until("the peer's reason is logged", || forged() > before);
    }
    let text = wording_of(&far);
    for line in text.lines().filter(|line| line.contains("FORGED")) {
        assert!(!line.starts_with("2026-01-01"), "a line was forged:\n{line}");
        assert!(line.chars().all(|char| !char.is_control() && char != '\u{202e}'), "{line:?}");
        if format == "json" {
            let read = serde_json::from_str::<serde_json::Value>(line);
            assert!(read.is_ok_and(|read| read["level"] != ""), "{line}");
        }
    }
}

#[test]
fn nobody_forges_a_line_of_text_ipv4() {
    nobody_forges(Family::V4, "text");
}

#[test]
fn nobody_forges_a_line_of_text_ipv6() {
    nobody_forges(Family::V6, "text");
}

#[test]
fn nobody_forges_a_line_of_json_ipv4() {
    nobody_forges(Family::V4, "json");
}

#[test]
fn nobody_forges_a_line_of_json_ipv6() {
    nobody_forges(Family::V6, "json");
}
