//! The control socket, as written.

use super::ResolveError;
use crate::config::resolve::fault;
use midhop_config::KeyPath;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Where the sockets of all instances of a host are.
const DIRECTORY: &str = "/run/midhopd";

/// The longest path that the kernel gives a socket (`sun_path`, without its final zero).
const PATH_BYTES_MAX: usize = 107;

/// The UNIX socket on which a running daemon answers `midhopd status`, `flows`, `why` and `reload`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Control {
    /// Its path; empty: there is no socket; unset: `/run/midhopd/INSTANCE.sock`, if it can be
    /// created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// The group whose members may connect; unset: only root and the user of the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

impl Control {
    /// The directory of the sockets whose paths are not configured.
    pub fn directory() -> &'static Path {
        Path::new(DIRECTORY)
    }

    /// The path of the socket of an instance; none: it is switched off.
    pub fn path(&self, instance: &str) -> Option<PathBuf> {
        match &self.socket {
            None => Some(Self::directory().join(format!("{instance}.sock"))),
            Some(path) if path.as_os_str().is_empty() => None,
            Some(path) => Some(path.clone()),
        }
    }

    /// Puts the socket into a directory, under a name; switches it off where its path would be too long.
    pub fn use_directory(&mut self, directory: &Path, name: &str) {
        let path = std::path::absolute(directory.join(format!("{name}.sock"))).unwrap_or_default();
        let fits = path.as_os_str().len() <= PATH_BYTES_MAX;
        self.socket = Some(if fits { path } else { PathBuf::new() });
    }

    /// Checks every value.
    pub(super) fn check(&self) -> Result<(), ResolveError> {
        let key = KeyPath::of(["control"]);
        let Some(path) = self.socket.as_deref().filter(|path| !path.as_os_str().is_empty()) else {
            return Ok(());
        };
        if !path.is_absolute() {
            let message = format!("{} is not an absolute path", path.display());
            return fault(
                &key.join("socket"),
                message,
                "begin it with /, such as /run/midhopd/main.sock",
            );
        }
        let length = path.as_os_str().len();
        if length > PATH_BYTES_MAX {
            let message = format!("a path of {length} bytes is too long for a socket");
            return fault(
                &key.join("socket"),
                message,
                format!("take at most {} bytes", PATH_BYTES_MAX),
            );
        }
        Ok(())
    }
}
