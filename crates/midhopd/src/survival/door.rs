//! The holder's socket, to which `midhopd upgrade` connects.
//!
//! | byte | meaning |
//! |---|---|
//! | `?` | describes the daemon: a [`Description`] as JSON, and the end |
//! | `^` | then `p` follows with the descriptor of a program that starts ahead, while the data plane relays; the answer is an [`UpgradeOutcome`] |
//! | `!` | ends the data plane; then `p` follows with the descriptor of a program, and the answer is an [`UpgradeOutcome`] |
//!
//! Whoever may choose the program of a process may use its privileges. So the kernel attests the
//! sender of each byte. It has to be root, or this process's user if the process has no privileges.
//! It must not be the data plane, which shares the holder's table of descriptors and could replace
//! the socket or the program. For the same reason the program is received after the data plane has
//! ended, or in a table of descriptors that the data plane does not share any more.

use super::register::{FORMAT, READABLE_FROM};
use crate::keeper::descriptors;
use midhop_pep::config::Plan;
use midhop_status::control;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, setsockopt, shutdown, sockopt::PassCred};
use nix::unistd::{Pid, geteuid};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a client may send nothing. Only other clients wait meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it may take to send its program, or to receive its answer. No data plane serves meanwhile.
const PROGRAM_PATIENCE: Duration = Duration::from_secs(2);
/// Requests a description.
pub const DESCRIBE: u8 = b'?';
/// Requests an upgrade.
pub const UPGRADE: u8 = b'!';
/// Requests an upgrade to a program that can start ahead.
pub const UPGRADE_AHEAD: u8 = b'^';
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
    /// Whether another program can start ahead, while this one's data plane relays.
    #[serde(default)]
    pub starts_ahead: bool,
}

/// How a program that can take over describes itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its version.
    pub version: String,
    /// Whether it can start ahead.
    #[serde(default)]
    pub starts_ahead: bool,
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
    /// A client that has sent nothing yet, and when it connected.
    caller: RefCell<Option<(UpgradeClient, Instant)>>,
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
            starts_ahead: true,
        };
        let user = (!privileged).then(|| geteuid().as_raw());
        let listener = listener.ok()?;
        Some(Self { path, listener, user, description, caller: RefCell::default() })
    }

    /// Serves a client, without waiting for it. Returns it if it may upgrade and requests that.
    /// Others get their answers here.
    pub fn next(&self, data_plane: Pid) -> Option<UpgradeClient> {
        let mut caller = self.caller.borrow_mut();
        if caller.is_none() {
            let (stream, _) = self.listener.accept().ok()?;
            let client = UpgradeClient { stream, user: self.user, is_ahead: false };
            *caller = Some((client, Instant::now()));
        }
        let (client, since) = caller.take()?;
        if !client.has_sent() {
            if since.elapsed() < PATIENCE {
                *caller = Some((client, since));
            } else {
                tracing::warn!(
                    "a client of the socket for upgrades is disconnected: it has sent no request"
                );
            }
            return None;
        }
        match client.receive(data_plane) {
            Ok((UPGRADE, _)) => return Some(client),
            Ok((UPGRADE_AHEAD, _)) => return Some(UpgradeClient { is_ahead: true, ..client }),
            Ok((DESCRIBE, _)) => client.answer(&self.description),
            Ok(_) => tracing::warn!("an unknown request arrived at the socket for upgrades"),
            Err(error) => {
                tracing::warn!(%error, "a request at the socket for upgrades was refused");
            }
        }
        None
    }

    /// Takes no clients from now on, although another process has the socket open as well. So the
    /// next program finds that nobody uses its file.
    pub fn shut(&self) {
        let _ = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
    }

    /// Refuses all clients that connected while a data plane lived that has ended. One of them may
    /// be that data plane itself, whose process number the next call of [`Door::next`] would not
    /// know.
    pub fn turn_all_away(&self) {
        self.caller.take();
        while self.listener.accept().is_ok() {}
    }
}

/// Waits until one of these can be read, or [`Door::next`] has something to do.
///
/// # Errors
/// When the kernel has no memory.
pub fn wait(door: Option<&Door>, others: [BorrowedFd<'_>; 2]) -> io::Result<()> {
    let caller = door.map(|door| door.caller.borrow());
    let (awaited, timeout) = match caller.as_ref().and_then(|caller| caller.as_ref()) {
        // One client at a time.
        Some((client, since)) => {
            // The kernel counts whole milliseconds, and must not be early.
            let left = PATIENCE.saturating_sub(since.elapsed()) + Duration::from_millis(1);
            (Some(client.as_fd()), left.try_into().unwrap_or(PollTimeout::MAX))
        }
        None => (door.map(|door| door.listener.as_fd()), PollTimeout::NONE),
    };
    let all = others.into_iter().chain(awaited);
    let mut all: Vec<_> = all.map(|from| PollFd::new(from, PollFlags::POLLIN)).collect();
    match poll(&mut all, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
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
    is_ahead: bool,
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

    /// Whether its program can start while the data plane relays.
    pub fn is_ahead(&self) -> bool {
        self.is_ahead
    }

    /// Sends the answer that the client waits for.
    pub fn answer(&self, answer: &impl Serialize) {
        let text = serde_json::to_vec(answer).unwrap_or_default();
        // A client that has left does not matter.
        let _ = self.stream.set_write_timeout(Some(PROGRAM_PATIENCE));
        let _ = (&self.stream).write_all(&text);
    }

    /// Whether it has sent something, or has left.
    fn has_sent(&self) -> bool {
        let mut client = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        poll(&mut client, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// The next byte, and a descriptor that was sent with it.
    fn receive(&self, data_plane: Pid) -> io::Result<(u8, Option<OwnedFd>)> {
        self.stream.set_nonblocking(false)?;
        self.stream.set_read_timeout(Some(PROGRAM_PATIENCE))?;
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
        Self { stream: stream.into(), user: None, is_ahead: false }
    }
}

impl AsFd for UpgradeClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
