//! Targets that somebody asked for by name, and those that nobody may ask for.

use midhop_tunnel::{cause::Cause, target::Target};
use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use tokio::{net::lookup_host, time};

/// How long a name may take to be looked up.
const LOOKUP: Duration = Duration::from_secs(10);
/// How many addresses of a name are tried.
const ADDRESSES_MAX: usize = 4;

/// The addresses of a target, in the order in which to try them.
///
/// # Errors
/// When it is a name that is not known, or names are not `allowed`.
pub async fn look_up(target: &Target, allowed: bool) -> Result<Vec<SocketAddr>, Cause> {
    let (name, port) = match target {
        Target::Address(address) => return Ok(vec![*address]),
        Target::Name(..) if !allowed => return Err(Cause::NamesOff),
        Target::Name(name, port) => (name.as_str(), *port),
    };
    match time::timeout(LOOKUP, lookup_host((name, port))).await {
        Ok(Ok(found)) => Ok(found.take(ADDRESSES_MAX).collect()),
        Ok(Err(_)) | Err(_) => Err(Cause::NameUnknown),
    }
}

/// Whether only this host, or its own link, knows the address: what is there was not put there for
/// clients of a proxy.
pub fn is_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            address.is_loopback()
                || address.is_link_local()
                || address.is_unspecified()
                || address.is_broadcast()
                || address.is_multicast()
        }
        IpAddr::V6(address) => {
            address.is_loopback()
                || address.is_unicast_link_local()
                || address.is_unspecified()
                || address.is_multicast()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_this_host_knows_is_local() {
        for (address, local) in [
            ("127.0.0.1", true),
            ("::ffff:127.1.2.3", true),
            ("169.254.169.254", true),
            ("0.0.0.0", true),
            ("::1", true),
            ("::", true),
            ("fe80::1", true),
            ("ff02::1", true),
            ("10.0.0.1", false),
            ("fd00::1", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(is_local(address.parse().expect(address)), local, "{address}");
        }
    }
}
