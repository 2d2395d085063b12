//! The parts of a study that are run: by place, and for the quick form.
//!
//! ```toml
//! [quick]                                  # with --quick
//! seeds = 1
//! without = ["crowd"]
//!
//! [lab]                                    # on real kernels
//! seeds = 5
//! set = { download = ["reading=b"] }
//!
//! [lab.quick]                              # on real kernels with --quick
//! set = { download = ["loss=4", "setup=NR,GW,S1"] }
//! ```
//!
//! Cells that kernels do not support need not be listed: they are left out, with the reason.

use crate::study::Study;
use midhop_config::{ConfigError, Document, KeyPath, suggest};
use midhop_experiment::record::{Record, Runner};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where a study is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// In virtual time.
    #[default]
    Sim,
    /// On real kernels.
    Lab,
}

impl Place {
    /// The place of a record; a record without one is from kernels.
    pub fn of(record: &Record) -> Self {
        if Runner::of(record) == Runner::Sim { Self::Sim } else { Self::Lab }
    }

    /// The name in files and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Lab => "lab",
        }
    }

    /// The other place.
    pub const fn other(self) -> Self {
        match self {
            Self::Sim => Self::Lab,
            Self::Lab => Self::Sim,
        }
    }
}

/// A smaller form of a study.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Seeds for each cell. Default: those of the scenarios.
    pub seeds: Option<u32>,
    /// Scenario → the keys that are set in it, as for `midhop sim run --set`.
    #[serde(default)]
    pub set: BTreeMap<String, Vec<String>>,
    /// Scenarios that are left out.
    #[serde(default)]
    pub without: Vec<String>,
}

/// Which part of a study is run in one place.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Here {
    /// Seeds for each cell. Default: those of the scenarios.
    pub seeds: Option<u32>,
    /// Scenario → the keys that are set in it, as for `midhop sim run --set`.
    #[serde(default)]
    pub set: BTreeMap<String, Vec<String>>,
    /// Scenarios that are left out.
    #[serde(default)]
    pub without: Vec<String>,
    /// What of that is run with `--quick`. Default: the study's `quick`.
    pub quick: Option<Part>,
}

impl Study {
    /// Whether a part of it runs in `place`.
    pub fn runs_in(&self, place: Place) -> bool {
        self.place == place || self.here(place).is_some()
    }

    /// The settings of `scenario` in `place`, in this order; none where it is not run.
    pub fn settings(&self, scenario: &str, place: Place, quick: bool) -> Option<Vec<String>> {
        let here = self.here(place);
        let of_place = here.map(|it| (it.seeds, &it.set, &it.without));
        let less = here.and_then(|it| it.quick.as_ref()).unwrap_or(&self.quick);
        let of_quick = quick.then_some((less.seeds, &less.set, &less.without));
        let mut settings = Vec::new();
        let mut seeds = None;
        for (own_seeds, set, without) in of_place.into_iter().chain(of_quick) {
            if without.iter().any(|name| name == scenario) {
                return None;
            }
            settings.extend(set.get(scenario).into_iter().flatten().cloned());
            seeds = own_seeds.or(seeds);
        }
        settings.extend(seeds.map(|seeds| format!("seeds={seeds}")));
        Some(settings)
    }

    fn here(&self, place: Place) -> Option<&Here> {
        match place {
            Place::Sim => self.sim.as_ref(),
            Place::Lab => self.lab.as_ref(),
        }
    }

    /// Refuses scenarios that the study does not have.
    pub(crate) fn check_parts(&self, document: &Document) -> Result<(), ConfigError> {
        let check = |at: KeyPath, set: &BTreeMap<String, Vec<String>>, without: &[String]| {
            let set = set.keys().map(|name| (at.join("set").join(name.as_str()), name));
            let without = without.iter().map(|name| (at.join("without"), name));
            for (path, name) in without.chain(set) {
                if !self.scenarios.contains(name) {
                    let hint = suggest::hint(name, "scenarios", &self.scenarios);
                    let message = format!("no scenario is called `{name}`");
                    return Err(document.fault(&path, message, hint));
                }
            }
            Ok(())
        };
        check(KeyPath::of(["quick"]), &self.quick.set, &self.quick.without)?;
        for place in [Place::Sim, Place::Lab] {
            let Some(here) = self.here(place) else { continue };
            let at = KeyPath::of([place.name()]);
            check(at.clone(), &here.set, &here.without)?;
            if let Some(quick) = &here.quick {
                check(at.join("quick"), &quick.set, &quick.without)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "title = \"t\"\nsource = \"s\"\nscenarios = [\"a\", \"b\"]\nfigures = []\n";

    fn study(more: &str) -> Result<Study, String> {
        Study::parse("study.toml", &format!("{HEAD}{more}")).map_err(|error| error.to_string())
    }

    fn settings(study: &Study, scenario: &str, place: Place, quick: bool) -> Option<String> {
        study.settings(scenario, place, quick).map(|it| it.join(" "))
    }

    #[test]
    fn a_place_has_its_own_part_and_quick_is_less_of_that() {
        let text = "[quick]\nseeds = 1\nwithout = [\"b\"]\n\
                    [lab]\nseeds = 5\nset = { a = [\"x=1\"] }\n\
                    [lab.quick]\nset = { a = [\"y=2\"] }\n";
        let own = study(text).expect("a study");
        assert!(own.runs_in(Place::Sim) && own.runs_in(Place::Lab));
        assert_eq!(settings(&own, "a", Place::Sim, false).as_deref(), Some(""));
        assert_eq!(settings(&own, "a", Place::Sim, true).as_deref(), Some("seeds=1"));
        assert_eq!(settings(&own, "b", Place::Sim, true), None);
        assert_eq!(settings(&own, "a", Place::Lab, false).as_deref(), Some("x=1 seeds=5"));
        assert_eq!(settings(&own, "a", Place::Lab, true).as_deref(), Some("x=1 y=2 seeds=5"));
        assert_eq!(settings(&own, "b", Place::Lab, true).as_deref(), Some("seeds=5"));
        // Without a quick part of its own, a place uses the study's.
        let shared = study("[quick]\nwithout = [\"b\"]\n[lab]\n").expect("a study");
        assert_eq!(settings(&shared, "b", Place::Lab, true), None);
        assert_eq!(settings(&shared, "b", Place::Lab, false).as_deref(), Some(""));
        assert!(!study("").expect("a study").runs_in(Place::Lab));
    }

    #[test]
    fn what_a_part_names_must_be_there() {
        for (text, expected) in [
            ("[lab]\nwithout = [\"c\"]\n", "no scenario is called `c`"),
            ("[lab]\nset = { c = [] }\n", "no scenario is called `c`"),
            ("[lab.quick]\nwithout = [\"c\"]\n", "no scenario is called `c`"),
            ("[sim]\nwithout = [\"c\"]\n", "no scenario is called `c`"),
            ("[lab]\nwithin = [\"a\"]\n", "within"),
            ("[lab]\nseeds = -1\n", "seeds"),
        ] {
            let error = study(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
