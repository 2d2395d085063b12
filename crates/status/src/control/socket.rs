//! The control socket as a file: made before privileges are dropped, removed when the daemon ends.

use midhop_pep::config::Plan;
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Group, chown};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// A daemon listens there.
    #[error("another daemon uses {}", .0.display())]
    Taken(PathBuf),
    /// Something else than a socket has its path.
    #[error("{} exists already, and is not a socket", .0.display())]
    NoSocket(PathBuf),
    /// The group that may connect is unknown.
    #[error("control.group: there is no group {0}")]
    NoGroup(String),
    /// The kernel refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A listening control socket. Dropping it removes its file, where that is permitted.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    /// Who may connect, beside its user and root.
    group: Option<String>,
    /// Taken by the server.
    listener: Option<UnixListener>,
    /// Whether its directory holds nothing else, so that the daemon may keep the right to remove files there.
    is_alone: bool,
}

impl Socket {
    /// Opens the socket of a plan; none where it is switched off.
    ///
    /// # Errors
    /// When it cannot be opened. A file that a dead daemon has left is replaced.
    pub fn open(plan: &Plan) -> Result<Option<Self>, SocketError> {
        let Some(path) = plan.control.path(&plan.intercept.instance) else { return Ok(None) };
        let at = |source| SocketError::Io { path: path.clone(), source };
        let directory = path.parent().unwrap_or(Path::new("/"));
        make_directory(&path).map_err(at)?;
        remove_stale(&path)?;
        let is_alone = holds_only_sockets(directory);
        let listener = bind_for_its_user(&path).map_err(at)?;
        let group = plan.control.group.clone();
        let this = Self { path: path.clone(), group, listener: Some(listener), is_alone };
        if let Some(name) = &plan.control.group {
            let group = Group::from_name(name).ok().flatten();
            let group = group.ok_or_else(|| SocketError::NoGroup(name.clone()))?;
            chown(&path, None, Some(group.gid)).map_err(|errno| at(errno.into()))?;
            fs::set_permissions(&path, Permissions::from_mode(0o660)).map_err(at)?;
        }
        if let Some(listener) = &this.listener {
            listener.set_nonblocking(true).map_err(at)?;
        }
        Ok(Some(this))
    }

    /// The directory in which the daemon needs the right to remove files, so that it can remove its own when it ends;
    /// none if that would be a right over the files of others.
    pub fn directory(&self) -> Option<&Path> {
        self.path.parent().filter(|_| self.is_alone)
    }

    /// Whether it is the socket of a plan.
    pub fn is_of(&self, plan: &Plan) -> bool {
        let path = plan.control.path(&plan.intercept.instance);
        path.as_ref() == Some(&self.path) && plan.control.group == self.group
    }

    /// Another handle of the listener, for a server that ends before the socket does.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn share(&self) -> io::Result<Option<UnixListener>> {
        self.listener.as_ref().map(UnixListener::try_clone).transpose()
    }

    /// The listener, for its server.
    pub fn take(&mut self) -> Option<UnixListener> {
        self.listener.take()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, path = %self.path.display(), "the control socket's file could not be removed");
        }
    }
}

/// Makes the directory of a socket, where there is none.
///
/// # Errors
/// When the kernel refuses.
pub fn make_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(directory) if !directory.exists() => {
            fs::DirBuilder::new().mode(0o755).create(directory)
        }
        _ => Ok(()),
    }
}

/// Listens on a socket that its user and root can connect to, from its first moment.
///
/// # Errors
/// When the kernel refuses.
pub fn bind_for_its_user(path: &Path) -> io::Result<UnixListener> {
    let before = umask(Mode::from_bits_truncate(0o177));
    let bound = UnixListener::bind(path);
    umask(before);
    bound
}

/// Removes the file of a daemon that has died.
///
/// # Errors
/// When it is no socket, something listens on it, or it cannot be removed.
pub fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let at = |source| SocketError::Io { path: path.to_owned(), source };
    let kind = match fs::symlink_metadata(path) {
        Ok(found) => found.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(at(error)),
    };
    if !kind.is_socket() {
        return Err(SocketError::NoSocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(SocketError::Taken(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(at)
        }
        Err(error) => Err(at(error)),
    }
}

fn holds_only_sockets(directory: &Path) -> bool {
    let Ok(mut entries) = fs::read_dir(directory) else { return false };
    entries
        .all(|entry| entry.and_then(|entry| entry.file_type()).is_ok_and(|kind| kind.is_socket()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(path: &Path, more: &str) -> Plan {
        let text = format!("control.socket = {:?}\n{more}", path.display().to_string());
        Plan::read("test", &text).expect("a plan")
    }

    #[test]
    fn it_is_made_for_its_user_alone_and_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("midhopd/x.sock");
        let socket = Socket::open(&plan(&path, "")).expect("a socket").expect("it is on");
        assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
        assert_eq!(socket.directory(), path.parent());
        assert!(socket.is_of(&plan(&path, "")));
        assert!(!socket.is_of(&plan(&path, "control.group = \"root\"")));
        assert!(!socket.is_of(&plan(&path.with_extension("other"), "")));
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn the_file_of_a_dead_daemon_is_replaced_and_that_of_a_live_one_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("x.sock");
        drop(UnixListener::bind(&path).expect("a socket"));
        assert!(path.exists());
        let socket = Socket::open(&plan(&path, "")).expect("a socket");
        let again = Socket::open(&plan(&path, ""));
        assert!(matches!(again, Err(SocketError::Taken(_))), "{again:?}");
        assert!(path.exists(), "it is not removed by one who does not have it");
        drop(socket);
        fs::write(&path, "somebody's").expect("a file");
        let kept = Socket::open(&plan(&path, ""));
        assert!(matches!(kept, Err(SocketError::NoSocket(_))), "{kept:?}");
        assert_eq!(fs::read_to_string(&path).expect("it is still there"), "somebody's");
    }

    #[test]
    fn files_of_others_beside_it_are_not_put_at_risk() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("pid"), "1").expect("a file");
        let path = directory.path().join("x.sock");
        let socket = Socket::open(&plan(&path, "")).expect("a socket").expect("it is on");
        assert_eq!(socket.directory(), None);
    }

    #[test]
    fn it_can_be_switched_off_and_an_unknown_group_is_named() {
        assert!(Socket::open(&plan(Path::new(""), "")).expect("no error").is_none());
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("x.sock");
        let unknown = Socket::open(&plan(&path, "control.group = \"no-such-group\""));
        assert!(matches!(unknown, Err(SocketError::NoGroup(_))), "{unknown:?}");
        assert!(!path.exists(), "nothing is left of it");
    }
}
