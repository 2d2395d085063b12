//! Segments of connections that a node does not have, and that it resets.

use super::{Namespace, NamespaceError};
use midhop_linux::nft;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;

/// The table of those rules. It ends with the namespace.
const TABLE: &str = "midhop-strays";

/// See [`Namespace::reset_strays`].
pub(super) fn reset(
    namespace: &Namespace,
    ways: &[(&str, SocketAddr, SocketAddr)],
) -> Result<(), NamespaceError> {
    if ways.is_empty() {
        return Ok(());
    }
    let text = transaction(ways);
    let done = namespace.run(|| nft::run(&text))?;
    done.map_err(|error| NamespaceError::Device {
        name: namespace.name().to_owned(),
        action: "reset strays".to_owned(),
        source: io::Error::other(error),
    })
}

/// Adds to the sets of the table, and makes it if it is not there.
fn transaction(ways: &[(&str, SocketAddr, SocketAddr)]) -> String {
    let mut text = format!(
        "add table inet {TABLE}\n\
         add chain inet {TABLE} passing {{ type filter hook forward priority filter; policy accept; }}\n\
         flush chain inet {TABLE} passing\n"
    );
    for (set, family, address) in [("v4", "ip", "ipv4_addr"), ("v6", "ip6", "ipv6_addr")] {
        let _ = writeln!(
            text,
            "add set inet {TABLE} {set} {{ type ifname . {address} . inet_service . {address} . inet_service; }}\n\
             add rule inet {TABLE} passing tcp flags & (syn|rst) == 0 \
             iifname . {family} saddr . tcp sport . {family} daddr . tcp dport @{set} reject with tcp reset"
        );
    }
    for (device, source, destination) in ways {
        let set = if source.is_ipv4() { "v4" } else { "v6" };
        let ([from, to], [sport, dport]) =
            ([source.ip(), destination.ip()], [source.port(), destination.port()]);
        let _ = writeln!(
            text,
            "add element inet {TABLE} {set} {{ \"{device}\" . {from} . {sport} . {to} . {dport} }}"
        );
    }
    text
}
