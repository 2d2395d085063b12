//! The interface by which packets to an address leave, from the kernel's routes, remembered for a moment.

use midhop_linux::netlink::Channel;
use midhop_linux::route::{self, Route};
use midhop_pep::policy::NextHop;
use nix::net::if_::if_indextoname;
use nix::sys::socket::SockProtocol;
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Lifetime of an answer. A flow keeps the leg it began with, so a changed route affects new flows
/// only.
const BELIEVED: Duration = Duration::from_secs(1);
/// Answers remembered; beyond this number all are forgotten.
const REMEMBERED: usize = 4096;

type Answers = HashMap<IpAddr, (Option<NextHop<Rc<str>>>, Instant)>;

/// Queries the kernel for routes.
#[derive(Debug)]
pub struct Egress {
    channel: Channel,
    answers: RefCell<Answers>,
}

impl Egress {
    /// Opens a channel in the calling thread's network namespace.
    pub fn open() -> io::Result<Self> {
        let channel = Channel::open(SockProtocol::NetlinkRoute)?;
        Ok(Self { channel, answers: RefCell::default() })
    }

    /// The interface towards an address; `None` when there is no route.
    pub fn towards(&self, address: IpAddr) -> Option<Rc<str>> {
        self.next_hop(address).map(|next| next.interface)
    }

    /// Interface and router towards an address; `None` when there is no route.
    pub fn next_hop(&self, address: IpAddr) -> Option<NextHop<Rc<str>>> {
        let now = Instant::now();
        if let Some((next, asked)) = self.answers.borrow().get(&address)
            && now.duration_since(*asked) < BELIEVED
        {
            return next.clone();
        }
        let next = self.ask(address).ok().flatten();
        let mut answers = self.answers.borrow_mut();
        if answers.len() >= REMEMBERED {
            answers.clear();
        }
        answers.insert(address, (next.clone(), now));
        next
    }

    /// Whether packets to an address are delivered to this host. The answer is not remembered.
    ///
    /// # Errors
    /// When the kernel cannot be queried.
    pub fn is_own(&self, address: IpAddr) -> io::Result<bool> {
        Ok(route::lookup(&self.channel, address.to_canonical())?.is_own)
    }

    fn ask(&self, address: IpAddr) -> io::Result<Option<NextHop<Rc<str>>>> {
        let Route { interface, gateway, .. } = route::lookup(&self.channel, address)?;
        let interface = interface.and_then(name_of);
        Ok(interface.map(|interface| NextHop { interface, gateway }))
    }
}

/// A name, if there is one, and when it was queried.
type Known = (Option<Rc<str>>, Instant);

/// Names of interfaces, remembered for a moment: a query takes three system calls.
#[derive(Debug, Default)]
pub struct InterfaceNames {
    known: RefCell<HashMap<u32, Known>>,
}

impl InterfaceNames {
    /// The name of the interface with this index.
    pub fn of(&self, index: u32) -> Option<Rc<str>> {
        let now = Instant::now();
        if let Some((name, asked)) = self.known.borrow().get(&index)
            && now.duration_since(*asked) < BELIEVED
        {
            return name.clone();
        }
        let name = name_of(index);
        let mut known = self.known.borrow_mut();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(index, (name.clone(), now));
        name
    }
}

/// The name of an interface of this network namespace.
fn name_of(index: u32) -> Option<Rc<str>> {
    let name = if_indextoname(index).ok()?;
    Some(name.to_str().ok()?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn the_way_to_oneself_is_the_loopback() {
        let egress = Egress::open().expect("a channel");
        for _ in 0..2 {
            let interface = egress.towards(Ipv4Addr::LOCALHOST.into());
            assert_eq!(interface.as_deref(), Some("lo"));
        }
    }

    #[test]
    fn own_addresses_are_distinguished_from_others() {
        let egress = Egress::open().expect("a channel");
        for (address, own) in
            [("127.0.0.1", true), ("127.9.9.9", true), ("::1", true), ("192.0.2.1", false)]
        {
            let asked = egress.is_own(address.parse().expect(address));
            assert_eq!(asked.expect("an answer"), own, "{address}");
        }
        assert!(!egress.is_own("2001:db8::1".parse().expect("an address")).expect("an answer"));
    }
}
