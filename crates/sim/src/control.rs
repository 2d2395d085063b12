//! Congestion control of a plan's flows: the settings of their endpoints.

use crate::fault::RunError;
use crate::packet::End;
use midhop_config::{KeyPath, suggest};
use midhop_congestion::known_rate::Leg;
use midhop_congestion::{Algorithm, Law, Settings, build};
use midhop_experiment::Plan;
use midhop_experiment::congestion::{Own, Tuning};
use midhop_experiment::limit::Opener;
use std::collections::BTreeMap;

/// Congestion control of a kind of flow.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Control {
    /// Whether a sender gets reports of the queue at its own first link.
    pub queue_feedback: bool,
    /// Settings of opener and listener; the host adds the segment's size and the seed.
    settings: [Settings; 2],
}

impl Control {
    /// The settings of one end.
    pub fn settings(&self, end: End) -> &Settings {
        &self.settings[end.index()]
    }

    /// Whether senders pace.
    pub fn paces(&self) -> bool {
        self.settings[0].paced
    }
}

/// The owner of a congestion control, and the nodes between which it runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker<'p> {
    /// Its table in the scenario.
    pub table: &'static str,
    /// And its name.
    pub name: &'p str,
    /// The node that sends the data.
    pub from: &'p str,
    /// The node that receives it.
    pub to: &'p str,
}

/// The legs of known rate, by sending node and link: all their flows share one.
#[derive(Debug, Default)]
pub(crate) struct Legs<'p>(BTreeMap<(&'p str, &'p str), Leg>);

impl<'p> Legs<'p> {
    /// All legs of known rate that a plan's flows use. The rate of an end that sends data takes precedence over
    /// the rate of an end that sends only requests.
    pub fn of(plan: &'p Plan) -> Self {
        let transfers = plan.transfers.iter().map(|it| (&it.from, &it.to, it.tuning.as_ref()));
        let traffic = plan.traffic.iter().map(|it| (&it.from, &it.to, it.tuning.as_ref()));
        let known =
            |(from, to, tuning): (&'p String, &'p String, Option<&'p Tuning>)| match &tuning?.own {
                Own::KnownRate { link, rate, rate_back, .. } => {
                    Some([(from.as_str(), link.as_str(), *rate), (to, link, *rate_back)])
                }
                _ => None,
            };
        let all: Vec<_> = transfers.chain(traffic).filter_map(known).collect();
        let mut legs = Self::default();
        for side in 0..2 {
            for (node, link, rate) in all.iter().map(|ends| ends[side]) {
                legs.0.entry((node, link)).or_insert_with(|| Leg::new(rate));
            }
        }
        legs
    }

    /// The congestion control for `name`, with its tuning where it is one of ours.
    ///
    /// # Errors
    /// When the name is unknown, or the algorithm is not available with these settings.
    pub fn control(
        &self,
        asker: Asker<'_>,
        name: &str,
        tuning: Option<&Tuning>,
        opens: Opener,
    ) -> Result<Control, RunError> {
        let refuse = |why: String, hint: Option<String>| RunError::Congestion {
            key: KeyPath::of([asker.table, asker.name, "congestion"]),
            name: name.to_owned(),
            why,
            hint,
        };
        if Algorithm::from_name(name).is_none() {
            let hint = suggest::hint(name, "there are", Algorithm::names());
            return Err(refuse("there is no such congestion control".to_owned(), hint));
        }
        let Some(tuning) = tuning else {
            return Err(refuse("the plan lacks its parameters".to_owned(), None));
        };
        let Some(resolved) = tuning.settings() else {
            return Err(refuse(
                "the parameters in the plan are another algorithm's".to_owned(),
                None,
            ));
        };
        let settings = |node: &str| {
            let mut settings = resolved.clone();
            if let (Law::KnownRate(known), Own::KnownRate { link, .. }) =
                (&mut settings.law, &tuning.own)
                && let Some(leg) = self.0.get(&(node, link.as_str()))
            {
                known.leg = leg.clone();
            }
            settings
        };
        let ends = match opens {
            Opener::To => [asker.to, asker.from],
            Opener::From => [asker.from, asker.to],
        };
        let settings = ends.map(settings);
        build(&settings[0]).map_err(|error| refuse(error.to_string(), None))?;
        let queue_feedback = tuning.own.has_queue_feedback();
        Ok(Control { queue_feedback, settings })
    }
}
