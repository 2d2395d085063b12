//! Long flows compared with published formulas: the cells of `make formulas` that take only
//! seconds. The bands are those of the formulas ([`Law::band`]).
//!
//! [`Law::band`]: midhop_experiment::law::Law::band

use midhop_experiment::law::{self, Law};
use midhop_experiment::{Plan, Scenario};
use midhop_sim::{Options, run};

const SCENARIO: &str = include_str!("../../../../scenarios/formulas.toml");

/// A cell of the scenario with fewer bytes, and one seed, so that the result is always the same.
fn plan(congestion: &str, loss: &str, rtt: &str, bytes: &str) -> Plan {
    let mut scenario = Scenario::parse("formulas.toml", SCENARIO).expect("a scenario");
    let bytes = format!("transfers.flow.bytes={bytes}");
    for (axis, label) in [("congestion", congestion), ("loss", loss), ("rtt", rtt)] {
        scenario.set(&format!("{axis}={label}")).expect("a case");
    }
    scenario.set(&bytes).expect("a key");
    scenario.set("seeds=1").expect("a key");
    scenario.plans().expect("plans").swap_remove(0)
}

#[track_caller]
fn agrees(law: Law, congestion: &str, loss: &str, rtt: &str, bytes: &str) {
    let plan = plan(congestion, loss, rtt, bytes);
    let (record, _) = run(&plan, &Options::default()).expect("it runs");
    assert_eq!(record.validity.faults, Vec::<String>::new());
    let (expected, value) = law::held(&record).expect("a formula speaks of it");
    assert_eq!(expected.law, law);
    let ratio = value / expected.goodput_mbit_per_s;
    let off = (ratio - 1.0).abs();
    assert!(expected.is_judged);
    assert!(off <= law.band(), "{congestion} {loss} {rtt}: {ratio:.3} of {}", law.name());
}

#[test]
fn reno_agrees_with_padhye() {
    // 1,000 losses and more in each.
    agrees(Law::Padhye, "reno", "1 %", "50ms", "150 MB");
    agrees(Law::Padhye, "reno", "1 %", "600ms", "150 MB");
    // Without selective acknowledgements: a hole in each round trip.
    agrees(Law::Padhye, "newreno", "1 %", "250ms", "150 MB");
}

/// No packet is reordered or late here, so any retransmission of data that was not lost is a fault.
/// Only a timeout retransmits everything that it gives up.
#[test]
fn reno_without_sack_sends_again_what_was_lost() {
    for rtt in ["50ms", "250ms", "600ms"] {
        let plan = plan("newreno", "1 %", rtt, "30 MB");
        let (record, _) = run(&plan, &Options::default()).expect("it runs");
        let resent = record.transfers[0].flows[0].retransmissions;
        let lost: u64 = record.links.iter().flat_map(|link| link.drops.values()).sum();
        let most = lost + lost / 10;
        assert!((lost..=most).contains(&resent), "{rtt}: {resent} for {lost} that were lost");
    }
}

#[test]
fn reno_agrees_with_mathis() {
    agrees(Law::Mathis, "reno", "0.1 %", "250ms", "450 MB");
}

#[test]
fn cubic_agrees_with_its_response() {
    // Reno's window at small windows, CUBIC's own above.
    agrees(Law::Cubic, "cubic", "1 %", "50ms", "150 MB");
    agrees(Law::Cubic, "cubic", "1 %", "600ms", "150 MB");
}

#[test]
fn hybla_agrees_with_its_law_where_recoveries_stand_apart() {
    agrees(Law::Hybla, "hybla", "1 %", "50ms", "150 MB");
    agrees(Law::Hybla, "hybla", "0.1 %", "250ms", "600 MB");
}

/// With more than one loss in each window, the next recovery begins as one ends, and no window
/// grows in either. Kernels do the same: 4.8 Mbit/s at 250 ms and 3.7 at 600 ms. The formula does
/// not model recovery and has 5.7 for both.
#[test]
fn hybla_that_is_always_in_recovery_is_where_kernels_have_it() {
    for (rtt, kernels) in [("250ms", 4.78), ("600ms", 3.71)] {
        let plan = plan("hybla", "1 %", rtt, "200 MB");
        let (record, _) = run(&plan, &Options::default()).expect("it runs");
        let (expected, value) = law::held(&record).expect("its formula");
        assert!(!expected.is_judged, "a formula that knows no recovery");
        assert!((value / kernels - 1.0).abs() <= 0.1, "{rtt}: {value:.2} for {kernels}");
    }
}
