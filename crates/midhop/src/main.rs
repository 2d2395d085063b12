//! The `midhop` program: see the library for what it does.

use std::process::ExitCode;

fn main() -> ExitCode {
    midhop::main(midhop_commit::version!())
}
