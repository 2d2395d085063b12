//! The `midhopd` program: see the library for what it does.

use std::process::ExitCode;

/// A flow's few hundred bytes are allocated and freed with every connection: the system's own allocator takes twice
/// as long for them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    midhopd::cli::main(midhop_commit::version!())
}
