//! Network devices, their addresses and neighbours (`rtnetlink(7)`).

use crate::netlink::{Channel, Message, attributes, messages};
use crate::route_table::{Family, octets};
use nix::libc;
use nix::net::if_::if_nametoindex;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWNEIGH: u16 = 28;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_QDISC: u16 = 6;
const IFLA_LINKINFO: u16 = 18;
const IFLA_STATS64: u16 = 23;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const IFA_FLAGS: u16 = 8;
const IFA_F_NODAD: u32 = 2;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;
const IFF_UP: u32 = 1;
/// Unit: bytes. `struct ifinfomsg`.
const DEVICE_HEADER: usize = 16;
/// The bytes of `rx_dropped` in `struct rtnl_link_stats64`.
const DROPPED: Range<usize> = 48..56;
/// Flags of a message that adds what is not there yet.
const NEW: i32 = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;

/// The loopback is the first device of every network namespace.
pub const LOOPBACK_INDEX: u32 = 1;

/// One end of a virtual Ethernet pair (`veth(4)`) to be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewVeth<'a> {
    /// Its name: at most 15 characters.
    pub name: &'a str,
    /// Its hardware address; none: the kernel chooses one.
    pub mac: Option<[u8; 6]>,
    /// Unit: bytes. The MTU; none: the kernel's default.
    pub mtu: Option<u32>,
}

/// Creates a pair of devices: `near` in the channel's namespace, `far` in the namespace `elsewhere`. Neither is visible
/// in the other's namespace, and both are down.
///
/// # Errors
/// When the kernel refuses, for example because a name is taken or too long.
pub fn create_pair(
    channel: &Channel,
    near: NewVeth<'_>,
    far: NewVeth<'_>,
    elsewhere: impl AsFd,
) -> io::Result<()> {
    let place = elsewhere.as_fd().as_raw_fd().to_ne_bytes();
    let far_end = |message: Message| {
        far.equip(message.with_header(&[0; DEVICE_HEADER])).with(IFLA_NET_NS_FD, &place)
    };
    let kind = |message: Message| {
        let kind = message.with(IFLA_INFO_KIND, b"veth");
        kind.with_nested(IFLA_INFO_DATA, |data| data.with_nested(VETH_INFO_PEER, far_end))
    };
    let message = near.equip(Message::new(RTM_NEWLINK, NEW, &[0; DEVICE_HEADER]));
    channel.request(&message.with_nested(IFLA_LINKINFO, kind).finish())
}

impl NewVeth<'_> {
    fn equip(self, device: Message) -> Message {
        let device = device.with_name(IFLA_IFNAME, self.name);
        let device = match self.mac {
            Some(mac) => device.with(IFLA_ADDRESS, &mac),
            None => device,
        };
        match self.mtu {
            Some(mtu) => device.with(IFLA_MTU, &mtu.to_ne_bytes()),
            None => device,
        }
    }
}

/// The index of a device of the calling thread's network namespace.
///
/// # Errors
/// When there is no device of that name.
pub fn index(name: &str) -> io::Result<u32> {
    Ok(if_nametoindex(name)?)
}

/// Brings a device up.
///
/// # Errors
/// When the kernel refuses.
pub fn set_up(channel: &Channel, index: u32) -> io::Result<()> {
    let mut header = device_header(index);
    // Its flags, and which of them change.
    header[8..12].copy_from_slice(&IFF_UP.to_ne_bytes());
    header[12..].copy_from_slice(&IFF_UP.to_ne_bytes());
    channel.request(&Message::new(RTM_SETLINK, libc::NLM_F_ACK, &header).finish())
}

/// A network device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// The kind of its queue, such as `noqueue`; empty if the kernel names none.
    pub queue: String,
    /// Unit: packets. What it received and dropped.
    pub dropped: u64,
}

/// The device of this index.
///
/// # Errors
/// When there is none.
pub fn device(channel: &Channel, index: u32) -> io::Result<Device> {
    channel.send(&Message::new(RTM_GETLINK, 0, &device_header(index)).finish())?;
    let mut buffer = vec![0; 1 << 15];
    for message in messages(channel.receive(&mut buffer, true)?) {
        if let Some(refusal) = message.verdict() {
            refusal?;
        } else if message.kind == RTM_NEWLINK {
            return Ok(Device::read(message.body));
        }
    }
    Err(io::Error::from(io::ErrorKind::InvalidData))
}

impl Device {
    fn read(body: &[u8]) -> Self {
        let mut device = Self::default();
        for (kind, value) in attributes(body.get(DEVICE_HEADER..).unwrap_or_default()) {
            match kind {
                IFLA_QDISC => {
                    let name = value.strip_suffix(&[0]).unwrap_or(value);
                    device.queue = String::from_utf8_lossy(name).into_owned();
                }
                IFLA_STATS64 => {
                    let counted = value.get(DROPPED).and_then(|it| it.try_into().ok());
                    device.dropped = counted.map_or(0, u64::from_ne_bytes);
                }
                _ => {}
            }
        }
        device
    }
}

