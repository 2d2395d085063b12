//! What only trying shows: parts of the kernel, each tried in a room of its own.

use super::{CheckState, Finding, room::ProbeNamespace};
use midhop_linux::tproxy::set_transparent;
use socket2::{Domain, Socket, Type};
use std::{
    io::{self, Write},
    path::Path,
    process::{Command, Stdio},
};

/// Rules of which each uses one part of the kernel.
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

/// Tries the parts of the kernel on which interception stands.
pub(super) fn examine() -> Vec<Finding> {
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
    let mut nft = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = nft.stdin.take() {
        // A child that fails early closes its input; its exit status says so below.
        let _ = input.write_all(text.as_bytes());
    }
    let output = nft.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(errors.lines().next().unwrap_or("refused").to_owned()))
}

fn queue() -> io::Result<()> {
    // Gone as soon as it was had.
    crate::intercept::Queue::bind(1, 1).map(drop)
}

fn transparent() -> io::Result<()> {
    set_transparent(Socket::new(Domain::IPV4, Type::STREAM, None)?, true)
}
