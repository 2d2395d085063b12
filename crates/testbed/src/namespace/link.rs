//! Devices, addresses, routes and neighbours of a namespace, by rtnetlink.

use super::{Namespace, NamespaceError};
use midhop_linux::link::{self, NewVeth};
use midhop_linux::netlink::Channel;
use midhop_linux::route::wait_until_own;
use midhop_linux::route_table::{Family, RouteEntry};
use midhop_units::Seed;
use std::io;
use std::net::IpAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a device may take to pass packets on. One that takes longer never does; then the run
/// shows it.
const SENDS_WITHIN: Duration = Duration::from_secs(10);

/// How long an address may take to be usable. One that takes longer never is, for example on a
/// device that is down.
const ADDRESS_WITHIN: Duration = Duration::from_secs(1);

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

/// Connects two namespaces with a virtual Ethernet pair, both ends up, offloads off: frames are as
/// on a wire.
///
/// The pair is made in its two namespaces and never appears in the caller's. The hardware addresses
/// are derived from the names, so that two runs of one experiment have the same frames.
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

/// As [`veth`], with the kernel's offloads: segments of up to 64 KiB pass as one frame. No wire
/// does that, but a bench then measures the relay and not segmentation.
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
    netlink(
        a,
        || format!("make the device pair {name_a} – {name_b}"),
        |channel| link::create_pair(channel, near, far, b),
    )?;
    // An end cannot be set up before its peer exists, so this is no flag of the message above.
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
    netlink(namespace, || format!("bring {interface} up"), |channel| link::set_up(channel, index))
}

/// Waits until a device passes packets on.
///
/// The kernel learns of a carrier in the background. Until then, the device is up but has the
/// `noop` queue, which drops everything silently.
fn wait_until_it_sends(namespace: &Namespace, interface: &str) -> Result<(), NamespaceError> {
    let index = index_of(namespace, interface)?;
    let deadline = Instant::now() + SENDS_WITHIN;
    netlink(
        namespace,
        || format!("wait until {interface} sends"),
        |channel| {
            while link::device(channel, index)?.queue == "noop" && Instant::now() < deadline {
                sleep(Duration::from_millis(1));
            }
            Ok(())
        },
    )
}

/// See [`Namespace::dropped`].
pub(super) fn dropped(namespace: &Namespace, interface: &str) -> Result<u64, NamespaceError> {
    let index = index_of(namespace, interface)?;
    netlink(
        namespace,
        || format!("read what {interface} has dropped"),
        |channel| Ok(link::device(channel, index)?.dropped),
    )
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
        |channel| link::add_address(channel, index, address, prefix),
    )?;
    let waited = namespace.run(|| wait_until_own(address, ADDRESS_WITHIN))?;
    waited.map(drop).map_err(|source| {
        let action = format!("wait for the route to {address}");
        NamespaceError::Device { name: namespace.name().to_owned(), action, source }
    })
}

/// See [`Namespace::add_route`].
pub(super) fn add_route(
    namespace: &Namespace,
    destination: IpAddr,
    prefix: u8,
    via: IpAddr,
) -> Result<(), NamespaceError> {
    let action = || format!("route {destination}/{prefix} over {via}");
    let message = RouteEntry::over(destination, prefix, via).ok_or_else(|| {
        let text = "the next hop is of another address family";
        let source = io::Error::new(io::ErrorKind::InvalidInput, text);
        NamespaceError::Device { name: namespace.name().to_owned(), action: action(), source }
    })?;
    netlink(namespace, action, |channel| message.add(channel))
}

/// See [`Namespace::change_routes`].
pub(super) fn change_routes(
    namespace: &Namespace,
    before: &[(IpAddr, IpAddr)],
    after: &[(IpAddr, IpAddr)],
) -> Result<(), NamespaceError> {
    let entries = |routes: &[(IpAddr, IpAddr)], without: &[(IpAddr, IpAddr)]| {
        let differ = routes.iter().filter(|route| !without.contains(route));
        differ.filter_map(|(to, via)| RouteEntry::over(*to, whole(*to), *via)).collect::<Vec<_>>()
    };
    let (mut gone, new) = (entries(before, after), entries(after, before));
    gone.retain(|old| new.iter().all(|new| new.destination() != old.destination()));
    netlink(
        namespace,
        || "change routes".to_owned(),
        |channel| {
            // A next hop has to be on a link. One that had a route of its own is on it afterwards.
            gone.iter().try_for_each(|entry| entry.remove(channel))?;
            new.iter().try_for_each(|entry| entry.replace(channel))
        },
    )
}

/// The prefix length of a single host.
fn whole(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// See [`Namespace::advertise_packets`].
pub(super) fn advertise_packets(namespace: &Namespace, size: u32) -> Result<(), NamespaceError> {
    let action = || format!("advertise packets of {size} bytes over every route");
    // The headers of IP and TCP without options (RFC 9293 section 3.7.1).
    for (family, headers) in [(Family::V4, 20 + 20), (Family::V6, 40 + 20)] {
        let segment = size.saturating_sub(headers);
        netlink(namespace, action, |channel| {
            let routes = RouteEntry::all(channel, family)?;
            for route in routes.into_iter().filter(RouteEntry::leads_to_others) {
                route.with_segment(segment).replace(channel)?;
            }
            Ok(())
        })?;
    }
    Ok(())
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
        |channel| link::add_neighbour(channel, index, address, mac),
    )
}

/// A locally administered unicast address that is derived from the names; the last bit differs
/// between the two ends of a pair.
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

/// Sends requests on devices and routes to the namespace's kernel, on a separate thread.
pub(super) fn netlink<T: Send>(
    namespace: &Namespace,
    action: impl Fn() -> String,
    talk: impl FnOnce(&Channel) -> io::Result<T> + Send,
) -> Result<T, NamespaceError> {
    let answer = namespace.run(|| talk(&Channel::routing()?))?;
    answer.map_err(|source| NamespaceError::Device {
        name: namespace.name().to_owned(),
        action: action(),
        source,
    })
}
