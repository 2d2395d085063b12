//! Confines the data plane to what serving takes: system calls by seccomp, files by Landlock.
//!
//! Two lists of system calls. What serving uses is allowed; all else is refused with `EPERM`, so that a
//! library that tries something new fails as it would without privileges. What nothing in these threads
//! has a reason for, such as `execve` or `mount`, ends the process. No file can be written or executed;
//! read can be what name resolution and the host's state are read from.
//!
//! The daemon confines its whole process before it has a second thread. Threads that take strangers' bytes may
//! then read less than the main thread, which reads the configuration and keys again: but as threads share their
//! memory, only what holds for the process is a boundary.

mod calls;
mod files;

pub use files::{Enforced, files};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
use std::{
    env::consts::ARCH,
    fmt,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// Whether all threads of this process have the filters of [`system_calls`].
static PROCESS: AtomicBool = AtomicBool::new(false);

/// Where confining failed. What is confined already stays so.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfineError(String);

impl ConfineError {
    fn of(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// Lets the calling thread, and those that it starts, make no system calls but those of serving. Not
/// to be called twice: the first list does not have what installing another takes.
///
/// # Errors
/// When the kernel has no seccomp filters.
pub fn system_calls() -> Result<(), ConfineError> {
    install(calls::deadly(), SeccompAction::Allow, SeccompAction::KillProcess)?;
    let enosys = u32::try_from(nix::libc::ENOSYS).unwrap_or(1);
    // Its flags are in memory, where no filter sees them; the C library falls back to `clone`.
    let unseen = [(nix::libc::SYS_clone3, Vec::new())].into_iter().collect();
    install(unseen, SeccompAction::Allow, SeccompAction::Errno(enosys))?;
    let eperm = u32::try_from(nix::libc::EPERM).unwrap_or(1);
    // Last, as it does not allow `seccomp` itself.
    install(calls::allowed()?, SeccompAction::Errno(eperm), SeccompAction::Allow)
}

/// Confines the calling thread, and those that it starts, as far as the kernel can: a thread that takes what
/// strangers send does so first. What the process is confined to already is not asked for again.
pub fn thread() {
    report(files(&[]));
    if !PROCESS.load(Relaxed)
        && let Err(error) = system_calls()
    {
        tracing::warn!(%error, "system calls are not confined");
    }
}

/// Confines the whole data plane, before it has a second thread. It may read below `directories` besides: where its
/// configuration and its keys are.
pub fn process(directories: &[PathBuf]) {
    report(files(directories));
    match system_calls() {
        Ok(()) => PROCESS.store(true, Relaxed),
        Err(error) => tracing::warn!(%error, "system calls are not confined"),
    }
}

/// Confines the keeper, and the `nft` that it starts: no file is written, and of system calls those end it that
/// nothing has a reason for.
pub fn keeper() {
    report(files::of_the_keeper());
    if let Err(error) =
        install(calls::deadly_to_the_keeper(), SeccompAction::Allow, SeccompAction::KillProcess)
    {
        tracing::warn!(%error, "system calls of the keeper are not confined");
    }
}

fn report(enforced: Result<Enforced, ConfineError>) {
    match enforced {
        Ok(Enforced::Fully) => {}
        Ok(enforced) => tracing::debug!(?enforced, "this kernel does not know all of Landlock"),
        Err(error) => tracing::warn!(%error, "files are not confined"),
    }
}

fn install(
    calls: calls::Rules,
    otherwise: SeccompAction,
    listed: SeccompAction,
) -> Result<(), ConfineError> {
    let architecture = ARCH.try_into().map_err(ConfineError::of)?;
    let filter = SeccompFilter::new(calls, otherwise, listed, architecture);
    let program: BpfProgram =
        filter.map_err(ConfineError::of)?.try_into().map_err(ConfineError::of)?;
    apply_filter(&program).map_err(ConfineError::of)
}
