//! Physical limits as assertions: no run may exceed them.
//!
//! A transfer is no faster than its path. A link sends no more than its rate allows. At no node
//! does more payload arrive than its links delivered, whoever sent it: transfers, cross traffic, or
//! proxies on their legs. A violation is a fault of ours, and the run is not valid.

use crate::plan::{Direction, Plan, TransferPlan};
use crate::record::{LegResult, LinkResult, Record, TransferResult};
use midhop_units::Bytes;
use std::collections::BTreeMap;

/// How much the resolution of clocks may add to a transfer's goodput, as a share.
const CLOCK_GRAIN: f64 = 0.005;
/// The payload of a full segment, for counting segments in bytes.
const SEGMENT_BYTES: f64 = 1448.0;
/// What a kernel counts as acknowledged of a connection in addition to its payload: SYN and FIN.
const UNPAID_BYTES: u64 = 2;

impl Record {
    /// Compares each transfer with the limit of `plan`, from which this run was made, and each
    /// direction of a varying link with its drawn capacity.
    pub fn set_limits(&mut self, plan: &Plan) {
        for transfer in &mut self.transfers {
            transfer.limit = plan.limit_of(transfer);
        }
        for link in &mut self.links {
            let planned = plan.link(&link.name);
            let capacity = planned.and_then(|it| plan.capacity(it, direction(link), link.span));
            link.capacity_bytes = capacity.map(Bytes::get);
        }
    }

    /// One sentence for each violation of physics; a correct run has none.
    pub fn check_limit(&self) -> Vec<String> {
        let Ok(plan) = Plan::from_json(&self.plan) else { return Vec::new() };
        let mut faults = self.transfers_too_fast(&plan);
        faults.extend(self.transfers_beyond_the_drawn(&plan));
        faults.extend(self.links_too_fast(&plan));
        faults.extend(self.arrived_from_nowhere(&plan));
        faults.extend(self.legs_from_nowhere(&plan));
        faults
    }

    /// Allows for chance: half a percent for the resolution of clocks, and three standard
    /// deviations of the number of packets that the link should have lost and did not.
    fn transfers_too_fast(&self, plan: &Plan) -> Vec<String> {
        let mut faults = Vec::new();
        for transfer in &self.transfers {
            let Some(limit) = &transfer.limit else { continue };
            let planned = plan.transfer(&transfer.name);
            let known = planned.and_then(|planned| planned.limit.as_ref());
            let allowed = allowed(planned, transfer.bytes);
            let goodput = known.map_or(limit.goodput, |known| known.goodput_peak);
            let time = planned
                .and_then(|planned| planned.time_min(transfer.complete, transfer.bytes))
                .unwrap_or(limit.time);
            if transfer.goodput.bits_per_s() as f64 > goodput.bits_per_s() as f64 * allowed {
                faults.push(format!(
                    "transfer {}: {} is more than the path can carry, {goodput}",
                    transfer.name, transfer.goodput
                ));
            } else if transfer.bytes > Bytes::ZERO
                && transfer.took.as_s_f64() * allowed < time.as_s_f64()
            {
                faults.push(format!(
                    "transfer {}: {} is less time than the path can take, {time}",
                    transfer.name, transfer.took
                ));
            }
        }
        faults
    }

    /// Over links that vary, no more arrives than the draws allow, and one segment that had begun.
    fn transfers_beyond_the_drawn(&self, plan: &Plan) -> Vec<String> {
        let fault = |transfer: &TransferResult| {
            let drawn = transfer.limit.as_ref()?.drawn?;
            let most = drawn.scale(allowed(plan.transfer(&transfer.name), transfer.bytes));
            let most = most.saturating_add(Bytes::new(SEGMENT_BYTES as u64));
            (transfer.bytes > most).then(|| {
                format!(
                    "transfer {}: {} B in {} is more than its links carried, {} B",
                    transfer.name,
                    transfer.bytes.get(),
                    transfer.took,
                    drawn.get()
                )
            })
        };
        self.transfers.iter().filter_map(fault).collect()
    }

