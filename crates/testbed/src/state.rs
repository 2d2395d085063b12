//! The files of a running lab, and the removal of those that dead labs left.
//!
//! Each lab has one directory, named after its outer process: `<pid>-<start time>`. The start time
//! (in clock ticks since boot, from `/proc`) makes the name unique even when process numbers are
//! reused. So a dead lab is recognised with certainty, and the files of a running one are never
//! removed.

use serde::{Deserialize, Serialize};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The environment variable that selects another directory for the state of labs. Labs in one
/// directory do not see those in another.
const PLACE: &str = "MIDHOP_STATE_DIR";
/// The file in a lab's directory that describes it.
const DESCRIPTION: &str = "lab.json";
/// The file in a lab's directory that holds the number of its process 1, as the host counts.
const INIT: &str = "init";

/// Why the state of labs could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The directory of all labs belongs to somebody else.
    #[error("{} belongs to another user: remove it, or set XDG_RUNTIME_DIR", path.display())]
    Owner {
        /// The directory.
        path: PathBuf,
    },
    /// Reading or writing failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessId {
    /// Its number.
    pub pid: i32,
    /// When it started. Unit: clock ticks since boot.
    pub start: u64,
}

impl ProcessId {
    /// The process with this number, if it lives.
    pub fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The second field is a name in parentheses, which may hold anything: count from its end.
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_whitespace();
        let state = fields.next()?;
        let start = fields.nth(18)?.parse().ok()?;
        (!matches!(state, "Z" | "X")).then_some(Self { pid, start })
    }

    /// Whether exactly this process still runs.
    pub fn lives(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    fn directory_name(self) -> String {
        format!("{}-{}", self.pid, self.start)
    }

    fn from_directory_name(name: &str) -> Option<Self> {
        let (pid, start) = name.split_once('-')?;
        Some(Self { pid: pid.parse().ok()?, start: start.parse().ok()? })
    }
}

/// The description that a lab publishes for other processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The name that a user calls it by.
    pub name: String,
    /// The scenario file.
    pub scenario: PathBuf,
    /// Its nodes, with the address that each is known by.
    pub nodes: Vec<(String, String)>,
}

/// The directory of one lab, removed with this value.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
}

