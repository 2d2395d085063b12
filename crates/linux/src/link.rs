//! Network devices, their addresses, and routes over them, by rtnetlink.

use nix::net::if_::if_nametoindex;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags};
use rtnetlink::packet_route::link::{InfoData, InfoVeth, LinkMessage};
use rtnetlink::packet_route::route::RouteMessage;
use rtnetlink::{Error, Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};

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

/// The message that creates a pair of devices: `near` in the namespace in which it is sent, `far` in the namespace
/// `elsewhere`. Neither is visible in the other's namespace, and both are down.
pub fn veth(near: NewVeth<'_>, far: NewVeth<'_>, elsewhere: impl AsFd) -> LinkMessage {
    let far_end = LinkMessageBuilder::<LinkUnspec>::new()
        .name(far.name)
        .setns_by_fd(elsewhere.as_fd().as_raw_fd());
    let near_end = LinkMessageBuilder::<LinkVeth>::new(near.name, far.name);
    let far_end = equipped(far_end, far).build();
    equipped(near_end, near).set_info_data(InfoData::Veth(InfoVeth::Peer(far_end))).build()
}

fn equipped<T>(device: LinkMessageBuilder<T>, end: NewVeth<'_>) -> LinkMessageBuilder<T> {
    let device = match end.mac {
        Some(mac) => device.address(mac.to_vec()),
        None => device,
    };
    match end.mtu {
        Some(mtu) => device.mtu(mtu),
        None => device,
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
pub async fn set_up(handle: &Handle, index: u32) -> Result<(), Error> {
    handle.link().set(LinkUnspec::new_with_index(index).up().build()).execute().await
}

/// Adds an address to a device. An IPv6 address is usable at once, without duplicate address detection.
///
/// # Errors
/// When the kernel refuses, for example because the device has the address already.
pub async fn add_address(
    handle: &Handle,
    index: u32,
    address: IpAddr,
    prefix: u8,
) -> Result<(), Error> {
    let mut request = handle.address().add(index, address, prefix);
    if address.is_ipv6() {
        let no_detection = AddressAttribute::Flags(AddressFlags::Nodad);
        request.message_mut().attributes.push(no_detection);
    }
    request.execute().await
}

/// A route to a prefix through a router; prefix length 0 is the default route. None if the two are not of one
/// address family.
pub fn route_over(destination: IpAddr, prefix: u8, router: IpAddr) -> Option<RouteMessage> {
    match (destination, router) {
        (IpAddr::V4(destination), IpAddr::V4(router)) => Some(
            RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(destination, prefix)
                .gateway(router)
                .build(),
        ),
        (IpAddr::V6(destination), IpAddr::V6(router)) => Some(
            RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(destination, prefix)
                .gateway(router)
                .build(),
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Channel;
    use crate::netns::NetNamespace;
    use crate::route::{lookup, on_own_runtime};
    use nix::sys::socket::SockProtocol;

    #[test]
    fn a_pair_with_addresses_leads_to_its_other_end() {
        let [near, far] = match [NetNamespace::new(), NetNamespace::new()] {
            [Ok(near), Ok(far)] => [near, far],
            [Err(error), _] | [_, Err(error)] => {
                return midhop_testkit::skipped(format!("this takes CAP_SYS_ADMIN: {error}"));
            }
        };
        let end = |name| NewVeth { name, mac: Some([2, 0, 0, 0, 0, 1]), mtu: Some(1400) };
        let pair = veth(end("near0"), NewVeth { mac: None, ..end("far0") }, &far);
        let talk = async |handle: Handle| handle.link().add(pair).execute().await;
        near.run(|| on_own_runtime(talk)).expect("entered").expect("a pair");
        for (place, name, last) in [(&near, "near0", 1), (&far, "far0", 2)] {
            let v4 = IpAddr::from([192, 0, 2, last]);
            let v6 = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(last)]);
            let equip = || {
                let index = index(name)?;
                on_own_runtime(async |handle| {
                    set_up(&handle, index).await?;
                    add_address(&handle, index, v4, 24).await?;
                    add_address(&handle, index, v6, 64).await
                })
            };
            place.run(equip).expect("entered").expect("an address");
        }
        let found = near.run(|| {
            let any = IpAddr::from([0, 0, 0, 0]);
            let router = IpAddr::from([192, 0, 2, 2]);
            let route = route_over(any, 0, router).expect("one family");
            on_own_runtime(async |handle| handle.route().add(route).execute().await)?;
            let channel = Channel::open(SockProtocol::NetlinkRoute)?;
            let found = lookup(&channel, IpAddr::from([198, 51, 100, 1]))?;
            Ok::<_, io::Error>((
                found.gateway == Some(router),
                found.interface == index("near0").ok(),
            ))
        });
        assert_eq!(found.expect("entered").expect("a route"), (true, true));
        assert!(route_over(IpAddr::from([0; 4]), 0, IpAddr::from([0; 16])).is_none());
    }
}
