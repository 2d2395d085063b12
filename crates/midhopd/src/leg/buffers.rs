//! How much the kernel may hold for a socket.

use crate::sockopt;
use midhop_pep::credit::Shares;
use midhop_units::Bytes;
use nix::libc;
use std::io;
use std::os::fd::AsFd;

/// Bounds a socket's queues, before it connects or listens. Where the bound is none, or more than
/// this process may ask for, the kernel goes on measuring within its own maxima.
pub fn bound(socket: impl AsFd, shares: &Shares) -> io::Result<()> {
    // The kernel sets twice what is asked for, and counts segments with their overhead.
    if let Some(bytes) = shares.receive {
        hold(&socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, int(bytes) / 2)?;
    }
    if let Some(bytes) = shares.send {
        hold(&socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, int(bytes) / 2)?;
    }
    if let Some(bytes) = shares.unsent {
        sockopt::set_int(&socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, int(bytes))?;
    }
    Ok(())
}

/// Sets a buffer: beyond the system's maximum where that is allowed, else only within it, as a
/// buffer that is set is never made larger by measuring.
fn hold(socket: impl AsFd, force: i32, plain: i32, bytes: i32) -> io::Result<()> {
    match sockopt::set_int(&socket, libc::SOL_SOCKET, force, bytes) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            if bytes <= system_maximum(plain)? {
                sockopt::set_int(&socket, libc::SOL_SOCKET, plain, bytes)?;
            }
            Ok(())
        }
        outcome => outcome,
    }
}

/// The largest buffer that may be asked for without privilege: more is cut to it.
fn system_maximum(option: i32) -> io::Result<i32> {
    let probe = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    sockopt::set_int(&probe, libc::SOL_SOCKET, option, i32::MAX / 2)?;
    let mut value = [0; 4];
    sockopt::read(&probe, libc::SOL_SOCKET, option, &mut value)?;
    Ok(i32::from_ne_bytes(value) / 2)
}

fn int(bytes: Bytes) -> i32 {
    // Twice that is what the kernel computes with: a GiB is the end.
    i32::try_from(bytes.get()).unwrap_or(i32::MAX).min(1 << 30)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_set_or_left_to_the_kernel() {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
            .expect("a socket");
        let shares = Shares::of(Some(Bytes::new(128 << 10)));
        bound(&socket, &shares).expect("bounds below every maximum");
        let send = socket.send_buffer_size().expect("a size");
        assert_eq!(send as u64, shares.send.expect("a bound").get());
    }
}
