//! Reads private keys, and refuses one that other users of the host can read.

use nix::unistd::{Gid, getegid, getgroups};
use std::{
    fs::{File, Metadata},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::Path,
};

/// Permission bits of the group and of all others.
const OF_OTHERS: u32 = 0o077;
/// The only one of them that a file of root may have: its group may read it.
const GROUP_READS: u32 = 0o040;
/// Maximum size of a key. Unit: bytes.
const SIZE_MAX: u64 = 1 << 20;

/// What to do about [`KeyFileError::Exposed`].
pub const HINT_EXPOSED: &str = "`chmod 600 FILE`; where root keeps the file and midhopd only reads it: \
     `chown root:GROUP FILE` and `chmod 640 FILE`, with GROUP that of the user that midhopd runs as. \
     If others may have read the key, issue another";

/// Why a private key is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// It cannot be read.
    #[error(transparent)]
    Unreadable(#[from] io::Error),
    /// Others than its owner can read or write it.
    #[error(
        "others than its owner can use it (mode {mode:04o}, owner {owner}, group {group}): \
         it may no longer be secret"
    )]
    Exposed {
        /// Its permission bits.
        mode: u32,
        /// Its owner's number.
        owner: u32,
        /// Its group's number.
        group: u32,
    },
}

/// The content of `file`, if only its owner can use it, or root and the group of this process.
///
/// # Errors
/// When it cannot be read, or is [exposed](KeyFileError::Exposed).
pub fn read(file: &Path) -> Result<Vec<u8>, KeyFileError> {
    let file = File::open(file)?;
    // The metadata of the opened file, not of another file that may have the name by now.
    let metadata = file.metadata()?;
    let mode = metadata.mode() & 0o7777;
    if is_exposed(&metadata, &own_groups()?) {
        return Err(KeyFileError::Exposed { mode, owner: metadata.uid(), group: metadata.gid() });
    }
    let mut bytes = Vec::new();
    file.take(SIZE_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A file of root may be readable by a group: by ours, or by root's own. systemd also shows a credential this way
/// when an access control list gives it to one user.
fn is_exposed(metadata: &Metadata, own_groups: &[Gid]) -> bool {
    match metadata.mode() & OF_OTHERS {
        0 => false,
        GROUP_READS => {
            let group = metadata.gid();
            let trusted = group == 0 || own_groups.contains(&Gid::from_raw(group));
            metadata.uid() != 0 || !trusted
        }
        _ => true,
    }
}

fn own_groups() -> io::Result<Vec<Gid>> {
    let mut groups = getgroups()?;
    groups.push(getegid());
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::{Uid, chown, geteuid};
    use std::os::unix::fs::PermissionsExt;

    const KEY: &[u8] = b"a secret";

    fn key(mode: u32) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), KEY).expect("its content");
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode))
            .expect("its mode");
        file
    }

    #[test]
    fn a_key_that_others_can_use_is_refused() {
        for mode in [0o644, 0o604, 0o602, 0o660, 0o620, 0o666, 0o610] {
            let refused = read(key(mode).path()).expect_err("an exposed key");
            assert!(
                matches!(refused, KeyFileError::Exposed { mode: found, .. } if found == mode),
                "{mode:o}: {refused}"
            );
            assert!(refused.to_string().contains(&format!("mode {mode:04o}")), "{refused}");
        }
        for mode in [0o600, 0o400, 0o700] {
            assert_eq!(read(key(mode).path()).expect("a key of its owner's alone"), KEY);
        }
    }

    #[test]
    fn roots_key_may_be_read_by_the_group_of_the_daemon_and_by_no_other() {
        if !geteuid().is_root() {
            return midhop_testkit::skipped("giving files away takes root");
        }
        let taken = |owner: u32, group: u32| {
            let file = key(0o640);
            chown(file.path(), Some(Uid::from_raw(owner)), Some(Gid::from_raw(group)))
                .expect("an owner");
            let metadata = std::fs::metadata(file.path()).expect("a file");
            !is_exposed(&metadata, &[Gid::from_raw(4242)])
        };
        assert!(taken(0, 4242), "root's, for our group");
        assert!(taken(0, 0), "root's and its group's");
        assert!(!taken(0, 4243), "root's, for another group");
        assert!(!taken(4242, 4242), "another user's");
    }
}
