//! The laboratory: run scenarios on real kernels, measure, report.
//!
//! Exit codes: 0 all went well, 1 a run failed, 2 an expectation was not met, 64 the command line or
//! a file was wrong. Standard output carries data only; progress and errors go to standard error.
//!
//! This is a library only because the compiler starts a library while its dependencies are still
//! being built; the program is `midhop`.

mod commands;

use clap::{CommandFactory, FromArgMatches, Parser};
use commands::Command;
use midhop_failure as failure;
use std::process::ExitCode;

/// Real TCP over emulated satellite links: run scenarios, measure, report.
#[derive(Debug, Parser)]
#[command(name = "midhop", version, propagate_version = true, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// Runs the command line.
pub fn main(version: &'static str) -> ExitCode {
    let given = Arguments::command().version(version).try_get_matches();
    let arguments = match given.and_then(|given| Arguments::from_arg_matches(&given)) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are answers, everything else is a usage error.
            let code = if error.use_stderr() { failure::USAGE } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    match arguments.command.run() {
        Ok(code) => code,
        Err(error) => failure::report(error.as_ref()),
    }
}
