//! The privileges of the daemon's keeper while the daemon serves (the data plane has none), and the limit on open
//! files.
//!
//! Invariant: called before any other thread exists, as capabilities belong to threads and are inherited by new ones.

use caps::{CapSet, Capability, CapsHashSet};
use midhop_failure::Failure;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// What the keeper needs as long as the daemon serves: for its own nftables and routes, transparent sockets, and
/// clients' source ports below 1024.
pub const KEPT: [Capability; 2] = [Capability::CAP_NET_ADMIN, Capability::CAP_NET_BIND_SERVICE];

/// Needed in addition at the start: for raw sockets, which inject held SYNs again.
pub const STARTING: [Capability; 1] = [Capability::CAP_NET_RAW];

/// What starting a data plane needs, which the first process keeps as long as it may have to start
/// another one: the capabilities above, those for congestion controls (`CAP_BPF`, `CAP_PERFMON`),
/// for the memory limits that they need, for files of other users (keys, the control socket and its
/// group), and `CAP_SETPCAP` to give up all of these for good.
pub const HOLDING: [Capability; 11] = [
    Capability::CAP_NET_ADMIN,
    Capability::CAP_NET_BIND_SERVICE,
    Capability::CAP_NET_RAW,
    Capability::CAP_BPF,
    Capability::CAP_PERFMON,
    Capability::CAP_SYS_RESOURCE,
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_CHOWN,
    Capability::CAP_FOWNER,
    Capability::CAP_SETPCAP,
];

/// Gives up every capability that starting a data plane does not need. A program that this process
/// executes as root may have them again: the needs of future programs are not known.
///
/// # Errors
/// When the kernel refuses to lower privileges.
pub fn drop_for_holding() -> Result<(), Failure> {
    lower(&[CapSet::Effective, CapSet::Permitted], &HOLDING.into_iter().collect())
}

/// Gives up every capability that the keeper does not need, for good.
///
/// # Errors
/// When the kernel refuses to lower privileges.
pub fn drop_unneeded() -> Result<(), Failure> {
    keep(&KEPT)
}

/// Gives up every capability, for good.
///
/// # Errors
/// When the kernel refuses to lower privileges.
pub fn drop_all() -> Result<(), Failure> {
    keep(&[])
}

fn keep(kept: &[Capability]) -> Result<(), Failure> {
    let failure = |error| Failure::run("privileges cannot be dropped").because(error);
    let kept: CapsHashSet = kept.iter().copied().collect();
    let bounded = caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP);
    if bounded.map_err(failure)? {
        for capability in caps::read(None, CapSet::Bounding).map_err(failure)? {
            if !kept.contains(&capability) {
                caps::drop(None, CapSet::Bounding, capability).map_err(failure)?;
            }
        }
    }
    // From the outside in: lowering one set must not prevent lowering the next.
    lower(&[CapSet::Ambient, CapSet::Inheritable, CapSet::Effective, CapSet::Permitted], &kept)
}

fn lower(sets: &[CapSet], kept: &CapsHashSet) -> Result<(), Failure> {
    let failure = |error| Failure::run("privileges cannot be dropped").because(error);
    for set in sets {
        let lowered: CapsHashSet =
            caps::read(None, *set).map_err(failure)?.intersection(kept).copied().collect();
        caps::set(None, *set, &lowered).map_err(failure)?;
    }
    Ok(())
}

/// Whether this process has any of the privileges of serving.
pub fn has_any() -> bool {
    KEPT.into_iter()
        .any(|capability| caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false))
}

/// The privileges that this process lacks for interception, and for connecting from a client's address.
pub fn missing_for_interception() -> Vec<String> {
    KEPT.into_iter()
        .chain(STARTING)
        .filter(|capability| !caps::has_cap(None, CapSet::Effective, *capability).unwrap_or(false))
        .map(|capability| capability.to_string())
        .collect()
}

/// Whether this process may intercept, or connect from a client's address.
///
/// # Errors
/// When it lacks the capability, with the remedy.
pub fn check_interception() -> Result<(), Failure> {
    let missing = missing_for_interception();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::run(format!("using other hosts' addresses requires {}", missing.join(" and "))).hint(
        "run as root, or under systemd with AmbientCapabilities=; without privileges [explicit] and \
         [tunnel] work (leave intercept.interfaces and peers.NAME.transparent empty)",
    ))
}

/// Raises the limit on open files as far as possible and useful. Warns where that is less than `wanted`.
pub fn raise_file_limit(wanted: u64) {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    if soft >= wanted {
        return;
    }
    // Exceeding the hard limit takes CAP_SYS_RESOURCE, which this process may or may not have.
    if wanted > hard && setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted).is_ok() {
        return;
    }
    let reached = wanted.min(hard);
    let raised = setrlimit(Resource::RLIMIT_NOFILE, reached, hard).is_ok();
    let reached = if raised { reached } else { soft };
    if reached < wanted {
        tracing::warn!(
            reached,
            wanted,
            "the limit of open files is lower than limits.flows may need: flows beyond it pass by; \
             raise LimitNOFILE= or ulimit -n"
        );
    }
}
