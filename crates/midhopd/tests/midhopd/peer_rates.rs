//! Rates that are reported of the links to peers: they are used while they are valid, and shown.

use crate::pages::assert_published;
use crate::pair::Pair;
use crate::program::{Setup, errors, midhopd, output_in};
use crate::stage::{Stage, until};
use std::process::Output;

/// Reports a rate to the daemon of a setup.
fn report(stage: &Stage, setup: &Setup, arguments: &[&str]) -> Output {
    let mut command = midhopd();
    command.arg("rate").args(arguments).arg("--socket").arg(setup.socket());
    output_in(&stage.gateway, &mut command)
}

#[test]
fn a_reported_rate_counts_for_its_time() {
    let Some(stage) = Stage::set() else { return };
    let pair = Pair::new("rate = \"20 Mbit/s\"\n", "", "");
    let _running = pair.start(&stage);
    let rates = || {
        let seen = pair.far_seen();
        // The rate was rounded down when it was converted between payload and what is sent.
        (seen.rate_bit_per_s.map(|bits| (bits + 50_000) / 100_000), seen.reported_bit_per_s)
    };
    until("the tunnel is open", || rates() == (Some(200), None));
    let taken = report(&stage, &pair.near, &["far", "5 Mbit/s", "--for", "1 h", "--json"]);
    assert!(taken.status.success(), "{}", errors(&taken));
    assert_published("rate", &serde_json::from_slice(&taken.stdout).expect("JSON"));
    until("the tunnel goes by it", || rates() == (Some(50), Some(5_000_000)));
    let mut peers = midhopd();
    let shown =
        output_in(&stage.gateway, peers.args(["peers", "--socket"]).arg(pair.near.socket()));
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("far: the link is reported to carry 5.00 Mbit/s"), "{shown}");
    let text = report(&stage, &pair.near, &["far", "12 Mbit/s", "--for", "1 s"]);
    assert_eq!(String::from_utf8_lossy(&text.stdout), "far: 12 Mbit/s for 1 s\n");
    until("what is configured counts again", || rates() == (Some(200), None));
}

#[test]
fn a_rate_that_nobody_goes_by_is_refused() {
    let Some(stage) = Stage::set() else { return };
    let pair = Pair::new("", "", "");
    let _running = pair.start(&stage);
    for (arguments, said) in [
        (["far", "5 Mbit/s", "30 s"], "has no configured rate: it uses bbr3"),
        (["fra", "5 Mbit/s", "30 s"], "there are far"),
        (["far", "0 bit/s", "30 s"], "8 kbit/s to 100 Gbit/s"),
        (["far", "5 Mbit/s", "90 h"], "1 s to 24 h"),
        (["far", "5 Mbit/s", "1 ms"], "1 s to 24 h"),
        (["far", "5 MB", "30 s"], "5 MB"),
    ] {
        let [peer, rate, valid] = arguments;
        let refused = report(&stage, &pair.near, &[peer, rate, "--for", valid]);
        assert!(!refused.status.success(), "{arguments:?}");
        assert!(errors(&refused).contains(said), "{arguments:?}: {}", errors(&refused));
    }
}
