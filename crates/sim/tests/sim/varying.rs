//! Links whose rate changes, is unknown or is configured wrong: the goodput of a tunnel's
//! congestion control on them.

use midhop_experiment::record::LinkResult;
use midhop_experiment::{Record, Scenario};
use midhop_sim::{Options, run};

/// The scenarios that come with the program.
const VARYING: &str = include_str!("../../../../scenarios/varying.toml");
const WRONG_RATE: &str = include_str!("../../../../scenarios/wrong-rate.toml");
const FADING: &str = include_str!("../../../../scenarios/fading.toml");

/// A download in one case of a scenario.
fn download(text: &str, cases: &[&str], seconds: u32) -> Record {
    let mut scenario = Scenario::parse("a scenario", text).expect("a scenario");
    let fixed = ["direction=down", "seeds=1"];
    let more = [
        format!("transfers.down.seconds={seconds}"),
        format!("transfers.up.seconds={seconds}"),
        format!("duration={seconds} s"),
    ];
    for set in fixed.iter().chain(cases).copied().chain(more.iter().map(String::as_str)) {
        scenario.set(set).expect("a case");
    }
    let plan = scenario.plans().expect("plans").swap_remove(0);
    let (record, _) = run(&plan, &Options::default()).expect("a run");
    assert_eq!(record.validity.faults, Vec::<String>::new(), "{cases:?}");
    record
}

/// The goodput of a download in one case of a scenario, relative to the rate that was drawn.
fn share_of(text: &str, cases: &[&str], seconds: u32) -> f64 {
    share_in(&download(text, cases, seconds))
}

fn share_in(record: &Record) -> f64 {
    record.transfers[0].limit.as_ref().expect("a limit").efficiency
}

fn share(link: &str, setup: &str, seconds: u32) -> f64 {
    share_of(VARYING, &[&format!("link={link}"), &format!("setup={setup}")], seconds)
}

/// The default of a peer without a rate does not reach the bound.
#[test]
fn pulses_follow_a_rate_that_changes_and_bbr3_does_not() {
    for (link, seconds, bar) in [("drawn", 40, 0.88), ("steps", 40, 0.9)] {
        let (pulses, default) = (share(link, "pulse", seconds), share(link, "bbr3", seconds));
        assert!(pulses > bar, "{link}: {pulses}");
        assert!(default < bar, "{link}: {default}");
    }
}

/// The start counts, during which the sender uses the configured rate.
#[test]
fn a_rate_that_is_configured_wrong_is_a_hint_unless_it_is_strict() {
    let share = |configured: &str, setup: &str| {
        let cases = ["link=geo", &format!("configured={configured}"), &format!("setup={setup}")];
        share_of(WRONG_RATE, &cases, 30)
    };
    assert!((share("right", "hint") / share("right", "strict") - 1.0).abs() < 0.001);
    for configured in ["twice", "half"] {
        let hint = share(configured, "hint");
        assert!(hint > 0.9, "{configured}: {hint}");
    }
    let strict = share("half", "strict");
    assert!((0.4..0.52).contains(&strict), "it keeps to what is configured: {strict}");
}

/// A signal that falls by 6 dB within 6 s: the queue before the link holds what was sent before the
/// other end received the report.
#[test]
fn a_pair_that_goes_by_its_modem_fills_no_queue_while_the_signal_fades() {
    let of = |setup: &str| {
        let record = download(FADING, &["fade=fast", &format!("setup={setup}")], 40);
        let satellite = |it: &&LinkResult| it.name == "satellite" && it.direction == "down";
        let link = record.links.iter().find(satellite).expect("a link");
        (share_in(&record), link.queue_bytes_max)
    };
    let [(silent, waited), (modem, waits)] = ["silent", "modem"].map(of);
    assert!(modem > 0.96 && silent > 0.9, "{modem} and {silent} of what was drawn");
    // A product is 1,410 kB in fair weather.
    assert!(waits < 300_000 && waited > 2 * waits, "{waits} and {waited} bytes");
}
