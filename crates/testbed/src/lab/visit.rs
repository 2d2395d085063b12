//! User programs on a node of a lab that another process runs.

use crate::namespace::Namespace;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, io};

/// Where a lab mounts its nodes: below its state directory, inside its mount namespace only.
const NODES: &str = "nodes";

/// Why a node could not be shown or visited.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VisitError {
    /// A part of the lab could not be entered.
    #[error("cannot enter the lab's {what} namespace: {source}")]
    Enter {
        /// Which namespace.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The lab has no such node.
    #[error("the lab has no node {node}: it has {}", known.join(", "))]
    Node {
        /// The node asked for.
        node: String,
        /// Those that are there.
        known: Vec<String>,
    },
    /// The program did not start.
    #[error("cannot run {program}: {source}")]
    Program {
        /// The program asked for.
        program: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A node could not be shown.
    #[error("cannot show {} to visitors: {source}", path.display())]
    Publish {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Makes nodes visitable, and reachable by name: mounts each namespace below `state`, and a file of
/// host names over `/etc/hosts`. Call it in an isolated process, so that the mounts stay in its
/// namespace.
///
/// # Errors
/// When a mount is refused.
pub fn publish<'a>(
    state: &Path,
    nodes: impl Iterator<Item = (&'a str, &'a Namespace)>,
    hosts: &str,
) -> Result<(), VisitError> {
    let directory = state.join(NODES);
    let fail = |path: &Path, source| VisitError::Publish { path: path.to_owned(), source };
    fs::create_dir_all(&directory).map_err(|source| fail(&directory, source))?;
    for (name, namespace) in nodes {
        let path = directory.join(name);
        let source = format!("/proc/self/fd/{}", namespace.as_fd().as_raw_fd());
        File::create(&path)
            .and_then(|_| bind(Path::new(&source), &path))
            .map_err(|source| fail(&path, source))?;
    }
    let names = state.join("hosts");
    let own = fs::read_to_string("/etc/hosts").unwrap_or_default();
    fs::write(&names, format!("{own}\n# nodes of this lab\n{hosts}"))
        .map_err(|source| fail(&names, source))?;
    let target = Path::new("/etc/hosts");
    if target.exists() {
        bind(&names, target).map_err(|source| fail(target, source))
    } else {
        Ok(())
    }
}

fn bind(source: &Path, target: &Path) -> io::Result<()> {
    let none: Option<&str> = None;
    Ok(mount(Some(source), target, none, MsFlags::MS_BIND, none)?)
}

/// Runs a program on a node of the lab whose process 1 is `init` and whose state is in `state`,
/// with this process's terminal, and gives the program's exit code (128 + signal if one killed it).
///
/// The calling process moves into the lab for good and must have one thread.
///
/// # Errors
/// When the lab or the node cannot be entered, or the program not started.
pub fn visit(init: i32, state: &Path, node: &str, program: &[OsString]) -> Result<u8, VisitError> {
    let directory = env::current_dir();
    let open = |what: &'static str, file: &str| {
        let of_lab = File::open(format!("/proc/{init}/ns/{file}"))
            .map_err(|source| VisitError::Enter { what, source })?;
        let own = fs::metadata(format!("/proc/self/ns/{file}")).map(|own| own.ino()).ok();
        let same = of_lab.metadata().map(|lab| lab.ino()).ok() == own;
        Ok((what, of_lab, same))
    };
    // All are opened before the first is entered: their paths cannot be seen from inside.
    let namespaces = [open("user", "user")?, open("process", "pid")?, open("mount", "mnt")?];
    for (what, namespace, same) in &namespaces {
        if !same {
            setns(namespace.as_fd(), CloneFlags::empty())
                .map_err(|errno| VisitError::Enter { what, source: errno.into() })?;
        }
    }
    let path = state.join(NODES).join(node);
    let network = File::open(&path)
        .map_err(|_| VisitError::Node { node: node.to_owned(), known: known_nodes(state) })?;
    setns(network, CloneFlags::CLONE_NEWNET)
        .map_err(|errno| VisitError::Enter { what: "network", source: errno.into() })?;
    // Changing the mount namespace moved us to its root. A working directory that is missing there
    // is no error.
    if let Ok(directory) = directory {
        let _ = env::set_current_dir(directory);
    }
    let Some((name, arguments)) = program.split_first() else { return Ok(0) };
    // The program handles Ctrl-C itself. It starts with an empty mask: the blocked signals are not
    // inherited.
    let mut terminal = SigSet::empty();
    terminal.add(Signal::SIGINT);
    terminal.add(Signal::SIGQUIT);
    let _ = sigprocmask(SigmaskHow::SIG_BLOCK, Some(&terminal), None);
    let mut command = Command::new(name);
    command.args(arguments);
    let socket = state.join(format!("{node}.sock"));
    if socket.exists() {
        // So that `midhopd status` asks the proxy of this node.
        command.env("MIDHOPD_SOCKET", socket);
    }
    let status = command.status().map_err(|source| VisitError::Program {
        program: name.to_string_lossy().into_owned(),
        source,
    })?;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    Ok(u8::try_from(code).unwrap_or(1))
}

fn known_nodes(state: &Path) -> Vec<String> {
    let entries = fs::read_dir(state.join(NODES)).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
