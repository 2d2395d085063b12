//! The effects of a journey on a link: its delay over time and its outages.

use crate::delay::LinkDelay;
use crate::orbit::journey::{Hop, Journey};
use crate::orbit::sky::WayDelay;
use crate::outage::Outage;
use crate::trace::Trace;
use midhop_units::Duration;
use serde::{Deserialize, Serialize};

/// The part of the path that a link represents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// From station to station.
    #[default]
    Whole,
    /// From the first station up to its satellite.
    User,
    /// From the first station's satellite to the second's, over all links between.
    Isl,
    /// From the second station's satellite down to it.
    Feeder,
}

impl Part {
    /// The name in scenarios and records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::User => "user",
            Self::Isl => "isl",
            Self::Feeder => "feeder",
        }
    }

    /// The part of these delays.
    pub fn of(self, delay: &WayDelay) -> Duration {
        match self {
            Self::Whole => delay.total(),
            Self::User => delay.user,
            Self::Isl => delay.isl,
            Self::Feeder => delay.feeder,
        }
    }

    /// Whether a change of this hop interrupts this part.
    fn holds(self, hop: Hop) -> bool {
        match (self, hop) {
            // Links between satellites are set up before they are used.
            (_, Hop::Isl) | (Self::Isl, _) => false,
            (Self::Whole, _) => true,
            (Self::User, hop) => hop == Hop::User,
            (Self::Feeder, hop) => hop == Hop::Feeder,
        }
    }
}

impl Journey {
    /// The delay of a part over time; one value where it never changes. Where there is no path, the
    /// delay is the one before or already the one after.
    pub fn delay(&self, part: Part) -> LinkDelay {
        let known = |delay: &Option<WayDelay>| delay.as_ref().map(|delay| part.of(delay));
        let first = self.samples.iter().find_map(|(_, delay)| known(delay));
        let mut steps = vec![(Duration::ZERO, first.unwrap_or(Duration::ZERO))];
        for (at, delay) in &self.samples {
            let Some(delay) = known(delay) else { continue };
            if *at < self.duration && steps.last().is_some_and(|last| last.1 != delay) {
                steps.push((*at, delay));
            }
        }
        match steps[..] {
            [(_, only)] => LinkDelay::Constant(only),
            _ => LinkDelay::Trace(Trace { steps, repeat: None }),
        }
    }

    /// When a part is down: while there is no path, and for `interruption` after each handover of a
    /// ground link that belongs to it. Adjacent outages are merged.
    pub fn outages(&self, part: Part, interruption: Duration, hold: bool) -> Vec<Outage> {
        let mut spans = if part == Part::Isl { Vec::new() } else { self.gaps() };
        if !interruption.is_zero() {
            spans.extend(
                self.handovers
                    .iter()
                    .filter(|handover| handover.before.is_some() && handover.after.is_some())
                    .filter(|handover| handover.hops().iter().any(|hop| part.holds(*hop)))
                    .map(|handover| (handover.at, handover.at + interruption)),
            );
        }
        spans.sort();
        let mut outages: Vec<Outage> = Vec::new();
        for (start, end) in spans {
            match outages.last_mut() {
                Some(last) if start <= last.start + last.length => {
                    last.length = last.length.max(end - last.start);
                }
                _ => outages.push(Outage { start, length: end - start, every: None, hold }),
            }
        }
        outages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::orbit::journey::Handover;
    use crate::orbit::sky::Way;

    fn ms(ms: u64) -> Duration {
        Duration::from_ms(ms)
    }

    fn delay(user: u64, isl: u64, feeder: u64) -> Option<WayDelay> {
        Some(WayDelay { user: ms(user), isl: ms(isl), feeder: ms(feeder) })
    }

    fn journey() -> Journey {
        let way = |satellites: &[u32]| Some(Way { satellites: satellites.to_vec() });
        let change = |at, before, after| Handover {
            at: ms(at),
            before,
            after,
            delays: [None; 2],
            over: [None; 2],
        };
        Journey {
            duration: ms(9000),
            first: None,
            handovers: vec![
                change(1000, None, way(&[1, 2])),
                change(3000, way(&[1, 2]), way(&[4, 2])),
                change(3040, way(&[4, 2]), way(&[4, 5])),
                change(5000, way(&[4, 5]), way(&[4, 6, 5])),
                change(8000, way(&[4, 6, 5]), None),
            ],
            samples: vec![
                (ms(0), None),
                (ms(1000), delay(3, 5, 4)),
                (ms(2000), delay(3, 5, 4)),
                (ms(3000), delay(2, 5, 4)),
                (ms(5000), delay(2, 6, 4)),
                (ms(8000), None),
                (ms(9000), None),
            ],
        }
    }

    #[test]
    fn delays_step_where_they_change_and_stay_where_there_is_no_way() {
        let journey = journey();
        let LinkDelay::Trace(whole) = journey.delay(Part::Whole) else { panic!("a trace") };
        assert_eq!(whole.steps, [(ms(0), ms(12)), (ms(3000), ms(11)), (ms(5000), ms(12))]);
        assert_eq!(journey.delay(Part::Feeder), LinkDelay::Constant(ms(4)));
        let LinkDelay::Trace(user) = journey.delay(Part::User) else { panic!("a trace") };
        assert_eq!(user.steps, [(ms(0), ms(3)), (ms(3000), ms(2))]);
    }

    #[test]
    fn gaps_and_handovers_break_the_parts_they_belong_to() {
        let journey = journey();
        let spans = |part, interruption| -> Vec<(u64, u64)> {
            let outages = journey.outages(part, ms(interruption), true);
            assert!(outages.iter().all(|outage| outage.hold && outage.every.is_none()));
            let in_ms = |time: Duration| time.as_ns() / 1_000_000;
            outages.iter().map(|outage| (in_ms(outage.start), in_ms(outage.length))).collect()
        };
        // The handovers at 3000 and 3040 of 50 ms each overlap.
        assert_eq!(spans(Part::Whole, 50), [(0, 1000), (3000, 90), (8000, 1000)]);
        assert_eq!(spans(Part::User, 50), [(0, 1000), (3000, 50), (8000, 1000)]);
        assert_eq!(spans(Part::Feeder, 50), [(0, 1000), (3040, 50), (8000, 1000)]);
        assert_eq!(spans(Part::Whole, 0), [(0, 1000), (8000, 1000)]);
        assert!(spans(Part::Isl, 50).is_empty());
    }

    #[test]
    fn a_change_between_satellites_is_distinguished_from_one_at_the_ends() {
        let hops: Vec<_> = journey().handovers.iter().map(Handover::hops).collect();
        let both = vec![Hop::User, Hop::Feeder];
        assert_eq!(hops, [both.clone(), vec![Hop::User], vec![Hop::Feeder], vec![Hop::Isl], both]);
    }
}
