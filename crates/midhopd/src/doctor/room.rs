//! Throw-away network namespaces: rooms in which things are tried.
//!
//! Invariant: a room has no name in the system. It goes when its last holder does, however that ends.

use midhop_linux::route::on_own_runtime;
use nix::{
    net::if_::if_nametoindex,
    sched::{CloneFlags, setns, unshare},
    unistd::{getegid, geteuid},
};
use rtnetlink::{
    Handle, LinkUnspec, LinkVeth, RouteMessageBuilder,
    packet_route::{
        address::{AddressAttribute, AddressFlags},
        link::{InfoData, InfoVeth},
    },
};
use std::{
    fs::{self, File},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsRawFd,
    thread,
};

/// How long the whole trial may take before the kernel ends it.
const TIME_MAX_S: u32 = 60;

/// Takes the process out of the host's network, as root of a user namespace of its own where it may
/// not do so otherwise. To be called while there is one thread only.
pub(super) fn isolate_process() -> io::Result<()> {
    // Whatever hangs in here, the kernel ends the process, and its rooms go with it.
    nix::unistd::alarm::set(TIME_MAX_S);
    if unshare(CloneFlags::CLONE_NEWNET).is_ok() {
        return Ok(());
    }
    let (user, group) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1"))
}

/// A network namespace.
#[derive(Debug)]
pub(super) struct ProbeNamespace(File);

impl ProbeNamespace {
    /// An empty one, with its loopback up.
    pub(super) fn new() -> io::Result<Self> {
        let own_namespace = || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        };
        let room = thread::scope(|scope| join(scope.spawn(own_namespace)))?.map(Self)?;
        room.netlink(async |handle| {
            handle.link().set(LinkUnspec::new_with_name("lo").up().build()).execute().await
        })?;
        Ok(room)
    }

    /// Runs `work` inside, on a thread of its own. Sockets and threads that it makes stay inside.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            join(scope.spawn(|| {
                setns(&self.0, CloneFlags::CLONE_NEWNET)?;
                Ok(work())
            }))
        })?
    }

    /// Sets a kernel parameter inside.
    pub(super) fn set(&self, key: &str, value: &str) -> io::Result<()> {
        self.run(|| fs::write(format!("/proc/sys/{key}"), value))?
    }

    /// Connects two rooms by a pair of devices of these names.
    pub(super) fn wire(&self, name: &str, other: &Self, other_name: &str) -> io::Result<()> {
        let peer = rtnetlink::LinkMessageBuilder::<LinkUnspec>::new()
            .name(other_name)
            .setns_by_fd(other.0.as_raw_fd())
            .build();
        let pair = rtnetlink::LinkMessageBuilder::<LinkVeth>::new(name, other_name)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
            .build();
        self.netlink(async |handle| handle.link().add(pair).execute().await)?;
        for (room, name) in [(self, name), (other, other_name)] {
            let up = LinkUnspec::new_with_name(name).up().build();
            room.netlink(async |handle| handle.link().set(up).execute().await)?;
        }
        Ok(())
    }

    /// Gives a device an address that is usable at once.
    pub(super) fn address(&self, device: &str, address: IpAddr, length: u8) -> io::Result<()> {
        let index = self.run(|| if_nametoindex(device))??;
        self.netlink(async |handle| {
            let mut request = handle.address().add(index, address, length);
            if address.is_ipv6() {
                let no_detection = AddressAttribute::Flags(AddressFlags::Nodad);
                request.message_mut().attributes.push(no_detection);
            }
            request.execute().await
        })
    }

    /// Sends everything that is not nearby to `gateway`.
    pub(super) fn default_route(&self, gateway: IpAddr) -> io::Result<()> {
        let route = match gateway {
            IpAddr::V4(gateway) => RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway).build(),
            IpAddr::V6(gateway) => RouteMessageBuilder::<Ipv6Addr>::new().gateway(gateway).build(),
        };
        self.netlink(async |handle| handle.route().add(route).execute().await)
    }

    fn netlink(
        &self,
        talk: impl AsyncFnOnce(Handle) -> Result<(), rtnetlink::Error> + Send,
    ) -> io::Result<()> {
        self.run(|| on_own_runtime(talk))?
    }
}

fn join<T>(handle: thread::ScopedJoinHandle<'_, T>) -> io::Result<T> {
    handle.join().map_err(|_| io::Error::other("a trial panicked"))
}
