//! The built-in studies, and those in a directory.

use crate::scenario::supply_files;
use midhop_experiment::Scenario;
use midhop_failure::Failure;
use midhop_study::{Cell, Place, Study};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A study and the texts of its scenarios.
#[derive(Debug)]
pub struct Bundle {
    /// The user's name for it.
    pub name: String,
    /// Its figures and claims.
    pub study: Study,
    scenarios: BTreeMap<String, Scenario>,
    beside: Beside,
}

/// The place of the files that its scenarios name.
#[derive(Debug)]
enum Beside {
    /// In the directory from which it was read.
    Directory(PathBuf),
    /// In the program.
    Program(&'static [Text]),
}

type Text = (&'static str, &'static str);

/// A built-in study, with its files as they were at build time.
struct Shipped {
    name: &'static str,
    study: &'static str,
    scenarios: &'static [Text],
    /// The files that its scenarios name, such as recordings.
    files: &'static [Text],
}

macro_rules! shipped {
    ($name:literal, $($scenario:literal),+ $(; $($file:literal),+)?) => {
        Shipped {
            name: $name,
            study: include_str!(concat!("../studies/", $name, "/study.toml")),
            scenarios: &[$((
                $scenario,
                include_str!(concat!("../studies/", $name, "/", $scenario, ".toml")),
            )),+],
            files: &[$($((
                $file,
                include_str!(concat!("../studies/", $name, "/", $file)),
            )),+)?],
        }
    };
}

const SHIPPED: [Shipped; 8] = [
    shipped!(
        "ntn-placement",
        "download",
        "sensitivity",
        "beyond",
        "moving",
        "thin",
        "unequal",
        "handovers-telesat",
        "handovers-iridium"
    ),
    shipped!("geo-leo-variants", "geo", "leo", "pair", "choices", "five"),
    shipped!("geo-onoff", "download", "leg", "objects", "related"),
    shipped!(
        "far-proxy",
        "sweep",
        "distance",
        "conditions",
        "crowd",
        "amounts",
        "flight",
        "parallel"
    ),
    shipped!("pepsal-multiflow", "single", "many", "jitter", "behaviours", "legs", "hosts"),
    shipped!("tunnel", "source", "shared", "lossy", "fast", "page", "harm"),
    shipped!("starlink-as-measured", "down", "up", "page"; "rate.csv", "delay.txt"),
    shipped!("splitting-today", "cells", "open", "heuristic", "gain"),
];

/// The names of the built-in studies.
pub fn names() -> impl Iterator<Item = &'static str> {
    SHIPPED.iter().map(|shipped| shipped.name)
}

/// The study called `name`, or the one in the directory `name`.
///
/// # Errors
/// When there is none, or it cannot be read.
pub fn find(name: &str) -> Result<Bundle, Failure> {
    if let Some(shipped) = SHIPPED.iter().find(|shipped| shipped.name == name) {
        return Bundle::read(name, Beside::Program(shipped.files), shipped.study, |scenario| {
            let known = shipped.scenarios.iter().find(|(known, _)| *known == scenario);
            known.map(|(_, text)| (*text).to_owned()).ok_or_else(|| "not shipped".to_owned())
        });
    }
    let directory = Path::new(name);
    if !directory.join("study.toml").is_file() {
        let known: Vec<&str> = names().collect();
        return Err(Failure::usage(format!("no study is called {name}")).hint(format!(
            "there are {}, all, and directories with a study.toml",
            known.join(", ")
        )));
    }
    let read = |file: &str| {
        let path = directory.join(file);
        let cannot = |error| format!("cannot read {}: {error}", path.display());
        std::fs::read_to_string(&path).map_err(cannot)
    };
    let study = read("study.toml").map_err(Failure::run)?;
    let beside = Beside::Directory(directory.to_owned());
    Bundle::read(name, beside, &study, |scenario| read(&format!("{scenario}.toml")))
}

impl Bundle {
    fn read(
        name: &str,
        beside: Beside,
        study: &str,
        text_of: impl Fn(&str) -> Result<String, String>,
    ) -> Result<Self, Failure> {
        let study = Study::parse(&format!("{name}/study.toml"), study)?;
        let mut scenarios = BTreeMap::new();
        for scenario in &study.scenarios {
            let file = format!("{name}/{scenario}.toml");
            let text =
                text_of(scenario).map_err(|error| Failure::usage(format!("{file}: {error}")))?;
            let parsed = Scenario::parse(&file, &text)?;
            scenarios.insert(scenario.clone(), parsed);
        }
        let bundle = Self { name: name.to_owned(), study, scenarios, beside };
        let cells: BTreeMap<String, Vec<Cell>> =
            bundle.scenarios.iter().map(|(name, it)| (name.clone(), it.positions())).collect();
        bundle
            .study
            .check(&cells)
            .map_err(|what| Failure::usage(format!("{}/study.toml: {what}", bundle.name)))?;
        Ok(bundle)
    }

