//! What both ends report when a certificate is refused: reason, certificate and known peers. Over
//! QUIC and over TCP.

use crate::ends::{Authority, PORT, TARGETS, far_config, near_config};
use crate::program::{Running, Setup, midhopd, wording_of};
use crate::stage::{self, Family, Stage, until};
use crate::visitor::{Shown, Visitor};
use midhop_pep::config::Plan;
use midhop_pki::trouble::PeerTrouble;
use midhop_status::snapshot::Snapshot;
use midhop_tunnel::connect::Request;
use midhop_tunnel::target::Target;
use midhopd::data_plane::DataPlane;
use midhopd::snapshot::Source;
use std::net::SocketAddr;
use std::path::Path;

const EARLY: &str = "accept = \"early\"\n";

/// What is wrong with the near end's certificate, or with the name that it requests.
struct Case {
    /// Whether the near end uses its own authority instead of the far end's.
    other_authority: bool,
    /// The file of its certificate.
    certificate: &'static str,
    /// Additional keys of the near end's table of its peer.
    peer: &'static str,
    /// The reason that the far end counts, the reason that the near end shows, and the owner of the
    /// certificate that the near end names.
    far: &'static str,
    near: &'static str,
    whose: &'static str,
    /// The known peer for which the far end shows it.
    known: Option<&'static str>,
}

const CASES: [Case; 6] = [
    Case {
        other_authority: false,
        certificate: "unknown",
        peer: "",
        far: "unknown-name",
        near: "unknown-name",
        whose: "own",
        known: None,
    },
    Case {
        other_authority: true,
        certificate: "near",
        peer: "",
        far: "authority",
        near: "authority",
        whose: "own",
        known: Some("near"),
    },
    Case {
        other_authority: false,
        certificate: "old",
        peer: "",
        far: "expired",
        near: "expired",
        whose: "own",
        known: None,
    },
    Case {
        other_authority: false,
        certificate: "young",
        peer: "",
        far: "not-yet-valid",
        near: "expired",
        whose: "own",
        known: None,
    },
    Case {
        other_authority: false,
        certificate: "revoked",
        peer: "",
        far: "revoked",
        near: "revoked",
        whose: "own",
        known: Some("revoked"),
    },
    Case {
        other_authority: false,
        certificate: "near",
        peer: "name = \"elsewhere\"\n",
        far: "wrong-name",
        near: "wrong-name",
        whose: "peer",
        known: None,
    },
];

fn take(proxy: &DataPlane) -> Snapshot {
    Source::of(proxy).take()
}

fn failure(proxy: &DataPlane, peer: &str) -> Option<PeerTrouble> {
    take(proxy).peers.get(peer)?.failure.clone()
}

/// The near end's configuration with other files.
fn near_with(authority: &Authority, other: &Authority, case: &Case, carrier: &str) -> String {
    let peer = format!("{carrier}{}", case.peer);
    let config = near_config(Family::V4, authority, EARLY, &peer, "");
    let file = |end: &str| format!("{}/near.{end}", authority.path().display());
    let place = if case.other_authority { other.path() } else { authority.path() };
    let with = |config: String, end: &str| {
        let path: &Path = place;
        config.replace(&file(end), &format!("{}/{}.{end}", path.display(), case.certificate))
    };
    with(with(config, "pem"), "key")
}

