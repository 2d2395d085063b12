//! Records on standard output and in files, and the exit codes that follow from them.

use super::output;
use crate::failure;
use anyhow::Context;
use midhop_campaign::{Files, Naming, Origin, Resumed, StoreError};
use midhop_experiment::Plan;
use midhop_experiment::record::Record;
use midhop_workbench::check_place;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

/// Prints records, one JSON object a line, or as a table.
pub fn print(records: &[Record], json: bool) -> anyhow::Result<()> {
    let mut text = String::new();
    if json {
        for record in records {
            text += &serde_json::to_string(record).context("cannot print a record")?;
            text.push('\n');
        }
    } else if !records.is_empty() {
        text = midhop_report::table_in(records, output::columns()).trim_end().to_owned() + "\n";
    }
    output::print(&text)
}

/// The files, named by number, for a scenario's records in `directory`, which is created and
/// checked first.
pub fn numbered(directory: &Path, origin: Origin) -> anyhow::Result<Files> {
    check_place(directory)?;
    Ok(Files::new(directory, origin, Naming::ByNumber))
}

/// Warns of records in a directory that these plans will not replace: a later reader of the
/// directory reads them too.
pub fn warn_of_others(directory: &Path, store: &Files, plans: &[Plan]) {
    let others = store.others(plans);
    if others > 0 {
        let directory = directory.display();
        eprintln!("warning: {directory} also holds {others} records of other runs");
        eprintln!(
            "hint: `midhop report {directory}` would show them too; --out elsewhere keeps apart"
        );
    }
}

/// Reports how many of `plans` have a record already, if any have.
pub fn announce<K>(resumed: &Resumed<'_, K>, plans: &[Plan]) {
    if resumed.there() > 0 {
        eprintln!("{} of {} runs are there already", resumed.there(), plans.len());
    }
}

/// A line for a record that could not be kept.
pub fn not_kept(error: &StoreError) -> String {
    let cause = error.source().map_or_else(String::new, |cause| format!(": {cause}"));
    format!("error: {error}{cause}")
}

/// Prints failures on standard error, and returns the exit code.
pub fn judge<E>(
    plans: &[Plan],
    results: &[Result<Record, E>],
    is_interruption: impl Fn(&E) -> bool,
) -> ExitCode {
    judge_all_but(plans, results, is_interruption, |_, _| false)
}

/// The same, where an invalid record with `is_borne` does not make the command fail.
pub fn judge_all_but<E>(
    plans: &[Plan],
    results: &[Result<Record, E>],
    is_interruption: impl Fn(&E) -> bool,
    is_borne: impl Fn(&Plan, &Record) -> bool,
) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    let (mut interrupted, mut failed) = (0, 0);
    for (plan, result) in plans.iter().zip(results) {
        match result {
            Ok(record) => {
                for fault in &record.validity.faults {
                    eprintln!("invalid: {}: {fault}", plan.label());
                }
                if !record.validity.is_valid() && !is_borne(plan, record) {
                    code = ExitCode::from(failure::RUN);
                }
            }
            Err(error) if is_interruption(error) => interrupted += 1,
            // A failure was reported when it happened.
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

/// The exit code: `code`, unless some of the records of `plans` were not written.
pub fn judge_unwritten(unwritten: usize, plans: &[Plan], code: ExitCode) -> ExitCode {
    if unwritten == 0 {
        return code;
    }
    eprintln!("error: {unwritten} of {} records were not written", plans.len());
    ExitCode::from(failure::RUN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_experiment::Scenario;
    use midhop_experiment::record::Lateness;
    use midhop_sim::{Options, RunError, run};
    use midhop_testbed::runner::only_late;
    use midhop_units::Duration;

    fn one_run() -> (Vec<Plan>, Record) {
        let text = "title = \"a test\"\nduration = \"5 s\"\n[nodes]\na = {}\nb = {}\n\
                    [links.l]\nbetween = [\"a\", \"b\"]\nrate = \"10 Mbit/s\"\n\
                    [transfers.file]\nfrom = \"b\"\nto = \"a\"\nbytes = \"100 kB\"\n";
        let scenario = Scenario::parse("test.toml", text).expect("a scenario");
        let plans = scenario.plans().expect("plans");
        let (record, _) = run(&plans[0], &Options::default()).expect("it runs");
        (plans, record)
    }

    #[test]
    fn a_run_above_a_physical_limit_fails_its_command() {
        let (plans, mut record) = one_run();
        let code = |record: &Record| judge(&plans, &[Ok::<_, RunError>(record.clone())], |_| false);
        assert_eq!(code(&record), ExitCode::SUCCESS);
        for link in &mut record.links {
            link.bytes_sent *= 1000;
        }
        record.validity.faults = record.check_limit();
        assert_eq!(code(&record), ExitCode::from(failure::RUN));
        let borne = judge_all_but(&plans, &[Ok::<_, RunError>(record)], |_| false, |_, _| true);
        assert_eq!(borne, ExitCode::SUCCESS);
    }

    #[test]
    fn a_run_is_only_late_if_it_has_no_other_fault() {
        let (plans, mut record) = one_run();
        let is_only_late = |record: &Record| only_late(&plans[0], record, Duration::from_ms(1));
        record.links[0].lateness =
            Some(Lateness { stood_still: Duration::from_s(3), ..Lateness::default() });
        assert!(!is_only_late(&record), "it is valid");
        let (name, direction) = (record.links[0].name.clone(), record.links[0].direction.clone());
        let late = format!(
            "the emulator of {name} ({direction}) stood still for 3.0 s; 1.0 s are allowed"
        );
        record.validity.faults = vec![late];
        assert!(is_only_late(&record));
        record.validity.faults.push("other bytes arrived than were sent".to_owned());
        assert!(!is_only_late(&record));
    }
}
