//! Links whose rate changes and is not known: what a tunnel's congestion control finds of it.

use midhop_experiment::Scenario;
use midhop_sim::{Options, run};

/// The scenario that comes with the program.
const VARYING: &str = include_str!("../../../../scenarios/varying.toml");

/// The part of what was drawn that a download has.
fn share(link: &str, setup: &str, seconds: u32) -> f64 {
    let mut scenario = Scenario::parse("varying.toml", VARYING).expect("a scenario");
    let (link_set, setup_set) = (format!("link={link}"), format!("setup={setup}"));
    let sets = ["direction=down", &link_set, &setup_set, "seeds=1"].map(str::to_owned);
    let more = [
        format!("transfers.down.seconds={seconds}"),
        format!("transfers.up.seconds={seconds}"),
        format!("duration={seconds} s"),
    ];
    for set in sets.iter().chain(&more) {
        scenario.set(set).expect("a case");
    }
    let plan = scenario.plans().expect("plans").swap_remove(0);
    let (record, _) = run(&plan, &Options::default()).expect("a run");
    assert_eq!(record.validity.faults, Vec::<String>::new(), "{link}, {setup}");
    let transfer = &record.transfers[0];
    transfer.limit.as_ref().expect("a limit").efficiency
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
