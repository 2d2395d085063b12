//! Whether the kernel answers every SYN with a cookie (`net.ipv4.tcp_syncookies` = 2).
//!
//! The kernel checks cookies for this host's own addresses only. With cookies for everybody, no client of a split
//! flow could connect: its handshake would seem to complete, and it would be reset much later.

use std::fs;

/// The setting for both families, in the network namespace of the calling thread.
const SETTING: &str = "/proc/sys/net/ipv4/tcp_syncookies";

/// Whether it answers every SYN with a cookie. A kernel without SYN cookies has no such setting.
pub(super) fn are_for_everybody() -> bool {
    fs::read_to_string(SETTING).is_ok_and(|text| text.trim() == "2")
}
