//! The times of a run's handovers.

use midhop_experiment::handovers::HandoverPlan;
use serde::Deserialize;
use serde_json::Value;

/// Maximum number of handovers that are drawn; more would hide the curves.
const DRAWN_MAX: usize = 40;

/// The moments that runs of all these plans have in common, in order; empty where there are too
/// many for a picture. Unit: seconds.
pub(crate) fn moments<'p>(plans: impl IntoIterator<Item = &'p Value>, until_s: f64) -> Vec<f64> {
    let mut all = plans.into_iter().map(|plan| of_run(plan, until_s));
    let mut moments = all.next().unwrap_or_default();
    for others in all {
        moments.retain(|moment| others.contains(moment));
    }
    if moments.len() > DRAWN_MAX { Vec::new() } else { moments }
}

fn of_run(plan: &Value, until_s: f64) -> Vec<f64> {
    let plans = plan.get("handovers").and_then(Value::as_array);
    let plans = plans.into_iter().flatten().filter_map(|it| HandoverPlan::deserialize(it).ok());
    let mut moments: Vec<f64> = plans.flat_map(|plan| of(plan, until_s)).collect();
    moments.sort_by(f64::total_cmp);
    moments.dedup();
    moments
}

fn of(plan: HandoverPlan, until_s: f64) -> impl Iterator<Item = f64> {
    let (first, every) = (plan.at.as_s_f64(), plan.every.map(|it| it.as_s_f64()));
    let count = match every {
        Some(every) if every > 0.0 => DRAWN_MAX + 1,
        _ => 1,
    };
    let at = move |number: usize| first + every.unwrap_or(0.0) * number as f64;
    (0..count).map(at).take_while(move |moment| *moment <= until_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(handovers: Value) -> Value {
        serde_json::json!({ "handovers": handovers })
    }

    fn handover(at: &str, every: Option<&str>) -> Value {
        serde_json::json!({ "at": at, "every": every, "from": "a", "to": "b", "leaves": "x", "takes": "y",
            "announced": "0 s", "flows": "reset", "outage": "0 s", "drain": "0 s", "state": "0 B" })
    }

    #[test]
    fn handovers_of_all_runs_recur_until_the_picture_ends_and_many_are_not_drawn() {
        let two = plan(serde_json::json!([
            handover("180 s", Some("240 s")),
            handover("60 s", Some("240 s"))
        ]));
        assert_eq!(moments([&two, &two], 500.0), [60.0, 180.0, 300.0, 420.0]);
        assert_eq!(moments([], 500.0), Vec::<f64>::new());
        assert_eq!(moments([&plan(serde_json::json!([handover("9 s", None)]))], 10.0), [9.0]);
        let often = plan(serde_json::json!([handover("1 s", Some("1 s"))]));
        assert_eq!(moments([&often], 500.0), Vec::<f64>::new());
        assert_eq!(moments([&two, &plan(serde_json::json!("none"))], 500.0), Vec::<f64>::new());
    }
}
