//! Checks parts of the kernel by trying each of them in a network namespace of its own.

use crate::{CheckState, Finding, room::ProbeNamespace};
use midhop_linux::nfqueue::NfQueue;
use midhop_linux::nft::{self, NftError};
use midhop_linux::tproxy::set_transparent;
use socket2::{Domain, Socket, Type};
use std::{io, path::Path};

/// The receive buffer of the tried queue, which receives nothing.
const QUEUE_BYTES: i32 = 4096;
/// Rules that each use one part of the kernel.
const TABLES: [(&str, &str, &str); 3] = [
    (
        "nft tproxy",
        "tcp dport 9 tproxy ip to 127.0.0.1:9 accept",
        "a kernel with CONFIG_NFT_TPROXY; modprobe nft_tproxy",
    ),
    (
        "nft socket",
        "socket transparent 1 accept",
        "a kernel with CONFIG_NFT_SOCKET; modprobe nft_socket",
    ),
    (
        "nft fib",
        "fib daddr type unicast accept",
        "a kernel with CONFIG_NFT_FIB_INET; modprobe nft_fib_inet",
    ),
];

/// Tries the parts of the kernel that interception needs.
pub(crate) fn examine() -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, rule, hint) in TABLES {
        findings.push(tried(name, CheckState::No, hint, || table(rule)));
    }
    findings.push(tried(
        "NFQUEUE",
        CheckState::No,
        "a kernel with CONFIG_NETFILTER_NETLINK_QUEUE; modprobe nfnetlink_queue",
        queue,
    ));
    findings.push(tried(
        "transparent sockets",
        CheckState::No,
        "CAP_NET_ADMIN is missing even in a namespace of our own",
        transparent,
    ));
    let ipv6 = if Path::new("/proc/net/if_inet6").exists() {
        Finding::yes("IPv6", "there")
    } else {
        Finding::of("IPv6", CheckState::Could, "not in this kernel", "only IPv4 is intercepted")
    };
    findings.push(ipv6);
    findings
}

fn tried(
    name: &str,
    otherwise: CheckState,
    hint: &str,
    trial: impl FnOnce() -> io::Result<()> + Send,
) -> Finding {
    match ProbeNamespace::new().and_then(|room| room.run(trial)?) {
        Ok(()) => Finding::yes(name, "works"),
        Err(error) => Finding::of(name, otherwise, error.to_string(), hint),
    }
}

fn table(rule: &str) -> io::Result<()> {
    let text = format!(
        "table inet trial {{ chain trial {{ type filter hook prerouting priority mangle; {rule}; }}; }}"
    );
    nft::run(&text).map_err(|error| match error {
        NftError::Start(error) => error,
        refused => io::Error::other(refused.first_line()),
    })
}

fn queue() -> io::Result<()> {
    // Released at once.
    NfQueue::bind(1, 1, QUEUE_BYTES).map(drop)
}

fn transparent() -> io::Result<()> {
    set_transparent(Socket::new(Domain::IPV4, Type::STREAM, None)?, true)
}
