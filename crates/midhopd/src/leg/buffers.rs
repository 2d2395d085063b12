//! The kernel's buffers for a socket.

use crate::keeper::line;
use crate::keeper::order::Setting;
use midhop_linux::sockopt;
use midhop_pep::credit::Shares;
use midhop_units::Bytes;
use nix::libc;
use std::io;
use std::os::fd::AsFd;

/// Bounds a socket's queues, before it connects or listens. Without a bound, the kernel sizes them
/// by measuring, within its own maxima. A bound beyond what this process may set is limited by the
/// kernel.
pub fn bound(socket: impl AsFd, shares: &Shares) -> io::Result<()> {
    hold_both(&socket, shares.receive.map(asked), shares.send.map(asked))?;
    hold_unsent(&socket, shares)
}

/// The value to request from the kernel for this many bytes. The kernel doubles it, to have room
/// for the overhead of segments.
pub(super) fn asked(bytes: Bytes) -> i32 {
    int(bytes) / 2
}

/// Bounds the kernel's receive and send buffers.
pub(super) fn hold_both(
    socket: impl AsFd,
    receive: Option<i32>,
    send: Option<i32>,
) -> io::Result<()> {
    if let Some(bytes) = receive {
        hold(&socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, bytes)?;
    }
    if let Some(bytes) = send {
        hold(&socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, bytes)?;
    }
    Ok(())
}

/// Bounds the bytes that are written ahead of those sent.
pub(super) fn hold_unsent(socket: impl AsFd, shares: &Shares) -> io::Result<()> {
    if let Some(bytes) = shares.unsent {
        sockopt::set_int(&socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, int(bytes))?;
    }
    Ok(())
}

/// Makes a connection offer its far end at least this window when needed. If the kernel sizes the
/// buffer and its maximum suffices, the kernel is left to do so: it then holds no more than is in
/// flight.
pub fn offer(socket: impl AsFd, window: Bytes, fixed: bool) -> io::Result<()> {
    // Half of the kernel's buffer is the window.
    if !fixed && measured_maximum() / 2 >= window.get() {
        return Ok(());
    }
    let mut held = [0; 4];
    sockopt::read(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &mut held)?;
    if i64::from(i32::from_ne_bytes(held)) / 2 >= i64::from(int(window)) {
        return Ok(());
    }
    hold(&socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, int(window))?;
    sockopt::set_int(&socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, int(window))
}

/// Changes the receive buffer of an open connection to this size, overhead included. From then on
/// the kernel does not size it.
pub(super) fn resize_receive_buffer(socket: impl AsFd, bytes: Bytes) -> io::Result<()> {
    thread_local! {
        static PLAIN_MAX: i32 = system_maximum(libc::SO_RCVBUF).unwrap_or(0);
    }
    let wanted = asked(bytes);
    if wanted <= PLAIN_MAX.with(|most| *most) {
        // Within the plain maximum no privilege is needed, and so no order to the keeper.
        return sockopt::set_int(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, wanted);
    }
    hold(&socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, wanted)
}

/// Unit: bytes. The maximum to which the kernel grows a receive queue by measuring.
pub(super) fn measured_maximum() -> u64 {
    thread_local! {
        // Each network namespace has its own value, so each thread reads it.
        static MAXIMUM: u64 = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem")
            .ok()
            .and_then(|text| text.split_whitespace().next_back()?.parse().ok())
            .unwrap_or(0);
    }
    MAXIMUM.with(|maximum| *maximum)
}

/// Sets a buffer: beyond the system's maximum if that is permitted, else up to it. The kernel never
/// enlarges a buffer that was set.
fn hold(socket: impl AsFd, force: i32, plain: i32, bytes: i32) -> io::Result<()> {
    let setting = || Setting::Buffer { sends: force == libc::SO_SNDBUFFORCE, bytes };
    let own = || sockopt::set_int(&socket, libc::SOL_SOCKET, force, bytes);
    match line::set(&socket.as_fd(), setting, own) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            if bytes <= system_maximum(plain)? {
                sockopt::set_int(&socket, libc::SOL_SOCKET, plain, bytes)?;
            }
            Ok(())
        }
        outcome => outcome,
    }
}

/// The largest buffer without privilege: the kernel cuts larger values to it.
fn system_maximum(option: i32) -> io::Result<i32> {
    let probe = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    sockopt::set_int(&probe, libc::SOL_SOCKET, option, i32::MAX / 2)?;
    let mut value = [0; 4];
    sockopt::read(&probe, libc::SOL_SOCKET, option, &mut value)?;
    Ok(i32::from_ne_bytes(value) / 2)
}

fn int(bytes: Bytes) -> i32 {
    // The kernel uses twice this value: a GiB is the maximum.
    i32::try_from(bytes.get()).unwrap_or(i32::MAX).min(1 << 30)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills a connection whose far end does not read. Returns the bytes that the far end holds.
    fn filled(offered: Option<Bytes>) -> usize {
        use std::io::Write;
        let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
            .expect("a socket");
        listener.set_recv_buffer_size(64 << 10).expect("a size");
        listener
            .bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into())
            .and_then(|()| listener.listen(1))
            .expect("a listener");
        let listener = std::net::TcpListener::from(listener);
        let address = listener.local_addr().expect("an address");
        let mut near = std::net::TcpStream::connect(address).expect("a connection");
        let (far, _) = listener.accept().expect("its other end");
        if let Some(window) = offered {
            offer(&far, window, true).expect("a window");
        }
        near.set_write_timeout(Some(std::time::Duration::from_millis(500))).expect("a timeout");
        while near.write(&[1; 64 << 10]).is_ok() {}
        sockopt::unread(&far).expect("a queue")
    }

    #[test]
    fn a_window_that_is_offered_late_is_one() {
        let wanted = Bytes::new(2 << 20);
        let most = system_maximum(libc::SO_RCVBUF).expect("a maximum");
        if sockopt::set_int(
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("it"),
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            1 << 20,
        )
        .is_err()
            && most < int(wanted)
        {
            return eprintln!("SKIPPED, this takes CAP_NET_ADMIN or a larger net.core.rmem_max");
        }
        let (before, after) = (filled(None), filled(Some(wanted)));
        assert!(before < 256 << 10, "{before} bytes fit without");
        assert!(after > 1 << 20, "{after} bytes fit");
    }

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
