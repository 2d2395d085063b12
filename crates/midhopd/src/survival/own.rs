//! The holder's own descriptors, in a table that it shares with the data plane.
//!
//! A compromised data plane can put other descriptors in their place. So before the holder goes on
//! after the end of a data plane, it checks that each is what it was.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;

/// Descriptors, each with the identity that it had when it was added.
#[derive(Debug, Default)]
pub struct OwnDescriptors(BTreeMap<RawFd, Identity>);

/// Device and inode. Each socket, pipe and file in memory has its own. Descriptors that read events
/// share one inode and cannot be distinguished.
type Identity = (u64, u64);

impl OwnDescriptors {
    /// The given descriptors that are open, with their present identity.
    ///
    /// # Errors
    /// When the identity of one of them cannot be read.
    pub fn of(numbers: impl IntoIterator<Item = RawFd>) -> io::Result<Self> {
        let mut own = BTreeMap::new();
        for number in numbers {
            match identity(number) {
                Ok(identity) => drop(own.insert(number, identity)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self(own))
    }

    /// Adds one, temporarily.
    ///
    /// # Errors
    /// When its identity cannot be read.
    pub fn add(&mut self, number: RawFd) -> io::Result<()> {
        self.0.insert(number, identity(number)?);
        Ok(())
    }

    /// Removes descriptors that are closed, or belong to others from now on.
    pub fn remove(&mut self, numbers: &BTreeSet<RawFd>) {
        self.0.retain(|number, _| !numbers.contains(number));
    }

    /// Their numbers.
    pub fn numbers(&self) -> BTreeSet<RawFd> {
        self.0.keys().copied().collect()
    }

    /// Checks that each is still what it was.
    ///
    /// # Errors
    /// When one is not: then the data plane was not the program that was started.
    pub fn check(&self) -> io::Result<()> {
        for (number, was) in &self.0 {
            if !identity(*number).is_ok_and(|is| is == *was) {
                return Err(io::Error::other(format!(
                    "descriptor {number} of the first process was changed by the data plane"
                )));
            }
        }
        Ok(())
    }
}

/// The identity of a descriptor. The link is not resolved any further: a socket has no name.
fn identity(number: RawFd) -> io::Result<Identity> {
    let metadata = fs::metadata(format!("/proc/self/fd/{number}"))?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_is_in_the_place_of_another_is_noticed() -> io::Result<()> {
        let (one, other) = UnixStream::pair()?;
        let mut own = OwnDescriptors::of([one.as_raw_fd(), other.as_raw_fd()])?;
        let third = one.try_clone()?;
        own.add(third.as_raw_fd())?;
        own.check()?;
        // The state after a `dup2` by somebody else: the number refers to something else.
        let swapped = own.0.insert(other.as_raw_fd(), identity(one.as_raw_fd())?);
        assert!(own.check().is_err());
        own.0.extend(swapped.map(|was| (other.as_raw_fd(), was)));
        own.check()?;
        let number = third.as_raw_fd();
        drop(third);
        assert!(own.check().is_err(), "one is closed");
        own.remove(&BTreeSet::from([number]));
        own.check()?;
        assert_eq!(own.numbers(), BTreeSet::from([one.as_raw_fd(), other.as_raw_fd()]));
        Ok(())
    }
}
