//! Properties that can be read from the host.

use crate::{CheckState, Finding};
use midhop_bpf::{Algorithm, Parameters, resolve};
use midhop_linux::nft::NftError;
use midhop_process::privileges::missing_for_interception;
use midhop_units::{Bytes, Duration, Rate};
use nix::sys::resource::{Resource, getrlimit};
use std::fs;

/// Checks everything that interception or speed depends on.
pub(crate) fn examine() -> Vec<Finding> {
    let mut findings = vec![
        kernel(),
        privileges(),
        nft(),
        forwarding("IPv4 forwarding", "net/ipv4/ip_forward"),
        forwarding("IPv6 forwarding", "net/ipv6/conf/all/forwarding"),
        reverse_path(),
        congestion(),
        programs(),
        buffer("receive buffer", "net/ipv4/tcp_rmem"),
        buffer("send buffer", "net/ipv4/tcp_wmem"),
        flag(
            "idle restart",
            "net/ipv4/tcp_slow_start_after_idle",
            "the window is lost whenever a flow pauses for a round trip",
        ),
    ];
    findings.extend([syn_cookies(), path_mtu(), pipes(), files()]);
    findings
}

fn kernel() -> Finding {
    let release = sysctl("kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let verdict = match version {
        (0, _) => CheckState::Unknown,
        version if version >= (5, 10) => CheckState::Yes,
        _ => CheckState::Could,
    };
    Finding::of("kernel", verdict, format!("Linux {release}"), "Linux 5.10 or later is tested")
}

fn privileges() -> Finding {
    let missing = missing_for_interception();
    if missing.is_empty() {
        return Finding::yes("privileges", "CAP_NET_ADMIN, CAP_NET_BIND_SERVICE, CAP_NET_RAW");
    }
    Finding::of(
        "privileges",
        CheckState::Could,
        format!("{} missing here", missing.join(", ")),
        "run midhopd as root or by its systemd unit; explicit listeners need none of them",
    )
}

fn nft() -> Finding {
    let hint = "install nftables 0.9.4 or later";
    match midhop_linux::nft::ask(&["--version"]) {
        Ok(version) => Finding::yes("nft", version.trim().to_owned()),
        Err(NftError::Start(error)) => {
            Finding::of("nft", CheckState::No, format!("cannot be run: {error}"), hint)
        }
        Err(error) => Finding::of("nft", CheckState::No, format!("it fails: {error}"), hint),
    }
}

fn forwarding(name: &str, key: &str) -> Finding {
    match sysctl(key).as_deref() {
        Some("0") => Finding::of(
            name,
            CheckState::Could,
            "off: flows that pass by go nowhere",
            &format!("sysctl -w {}=1", key.replace('/', ".")),
        ),
        Some(_) => Finding::yes(name, "on"),
        None => Finding::of(name, CheckState::Unknown, "cannot be read", "is the protocol there?"),
    }
}

fn reverse_path() -> Finding {
    let strict: Vec<String> = fs::read_dir("/proc/sys/net/ipv4/conf")
        .map(|entries| {
            let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into());
            names.filter(|name: &String| name != "default").collect()
        })
        .unwrap_or_else(|_| Vec::new());
    // The kernel takes the larger of "all" and the interface's own.
    let value = |name: &str| sysctl(&format!("net/ipv4/conf/{name}/rp_filter"));
    let strict: Vec<String> =
        strict.into_iter().filter(|name| value(name).as_deref() == Some("1")).collect();
    if strict.is_empty() {
        return Finding::yes("reverse path filter", "not strict");
    }
    Finding::of(
        "reverse path filter",
        CheckState::Could,
        format!("strict on {}", strict.join(", ")),
        "where routes are asymmetric it drops packets: sysctl -w net.ipv4.conf.all.rp_filter=2",
    )
}

fn congestion() -> Finding {
    match sysctl("net/ipv4/tcp_available_congestion_control") {
        Some(names) => Finding::yes("congestion controls", names),
        None => Finding::of(
            "congestion controls",
            CheckState::Unknown,
            "cannot be read in this namespace",
            "",
        ),
    }
}

