//! Finds the registration of an algorithm, and holds it as well.

#![expect(unsafe_code, reason = "libbpf-rs has no safe way from a link's id to a descriptor of it")]

use crate::object::padded;
use libbpf_rs::{MapCore, MapFlags, MapHandle, libbpf_sys, query};
use std::{
    io,
    os::fd::{FromRawFd, OwnedFd},
};

/// Opens the link by which the algorithm `name` is registered. `None` when there is no such link or
/// this process may not look (it takes CAP_SYS_ADMIN).
pub(crate) fn open_link(name: &str) -> Option<OwnedFd> {
    query::LinkInfoIter::default().find_map(|link| match link.info {
        query::LinkTypeInfo::StructOps(operations) if map_names(operations.map_id, name) => {
            link_by_id(link.id).ok()
        }
        _ => None,
    })
}

/// Whether the struct_ops map with this id registers the algorithm `name`.
fn map_names(map_id: u32, name: &str) -> bool {
    let value = MapHandle::from_map_id(map_id)
        .and_then(|map| map.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY));
    let wanted = padded(name);
    // The position of the name differs between kernels; the name padded to its full size does not.
    matches!(value, Ok(Some(value)) if value.windows(wanted.len()).any(|part| part == wanted))
}

fn link_by_id(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes an integer and touches no memory of ours.
    let fd = unsafe { libbpf_sys::bpf_link_get_fd_by_id(id) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the kernel has just made this descriptor for us and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
