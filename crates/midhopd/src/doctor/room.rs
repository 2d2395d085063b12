//! Temporary network namespaces (rooms) for trials.
//!
//! Invariant: a room has no name in the system. It ends when its last holder does, for whatever reason.

use midhop_linux::link::{self, LOOPBACK_INDEX, NewVeth};
use midhop_linux::netns::{NetNamespace, map_root, write_sysctl};
use midhop_linux::route::on_own_runtime;
use nix::{
    sched::{CloneFlags, unshare},
    unistd::{getegid, geteuid},
};
use rtnetlink::Handle;
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    panic::{AssertUnwindSafe, catch_unwind},
};

/// How long the whole trial may take before the kernel ends it.
const TIME_MAX_S: u32 = 60;

/// Takes the process out of the host's network, as root of its own user namespace where it has no privilege to do so
/// otherwise. To be called while there is only one thread.
pub(super) fn isolate_process() -> io::Result<()> {
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
pub(super) struct ProbeNamespace(NetNamespace);

impl ProbeNamespace {
    /// An empty one, with its loopback up.
    pub(super) fn new() -> io::Result<Self> {
        let room = Self(NetNamespace::new()?);
        room.netlink(async |handle| link::set_up(&handle, LOOPBACK_INDEX).await)?;
        Ok(room)
    }

    /// Runs `work` inside, on a separate thread. Sockets and threads that it makes stay inside.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let outcome = self.0.run(|| catch_unwind(AssertUnwindSafe(work)))?;
        outcome.map_err(|_| io::Error::other("a trial panicked"))
    }

    /// Sets a kernel parameter inside.
    pub(super) fn set(&self, key: &str, value: &str) -> io::Result<()> {
        self.run(|| write_sysctl(key, value))?
    }

    /// Connects two rooms by a pair of devices of these names.
    pub(super) fn wire(&self, name: &str, other: &Self, other_name: &str) -> io::Result<()> {
        let end = |name| NewVeth { name, mac: None, mtu: None };
        let pair = link::veth(end(name), end(other_name), &other.0);
        self.netlink(async |handle| handle.link().add(pair).execute().await)?;
        for (room, name) in [(self, name), (other, other_name)] {
            let index = room.run(|| link::index(name))??;
            room.netlink(async |handle| link::set_up(&handle, index).await)?;
        }
        Ok(())
    }

    /// Gives a device an address that is usable at once.
    pub(super) fn address(&self, device: &str, address: IpAddr, length: u8) -> io::Result<()> {
        let index = self.run(|| link::index(device))??;
        self.netlink(async |handle| link::add_address(&handle, index, address, length).await)
    }

    /// Sends everything that is not nearby to `gateway`.
    pub(super) fn default_route(&self, gateway: IpAddr) -> io::Result<()> {
        let any: IpAddr = match gateway {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let route = link::route_over(any, 0, gateway).ok_or(io::ErrorKind::InvalidInput)?;
        self.netlink(async |handle| handle.route().add(route).execute().await)
    }

    fn netlink(
        &self,
        talk: impl AsyncFnOnce(Handle) -> Result<(), rtnetlink::Error> + Send,
    ) -> io::Result<()> {
        self.run(|| on_own_runtime(talk))?
    }
}