impl StateDir {
    /// Makes the directory of the calling process, after sweeping what dead ones left.
    ///
    /// # Errors
    /// When the place is not writable or not ours.
    pub fn create() -> Result<Self, StateError> {
        let root = root()?;
        sweep(&root);
        let pid = std::process::id().cast_signed();
        let own = ProcessId::of(pid).ok_or_else(|| StateError::Io {
            action: "read",
            path: format!("/proc/{pid}/stat").into(),
            source: io::ErrorKind::NotFound.into(),
        })?;
        let path = root.join(own.directory_name());
        make_private(&path)?;
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Records the number of the lab's process 1.
    ///
    /// # Errors
    /// When the directory is not writable.
    pub fn note_init(&self, pid: i32) -> Result<(), StateError> {
        let path = self.path.join(INIT);
        fs::write(&path, pid.to_string()).map_err(|source| io_error("write", &path, source))
    }

    /// Leaves the removal to another process, for example the other one after a fork.
    #[must_use]
    pub fn leak(self) -> PathBuf {
        let path = self.path.clone();
        std::mem::forget(self);
        path
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Writes a lab's description into its directory, whole or not at all.
///
/// # Errors
/// When the directory is not writable.
pub fn describe(directory: &Path, description: &Description) -> Result<(), StateError> {
    let path = directory.join(DESCRIPTION);
    let draft = directory.join(format!("{DESCRIPTION}.new"));
    let text = serde_json::to_vec_pretty(description)
        .map_err(|error| io_error("write", &path, error.into()))?;
    fs::write(&draft, text)
        .and_then(|()| fs::rename(&draft, &path))
        .map_err(|source| io_error("write", &path, source))
}

/// A running lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Living {
    /// Its outer process: ending it ends the lab.
    pub outer: ProcessId,
    /// Its process 1, by its number in the host.
    pub init: i32,
    /// Its state directory.
    pub directory: PathBuf,
    /// Its published description.
    pub description: Description,
}

/// All running labs of this user with a description, by name.
///
/// # Errors
/// When the directory of labs is not ours.
pub fn living() -> Result<Vec<Living>, StateError> {
    let root = root()?;
    sweep(&root);
    let mut labs: Vec<_> = entries(&root)
        .filter_map(|(outer, directory)| {
            let description = fs::read(directory.join(DESCRIPTION)).ok()?;
            let description = serde_json::from_slice(&description).ok()?;
            let init = fs::read_to_string(directory.join(INIT)).ok()?.parse().ok()?;
            Some(Living { outer, init, directory, description })
        })
        .collect();
    labs.sort_by(|a, b| a.description.name.cmp(&b.description.name));
    Ok(labs)
}

/// The log file of the lab called `name`. It is kept when the lab fails, for reading.
///
/// # Errors
/// When the directory of labs is not ours.
pub fn log_file(name: &str) -> Result<PathBuf, StateError> {
    let plain: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
    Ok(root()?.join(format!("{plain}.log")))
}

/// Removes the directories of dead processes. Files with other names are kept.
fn sweep(root: &Path) {
    for (process, path) in entries(root) {
        if !process.lives() {
            // Another sweeper may remove it first.
            let _ = fs::remove_dir_all(path);
        }
    }
}

fn entries(root: &Path) -> impl Iterator<Item = (ProcessId, PathBuf)> {
    fs::read_dir(root).into_iter().flatten().flatten().filter_map(|entry| {
        let process = ProcessId::from_directory_name(entry.file_name().to_str()?)?;
        Some((process, entry.path()))
    })
}

/// The directory of all labs of this user: in memory where the system has such a place.
fn root() -> Result<PathBuf, StateError> {
    let user = nix::unistd::geteuid();
    let place = if let Some(directory) = env::var_os(PLACE).filter(|text| !text.is_empty()) {
        PathBuf::from(directory)
    } else if user.is_root() && Path::new("/run").is_dir() {
        PathBuf::from("/run/midhop")
    } else if let Some(directory) = env::var_os("XDG_RUNTIME_DIR").filter(|text| !text.is_empty()) {
        PathBuf::from(directory).join("midhop")
    } else {
        env::temp_dir().join(format!("midhop-{user}"))
    };
    make_private(&place)?;
    let owner = fs::symlink_metadata(&place).map_err(|source| io_error("read", &place, source))?;
    // Anyone may make directories in /tmp: a directory of another user, or a symbolic link, may be
    // an attack.
    if owner.uid() == user.as_raw() && owner.is_dir() {
        Ok(place)
    } else {
        Err(StateError::Owner { path: place })
    }
}

fn make_private(path: &Path) -> Result<(), StateError> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(io_error("make the directory", path, error))
        }
        _ => Ok(()),
    }
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> StateError {
    StateError::Io { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_distinguished_from_a_later_one_with_its_number() {
        let own = ProcessId::of(std::process::id().cast_signed()).expect("this process lives");
        assert!(own.lives());
        assert!(!ProcessId { start: own.start + 1, ..own }.lives());
        assert_eq!(ProcessId::from_directory_name(&own.directory_name()), Some(own));
        for name in ["", "12", "x-3", "12-x", "12-3-4"] {
            assert_eq!(ProcessId::from_directory_name(name), None, "{name}");
        }
    }

    #[test]
    fn sweeping_takes_the_dead_and_only_them() {
        let root = tempfile::tempdir().expect("a directory");
        let own = ProcessId::of(std::process::id().cast_signed()).expect("this process lives");
        let dead = ProcessId { start: own.start + 1, ..own };
        let names = [own.directory_name(), dead.directory_name(), "notes".to_owned()];
        for name in &names {
            fs::create_dir(root.path().join(name)).expect("made");
            fs::write(root.path().join(name).join("file"), "x").expect("written");
        }
        sweep(root.path());
        let left = names.map(|name| root.path().join(name).exists());
        assert_eq!(left, [true, false, true]);
    }
}
