//! Devices, addresses, routes and neighbours of a namespace, by rtnetlink.

use super::{Namespace, NamespaceError};
use futures_util::TryStreamExt;
use midhop_linux::link::{self, NewVeth};
use midhop_linux::route::on_own_runtime;
use midhop_units::Seed;
use rtnetlink::packet_route::link::LinkAttribute;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteType,
};
use rtnetlink::{Handle, RouteMessageBuilder};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// A device that passes nothing on after this long never will; then the run shows it.
const SENDS_WITHIN: Duration = Duration::from_secs(10);

/// A hardware address.
pub type Mac = [u8; 6];

/// One end of a virtual Ethernet pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VethEnd {
    /// The device's name in its namespace.
    pub interface: String,
    /// Its hardware address.
    pub mac: Mac,
}

/// Connects two namespaces with a virtual Ethernet pair, both ends up, offloads off: what passes is
/// what a wire would carry.
///
/// The pair is born in its two namespaces; it never shows in the caller's. The hardware addresses
/// follow from the names, so that two runs of one experiment see the same frames.
///
/// # Errors
/// When the kernel refuses, e.g. because a name is taken or longer than 15 characters.
pub fn veth(
    a: &Namespace,
    name_a: &str,
    b: &Namespace,
    name_b: &str,
    mtu: u32,
) -> Result<[VethEnd; 2], NamespaceError> {
    connect((a, name_a), (b, name_b), mtu, Namespace::disable_offloads)
}

/// As [`veth`], with the kernel's offloads: segments of up to 64 KiB pass as one, which no wire
/// carries, so that a relay and not the cutting of packets is what a bench measures.
///
/// # Errors
/// As [`veth`].
pub fn veth_with_offloads(
    a: &Namespace,
    name_a: &str,
    b: &Namespace,
    name_b: &str,
    mtu: u32,
) -> Result<[VethEnd; 2], NamespaceError> {
    connect((a, name_a), (b, name_b), mtu, |_, _| Ok(()))
}

fn connect(
    (a, name_a): (&Namespace, &str),
    (b, name_b): (&Namespace, &str),
    mtu: u32,
    prepare: impl Fn(&Namespace, &str) -> Result<(), NamespaceError>,
) -> Result<[VethEnd; 2], NamespaceError> {
    let ends = [(a, name_a, 0), (b, name_b, 1)].map(|(namespace, name, side)| VethEnd {
        interface: name.to_owned(),
        mac: mac_of(namespace.name(), name, side),
    });
    let [near, far] = [0, 1].map(|at| NewVeth {
        name: &ends[at].interface,
        mac: Some(ends[at].mac),
        mtu: Some(mtu),
    });
    let message = link::veth(near, far, b);
    netlink(
        a,
        || format!("make the device pair {name_a} – {name_b}"),
        async |handle| handle.link().add(message).execute().await,
    )?;
    // Neither end comes up while it has no peer, so this is no flag of the message above.
    for (namespace, name) in [(a, name_a), (b, name_b)] {
        prepare(namespace, name)?;
        set_up(namespace, name)?;
    }
    for (namespace, name) in [(a, name_a), (b, name_b)] {
        wait_until_it_sends(namespace, name)?;
    }
    Ok(ends)
}

/// See [`Namespace::set_up`].
pub(super) fn set_up(namespace: &Namespace, interface: &str) -> Result<(), NamespaceError> {
    let index = index_of(namespace, interface)?;
    netlink(
        namespace,
        || format!("bring {interface} up"),
        async |handle| link::set_up(&handle, index).await,
    )
}

