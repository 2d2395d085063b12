//! The holder's socket, to which `midhopd upgrade` connects.
//!
//! | byte | meaning |
//! |---|---|
//! | `?` | describes the daemon: a [`Description`] as JSON, and the end |
//! | `!` | ends the data plane; then `p` follows with the descriptor of a program, and the answer is an [`UpgradeOutcome`] |
//!
//! Whoever may choose the program of a process may use its privileges. So the kernel attests the
//! sender of each byte. It has to be root, or this process's user if the process has no privileges.
//! It must not be the data plane, which shares the holder's table of descriptors and could replace
//! the socket or the program. For the same reason the program is received after the data plane has
//! ended.

use super::register::{FORMAT, READABLE_FROM};
use crate::keeper::descriptors;
use midhop_pep::config::Plan;
use midhop_status::control;
use nix::sys::socket::{setsockopt, sockopt::PassCred};
use nix::unistd::{Pid, geteuid};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a client may take for each of its bytes.
const PATIENCE: Duration = Duration::from_millis(500);
/// Requests a description.
pub const DESCRIBE: u8 = b'?';
/// Requests an upgrade.
pub const UPGRADE: u8 = b'!';
/// Sent with the program.
pub const PROGRAM: u8 = b'p';

/// What a program needs to know of the daemon that it is to take over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The version of the program that runs.
    pub version: String,
    /// The format in which flows are recorded.
    pub format: u64,
    /// The oldest format whose readers understand it.
    pub readable_from: u64,
    /// Its configuration.
    pub config: PathBuf,
}

/// How a program that can take over describes itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its version.
    pub version: String,
}

/// The outcome of an upgrade.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UpgradeOutcome {
    /// The version of the program that serves.
    pub version: String,
    /// The version of the program that served before.
    pub before: String,
    /// Number of flows that are recorded when it begins to serve: those that were continued.
    pub flows: usize,
    /// For how long no data plane served.
    pub pause_s: f64,
    /// Why the previous program goes on. None: the new one serves.
    pub error: Option<String>,
}

/// The path of the socket of a daemon with a control socket.
pub fn path_beside(control: &Path) -> PathBuf {
    control.with_extension("upgrade")
}

/// The listening socket. Dropping it removes its file.
#[derive(Debug)]
pub struct Door {
    path: PathBuf,
    listener: UnixListener,
    /// The user, beside root, who may choose the program.
    user: Option<u32>,
    description: Description,
}

impl Door {
    /// Opens the socket of a plan. None: the plan has no control socket, or the socket cannot be
    /// opened. `privileged`: the process has privileges that its user does not have.
    pub fn open(plan: &Plan, config: &Path, version: &str, privileged: bool) -> Option<Self> {
        let path = path_beside(&plan.control.path(&plan.intercept.instance)?);
        let listener = listen(&path).inspect_err(|error| {
            tracing::info!(%error, path = %path.display(), "no socket for upgrades: `midhopd upgrade` will not find this daemon");
        });
        let description = Description {
            version: version.to_owned(),
            format: FORMAT,
            readable_from: READABLE_FROM,
            config: std::path::absolute(config).unwrap_or_else(|_| config.to_owned()),
        };
        let user = (!privileged).then(|| geteuid().as_raw());
        Some(Self { path, listener: listener.ok()?, user, description })
    }

    /// Accepts a client. Returns it if it may upgrade and requests that. Others get their answers
    /// here.
    pub fn next(&self, data_plane: Pid) -> Option<UpgradeClient> {
        let (stream, _) = self.listener.accept().ok()?;
        let client = UpgradeClient { stream, user: self.user };
        match client.receive(data_plane) {
            Ok((UPGRADE, _)) => return Some(client),
            Ok((DESCRIBE, _)) => client.answer(&self.description),
            Ok(_) => tracing::warn!("an unknown request arrived at the socket for upgrades"),
            Err(error) => {
                tracing::warn!(%error, "a request at the socket for upgrades was refused");
            }
        }
        None
    }

    /// Refuses all clients that connected while a data plane lived that has ended. One of them may
    /// be that data plane itself, whose process number the next call of [`Door::next`] would not
    /// know.
    pub fn turn_all_away(&self) {
        while self.listener.accept().is_ok() {}
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    control::make_directory(path)?;
    control::remove_stale(path).map_err(io::Error::other)?;
    let listener = control::bind_for_its_user(path)?;
    listener.set_nonblocking(true)?;
    // Sockets that are accepted inherit it.
    setsockopt(&listener, PassCred, &true)?;
    Ok(listener)
}

/// A client that is connected.
#[derive(Debug)]
pub struct UpgradeClient {
    stream: UnixStream,
    user: Option<u32>,
}

impl UpgradeClient {
    /// The program that the client has sent. To be called when no data plane runs that could
    /// exchange it.
    ///
    /// # Errors
    /// When it has sent something else, or nothing.
    pub fn program(&self, data_plane: Pid) -> io::Result<OwnedFd> {
        match self.receive(data_plane)? {
            (PROGRAM, Some(program)) => Ok(program),
            _ => Err(io::Error::other("no program was sent")),
        }
    }

    /// Sends the answer that the client waits for.
    pub fn answer(&self, answer: &impl Serialize) {
        let text = serde_json::to_vec(answer).unwrap_or_default();
        // A client that has left does not matter.
        let _ = self.stream.set_write_timeout(Some(PATIENCE));
        let _ = (&self.stream).write_all(&text);
    }

    /// The next byte, and a descriptor that was sent with it.
    fn receive(&self, data_plane: Pid) -> io::Result<(u8, Option<OwnedFd>)> {
        self.stream.set_nonblocking(false)?;
        self.stream.set_read_timeout(Some(PATIENCE))?;
        let mut byte = [0];
        let received = descriptors::receive_from(&self.stream, &mut byte, true)?;
        let received = received.ok_or(io::ErrorKind::UnexpectedEof)?;
        let sender = received.sender.ok_or(io::ErrorKind::PermissionDenied)?;
        let may = sender.uid() == 0 || Some(sender.uid()) == self.user;
        if !may || sender.pid() == data_plane.as_raw() {
            return Err(io::Error::other(format!(
                "process {} of user {} may not choose the program",
                sender.pid(),
                sender.uid()
            )));
        }
        Ok((byte[0], received.descriptors.into_iter().next()))
    }
}

impl From<OwnedFd> for UpgradeClient {
    /// A client that has sent everything that it has to.
    fn from(stream: OwnedFd) -> Self {
        Self { stream: stream.into(), user: None }
    }
}

impl AsFd for UpgradeClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
