//! What a process costs: processor time and memory, read from /proc.

use crate::Result;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::fs;
use std::time::Duration;

/// A process and all its descendants.
pub fn family(pid: u32) -> Result<Vec<u32>> {
    let mut members = vec![pid];
    let mut next = 0;
    while let Some(member) = members.get(next) {
        let threads = fs::read_dir(format!("/proc/{member}/task"))?;
        let started = |thread: std::io::Result<fs::DirEntry>| -> Result<String> {
            Ok(fs::read_to_string(thread?.path().join("children"))?)
        };
        for children in threads.map(started) {
            for child in children?.split_whitespace() {
                members.push(child.parse()?);
            }
        }
        next += 1;
    }
    Ok(members)
}

/// Processor time that a process and all its threads have used so far.
pub fn processor_time(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name may hold spaces and brackets; the fields after it may not.
    let fields = stat.rsplit_once(')').ok_or("no name in /proc stat")?.1;
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    let user = times.next().ok_or("no user time")??;
    let system = times.next().ok_or("no system time")??;
    let ticks_per_s = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?.unwrap_or(100) as f64;
    Ok(Duration::from_secs_f64((user + system) as f64 / ticks_per_s))
}

/// User memory that belongs to a process alone. Unit: bytes.
pub fn private_memory(pid: u32) -> Result<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let kib = rollup
        .lines()
        .filter(|line| line.starts_with("Private_"))
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .sum::<u64>();
    Ok(kib * 1024)
}

/// The machine's load average over the last minute.
pub fn load_average() -> f64 {
    fs::read_to_string("/proc/loadavg")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .unwrap_or(f64::NAN)
}

/// Raises the limit of open files to the hard limit, and gives the number of flows that fit. A flow
/// takes two descriptors in the relay and two in this process, which is both client and server.
/// Some descriptors are kept for other uses.
pub fn raise_descriptor_limit() -> Result<u32> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(u32::try_from(hard.saturating_sub(2_000) / 2).unwrap_or(u32::MAX))
}