/// Waits until a device passes packets on.
///
/// The kernel learns of a carrier in the background; until then the device is up and yet has the
/// `noop` queue, which drops everything without a word.
fn wait_until_it_sends(namespace: &Namespace, interface: &str) -> Result<(), NamespaceError> {
    let index = index_of(namespace, interface)?;
    let deadline = Instant::now() + SENDS_WITHIN;
    netlink(
        namespace,
        || format!("wait until {interface} sends"),
        async |handle| loop {
            let mut answer = handle.link().get().match_index(index).execute();
            let link = answer.try_next().await?;
            let attributes = link.map(|link| link.attributes).unwrap_or_default();
            let asleep = |attribute: &LinkAttribute| match attribute {
                LinkAttribute::Qdisc(name) => name == "noop",
                _ => false,
            };
            if !attributes.iter().any(asleep) || Instant::now() > deadline {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        },
    )
}

/// See [`Namespace::dropped`].
pub(super) fn dropped(namespace: &Namespace, interface: &str) -> Result<u64, NamespaceError> {
    let index = index_of(namespace, interface)?;
    let mut dropped = 0;
    netlink(
        namespace,
        || format!("read what {interface} has dropped"),
        async |handle| {
            let mut answer = handle.link().get().match_index(index).execute();
            let link = answer.try_next().await?;
            let attributes = link.map(|link| link.attributes).unwrap_or_default();
            let told = attributes.iter().filter_map(|attribute| match attribute {
                LinkAttribute::Stats64(counted) => Some(counted.rx_dropped),
                _ => None,
            });
            dropped = told.sum();
            Ok(())
        },
    )?;
    Ok(dropped)
}

/// See [`Namespace::add_address`].
pub(super) fn add_address(
    namespace: &Namespace,
    interface: &str,
    address: IpAddr,
    prefix: u8,
) -> Result<(), NamespaceError> {
    let index = index_of(namespace, interface)?;
    netlink(
        namespace,
        || format!("give {interface} the address {address}/{prefix}"),
        async |handle| link::add_address(&handle, index, address, prefix).await,
    )
}

/// See [`Namespace::add_route`].
pub(super) fn add_route(
    namespace: &Namespace,
    destination: IpAddr,
    prefix: u8,
    via: IpAddr,
) -> Result<(), NamespaceError> {
    let action = || format!("route {destination}/{prefix} over {via}");
    let message = link::route_over(destination, prefix, via).ok_or_else(|| {
        let text = "the next hop is of another address family";
        let source = io::Error::new(io::ErrorKind::InvalidInput, text);
        NamespaceError::Device { name: namespace.name().to_owned(), action: action(), source }
    })?;
    netlink(namespace, action, async |handle| handle.route().add(message).execute().await)
}

/// See [`Namespace::advertise_packets`].
pub(super) fn advertise_packets(namespace: &Namespace, size: u32) -> Result<(), NamespaceError> {
    let action = || format!("advertise packets of {size} bytes over every route");
    let [v4, v6] = [
        RouteMessageBuilder::<Ipv4Addr>::new().build(),
        RouteMessageBuilder::<Ipv6Addr>::new().build(),
    ];
    // The headers of IP and TCP without options (RFC 9293 section 3.7.1).
    for (family, headers) in [(v4, 20 + 20), (v6, 40 + 20)] {
        let segment = RouteMetric::Advmss(size.saturating_sub(headers));
        netlink(namespace, action, async |handle| {
            let routes: Vec<RouteMessage> =
                handle.route().get(family).execute().try_collect().await?;
            for mut route in routes.into_iter().filter(leads_to_others) {
                route.attributes.retain(names_a_route);
                route.attributes.push(RouteAttribute::Metrics(vec![segment.clone()]));
                handle.route().add(route).replace().execute().await?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Whether packets to others take this route: the kernel's own for its addresses and for groups stay as they are.
fn leads_to_others(route: &RouteMessage) -> bool {
    let own = |it: &RouteAttribute| match it {
        RouteAttribute::Destination(RouteAddress::Inet6(to)) => {
            to.is_unicast_link_local() || to.is_multicast()
        }
        _ => false,
    };
    let main = route.header.table == RouteHeader::RT_TABLE_MAIN;
    main && route.header.kind == RouteType::Unicast && !route.attributes.iter().any(own)
}

/// What of a route's attributes makes it what it is; the kernel adds the rest.
fn names_a_route(attribute: &RouteAttribute) -> bool {
    matches!(
        attribute,
        RouteAttribute::Destination(_)
            | RouteAttribute::Gateway(_)
            | RouteAttribute::Oif(_)
            | RouteAttribute::PrefSource(_)
            | RouteAttribute::Priority(_)
    )
}

/// See [`Namespace::add_neighbour`].
pub(super) fn add_neighbour(
    namespace: &Namespace,
    interface: &str,
    address: IpAddr,
    mac: Mac,
) -> Result<(), NamespaceError> {
    let index = index_of(namespace, interface)?;
    netlink(
        namespace,
        || format!("set the neighbour {address} of {interface}"),
        async |handle| {
            handle.neighbours().add(index, address).link_layer_address(&mac).execute().await
        },
    )
}

/// A locally administered unicast address that follows from the names; the last bit tells the two
/// ends of a pair apart.
fn mac_of(namespace: &str, interface: &str, side: u8) -> Mac {
    let [a, b, c, d, e, ..] = Seed::default().derive(namespace).derive(interface).0.to_be_bytes();
    [0x02, a, b, c, d, e & 0xfe | side]
}

fn index_of(namespace: &Namespace, interface: &str) -> Result<u32, NamespaceError> {
    namespace.run(|| link::index(interface))?.map_err(|source| NamespaceError::Device {
        name: namespace.name().to_owned(),
        action: format!("find the device {interface}"),
        source,
    })
}

/// Talks rtnetlink inside the namespace, on a thread and a runtime of its own.
fn netlink(
    namespace: &Namespace,
    action: impl Fn() -> String,
    talk: impl AsyncFnOnce(Handle) -> Result<(), rtnetlink::Error> + Send,
) -> Result<(), NamespaceError> {
    let answer = namespace.run(|| on_own_runtime(talk))?;
    answer.map_err(|source| NamespaceError::Device {
        name: namespace.name().to_owned(),
        action: action(),
        source,
    })
}
