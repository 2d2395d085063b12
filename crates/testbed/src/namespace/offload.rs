//! Switching a device's offloads off (ethtool's ioctl).
#![expect(unsafe_code, reason = "the ethtool ioctl has no safe wrapper")]

use super::{Namespace, NamespaceError};
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// Commands of `linux/ethtool.h` that take one value, and what they switch.
const SWITCHES: &[(u32, &str)] = &[
    (0x0000_001f, "TCP segmentation offload"),
    (0x0000_0024, "generic segmentation offload"),
    (0x0000_002c, "generic receive offload"),
    // AF_PACKET delivers packets whose checksum the kernel left to the device. A virtual device
    // never computes it.
    (0x0000_0017, "transmit checksum offload"),
];

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// See [`Namespace::disable_offloads`].
pub(super) fn disable(namespace: &Namespace, interface: &str) -> Result<(), NamespaceError> {
    namespace.run(|| {
        SWITCHES.iter().try_for_each(|&(command, what)| {
            set(interface, command, 0).map_err(|source| NamespaceError::Device {
                name: namespace.name().to_owned(),
                action: format!("switch off {what} of {interface}"),
                source,
            })
        })
    })?
}

/// Sets one value of a device of the namespace that this thread is in.
fn set(interface: &str, command: u32, data: u32) -> io::Result<()> {
    let name = interface.as_bytes();
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // Any socket will do: the request goes to the namespace in which the socket was made.
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let mut value = Value { command, data };
    // SAFETY: an all-zero ifreq is valid (arrays of numbers and a union of plain data).
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: SIOCETHTOOL reads an ifreq whose name ends in a zero byte (checked above) and a
    // `struct ethtool_value` behind `ifru_data`; both live on this stack during the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