/// Adds an address to a device. For IPv6, the kernel does not check for duplicates, and adds the route a moment later
/// ([`wait_until_own`](crate::route::wait_until_own)).
///
/// # Errors
/// When the kernel refuses, for example because the device has the address already.
pub fn add_address(channel: &Channel, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
    let mut header = [0; 8];
    header[0] = Family::of(address).number();
    header[1] = prefix;
    header[4..].copy_from_slice(&index.to_ne_bytes());
    let bytes = octets(address);
    let message = Message::new(RTM_NEWADDR, NEW, &header);
    let message = message.with(IFA_ADDRESS, &bytes).with(IFA_LOCAL, &bytes);
    let message = match address {
        IpAddr::V4(address) if prefix < 31 => {
            let last = u32::from(address) | u32::MAX >> prefix;
            message.with(IFA_BROADCAST, &last.to_be_bytes())
        }
        IpAddr::V4(_) => message,
        IpAddr::V6(_) => message.with(IFA_FLAGS, &IFA_F_NODAD.to_ne_bytes()),
    };
    channel.request(&message.finish())
}

/// Adds a permanent neighbour to a device: the hardware address of an address on its link.
///
/// # Errors
/// When the kernel refuses, for example because the device knows the address already.
pub fn add_neighbour(
    channel: &Channel,
    index: u32,
    address: IpAddr,
    mac: [u8; 6],
) -> io::Result<()> {
    let mut header = [0; 12];
    header[0] = Family::of(address).number();
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..10].copy_from_slice(&NUD_PERMANENT.to_ne_bytes());
    let message = Message::new(RTM_NEWNEIGH, NEW, &header);
    channel.request(&message.with(NDA_DST, &octets(address)).with(NDA_LLADDR, &mac).finish())
}

/// `struct ifinfomsg` for a device.
fn device_header(index: u32) -> [u8; DEVICE_HEADER] {
    let mut header = [0; DEVICE_HEADER];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::NetNamespace;
    use crate::route::{lookup, wait_until_own};
    use crate::route_table::RouteEntry;
    use std::time::Duration;

    #[test]
    fn a_pair_with_addresses_leads_to_its_other_end() {
        let [near, far] = match [NetNamespace::new(), NetNamespace::new()] {
            [Ok(near), Ok(far)] => [near, far],
            [Err(error), _] | [_, Err(error)] => {
                return midhop_testkit::skipped(format!("this takes CAP_SYS_ADMIN: {error}"));
            }
        };
        let end = |name| NewVeth { name, mac: Some([2, 0, 0, 0, 0, 1]), mtu: Some(1400) };
        let pair = || {
            let far_end = NewVeth { mac: None, ..end("far0") };
            create_pair(&Channel::routing()?, end("near0"), far_end, &far)
        };
        near.run(pair).expect("entered").expect("a pair");
        let again = near.run(pair).expect("entered").expect_err("it is there");
        assert_eq!(again.raw_os_error(), Some(libc::EEXIST));
        for (place, name, last) in [(&near, "near0", 1), (&far, "far0", 2)] {
            let v4 = IpAddr::from([192, 0, 2, last]);
            let v6 = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(last)]);
            let equip = || {
                let (channel, index) = (Channel::routing()?, index(name)?);
                assert_eq!(device(&channel, index)?.queue, "noop");
                set_up(&channel, index)?;
                add_address(&channel, index, v4, 24)?;
                add_address(&channel, index, v6, 64)?;
                add_neighbour(&channel, index, IpAddr::from([192, 0, 2, 7]), [2, 0, 0, 0, 0, 7])
            };
            place.run(equip).expect("entered").expect("an address");
            for (address, is_own) in [(v4, true), (v6, true), (IpAddr::from([192, 0, 2, 9]), false)]
            {
                let patience = Duration::from_millis(if is_own { 10_000 } else { 0 });
                let found = place.run(|| wait_until_own(address, patience)).expect("entered");
                assert_eq!(found.expect("a route"), is_own, "{address}");
            }
        }
        let found = near.run(|| {
            let any = IpAddr::from([0, 0, 0, 0]);
            let router = IpAddr::from([192, 0, 2, 2]);
            let channel = Channel::routing()?;
            RouteEntry::over(any, 0, router).expect("one family").add(&channel)?;
            let found = lookup(&channel, IpAddr::from([198, 51, 100, 1]))?;
            let absent = device(&channel, 77).expect_err("there is none").raw_os_error();
            let state = std::fs::read_to_string("/proc/thread-self/net/arp")?;
            Ok::<_, io::Error>((
                found.gateway == Some(router),
                found.interface == index("near0").ok(),
                absent == Some(libc::ENODEV),
                state.contains("02:00:00:00:00:07"),
            ))
        });
        assert_eq!(found.expect("entered").expect("a route"), (true, true, true, true));
        assert!(RouteEntry::over(IpAddr::from([0; 4]), 0, IpAddr::from([0; 16])).is_none());
    }
}
