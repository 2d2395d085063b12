//! For any text: no panic, and what resolves can be run.

use midhop_experiment::{Plan, Scenario, plan::Direction};
use proptest::prelude::*;
use std::fmt::Write as _;

/// A random network of up to six nodes, with transfers between random pairs.
fn network() -> impl Strategy<Value = String> {
    let link = (0..6u8, 0..6u8, 1..2000u32, 0..300u32, 0..40u32);
    let transfer = (0..6u8, 0..6u8, 1..4u32, any::<bool>());
    (
        proptest::collection::vec(link, 1..9),
        proptest::collection::vec(transfer, 1..5),
        1..4u32,
        proptest::collection::vec(0..40u32, 1..4),
    )
        .prop_map(|(links, transfers, seeds, losses)| {
            let mut text =
                format!("title = \"x\"\nduration = \"10 s\"\nseeds = {seeds}\n[nodes]\n");
            for node in 0..6 {
                let _ = writeln!(text, "n{node} = {{}}");
            }
            for (number, (a, b, rate, delay, loss)) in links.iter().enumerate() {
                let b = if a == b { (b + 1) % 6 } else { *b };
                let _ = writeln!(
                    text,
                    "[links.l{number}]\nbetween = [\"n{a}\", \"n{b}\"]\nrate = \"{rate} Mbit/s\"\n\
                     delay = \"{delay} ms\"\nloss = \"{loss} %\""
                );
            }
            for (number, (from, to, flows, pushed)) in transfers.iter().enumerate() {
                let to = if from == to { (to + 1) % 6 } else { *to };
                let opens = if *pushed { "from" } else { "to" };
                let _ = writeln!(
                    text,
                    "[transfers.t{number}]\nfrom = \"n{from}\"\nto = \"n{to}\"\nbytes = \"1 MB\"\n\
                     flows = {flows}\nopens = \"{opens}\""
                );
            }
            let mut losses: Vec<String> =
                losses.iter().map(|loss| format!("\"{loss} %\"")).collect();
            losses.sort();
            losses.dedup();
            let _ = writeln!(text, "[vary]\n\"links.l0.loss\" = [{}]", losses.join(", "));
            text
        })
}

fn plans(text: &str) -> Option<Vec<Plan>> {
    match Scenario::parse("x", text).and_then(|scenario| scenario.plans()) {
        Ok(plans) => Some(plans),
        Err(error) if error.message.starts_with("no links lead") => None,
        Err(error) => panic!("{error}"),
    }
}

proptest! {
    #[test]
    fn what_resolves_has_routes_and_as_many_plans_as_cells_times_seeds(text in network()) {
        let Some(plans) = plans(&text) else { return Ok(()) };
        let scenario = Scenario::parse("x", &text).expect("it parsed before");
        let cells: usize = scenario.axes().iter().map(|axis| axis.cases.len()).product();
        prop_assert_eq!(plans.len(), cells * plans[0].seeds as usize);
        for plan in &plans {
            for transfer in &plan.transfers {
                prop_assert!(!transfer.route.is_empty() && !transfer.route_back.is_empty());
                let limit = transfer.limit.as_ref().expect("every link has a rate");
                prop_assert!(limit.goodput <= limit.goodput_peak);
                // The listener's address is on the last link from the opener's side.
                let listener = plan.node(transfer.listening()).expect("it exists");
                prop_assert!(listener.interfaces.iter().any(
                    |own| std::net::IpAddr::from(own.ipv4) == transfer.listener.ip()
                ));
                // Each crossing begins where the one before it ended.
                let mut at = transfer.from.clone();
                for crossing in &transfer.route {
                    let between = &plan.link(&crossing.link).expect("it exists").between;
                    let (entry, exit) = match crossing.direction {
                        Direction::Up => (&between[0], &between[1]),
                        Direction::Down => (&between[1], &between[0]),
                    };
                    prop_assert_eq!(entry, &at);
                    at.clone_from(exit);
                }
                prop_assert_eq!(&at, &transfer.to);
            }
        }
    }

    #[test]
    fn a_better_path_never_lowers_a_limit(text in network(), which in 0..9usize) {
        let Some(before) = plans(&text) else { return Ok(()) };
        let Some(start) = text.find(&format!("[links.l{which}]")) else { return Ok(()) };
        let rate = start + text[start..].find("rate = \"").expect("it has one") + 8;
        let better = format!("{}9{}", &text[..rate], &text[rate..]);
        let after = plans(&better).expect("only a rate has changed");
        for (before, after) in before.iter().zip(&after) {
            for (before, after) in before.transfers.iter().zip(&after.transfers) {
                let goodput = |plan: &midhop_experiment::plan::TransferPlan| {
                    plan.limit.as_ref().expect("every link has a rate").goodput
                };
                prop_assert!(goodput(before) <= goodput(after));
            }
        }
    }

    #[test]
    fn no_text_panics(text: String) {
        let _ = Scenario::parse("x", &text).map(|scenario| scenario.plans());
    }

    #[test]
    fn no_damaged_scenario_panics(
        text in network(),
        cuts in proptest::collection::vec((any::<prop::sample::Index>(), "[ -~\n]{0,4}", 0..6usize), 1..5),
        set in "[a-z0-9.]{1,12}=.{0,12}",
    ) {
        let mut text = text;
        for (at, put, length) in cuts {
            let at = at.index(text.len());
            let end = (at + length).min(text.len());
            text.replace_range(at..end, &put);
        }
        if let Ok(mut scenario) = Scenario::parse("x", &text) {
            let _ = scenario.set(&set);
            let _ = scenario.plans();
        }
    }

    #[test]
    fn no_assignment_panics(set: String) {
        let mut scenario = Scenario::parse("x", "title = \"x\"\n").expect("it is TOML");
        if let Err(error) = scenario.set(&set) {
            let _ = error.to_string();
        }
        let _ = scenario.plans();
    }
}
