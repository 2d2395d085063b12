//! Kernel parameters of one namespace.

use super::{Namespace, NamespaceError};
use midhop_linux::netns::write_sysctl;
use std::io;

/// The parameters of every node. Source of the names: the kernel's `ip-sysctl` document.
const DEFAULTS: &[(&str, &str)] = &[
    ("net.ipv4.ip_forward", "1"),
    ("net.ipv6.conf.all.forwarding", "1"),
    // Paths may be asymmetric, and a transparent proxy answers from other hosts' addresses.
    ("net.ipv4.conf.all.rp_filter", "0"),
    ("net.ipv4.conf.default.rp_filter", "0"),
    // No link-local addresses and no detection of duplicates: an emulated link carries what the
    // experiment sends, and an address is usable at once.
    ("net.ipv6.conf.all.accept_dad", "0"),
    ("net.ipv6.conf.default.accept_dad", "0"),
    ("net.ipv6.conf.default.addr_gen_mode", "1"),
    ("net.ipv6.conf.default.router_solicitations", "0"),
    // Runs must not learn from earlier connections, and an idle period as long as a long round trip
    // must not reset their window.
    ("net.ipv4.tcp_no_metrics_save", "1"),
    ("net.ipv4.tcp_slow_start_after_idle", "0"),
    // A GEO path of 150 Mbit/s and 600 ms has 11 MB in flight; the kernel accounts overhead too.
    ("net.ipv4.tcp_rmem", "4096 131072 134217728"),
    ("net.ipv4.tcp_wmem", "4096 65536 134217728"),
    // The node does not inherit the host's default: a socket that starts with an algorithm that
    // paces, such as BBR, keeps pacing under any algorithm that it is given later. Every kernel has
    // Reno.
    ("net.ipv4.tcp_congestion_control", "reno"),
    // Thousands of short connections in a test must not run out of ports.
    ("net.ipv4.ip_local_port_range", "10000 65000"),
    // The same holds for half-open and for closing connections. The kernel derives these limits
    // from the size of a node's connection table. These are its values on a machine with 24 GiB.
    ("net.ipv4.tcp_max_syn_backlog", "2048"),
    ("net.ipv4.tcp_max_tw_buckets", "131072"),
];

/// Sets the parameters of every node, entering the namespace once.
pub(super) fn apply_defaults(namespace: &Namespace) -> Result<(), NamespaceError> {
    namespace.run(|| {
        DEFAULTS.iter().try_for_each(|(key, value)| {
            write_sysctl(key, value).map_err(|source| refused(namespace, key, value, source))
        })
    })?
}

/// Sets one parameter.
pub(super) fn set(namespace: &Namespace, key: &str, value: &str) -> Result<(), NamespaceError> {
    namespace
        .run(|| write_sysctl(key, value))?
        .map_err(|source| refused(namespace, key, value, source))
}

fn refused(namespace: &Namespace, key: &str, value: &str, source: io::Error) -> NamespaceError {
    NamespaceError::Sysctl {
        name: namespace.name().to_owned(),
        key: key.to_owned(),
        value: value.to_owned(),
        source,
    }
}
