//! Which interface packets to an address leave by: what the kernel's routes say, remembered for a
//! moment.

use crate::netlink::{Channel, Message, attributes, messages};
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
/// How long an answer is believed. A flow keeps the leg it began with, so a route that changes
/// matters to new flows only.
const BELIEVED: Duration = Duration::from_secs(1);
/// Answers remembered; with more than that the memory starts anew.
const REMEMBERED: usize = 4096;

type Answers = HashMap<IpAddr, (Option<Rc<str>>, Instant)>;

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
        let now = Instant::now();
        if let Some((interface, asked)) = self.answers.borrow().get(&address)
            && now.duration_since(*asked) < BELIEVED
        {
            return interface.clone();
        }
        let interface = self.ask(address).ok().flatten();
        let mut answers = self.answers.borrow_mut();
        if answers.len() >= REMEMBERED {
            answers.clear();
        }
        answers.insert(address, (interface.clone(), now));
        interface
    }

    fn ask(&self, address: IpAddr) -> io::Result<Option<Rc<str>>> {
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
        let index = answer
            .and_then(|answer| {
                attributes(answer.body.get(12..)?).find(|(kind, _)| *kind == RTA_OIF)
            })
            .and_then(|(_, value)| Some(u32::from_ne_bytes(value.try_into().ok()?)));
        Ok(index.and_then(name_of))
    }
}

/// The name of an interface of this network namespace.
pub fn name_of(index: u32) -> Option<Rc<str>> {
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
}