    /// Supplies a scenario of it, called `name`, with the files that it names, which are beside it.
    ///
    /// # Errors
    /// When one cannot be read, or is not built in although the study is.
    pub fn supply(&self, name: &str, scenario: &mut Scenario) -> Result<(), Failure> {
        let own = format!("{name}.toml");
        let known = match &self.beside {
            Beside::Directory(directory) => return supply_files(scenario, &directory.join(own)),
            Beside::Program(files) => files,
        };
        for file in scenario.files()? {
            let Some((_, text)) = known.iter().find(|(name, _)| *name == file) else {
                let study = &self.name;
                let message = format!("{study}/{own} names the file {file}, which is not shipped");
                let hint = "give the study's directory from the source code instead of its name";
                return Err(Failure::usage(message).hint(hint));
            };
            scenario.supply(&file, (*text).to_owned());
        }
        Ok(())
    }

    /// The name of its directory among records of several studies: its name without parent
    /// directories.
    pub fn directory_name(&self) -> &str {
        Path::new(&self.name).file_name().and_then(|name| name.to_str()).unwrap_or("study")
    }

    /// The scenario called `name`.
    pub fn scenario(&self, name: &str) -> Option<&Scenario> {
        self.scenarios.get(name)
    }

    /// All its scenarios by name.
    pub fn all(&self) -> &BTreeMap<String, Scenario> {
        &self.scenarios
    }

    /// Its scenarios that run in `place`, in the order of the study, each with its settings.
    pub fn scenarios(
        &self,
        place: Place,
        quick: bool,
    ) -> impl Iterator<Item = (&str, Scenario, Vec<String>)> {
        self.study.scenarios.iter().filter_map(move |name| {
            let set = self.study.settings(name, place, quick)?;
            Some((name.as_str(), self.scenarios[name].clone(), set))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_study_of_the_repository_is_shipped_whole() {
        let studies = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies");
        let entries = studies.read_dir().expect("studies/ is there").map(|it| it.expect("listed"));
        let directories: BTreeSet<_> = entries
            .filter(|it| it.path().is_dir())
            .map(|it| it.file_name().to_string_lossy().into_owned())
            .collect();
        assert_eq!(directories, names().map(str::to_owned).collect());
        for name in names() {
            let bundle = find(name).unwrap_or_else(|error| panic!("{name}: {error}"));
            let mut run: BTreeSet<&str> = BTreeSet::new();
            for (place, quick) in
                [Place::Sim, Place::Lab].map(|it| [(it, false), (it, true)]).concat()
            {
                for (scenario, mut read, set) in bundle.scenarios(place, quick) {
                    for assignment in set {
                        let set = read.set(&assignment);
                        assert!(set.is_ok(), "{name}/{scenario} in {place:?}: {set:?}");
                    }
                    let whole = bundle.supply(scenario, &mut read);
                    assert!(whole.is_ok(), "{name}/{scenario} names files: {whole:?}");
                    if bundle.study.runs_in(place) {
                        run.insert(scenario);
                    }
                }
            }
            assert_eq!(run.len(), bundle.study.scenarios.len(), "{name}: some are never run");
        }
    }

    #[test]
    fn a_file_that_does_not_come_with_the_program_is_one_error() {
        const STUDY: &str = "title = \"t\"\nsource = \"s\"\nscenarios = [\"a\"]\nfigures = []\n";
        const SCENARIO: &str = "title = \"a\"\nduration = \"1 s\"\n[nodes]\na = {}\nb = {}\n\
            [links.l]\nbetween = [\"a\", \"b\"]\ndelay = { recorded_file = \"delay.txt\" }\n";
        let supplied = |files: &'static [Text]| {
            let beside = Beside::Program(files);
            let bundle = Bundle::read("x", beside, STUDY, |_| Ok(SCENARIO.to_owned()));
            let bundle = bundle.expect("a study");
            let mut scenario = bundle.scenario("a").expect("its scenario").clone();
            bundle.supply("a", &mut scenario)?;
            Ok::<_, Failure>(scenario.plans()?)
        };
        let error = supplied(&[("rate.csv", "1\n")]).expect_err("it is not there");
        let text = error.to_string();
        assert!(text.contains("x/a.toml names the file delay.txt, which is not shipped"), "{text}");
        let [empty, short]: [&'static [Text]; 2] =
            [&[("delay.txt", "")], &[("delay.txt", "12\n11\n")]];
        for (files, what) in
            [(empty, "delay.txt, it is empty"), (short, "lasts 20 ms, a run up to 1 s")]
        {
            let error = supplied(files).expect_err("it is not enough");
            assert!(error.to_string().contains(what), "{error}");
            assert!(files == empty || error.hint_text().is_some(), "{error}");
        }
    }
}
