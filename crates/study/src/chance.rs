//! Whether the seed matters: where it does not, one run is enough.

use midhop_congestion::Algorithm;
use midhop_experiment::plan::Plan;
use midhop_path::DirectionPlan;
use midhop_path::aqm::AqmPlan;
use midhop_path::jitter::JitterPlan;
use midhop_units::Loss;

/// Whether another seed could give another result. True for cross traffic of any kind, and for an
/// unknown congestion control.
pub(crate) fn has_part_in(plan: &Plan) -> bool {
    let links = plan.links.iter().flat_map(|link| [&link.down, &link.up]).any(draws);
    let controls = plan.congestion_controls();
    links || !plan.traffic.is_empty() || controls.iter().any(|name| control_draws(name))
}

fn draws(direction: &DirectionPlan) -> bool {
    // All fields are named, so that a new stage must be classified here: whether it draws.
    let DirectionPlan {
        rate: _,
        delay: _,
        queue: _,
        aqm,
        loss,
        bit_error_rate,
        outages: _,
        jitter,
        reorder,
        overtaking: _,
        duplicate,
        acm: _,
        dama: _,
        reconfiguration,
    } = direction;
    !loss.is_empty()
        || *bit_error_rate > 0.0
        || *jitter != JitterPlan::None
        || reorder.is_some()
        || *duplicate > Loss::NONE
        || reconfiguration.is_some()
        || matches!(aqm, AqmPlan::Pie(_))
}

fn control_draws(name: &str) -> bool {
    // An unknown algorithm may draw.
    Algorithm::from_name(name).is_none_or(|algorithm| algorithm.description().draws)
}
