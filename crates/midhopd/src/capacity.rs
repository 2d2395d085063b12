//! This host's capacity for the data of flows: `limits.memory` never exceeds it, whatever is configured.

use midhop_units::Bytes;
use nix::unistd::{SysconfVar, sysconf};
use std::fs;
use std::path::Path;

/// What bounds the data of all flows on this host, with its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// The bound.
    pub memory: Bytes,
    /// Its reason.
    pub because: &'static str,
}

/// Values read from a host.
#[derive(Debug, Clone, Default)]
struct Host {
    /// `/proc/meminfo`.
    meminfo: String,
    /// `net.ipv4.tcp_mem`.
    tcp_mem: String,
    /// Unit: bytes.
    page: u64,
    /// `memory.max` of the control groups that this process is in.
    group_max: Vec<String>,
}

impl Capacity {
    /// The capacity of this host; none where the kernel reports nothing.
    pub fn of_host() -> Option<Self> {
        Host::read().capacity()
    }

    /// Limits `wanted` to the capacity of this host. Logs when that is less.
    pub fn bound(wanted: Bytes) -> Bytes {
        match Self::of_host() {
            Some(Self { memory, because }) if memory < wanted => {
                tracing::info!(
                    %wanted, held = %memory, because,
                    "limits.memory exceeds the memory that this host has for flows: windows close earlier"
                );
                memory
            }
            _ => wanted,
        }
    }
}

impl Host {
    fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096);
        // Version 2 only: one line, `0::/path`.
        let groups = text("/proc/self/cgroup");
        let group = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let above = Path::new(group).ancestors();
        let group_max = above
            .map(|path| Path::new("/sys/fs/cgroup").join(path).join("memory.max"))
            .filter_map(|path| fs::read_to_string(path).ok());
        Self {
            meminfo: text("/proc/meminfo"),
            tcp_mem: text("/proc/sys/net/ipv4/tcp_mem"),
            page: u64::try_from(page).unwrap_or(4096),
            group_max: group_max.collect(),
        }
    }

    /// The smaller of half of the whole memory, and what TCP may use before the kernel itself shrinks windows.
    fn capacity(&self) -> Option<Capacity> {
        let total = self.meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let total = total.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        let pressure = self.tcp_mem.split_whitespace().nth(1).and_then(|word| word.parse().ok());
        let group = self.group_max.iter().filter_map(|text| text.trim().parse::<u64>().ok()).min();
        let bounds = [
            (total.map(|kib| kib.saturating_mul(1024) / 2), "half of this host's memory"),
            (group.map(|bytes| bytes / 2), "half of what the control group may have"),
            (
                pressure.map(|pages: u64| pages.saturating_mul(self.page)),
                "net.ipv4.tcp_mem: TCP is under memory pressure beyond it",
            ),
        ];
        let bounds = bounds.into_iter().filter_map(|(bytes, because)| Some((bytes?, because)));
        let (bytes, because) = bounds.min_by_key(|(bytes, _)| *bytes)?;
        Some(Capacity { memory: Bytes::new(bytes), because })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host of 1 GiB as Linux sets it up.
    fn small() -> Host {
        Host {
            meminfo: "MemTotal:         999448 kB\nMemFree:          1 kB\n".to_owned(),
            tcp_mem: "11151\t14868\t22302\n".to_owned(),
            page: 4096,
            group_max: vec!["max\n".to_owned()],
        }
    }

    #[test]
    fn a_small_host_has_what_its_kernel_gives_to_tcp() {
        let found = small().capacity().expect("a bound");
        assert_eq!(found.memory, Bytes::new(14_868 * 4096));
        assert!(found.because.contains("tcp_mem"));
    }

    #[test]
    fn a_control_group_and_a_generous_setting_count() {
        let host = Host { tcp_mem: "1000000 2000000 3000000".to_owned(), ..small() };
        assert_eq!(host.capacity().expect("a bound").memory, Bytes::new(999_448 * 1024 / 2));
        let group_max = ["max", "67108864", "134217728"].map(str::to_owned).to_vec();
        let host = Host { group_max, ..host };
        assert_eq!(host.capacity().expect("a bound").memory, Bytes::new(32 << 20));
    }

    #[test]
    fn a_kernel_that_reports_nothing_bounds_nothing() {
        assert_eq!(Host { page: 4096, ..Host::default() }.capacity(), None);
    }

    #[test]
    fn this_host_has_a_capacity() {
        let found = Capacity::of_host().expect("a bound");
        assert!(found.memory > Bytes::new(1 << 20), "{found:?}");
        assert_eq!(Capacity::bound(Bytes::new(1)), Bytes::new(1));
        assert_eq!(Capacity::bound(Bytes::MAX), found.memory);
    }
}
