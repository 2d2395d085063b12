//! The `midhopd` program: see the library for what it does.

use std::process::ExitCode;

/// A flow's few hundred bytes come and go with every connection: the system's own allocator spends
/// twice the time on them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    midhopd::cli::main()
}
