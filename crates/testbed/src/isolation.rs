//! Moving a program into namespaces of its own, so that nothing of it can outlive it.
//!
//! ```text
//! outer ── stays in the host, forwards signals, returns the exit code
//!   └ init ── process 1 of a new PID namespace: collects orphans
//!       └ inner ── the program goes on here
//! ```
//! The kernel kills `init` when `outer` dies (whatever killed it), everything in the PID namespace
//! when `init` dies, and frees the network and mount namespaces when nothing is left inside.
//!
//! As root the program stays in the user namespace it was in, so that it may go on choosing
//! congestion control by BPF. Anyone else gets a user namespace of their own, where they are root.
//!
//! Decision 0003.
#![expect(unsafe_code, reason = "a program that goes on in its child needs fork")]

use crate::state::{StateDir, StateError};
use midhop_linux::netns::map_root;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getegid, geteuid, pipe, read};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::{fs, io};

/// Why a program could not be isolated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IsolationError {
    /// A program with several threads cannot move.
    #[error("cannot isolate a program that has {threads} threads already")]
    Threads {
        /// How many there are.
        threads: usize,
    },
    /// Neither root's way nor everyone's is open.
    #[error(
        "cannot make the lab's namespaces: {source}; run as root, or allow user namespaces \
         (sysctl user.max_user_namespaces, and kernel.unprivileged_userns_clone or \
         kernel.apparmor_restrict_unprivileged_userns where they exist)"
    )]
    Unshare {
        /// The kernel's error.
        source: io::Error,
    },
    /// There is no place for the lab's state.
    #[error(transparent)]
    State(#[from] StateError),
    /// A step inside failed.
    #[error("cannot {action}: {source}")]
    Step {
        /// What was tried.
        action: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Entries in each node's table of connections. The kernel derives limits from it, which nodes set to what
/// they were ([`crate::namespace`]).
const CONNECTION_SLOTS: &str = "8192";

/// Where the inner process stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Isolation {
    /// The lab's state directory.
    pub state: PathBuf,
    /// Whether the inner process has root's rights over the machine, not over its own user
    /// namespace alone.
    pub privileged: bool,
}

/// Isolates the calling program: returns in the inner process only. The outer process and process 1
/// end with the inner one, with its exit code (128 + signal if one killed it).
///
/// The outer process keeps `state`, notes the number of process 1 in it for whoever wants to visit
/// the lab, and removes it at the end. If it is killed, the next start sweeps.
///
/// # Errors
/// When namespaces are refused, or the program has more than one thread.
pub fn enter(state: StateDir) -> Result<Isolation, IsolationError> {
    let threads = fs::read_dir("/proc/self/task")
        .map_err(|source| IsolationError::Step { action: "count threads", source })?
        .count();
    if threads != 1 {
        return Err(IsolationError::Threads { threads });
    }
    let privileged = unshare_processes()?;
    // Readable for our own later commands (`lab exec`): gaining rights had hidden the process.
    let _ = prctl::set_dumpable(true);
    // The write end lives in the outer process only: end of file shows that it is gone.
    let (lifeline, held) = pipe().map_err(step("make a pipe"))?;
    // SAFETY: this process has one thread (counted above), so the child may do anything.
    match unsafe { fork() }.map_err(step("fork"))? {
        ForkResult::Parent { child } => {
            drop(lifeline);
            if let Err(error) = state.note_init(child.as_raw()) {
                eprintln!("error: {error}");
                let _ = kill(child, Signal::SIGKILL);
            }
            let code = outlast(child);
            drop(held);
            drop(state);
            std::process::exit(code)
        }
        ForkResult::Child => {
            drop(held);
            let state = state.leak();
            begin_process_one(&lifeline)?;
            // SAFETY: still one thread: the child of a fork has only the one that called it.
            match unsafe { fork() }.map_err(step("fork"))? {
                ForkResult::Parent { child } => std::process::exit(outlast(child)),
                ForkResult::Child => Ok(Isolation { privileged, state }),
            }
        }
    }
}

/// [`enter`] with a state directory of its own.
///
/// # Errors
/// As [`enter`], or when there is no place for the state.
pub fn enter_new() -> Result<Isolation, IsolationError> {
    enter(StateDir::create()?)
}

/// Makes the PID namespace of the children to come: root's way, else in a user namespace, as anyone
/// may. Returns whether it was root's way in the initial user namespace.
///
/// The outer process takes no part in the lab's mounts: to it, the state directory holds plain files
/// that it can remove.
fn unshare_processes() -> Result<bool, IsolationError> {
    match unshare(CloneFlags::CLONE_NEWPID) {
        Ok(()) => return Ok(in_initial_user_namespace()),
        Err(Errno::EPERM) => {}
        Err(errno) => return Err(IsolationError::Unshare { source: errno.into() }),
    }
    let (user, group) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWUSER)
        .map_err(|errno| IsolationError::Unshare { source: errno.into() })?;
    map_root(user, group)
        .map_err(|source| IsolationError::Step { action: "map the user into the lab", source })?;
    Ok(false)
}

/// Whether this process is in the machine's first user namespace: its map is the identity.
fn in_initial_user_namespace() -> bool {
    fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]))
}

/// What process 1 does first: tie its life to the outer process and see its own world in `/proc`.
fn begin_process_one(lifeline: &OwnedFd) -> Result<(), IsolationError> {
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(step("tie the lab to its starter"))?;
    // The starter may have died before the line above. Its pid cannot be asked for from here, but
    // the pipe shows it: nobody else could hold it open.
    nix::fcntl::fcntl(lifeline, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))
        .map_err(step("watch the lab's starter"))?;
    if read(lifeline, &mut [0]) == Ok(0) {
        std::process::exit(1);
    }
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
        .map_err(step("make the lab's mounts and network"))?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .map_err(step("keep the lab's mounts to itself"))?;
    // Refused in some containers; then `/proc` shows the host's processes, which does no harm.
    let hardened = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let _ = mount(Some("proc"), "/proc", Some("proc"), hardened, none);
    // Nodes that share the machine's table of connections walk through all of it, milliseconds on a large
    // machine, each time that one asks for its own; with this each gets a table. Older kernels have none.
    let _ = fs::write("/proc/sys/net/ipv4/tcp_child_ehash_entries", CONNECTION_SLOTS);
    Ok(())
}

/// Waits for `child`, forwards signals that were sent to this process alone, collects orphans, and
/// gives the exit code to end with. Signals from the terminal reach the inner process by themselves.
fn outlast(child: Pid) -> i32 {
    let mut signals = SigSet::empty();
    for signal in
        [Signal::SIGCHLD, Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT]
    {
        signals.add(signal);
    }
    let _ = sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), None);
    let Ok(queue) = SignalFd::new(&signals) else { return 1 };
    loop {
        // Before each wait, for a child that ended before the signals were blocked.
        while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            match status {
                WaitStatus::StillAlive => break,
                WaitStatus::Exited(pid, code) if pid == child => return code,
                WaitStatus::Signaled(pid, signal, _) if pid == child => return 128 + signal as i32,
                _ => {}
            }
        }
        let Ok(Some(info)) = queue.read_signal() else { continue };
        let from_kernel = info.ssi_code > 0;
        if info.ssi_signo != Signal::SIGCHLD as u32 && !from_kernel {
            // Process 1 takes a signal from outside only through its own queue, as here.
            let _ = Signal::try_from(info.ssi_signo as i32).map(|signal| kill(child, signal));
        }
    }
}

fn step(action: &'static str) -> impl Fn(Errno) -> IsolationError {
    move |errno| IsolationError::Step { action, source: errno.into() }
}
