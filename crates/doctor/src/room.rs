//! Temporary network namespaces (rooms) for trials.
//!
//! Invariant: a room has no name in the system. It ends when its last holder does, for whatever reason.

use midhop_linux::link::{self, LOOPBACK_INDEX, NewVeth};
use midhop_linux::netlink::Channel;
use midhop_linux::netns::{NetNamespace, map_root, write_sysctl};
use midhop_linux::route::wait_until_own;
use midhop_linux::route_table::RouteEntry;
use nix::{
    sched::{CloneFlags, unshare},
    unistd::{getegid, geteuid},
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

/// How long the whole trial may take before the kernel ends it.
const TIME_MAX_S: u32 = 60;
/// How long the kernel may take until an address is usable. If it takes longer, the trial shows the
/// failure.
const ADDRESS_WITHIN: Duration = Duration::from_secs(1);

/// Moves the process out of the host's network; where it lacks the privilege, as root of its own
/// user namespace. To be called while there is only one thread.
pub(crate) fn isolate_process() -> io::Result<()> {
    // If anything hangs here, the kernel ends the process, and its rooms with it.
    nix::unistd::alarm::set(TIME_MAX_S);
    if unshare(CloneFlags::CLONE_NEWNET).is_ok() {
        return Ok(());
    }
    let (user, group) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)?;
    map_root(user, group)
}

/// A network namespace.
#[derive(Debug)]
pub(crate) struct ProbeNamespace(NetNamespace);

impl ProbeNamespace {
    /// An empty one, with its loopback up.
    pub(crate) fn new() -> io::Result<Self> {
        let room = Self(NetNamespace::new()?);
        room.netlink(|channel| link::set_up(channel, LOOPBACK_INDEX))?;
        Ok(room)
    }

    /// Runs `work` inside, on a separate thread. Sockets and threads that it makes stay inside.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let outcome = self.0.run(|| catch_unwind(AssertUnwindSafe(work)))?;
        outcome.map_err(|_| io::Error::other("a trial panicked"))
    }

    /// Sets a kernel parameter inside.
    pub(crate) fn set(&self, key: &str, value: &str) -> io::Result<()> {
        self.run(|| write_sysctl(key, value))?
    }

    /// Connects two rooms by a pair of devices of these names.
    pub(crate) fn wire(&self, name: &str, other: &Self, other_name: &str) -> io::Result<()> {
        let end = |name| NewVeth { name, mac: None, mtu: None };
        self.netlink(|channel| link::create_pair(channel, end(name), end(other_name), &other.0))?;
        for (room, name) in [(self, name), (other, other_name)] {
            let index = room.run(|| link::index(name))??;
            room.netlink(|channel| link::set_up(channel, index))?;
        }
        Ok(())
    }

    /// Gives a device an address that is usable at once.
    pub(crate) fn address(&self, device: &str, address: IpAddr, length: u8) -> io::Result<()> {
        let index = self.run(|| link::index(device))??;
        self.netlink(|channel| link::add_address(channel, index, address, length))?;
        self.run(|| wait_until_own(address, ADDRESS_WITHIN))?.map(drop)
    }

    /// Sends everything that is not nearby to `gateway`.
    pub(crate) fn default_route(&self, gateway: IpAddr) -> io::Result<()> {
        let any: IpAddr = match gateway {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let route = RouteEntry::over(any, 0, gateway).ok_or(io::ErrorKind::InvalidInput)?;
        self.netlink(|channel| route.add(channel))
    }

    fn netlink(&self, talk: impl FnOnce(&Channel) -> io::Result<()> + Send) -> io::Result<()> {
        self.run(|| talk(&Channel::routing()?))?
    }
}
