//! What this process lacks to register an algorithm.

use std::{fmt, fs, os::unix::fs::MetadataExt};

/// The inode number that the kernel gives the initial user namespace (`PROC_USER_INIT_INO`).
const INITIAL_USER_NAMESPACE: u64 = 0xEFFF_FFFD;

/// The capabilities that registering takes, with their numbers in linux/capability.h.
const NEEDED: [(&str, u32); 3] = [("CAP_NET_ADMIN", 12), ("CAP_PERFMON", 38), ("CAP_BPF", 39)];
const CAP_SYS_ADMIN: u32 = 21;

/// Why this process may not register an algorithm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// It runs in a user namespace, where no capability reaches the kernel's BPF.
    InitialUserNamespace,
    /// It lacks these capabilities.
    Capabilities(Vec<&'static str>),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InitialUserNamespace => f.write_str(
                "this process is in a user namespace, and BPF programs load only from the initial one",
            ),
            Self::Capabilities(names) => write!(f, "{} is missing", names.join(" and ")),
        }
    }
}

/// What this process lacks to register an algorithm; `None` when nothing is known to be missing.
pub fn missing_to_load() -> Option<Missing> {
    let namespace = fs::metadata("/proc/self/ns/user").map(|namespace| namespace.ino());
    if namespace.is_ok_and(|inode| inode != INITIAL_USER_NAMESPACE) {
        return Some(Missing::InitialUserNamespace);
    }
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let missing = missing_capabilities(effective(&status)?);
    (!missing.is_empty()).then_some(Missing::Capabilities(missing))
}

fn effective(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

fn missing_capabilities(effective: u64) -> Vec<&'static str> {
    let has = |number: u32| effective & (1 << number) != 0;
    // CAP_SYS_ADMIN stands in for the two that were split from it.
    NEEDED
        .iter()
        .filter(|(_, number)| {
            let stand_in = *number > CAP_SYS_ADMIN && has(CAP_SYS_ADMIN);
            !has(*number) && !stand_in
        })
        .map(|(name, _)| *name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_capabilities_from_the_status() {
        assert_eq!(effective("Name:\tx\nCapEff:\t000001ffffffffff\n"), Some(0x1ff_ffff_ffff));
        assert_eq!(effective("CapEff:\tnonsense\n"), None);
        assert_eq!(missing_capabilities(u64::MAX), Vec::<&str>::new());
        assert_eq!(missing_capabilities(0), ["CAP_NET_ADMIN", "CAP_PERFMON", "CAP_BPF"]);
        assert_eq!(missing_capabilities(1 << 12 | 1 << 38), ["CAP_BPF"]);
        assert_eq!(missing_capabilities(1 << 12 | 1 << 21), Vec::<&str>::new());
    }
}
