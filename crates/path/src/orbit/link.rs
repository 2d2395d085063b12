//! Makes the delay and the outages of a link from an orbit.

use crate::orbit::journey::Journey;
use crate::orbit::refusal::OrbitError;
use crate::orbit::spec::{OrbitPlan, OrbitSpec};
use crate::resolve::{DELAY_MAX, ResolveError};
use crate::spec::LinkSpec;
use midhop_units::Duration;
use std::sync::Arc;

/// How many journeys are cached.
const REMEMBERED_MAX: usize = 32;

/// A cache of journeys: the parts of one path, and the cells of a sweep, need the same ones again.
#[derive(Debug, Clone, Default)]
pub struct Journeys {
    known: Vec<(OrbitSpec, Duration, Arc<Journey>)>,
}

impl Journeys {
    /// The journey of an orbit over `duration`.
    ///
    /// # Errors
    /// When the orbit is not valid, or never joins its two places in that time.
    pub fn follow(
        &mut self,
        spec: &OrbitSpec,
        duration: Duration,
    ) -> Result<(OrbitPlan, Arc<Journey>), OrbitError> {
        if duration > DELAY_MAX {
            let hint = format!("a link with an orbit is computed for at most {DELAY_MAX}");
            return Err(ResolveError::out_of_range("orbit", duration, hint).into());
        }
        let (plan, constellation) = spec.resolve()?;
        // These keys affect the link, but not the path.
        let way = OrbitSpec { part: None, interruption: None, hold: None, ..spec.clone() };
        let same =
            |known: &&(OrbitSpec, Duration, Arc<Journey>)| known.0 == way && known.1 == duration;
        if let Some((_, _, journey)) = self.known.iter().find(same) {
            return Ok((plan, journey.clone()));
        }
        let journey = Arc::new(plan.follow(&constellation, duration, &mut |_| {})?);
        if self.known.len() >= REMEMBERED_MAX {
            self.known.remove(0);
        }
        self.known.push((way, duration, journey.clone()));
        Ok((plan, journey))
    }
}

impl LinkSpec {
    /// This link with the delay and the outages of its orbit over a run of `duration`, and the
    /// result of the orbit; without an orbit, the link unchanged.
    ///
    /// Outages that the link itself has take precedence over those of the orbit, as everywhere.
    /// Packets on a new path overtake those on the old one where `overtaking` is set so.
    ///
    /// # Errors
    /// When the orbit is not valid, never joins its two places, or a delay is given as well.
    pub fn with_orbit(
        &self,
        duration: Duration,
        journeys: &mut Journeys,
    ) -> Result<(Self, Option<OrbitPlan>), OrbitError> {
        let Some(orbit) = &self.orbit else { return Ok((self.clone(), None)) };
        let own = [Some(&self.delay), self.down.as_ref().map(|down| &down.delay)];
        let up = self.up.as_ref().map(|up| &up.delay);
        if own.into_iter().chain([up]).flatten().any(Option::is_some) {
            let hint = "the delay is what the orbit gives; keep one of them";
            return Err(ResolveError::conflict("delay", "orbit", hint).into());
        }
        let (plan, journey) = journeys.follow(orbit, duration)?;
        let outages = journey.outages(plan.part, plan.interruption, plan.hold);
        let link = Self {
            orbit: None,
            delay: Some(journey.delay(plan.part)),
            outages: self.outages.clone().or(Some(outages)),
            ..self.clone()
        };
        Ok((link, Some(plan)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delay::LinkDelay;
    use crate::outage::Outage;
    use crate::{LinkError, spec::DirectionSpec};

    const ORBIT: &str = "between = [\"a\", \"b\"]\n\
        orbit = { constellation = \"iridium\", from = [51.4, 10.5], to = [40.8, -74.0], \
        interruption = \"40 ms\", hold = true }\n";

    fn link(more: &str) -> LinkSpec {
        let text = format!("{ORBIT}{more}");
        toml::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn both_directions_get_the_delay_and_the_outages() {
        let minutes = Duration::from_s(600);
        let link = link("rate = \"2 Mbit/s\"\nup = { rate = \"1 Mbit/s\" }");
        assert_eq!(link.resolve(minutes), Err(LinkError::OrbitOpen));
        let (flown, orbit) = link.with_orbit(minutes, &mut Journeys::default()).expect("it flies");
        assert_eq!(orbit.expect("an orbit").satellites, 66);
        let plan = flown.resolve(Duration::from_ms(200)).expect("a plan");
        assert_eq!(plan.down.delay, plan.up.delay);
        let LinkDelay::Trace(trace) = &plan.down.delay else { panic!("a trace") };
        assert!(trace.steps.len() > 500, "{}", trace.steps.len());
        assert!(!plan.down.outages.is_empty() && plan.down.outages == plan.up.outages);
        let interruption =
            |outage: &Outage| outage.hold && outage.length.as_ns().is_multiple_of(40_000_000);
        assert!(plan.down.outages.iter().all(interruption), "{:?}", plan.down.outages);
    }

    #[test]
    fn a_link_s_own_keys_win_and_a_second_delay_is_refused() {
        let second = Duration::from_s(1);
        let mut journeys = Journeys::default();
        let (flown, _) = link("outages = []").with_orbit(second, &mut journeys).expect("it flies");
        assert_eq!(flown.outages, Some(Vec::new()));
        let delayed =
            DirectionSpec { delay: Some(LinkDelay::Constant(second)), ..Default::default() };
        for twice in [
            link("delay = \"1 ms\""),
            LinkSpec { down: Some(delayed.clone()), ..link("") },
            LinkSpec { up: Some(delayed), ..link("") },
        ] {
            let error = twice.with_orbit(second, &mut journeys).expect_err("two delays");
            assert_eq!(error.key(), "delay");
        }
        let plain = LinkSpec { orbit: None, ..link("") };
        assert_eq!(plain.with_orbit(second, &mut journeys), Ok((plain.clone(), None)));
    }

    #[test]
    fn parts_of_a_way_are_followed_once() {
        let mut journeys = Journeys::default();
        let orbit = link("").orbit.expect("an orbit");
        let parts = ["user", "isl", "feeder"].map(|part| {
            let part = serde_json::from_value(part.into()).expect("a part");
            let spec = OrbitSpec { part: Some(part), ..orbit.clone() };
            journeys.follow(&spec, Duration::from_s(5)).expect("it flies").1
        });
        assert!(parts.iter().all(|journey| Arc::ptr_eq(journey, &parts[0])));
        assert_eq!(journeys.known.len(), 1);
        let long = journeys.follow(&orbit, Duration::from_s(3601));
        assert_eq!(long.expect_err("too long").key(), "orbit");
    }
}
