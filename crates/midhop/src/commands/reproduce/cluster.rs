//! Studies on a cluster: the Python package runs them there and stores their records, which this
//! program reads.

use super::Reproduce;
use crate::commands::sim::engine::Engine;
use crate::failure::Failure;
use midhop_campaign::Origin;
use midhop_experiment::record::Runner;
use midhop_study::Place;
use midhop_testbed::signals::Interrupts;
use midhop_workbench::Prepared;
use std::ffi::OsString;
use std::process::ExitCode;

impl Reproduce {
    /// Refuses an engine for runs on kernels, since those are isolated and cannot reach a cluster.
    /// Refuses an engine that is not available.
    pub(super) fn check_engine(&self, studies: &[Prepared]) -> anyhow::Result<()> {
        let Some(engine) = &self.engine else { return Ok(()) };
        if let Some(study) = studies.iter().find(|study| study.place != Place::Sim) {
            let name = &study.bundle.name;
            let message = format!("--engine is for virtual time, and {name} runs on real kernels");
            let hint = "add `--in sim`; what `--in lab` leaves in the same --out stands beside";
            return Err(Failure::usage(message).hint(hint).into());
        }
        self.origin_on(engine).map(drop)
    }

    /// The engine of a study, where that is a cluster.
    pub(super) fn engine_of(&self, study: &Prepared) -> Option<&Engine> {
        self.engine.as_ref().filter(|_| study.place == Place::Sim)
    }

    /// The origin of the records there.
    pub(super) fn origin_on(&self, engine: &Engine) -> anyhow::Result<Origin> {
        let build = match self.package.get() {
            Some(build) => build.clone(),
            None => {
                let build = engine.build()?;
                self.package.get_or_init(|| build).clone()
            }
        };
        Ok(Origin::new(Runner::Sim, build))
    }

    /// Runs the missing runs of a study there. Returns the exit code where it could not be run.
    pub(super) fn run_on(
        &self,
        engine: &Engine,
        study: &Prepared,
        interrupts: &Interrupts,
    ) -> anyhow::Result<Option<ExitCode>> {
        let left = self.left(study)?.len();
        let (name, runs) = (&study.bundle.name, study.plans.len());
        let there = match runs - left {
            0 => String::new(),
            there => format!(", {there} of them there already"),
        };
        eprintln!("{name} on {engine}: {runs} runs{there}");
        if left == 0 || interrupts.is_set() {
            return Ok(None);
        }
        let code = engine.run_study(self.arguments(study), interrupts)?;
        // After an interrupt, the existing records are shown.
        Ok(code.filter(|_| !interrupts.is_set()).map(ExitCode::from))
    }

    /// The command line for the same study with the Python package.
    fn arguments(&self, study: &Prepared) -> Vec<OsString> {
        let mut all: Vec<OsString> = Vec::new();
        let mut option = |name: &str, value: OsString| all.extend([name.into(), value]);
        if let Some(out) = &self.out {
            option("--out", out.into());
        }
        let (seeds, jobs) = (self.seeds.map(u64::from), self.jobs.map(|it| it as u64));
        for (name, value) in [("--seeds", seeds), ("--jobs", jobs)] {
            value.into_iter().for_each(|it| option(name, it.to_string().into()));
        }
        self.cells.iter().for_each(|it| option("--cell", it.to_string().into()));
        all.extend(self.quick.then(|| "--quick".into()));
        // A name may begin with a dash.
        all.extend(["--".into(), OsString::from(&study.bundle.name)]);
        all
    }
}
