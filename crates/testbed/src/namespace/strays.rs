//! Segments of connections that a node does not have, and that it resets or drops instead of forwarding them.

use super::{Namespace, NamespaceError};
use midhop_linux::nft;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;

/// The rules of one kind, in a table that ends with the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strays {
    /// They are answered with a reset.
    Reset,
    /// They are dropped.
    Dropped,
}

impl Strays {
    const fn table(self) -> &'static str {
        match self {
            Self::Reset => "midhop-strays",
            Self::Dropped => "midhop-expected",
        }
    }

    const fn verdict(self) -> &'static str {
        match self {
            Self::Reset => "reject with tcp reset",
            Self::Dropped => "drop",
        }
    }

    /// Adds to its rules.
    pub(super) fn add(
        self,
        namespace: &Namespace,
        ways: &[(&str, SocketAddr, SocketAddr)],
    ) -> Result<(), NamespaceError> {
        if ways.is_empty() {
            Ok(())
        } else {
            run(namespace, &transaction(self.table(), self.verdict(), ways))
        }
    }

    /// Removes all of its rules, if there are any.
    pub(super) fn clear(self, namespace: &Namespace) -> Result<(), NamespaceError> {
        let table = self.table();
        run(namespace, &format!("add table inet {table}\ndelete table inet {table}\n"))
    }
}

fn run(namespace: &Namespace, text: &str) -> Result<(), NamespaceError> {
    let done = namespace.run(|| nft::run(text))?;
    done.map_err(|error| NamespaceError::Device {
        name: namespace.name().to_owned(),
        action: "reset or drop strays".to_owned(),
        source: io::Error::other(error),
    })
}

/// Adds to the sets of a table, and makes it if it is not there.
fn transaction(table: &str, verdict: &str, ways: &[(&str, SocketAddr, SocketAddr)]) -> String {
    let mut text = format!(
        "add table inet {table}\n\
         add chain inet {table} passing {{ type filter hook forward priority filter; policy accept; }}\n\
         flush chain inet {table} passing\n"
    );
    for (set, family, address) in [("v4", "ip", "ipv4_addr"), ("v6", "ip6", "ipv6_addr")] {
        let _ = writeln!(
            text,
            "add set inet {table} {set} {{ type ifname . {address} . inet_service . {address} . inet_service; }}\n\
             add rule inet {table} passing tcp flags & (syn|rst) == 0 \
             iifname . {family} saddr . tcp sport . {family} daddr . tcp dport @{set} {verdict}"
        );
    }
    for (device, source, destination) in ways {
        let set = if source.is_ipv4() { "v4" } else { "v6" };
        let ([from, to], [sport, dport]) =
            ([source.ip(), destination.ip()], [source.port(), destination.port()]);
        let _ = writeln!(
            text,
            "add element inet {table} {set} {{ \"{device}\" . {from} . {sport} . {to} . {dport} }}"
        );
    }
    text
}
