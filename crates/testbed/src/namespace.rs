//! Anonymous network namespaces.
//!
//! A [`Namespace`] is held by a file descriptor and has no name in the host (nothing under
//! `/run/netns`): when the last descriptor and the last process inside are gone, the kernel frees
//! it with all its devices. That holds for a crash and for SIGKILL as well.
//!
//! Invariant: the calling thread never changes its own namespace. Work inside happens on threads
//! made for it ([`Namespace::run`]) and in child processes ([`Namespace::command`]).
//!
//! Decision 0003.

mod diversion;
mod link;
mod offload;
mod process;
mod strays;
mod sysctl;

pub(crate) use process::mortal_command;

pub use diversion::Exit;
pub use link::{Mac, VethEnd, veth, veth_with_offloads};

use midhop_linux::netns::NetNamespace;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use strays::Strays;

/// Why a namespace could not be made, entered or arranged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// The kernel made no new namespace.
    #[error(
        "cannot make the network namespace {name}: {source}; \
         run as root, or let unprivileged users make user namespaces"
    )]
    Create {
        /// The namespace's name among its peers.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A thread could not enter the namespace.
    #[error("cannot enter the network namespace {name}: {source}")]
    Enter {
        /// The namespace's name among its peers.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A kernel parameter could not be set.
    #[error("cannot set {key} to {value:?} in {name}: {source}")]
    Sysctl {
        /// The namespace's name among its peers.
        name: String,
        /// The parameter, dotted.
        key: String,
        /// The value that was refused.
        value: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A device, address, route or neighbour could not be set.
    #[error("cannot {action} in {name}: {source}")]
    Device {
        /// The namespace's name among its peers.
        name: String,
        /// What was tried.
        action: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A network namespace that lives as long as this value, its clones and the processes inside.
#[derive(Debug, Clone)]
pub struct Namespace {
    name: Arc<str>,
    inner: NetNamespace,
}

impl Namespace {
    /// Makes a namespace with its loopback up, and configures it as a node of an experiment: it
    /// forwards, accepts asymmetric paths, has no duplicate-address detection and allows large
    /// windows.
    ///
    /// `name` is for messages only; two namespaces may share it.
    ///
    /// # Errors
    /// When the kernel refuses: this takes CAP_SYS_ADMIN in the current user namespace.
    pub fn create(name: &str) -> Result<Self, NamespaceError> {
        let fail = |source: io::Error| NamespaceError::Create { name: name.to_owned(), source };
        let namespace = Self { name: name.into(), inner: NetNamespace::new().map_err(fail)? };
        sysctl::apply_defaults(&namespace)?;
        namespace.set_up("lo")?;
        Ok(namespace)
    }

    /// The namespace that the calling thread is in.
    ///
    /// # Errors
    /// When `/proc` is not there.
    pub fn current(name: &str) -> Result<Self, NamespaceError> {
        let inner = NetNamespace::current()
            .map_err(|source| NamespaceError::Enter { name: name.to_owned(), source })?;
        Ok(Self { name: name.into(), inner })
    }

    /// The name that messages use.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` on a thread inside the namespace and waits for it. Sockets that it opens stay
    /// inside wherever they are used later.
    ///
    /// # Errors
    /// When the thread cannot enter.
    ///
    /// # Panics
    /// When `work` does.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NamespaceError> {
        let refused = |source| NamespaceError::Enter { name: self.name.to_string(), source };
        self.inner.run(work).map_err(refused)
    }

    /// Moves the calling thread into the namespace for good; for a thread that serves it all its
    /// life, such as an emulator's.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn enter(&self) -> Result<(), NamespaceError> {
        let refused = |source| NamespaceError::Enter { name: self.name.to_string(), source };
        self.inner.enter().map_err(refused)
    }

    /// Sets a kernel parameter such as `net.ipv4.ip_forward` inside.
    ///
    /// # Errors
    /// When the parameter is not there or the value is refused.
    pub fn set_sysctl(&self, key: &str, value: &str) -> Result<(), NamespaceError> {
        sysctl::set(self, key, value)
    }

    /// Brings a device up.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn set_up(&self, interface: &str) -> Result<(), NamespaceError> {
        link::set_up(self, interface)
    }

    /// The number of frames that arrived at a device and were dropped before anybody received them,
    /// since the device was made: the kernel's backlog queue was full.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn dropped(&self, interface: &str) -> Result<u64, NamespaceError> {
        link::dropped(self, interface)
    }

    /// Gives a device an address. An IPv6 address is usable at once.
    ///
    /// # Errors
    /// When there is no such device or it has the address already.
    pub fn add_address(
        &self,
        interface: &str,
        address: IpAddr,
        prefix: u8,
    ) -> Result<(), NamespaceError> {
        link::add_address(self, interface, address, prefix)
    }

    /// Limits the MSS that this host's TCP advertises over its existing routes, so that packets
    /// have at most `size` bytes with headers without options. The size of what this host sends
    /// depends on what its peers advertise. Datagrams are not affected.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn advertise_packets(&self, size: u32) -> Result<(), NamespaceError> {
        link::advertise_packets(self, size)
    }

    /// Routes a prefix over a next hop; prefix length 0 is the default route.
    ///
    /// # Errors
    /// When the next hop is not reachable or the route is there already.
    pub fn add_route(
        &self,
        destination: IpAddr,
        prefix: u8,
        via: IpAddr,
    ) -> Result<(), NamespaceError> {
        link::add_route(self, destination, prefix, via)
    }

    /// Changes routes to hosts from `before` to `after`, each to a destination over a next hop. Routes to other
    /// destinations stay.
    ///
    /// # Errors
    /// When a next hop is not reachable, or a route of `before` is not there.
    pub fn change_routes(
        &self,
        before: &[(IpAddr, IpAddr)],
        after: &[(IpAddr, IpAddr)],
    ) -> Result<(), NamespaceError> {
        link::change_routes(self, before, after)
    }

    /// Sends TCP segments with these sources and destinations out by `exit`, if they arrive by another of `devices`. Those
    /// that the proxy of their flow sent itself pass ([`mark_own`](Self::mark_own)).
    ///
    /// # Errors
    /// When a router is not reachable.
    pub fn divert(
        &self,
        ways: &[(SocketAddr, SocketAddr)],
        devices: &[&str],
        exit: Exit<'_>,
    ) -> Result<(), NamespaceError> {
        diversion::divert(self, ways, devices, exit)
    }

    /// Marks TCP segments with these sources and destinations that this node sends itself: nodes at which their flow is
    /// diverted let them pass.
    ///
    /// # Errors
    /// When `nft` is not there, or the kernel refuses.
    pub fn mark_own(&self, ways: &[(SocketAddr, SocketAddr)]) -> Result<(), NamespaceError> {
        diversion::mark_own(self, ways)
    }

    /// Answers TCP segments with a reset from now on that would be forwarded and arrived by this device, from this source,
    /// for this destination: as a host does that has no such connection. SYNs and resets pass.
    ///
    /// # Errors
    /// When `nft` is not there, or the kernel refuses.
    pub fn reset_strays(
        &self,
        ways: &[(&str, SocketAddr, SocketAddr)],
    ) -> Result<(), NamespaceError> {
        Strays::Reset.add(self, ways)
    }

    /// Drops such segments instead, until [`forget_strays`](Self::forget_strays): a proxy on this node is about to have
    /// their connections. It gets what belongs to a socket of its own, since that is not forwarded.
    ///
    /// # Errors
    /// When the kernel refuses the rules.
    pub fn drop_strays(
        &self,
        ways: &[(&str, SocketAddr, SocketAddr)],
    ) -> Result<(), NamespaceError> {
        Strays::Dropped.add(self, ways)
    }

    /// Ends [`drop_strays`](Self::drop_strays).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn forget_strays(&self) -> Result<(), NamespaceError> {
        Strays::Dropped.clear(self)
    }

    /// Sets the hardware address of a neighbour permanently, so that the device never asks for it.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn add_neighbour(
        &self,
        interface: &str,
        address: IpAddr,
        mac: Mac,
    ) -> Result<(), NamespaceError> {
        link::add_neighbour(self, interface, address, mac)
    }

    /// Makes a device send and receive packets as on the wire: no segmentation or coalescing, no
    /// checksums left to hardware.
    ///
    /// # Errors
    /// When there is no such device or it refuses.
    pub fn disable_offloads(&self, interface: &str) -> Result<(), NamespaceError> {
        offload::disable(self, interface)
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}