/// Both ends report the reason, and the end that opens tunnels never counts one as open.
fn both_ends_name_the_reason(carrier: &str) {
    let authority = Authority::new(&["near", "far", "revoked", "unknown"]);
    authority.issue("old", -3, -1);
    authority.issue("young", 1, 3);
    authority.revoke(&["revoked"]);
    let other = Authority::new(&["near", "far"]);
    for case in &CASES {
        let Some(stage) = Stage::set() else { return };
        let who = format!("{} {}{carrier}", case.certificate, case.peer);
        let address = SocketAddr::new(Family::V4.server(), PORT);
        let revoked = authority.path().join("crl.pem");
        let more =
            format!("listen = \"{address}\"\nrevoked = \"{}\"\n{}", revoked.display(), TARGETS);
        let peers = "[peers.near]\n[peers.revoked]\n[peers.second]\nname = \"second.example\"\n";
        let only = if carrier.is_empty() { "" } else { "fallback = \"only\"\n" };
        let config = format!("{}{peers}", authority.table("far", &format!("{more}{only}")));
        let far = stage::start(&stage.server, &config);
        let near = stage.start(&near_with(&authority, &other, case, carrier));
        until("the near end knows why", || {
            failure(&near, "far").is_some_and(|it| it.reason != "unreachable")
        });
        let seen = failure(&near, "far").expect("a failure");
        assert_eq!(
            (seen.reason, seen.certificate),
            (case.near, Some(case.whose)),
            "{who}: {seen:?}"
        );
        assert_eq!((seen.address, seen.hint.is_some()), (address, true), "{who}: {seen:?}");
        assert_eq!(take(&near).peers["far"].tunnels, 0, "{who}: open, and not accepted");
        until("the far end has counted it", || take(&far).handshakes_refused_total[case.far] > 0);
        let seen = take(&far).last_refusal.expect("a refusal");
        assert_eq!(seen.reason, case.far, "{who}: {seen:?}");
        if case.far != "wrong-name" {
            for part in ["SHA-256 ", "valid from ", "near revoked second (as second.example)"] {
                assert!(seen.message.contains(part), "{who}, {part}: {seen:?}");
            }
            assert!(
                seen.message.contains(&format!("names {}", case.certificate)),
                "{who}: {seen:?}"
            );
        }
        let failed = take(&far).peers.into_iter().find(|(_, peer)| peer.failure.is_some());
        assert_eq!(failed.as_ref().map(|(name, _)| name.as_str()), case.known, "{who}");
        let others = take(&far).handshakes_refused_total;
        assert!(
            others.iter().all(|(kind, count)| (*count > 0) == (kind == case.far)),
            "{who}: {others:?}"
        );
        // The same two ends connect once the certificate is good.
        let good = near_config(Family::V4, &authority, EARLY, carrier, "");
        let next = Plan::read("test.toml", &good).expect("a plan");
        let next = near.plan().borrow().reloaded(next).0;
        stage.gateway.run(|| near.reload(next)).expect("entering").expect("a reload");
        until("the tunnel is open", || take(&near).peers["far"].tunnels == 1);
    }
}

#[test]
fn both_ends_name_the_reason_over_quic() {
    both_ends_name_the_reason("");
}

#[test]
fn both_ends_name_the_reason_over_tcp() {
    both_ends_name_the_reason("fallback = \"only\"\n");
}

/// The end that opens tunnels refuses the far end's certificate, and shows its contents.
#[test]
fn a_far_end_s_expired_certificate_is_shown() {
    for carrier in ["", "fallback = \"only\"\n"] {
        let Some(stage) = Stage::set() else { return };
        let authority = Authority::new(&["near"]);
        authority.issue("far", -3, -1);
        let address = SocketAddr::new(Family::V4.server(), PORT);
        let more = format!("listen = \"{address}\"\n{carrier}");
        let config = format!("{}[peers.near]\n", authority.table("far", &more));
        let _far = stage::start(&stage.server, &config);
        let near = stage.start(&near_config(Family::V4, &authority, EARLY, carrier, ""));
        until("the near end knows why", || failure(&near, "far").is_some());
        let seen = failure(&near, "far").expect("a failure");
        assert_eq!((seen.reason, seen.certificate), ("expired", Some("peer")), "{seen:?}");
        assert!(seen.message.contains("names far"), "{seen:?}");
    }
}

/// A client that tries as often as it likes does not fill the log, and is counted all the same.
#[test]
fn a_warning_is_given_now_and_then_and_the_console_shows_the_last() {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far", "unknown"]);
    let far = Setup::new(&far_config(Family::V4, &authority, ""));
    let _far = Running::start_in(&stage.server, &far);
    let shown = Shown::of(&authority, "unknown");
    let listener = stage.listen(Family::V4);
    let target = listener.local_addr().expect("an address");
    let asked = Request { target: Target::Address(target), client: None, class: None, hops: 0 };
    for _ in 0..5 {
        let seen = Visitor::new(&stage.client).visit("far", Some(&shown), &asked);
        assert!(!seen.received, "{seen:?}");
    }
    let ask = |command: &str, json: bool| {
        let mut ask = midhopd();
        ask.args([command, "--config"]).arg(far.config());
        if json {
            ask.arg("--json");
        }
        let output = ask.output().expect("midhopd");
        String::from_utf8(output.stdout).expect("text")
    };
    until("all are counted", || ask("status", true).contains("\"unknown-name\": 5"));
    for command in ["status", "peers"] {
        let text = ask(command, false);
        assert!(text.contains("last refused") && text.contains("names unknown"), "{text}");
        assert!(text.contains("known peers: near") && text.contains("hint: "), "{text}");
    }
    let found: serde_json::Value = serde_json::from_str(&ask("doctor", true)).expect("JSON");
    let found = found["findings"].as_array().expect("findings").iter();
    let of = |name: &str| found.clone().find(|it| it["name"] == name).expect("a finding");
    assert_eq!(
        (&of("certificate")["verdict"], &of("peer near")["verdict"]),
        (&"yes".into(), &"could".into())
    );
    let last = of("last refused")["detail"].as_str().expect("a detail");
    assert!(last.contains("names unknown"), "{last}");
    let log = wording_of(&far);
    let warnings = log.lines().filter(|line| line.contains("WARN") && line.contains("is refused"));
    assert!((1..=2).contains(&warnings.count()), "{log}");
}
