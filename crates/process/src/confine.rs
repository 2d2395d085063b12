//! Confines the data plane to what serving needs: system calls by seccomp, files by Landlock.
//!
//! There are two lists of system calls. The calls that serving uses are allowed. All others are refused with `EPERM`,
//! so that a library that tries something new fails as it would without privileges. Calls that these threads never
//! need, such as `execve` or `mount`, end the process. No file can be written or executed. Only the files of name
//! resolution and of the host's state can be read.
//!
//! The daemon confines its whole process before it has a second thread. Threads that read strangers' bytes may then
//! read fewer files than the main thread, which reads the configuration and keys again. But threads share their
//! memory, so only the limits of the process are a boundary.

mod calls;
mod files;

pub use files::{Enforced, files};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
use std::{
    env::consts::ARCH,
    fmt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// Whether all threads of this process have the filters of [`system_calls`].
static PROCESS: AtomicBool = AtomicBool::new(false);

/// A failure to confine. What is confined already stays confined.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfineError(String);

impl ConfineError {
    fn of(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// Restricts the calling thread, and those that it starts, to the system calls of serving. Not to be called twice:
/// the first list does not allow installing another.
///
/// # Errors
/// When the kernel has no seccomp filters.
pub fn system_calls() -> Result<(), ConfineError> {
    install(calls::deadly(), SeccompAction::Allow, SeccompAction::KillProcess)?;
    let enosys = u32::try_from(nix::libc::ENOSYS).unwrap_or(1);
    // Its flags are in memory, where no filter can read them. The C library falls back to `clone`.
    let unseen = [(nix::libc::SYS_clone3, Vec::new())].into_iter().collect();
    install(unseen, SeccompAction::Allow, SeccompAction::Errno(enosys))?;
    let eperm = u32::try_from(nix::libc::EPERM).unwrap_or(1);
    // Last, as it does not allow `seccomp` itself.
    install(calls::allowed()?, SeccompAction::Errno(eperm), SeccompAction::Allow)
}

/// Confines the calling thread, and those that it starts, as far as the kernel can. A thread that reads strangers'
/// data does so first. Limits of the process are not requested again.
pub fn thread() {
    report(files(&[], None));
    if !PROCESS.load(Relaxed)
        && let Err(error) = system_calls()
    {
        tracing::warn!(%error, "system calls are not confined");
    }
}

/// Confines the whole data plane, before it has a second thread. In addition it may read below `directories`, which
/// hold its configuration and its keys, and remove files in the directory of its own `sockets`.
pub fn process(directories: &[PathBuf], sockets: Option<&Path>) {
    report(files(directories, sockets));
    match system_calls() {
        Ok(()) => PROCESS.store(true, Relaxed),
        Err(error) => tracing::warn!(%error, "system calls are not confined"),
    }
}

/// Confines the keeper, and the `nft` that it starts: no file is written, and system calls that are never needed end
/// it.
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
        Ok(enforced) => {
            tracing::debug!(?enforced, "this kernel supports only a part of the Landlock rules");
        }
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