    /// Each direction of a link sends at most its highest rate × time, or its drawn capacity where
    /// it varies, and one packet that had begun.
    fn links_too_fast(&self, plan: &Plan) -> Vec<String> {
        let fault = |link: &LinkResult| {
            let planned = plan.link(&link.name)?;
            let way = direction(link);
            let rate = planned.direction(way).rate_max()?;
            let varying = plan.capacity(planned, way, link.span);
            let most = varying.unwrap_or_else(|| rate.bytes_in(link.span)).get();
            let most = most.saturating_add(u64::from(planned.mtu));
            (!link.span.is_zero() && link.bytes_sent > most).then(|| {
                let than = varying.map_or(format!("{rate} can carry"), |drawn| {
                    format!("its rates allowed, {} B", drawn.get())
                });
                format!(
                    "link {} ({}): {} B in {} is more than {than}",
                    link.name, link.direction, link.bytes_sent, link.span
                )
            })
        };
        self.links.iter().filter_map(fault).collect()
    }

    /// At each node, no more payload arrives than its links delivered.
    fn arrived_from_nowhere(&self, plan: &Plan) -> Vec<String> {
        let mut arrived: BTreeMap<&str, u64> = BTreeMap::new();
        for transfer in &self.transfers {
            if let Some(planned) = plan.transfer(&transfer.name) {
                *arrived.entry(&planned.to).or_default() += transfer.bytes.get();
            }
        }
        for traffic in &self.traffic {
            if let Some(planned) = plan.traffic.iter().find(|it| it.name == traffic.name) {
                *arrived.entry(&planned.to).or_default() += traffic.bytes.get();
            }
        }
        let fault = |(node, payload): (&str, u64)| {
            let ends_here = |link: &&LinkResult| end(plan, link) == Some(node);
            let brought: u64 = self.links.iter().filter(ends_here).map(|it| it.bytes_out).sum();
            (!self.links.is_empty() && payload > brought).then(|| {
                format!(
                    "node {node}: {payload} B of payload arrived, its links brought {brought} B"
                )
            })
        };
        arrived.into_iter().filter_map(fault).collect()
    }

    /// A proxy's peers acknowledge no more than its link delivered to them. With handovers this
    /// need not hold: a proxy gets acknowledgements of data that another proxy sent before, and
    /// sends over other links to flows that stay behind.
    fn legs_from_nowhere(&self, plan: &Plan) -> Vec<String> {
        if !plan.handovers.is_empty() {
            return Vec::new();
        }
        let fault = |leg: &LegResult| {
            let leaves = |link: &&LinkResult| {
                let end = end(plan, link);
                link.name == leg.link && end.is_some_and(|end| end != leg.node)
            };
            let took = self.links.iter().find(leaves)?.bytes_out;
            let unpaid = leg.connections.saturating_mul(UNPAID_BYTES);
            (leg.bytes.get() > took.saturating_add(unpaid)).then(|| {
                format!(
                    "leg {}: {} B were acknowledged, its link took {took} B there",
                    leg.place(),
                    leg.bytes.get()
                )
            })
        };
        self.legs.iter().filter_map(fault).collect()
    }
}

/// The factor by which a transfer may exceed its limit: the resolution of clocks, and losses that
/// it may have avoided by chance.
fn allowed(planned: Option<&TransferPlan>, bytes: Bytes) -> f64 {
    let known = planned.and_then(|planned| planned.limit.as_ref());
    let loss = known.map_or(0.0, |known| known.loss.probability());
    let packets = (bytes.get() as f64 / SEGMENT_BYTES).max(1.0);
    let by_chance = 3.0 * (loss * (1.0 - loss) / packets).sqrt() / (1.0 - loss).max(1e-9);
    1.0 + CLOCK_GRAIN + by_chance
}

/// The node that a direction of a link runs towards.
fn end<'p>(plan: &'p Plan, link: &LinkResult) -> Option<&'p str> {
    let planned = plan.link(&link.name)?;
    Some(match direction(link) {
        Direction::Down => &planned.between[0],
        Direction::Up => &planned.between[1],
    })
}

fn direction(link: &LinkResult) -> Direction {
    if link.direction == "up" { Direction::Up } else { Direction::Down }
}
