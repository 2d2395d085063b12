//! Which interface packets to an address leave by: what the kernel's routes say, remembered for a
//! moment.

use crate::netlink::{Channel, Message, attributes, messages};
use midhop_pep::policy::NextHop;
use nix::libc;
use nix::net::if_::if_indextoname;
use nix::sys::socket::SockProtocol;
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
/// Where a route's type is in its header, and the types of addresses that are this host's.
const TYPE: usize = 7;
const RTN_LOCAL: u8 = 2;
const RTN_ANYCAST: u8 = 4;
/// How long an answer is believed. A flow keeps the leg it began with, so a route that changes
/// matters to new flows only.
const BELIEVED: Duration = Duration::from_secs(1);
/// Answers remembered; with more than that the memory starts anew.
const REMEMBERED: usize = 4096;

type Answers = HashMap<IpAddr, (Option<NextHop<Rc<str>>>, Instant)>;

/// Asks the kernel for routes.
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

    /// The interface towards an address; `None` when there is no way.
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
        let next = self.ask(address).ok().and_then(|route| route.next);
        let mut answers = self.answers.borrow_mut();
        if answers.len() >= REMEMBERED {
            answers.clear();
        }
        answers.insert(address, (next.clone(), now));
        next
    }

    /// Whether packets to an address are delivered to this host. Nothing is remembered of it.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn is_own(&self, address: IpAddr) -> io::Result<bool> {
        Ok(matches!(self.ask(address.to_canonical())?.kind, Some(RTN_LOCAL | RTN_ANYCAST)))
    }

    fn ask(&self, address: IpAddr) -> io::Result<Route> {
        let (family, octets) = match address {
            IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
            IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
        };
        let bits = u8::try_from(octets.len() * 8).unwrap_or(0);
        let mut header = [0; 12];
        header[0] = u8::try_from(family).unwrap_or(0);
        header[1] = bits;
        let question = Message::new(RTM_GETROUTE, 0, &header).with(RTA_DST, &octets);
        self.channel.send(&question.finish())?;
        let mut buffer = vec![0; 8192];
        let received = self.channel.receive(&mut buffer, true)?;
        let answer = messages(received).find(|message| message.kind == RTM_NEWROUTE);
        let Some(answer) = answer else { return Ok(Route::default()) };
        let parts = answer.body.get(12..).unwrap_or_default();
        let part = |wanted| attributes(parts).find(|(kind, _)| *kind == wanted).map(|it| it.1);
        let index = part(RTA_OIF).and_then(|it| Some(u32::from_ne_bytes(it.try_into().ok()?)));
        // A router of the other address family stands behind two bytes that name its family.
        let via = part(RTA_VIA).and_then(|via| via.get(2..));
        let gateway = part(RTA_GATEWAY).or(via).and_then(read);
        let next = index.and_then(name_of).map(|interface| NextHop { interface, gateway });
        Ok(Route { kind: answer.body.get(TYPE).copied(), next })
    }
}

fn read(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => <[u8; 4]>::try_from(octets).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(octets).ok().map(IpAddr::from),
        _ => None,
    }
}

/// A name, if there is one, and when it was asked for.
type Known = (Option<Rc<str>>, Instant);

/// Names of interfaces, remembered for a moment: asking takes three system calls.
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

/// What the kernel says of a route; nothing where there is none.
#[derive(Debug, Default)]
struct Route {
    kind: Option<u8>,
    next: Option<NextHop<Rc<str>>>,
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
    fn own_addresses_are_told_from_others() {
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
