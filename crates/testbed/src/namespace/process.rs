//! Child processes that end with their parent thread, inside a namespace or not.
#![expect(unsafe_code, reason = "a child must enter its namespace between fork and exec")]

use super::Namespace;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

impl Namespace {
    /// A command whose process runs inside the namespace and dies (SIGKILL) with the *thread* that
    /// starts it: start it from a thread that lives as long as the child should. Its own children
    /// do not die with it, unless they arrange for it as well, or the whole is isolated.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let inner = self.inner.clone();
        mortal(program, move || inner.enter())
    }
}

/// The same in the caller's namespace.
pub(crate) fn mortal_command(program: impl AsRef<OsStr>) -> Command {
    mortal(program, || Ok(()))
}

/// A command whose process dies with the thread that starts it. `enter` is called between fork and exec: it may
/// make system calls, and must neither allocate nor take a lock.
fn mortal(
    program: impl AsRef<OsStr>,
    enter: impl Fn() -> io::Result<()> + Send + Sync + 'static,
) -> Command {
    let parent = nix::unistd::getpid();
    let mut command = Command::new(program);
    let begin = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        if nix::unistd::getppid() != parent {
            // The parent ended between fork and the line above: nobody would end this child.
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        enter()
    };
    // SAFETY: between fork and exec the closure makes three system calls at most (`enter`, of which there are the
    // two above, makes one); it allocates nothing and takes no lock (its error values are plain numbers), as is
    // asked of code after fork.
    unsafe { command.pre_exec(begin) };
    command
}
