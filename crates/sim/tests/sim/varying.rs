//! Links whose rate changes, is not known or is configured wrong: what a tunnel's congestion control finds of it.

use midhop_experiment::Scenario;
use midhop_sim::{Options, run};

/// The scenarios that come with the program.
const VARYING: &str = include_str!("../../../../scenarios/varying.toml");
const WRONG_RATE: &str = include_str!("../../../../scenarios/wrong-rate.toml");

/// The part of what was drawn that a download has in one case of a scenario.
fn share_of(text: &str, cases: &[&str], seconds: u32) -> f64 {
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
    let transfer = &record.transfers[0];
    transfer.limit.as_ref().expect("a limit").efficiency
}

fn share(link: &str, setup: &str, seconds: u32) -> f64 {
    share_of(VARYING, &[&format!("link={link}"), &format!("setup={setup}")], seconds)
}

/// The default of a peer without a rate does not reach the bar.
#[test]
fn pulses_follow_a_rate_that_changes_and_bbr3_does_not() {
    for (link, seconds, bar) in [("drawn", 40, 0.88), ("steps", 40, 0.9)] {
        let (pulses, default) = (share(link, "pulse", seconds), share(link, "bbr3", seconds));
        assert!(pulses > bar, "{link}: {pulses}");
        assert!(default < bar, "{link}: {default}");
    }
}

/// The start counts, in which the configured rate is sent at.
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
