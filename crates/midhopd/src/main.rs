//! The `midhopd` program: see the library for what it does.

use std::process::ExitCode;

fn main() -> ExitCode {
    midhopd::cli::main()
}