/// Registers a program for a moment: only that shows that it would work.
fn programs() -> Finding {
    let name = "BPF congestion controls";
    let all: Vec<&str> = Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect();
    let hint = "a leg's `fallback` names what is taken instead";
    match midhop_bpf::missing_to_load() {
        Some(missing) => Finding::of(name, CheckState::Could, missing.to_string(), hint),
        None => match resolve("hybla-plus").map_err(|error| error.to_string()).and_then(|program| {
            program.activate(&Parameters::default()).map_err(|error| error.to_string())
        }) {
            Ok(_) => Finding::yes(name, all.join(", ")),
            Err(error) => Finding::of(name, CheckState::Could, error, hint),
        },
    }
}

/// What a geostationary path of 140 Mbit/s has in flight: more than most hosts' limits allow.
fn geo_product() -> Bytes {
    Rate::from_mbit_per_s(140).bytes_in(Duration::from_ms(600))
}

fn buffer(name: &str, key: &str) -> Finding {
    let most = sysctl(key).and_then(|values| values.split_whitespace().nth(2)?.parse().ok());
    let Some(most) = most.map(Bytes::new) else {
        return Finding::of(name, CheckState::Unknown, "cannot be read", "");
    };
    // The kernel counts its own overhead, about as much again, in the same number.
    let wanted = geo_product() + geo_product();
    let verdict = if most >= wanted { CheckState::Yes } else { CheckState::Could };
    let mb = |bytes: Bytes| format!("{:.1} MB", bytes.get() as f64 / 1e6);
    Finding::of(
        name,
        verdict,
        format!("{} at most; 140 Mbit/s over 600 ms takes {}", mb(most), mb(wanted)),
        &format!("sysctl -w {}=\"4096 131072 {}\"", key.replace('/', "."), wanted.get()),
    )
}

/// A setting that should be 0.
fn flag(name: &str, key: &str, harm: &str) -> Finding {
    let hint = format!("sysctl -w {}=0", key.replace('/', "."));
    match sysctl(key).as_deref() {
        Some("0") => Finding::yes(name, "off"),
        Some(_) => Finding::of(name, CheckState::Could, harm, &hint),
        None => Finding::of(name, CheckState::Unknown, "cannot be read", ""),
    }
}

/// A cookie is checked for addresses of this host only: with cookies for all connections, no client
/// of a split flow can connect.
fn syn_cookies() -> Finding {
    let (name, key) = ("SYN cookies", "net/ipv4/tcp_syncookies");
    match sysctl(key).as_deref() {
        Some("2") => Finding::of(
            name,
            CheckState::Could,
            "sent for every SYN: new flows pass by, and none is split",
            "sysctl -w net.ipv4.tcp_syncookies=1",
        ),
        Some(_) => Finding::yes(name, "only when a queue is full, or never"),
        None => Finding::of(name, CheckState::Unknown, "cannot be read", ""),
    }
}

/// Hosts whose flows are split rely on this one to discover the MTU of their paths.
fn path_mtu() -> Finding {
    let (name, key) = ("path MTU probing", "net/ipv4/tcp_mtu_probing");
    match sysctl(key).as_deref() {
        Some("0") => Finding::of(
            name,
            CheckState::Could,
            "off: flows stall where large packets are dropped without an ICMP error",
            &format!("sysctl -w {}=1", key.replace('/', ".")),
        ),
        Some(_) => Finding::yes(name, "on"),
        None => Finding::of(name, CheckState::Unknown, "cannot be read", ""),
    }
}

fn pipes() -> Finding {
    let number = |key: &str| sysctl(key).and_then(|value| value.parse::<u64>().ok());
    let (most, pages) = (number("fs/pipe-max-size"), number("fs/pipe-user-pages-soft"));
    let (Some(most), Some(pages)) = (most, pages) else {
        return Finding::of("pipes", CheckState::Unknown, "cannot be read", "");
    };
    let detail = format!("{} kB each, {pages} pages in all without privilege", most / 1000);
    let verdict = if most >= 1 << 20 { CheckState::Yes } else { CheckState::Could };
    Finding::of("pipes", verdict, detail, "sysctl -w fs.pipe-max-size=1048576")
}

fn files() -> Finding {
    let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return Finding::of("open files", CheckState::Unknown, "cannot be read", "");
    };
    let verdict = if hard >= 65_536 { CheckState::Yes } else { CheckState::Could };
    let detail = format!("{hard} at most, two to four per flow");
    Finding::of("open files", verdict, detail, "LimitNOFILE=1048576 in the unit, or ulimit -n")
}

fn sysctl(key: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/sys/{key}")).ok()?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}
