//! Records: on standard output, as files, and what they say of how the runs went.

use super::output;
use crate::failure::{self, Failure};
use anyhow::Context;
use midhop_experiment::Plan;
use midhop_experiment::record::Record;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Prints records, one JSON object a line, or as a table.
pub fn print(records: &[Record], json: bool) -> anyhow::Result<()> {
    let mut text = String::new();
    if json {
        for record in records {
            text += &serde_json::to_string(record).context("cannot print a record")?;
            text.push('\n');
        }
    } else if !records.is_empty() {
        text = midhop_report::table(records).trim_end().to_owned() + "\n";
    }
    output::print(&text)
}

/// Makes a directory for records and tries it: better refused now than after an hour of runs.
pub fn check_place(directory: &Path) -> anyhow::Result<()> {
    let trial = directory.join(format!("trial-{}.new", std::process::id()));
    let tried =
        fs::create_dir_all(directory).and_then(|()| fs::write(&trial, "a record would go here\n"));
    let _ = fs::remove_file(&trial);
    tried.map_err(|error| {
        Failure::usage(format!("no records can be written to {}", directory.display()))
            .because(error)
            .hint("give another directory with --out, or make room in this one")
            .into()
    })
}

/// Warns of records in a directory that these plans will not replace: who reads the directory later reads
/// them too.
pub fn warn_of_others(directory: &Path, plans: &[Plan]) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let number = |name: &str| name.strip_suffix(".json")?.parse::<usize>().ok();
    let others = entries.flatten().filter(|entry| {
        number(&entry.file_name().to_string_lossy()).is_some_and(|number| number >= plans.len())
    });
    let others = others.count();
    if others > 0 {
        let directory = directory.display();
        eprintln!("warning: {directory} also holds {others} records of other runs");
        eprintln!(
            "hint: `midhop report {directory}` would show them too; --out elsewhere keeps apart"
        );
    }
}

/// Writes a record whole or not at all.
pub fn write_record(directory: &Path, plan: &Plan, record: &Record) -> anyhow::Result<()> {
    let path = directory.join(format!("{:04}.json", plan.number));
    let draft = directory.join(format!("{:04}.json.new", plan.number));
    let text = serde_json::to_vec_pretty(record).context("cannot print a record")?;
    fs::write(&draft, text)
        .and_then(|()| fs::rename(&draft, &path))
        .inspect_err(|_| {
            let _ = fs::remove_file(&draft);
        })
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The record of `plan` that an earlier call has left in `directory`, if this release made it.
pub fn finished(directory: &Path, plan: &Plan) -> Option<Record> {
    let text = fs::read_to_string(directory.join(format!("{:04}.json", plan.number))).ok()?;
    let record = Record::from_json(&text).ok()?;
    let version = record.environment.versions.get("midhop").map(String::as_str);
    // Through text, as the record's went: numbers may lose their last bit there.
    let text = plan.to_json().ok()?.to_string();
    let same = serde_json::from_str::<serde_json::Value>(&text).is_ok_and(|it| it == record.plan);
    (same && version == Some(env!("CARGO_PKG_VERSION"))).then_some(record)
}

/// Says on standard error what went wrong, and gives the exit code.
pub fn judge<E>(
    plans: &[Plan],
    results: &[Result<Record, E>],
    is_interruption: impl Fn(&E) -> bool,
) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    let (mut interrupted, mut failed) = (0, 0);
    for (plan, result) in plans.iter().zip(results) {
        match result {
            Ok(record) => {
                for fault in &record.validity.faults {
                    eprintln!("invalid: {}: {fault}", plan.label());
                    code = ExitCode::from(failure::RUN);
                }
            }
            Err(error) if is_interruption(error) => interrupted += 1,
            // What failed was told when it did.
            Err(_) => failed += 1,
        }
    }
    if failed > 0 {
        eprintln!("error: {failed} of {} runs failed", plans.len());
        code = ExitCode::from(failure::RUN);
    }
    if interrupted > 0 {
        eprintln!("interrupted: {interrupted} of {} runs have no record", plans.len());
        code = ExitCode::from(failure::RUN);
    }
    code
}

/// How many results could not be written. A full disk ends no run: what can be printed is.
#[derive(Debug, Default)]
pub struct Unwritten(AtomicUsize);

impl Unwritten {
    /// Tells of what was not written, and counts it.
    pub fn note(&self, written: anyhow::Result<()>) {
        if let Err(error) = written {
            self.0.fetch_add(1, Ordering::Relaxed);
            eprintln!("error: {error:#}");
        }
    }

    /// How many there are so far.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// The exit code, which was `code` but for this.
    pub fn judge(self, code: ExitCode) -> ExitCode {
        match self.0.into_inner() {
            0 => code,
            count => {
                eprintln!("error: {count} results were not written");
                ExitCode::from(failure::RUN)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_experiment::Scenario;
    use midhop_sim::{Options, RunError, run};

    #[test]
    fn a_run_above_a_physical_limit_fails_its_command() {
        let text = "title = \"a test\"\nduration = \"5 s\"\n[nodes]\na = {}\nb = {}\n\
                    [links.l]\nbetween = [\"a\", \"b\"]\nrate = \"10 Mbit/s\"\n\
                    [transfers.file]\nfrom = \"b\"\nto = \"a\"\nbytes = \"100 kB\"\n";
        let scenario = Scenario::parse("test.toml", text).expect("a scenario");
        let plans = scenario.plans().expect("plans");
        let (mut record, _) = run(&plans[0], &Options::default()).expect("it runs");
        let code = |record: &Record| judge(&plans, &[Ok::<_, RunError>(record.clone())], |_| false);
        assert_eq!(code(&record), ExitCode::SUCCESS);
        for link in &mut record.links {
            link.bytes_sent *= 1000;
        }
        record.validity.faults = record.check_limit();
        assert_eq!(code(&record), ExitCode::from(failure::RUN));
    }
}
