//! Socket options and queries that the standard library and `socket2` do not offer.
#![expect(unsafe_code, reason = "getsockopt, setsockopt and ioctl take raw pointers")]

use nix::libc;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// `include/uapi/linux/sockios.h`.
const SIOCOUTQNSD: libc::c_ulong = 0x894b;

/// Sets an option whose value is an `int`.
///
/// # Errors
/// When the kernel refuses.
pub fn set_int(socket: impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    set(socket, level, name, &value.to_ne_bytes())
}

/// Sets an option whose value is a 64-bit number, such as `SO_MAX_PACING_RATE`.
///
/// # Errors
/// When the kernel refuses.
pub fn set_u64(socket: impl AsFd, level: i32, name: i32, value: u64) -> io::Result<()> {
    set(socket, level, name, &value.to_ne_bytes())
}

/// Sets an option to the bytes of its structure in memory.
///
/// # Errors
/// When the kernel refuses.
pub fn set(socket: impl AsFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    let length = libc::socklen_t::try_from(value.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the pointer and the length describe `value`, which outlives the call; the kernel only reads it.
    checked(unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), length) })
}

/// Reads an option of up to `buffer.len()` bytes and returns what the kernel wrote of it.
///
/// # Errors
/// When the kernel refuses.
pub fn read(socket: impl AsFd, level: i32, name: i32, buffer: &mut [u8]) -> io::Result<&[u8]> {
    let fd = socket.as_fd().as_raw_fd();
    let mut length = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
    // SAFETY: the kernel writes at most `length` bytes, all inside `buffer`.
    let result =
        unsafe { libc::getsockopt(fd, level, name, buffer.as_mut_ptr().cast(), &raw mut length) };
    checked(result)?;
    buffer.get(..length as usize).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Reads an option whose value is an `int`.
///
/// # Errors
/// When the kernel refuses.
pub fn read_int(socket: impl AsFd, level: i32, name: i32) -> io::Result<i32> {
    let mut buffer = [0; 4];
    let value = read(socket, level, name, &mut buffer)?;
    value.try_into().map(i32::from_ne_bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// The pending error of the socket; reading it clears it.
///
/// # Errors
/// When it cannot be read.
pub fn take_error(socket: impl AsFd) -> io::Result<Option<io::Error>> {
    let mut buffer = [0; 4];
    read(socket, libc::SOL_SOCKET, libc::SO_ERROR, &mut buffer)?;
    let number = i32::from_ne_bytes(buffer);
    Ok((number != 0).then(|| io::Error::from_raw_os_error(number)))
}

/// Unit: bytes. Written to a TCP socket and not acknowledged by its far end.
///
/// # Errors
/// When it is not a TCP socket.
pub fn unacknowledged(socket: impl AsFd) -> io::Result<usize> {
    query(socket, libc::TIOCOUTQ)
}

/// Unit: bytes. Written to a TCP socket and never sent (`SIOCOUTQNSD`); a FIN that waits behind it counts.
///
/// # Errors
/// When it is not a TCP socket.
pub fn unsent(socket: impl AsFd) -> io::Result<usize> {
    query(socket, SIOCOUTQNSD)
}

/// Unit: bytes. Received and not read.
///
/// # Errors
/// When the socket has no such queue.
pub fn unread(socket: impl AsFd) -> io::Result<usize> {
    query(socket, libc::FIONREAD)
}

/// Whether reading ends behind what is unread (`POLLRDHUP`): a FIN has arrived, or reading was shut down.
///
/// # Errors
/// When the kernel has no memory.
pub fn is_read_side_shut(socket: impl AsFd) -> io::Result<bool> {
    let fd = socket.as_fd().as_raw_fd();
    let mut asked = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: the pointer is to one structure, which outlives the call; it does not wait.
    checked(unsafe { libc::poll(&raw mut asked, 1, 0) })?;
    Ok(asked.revents & libc::POLLRDHUP != 0)
}

fn query(socket: impl AsFd, request: libc::c_ulong) -> io::Result<usize> {
    let mut value = MaybeUninit::<libc::c_int>::zeroed();
    // SAFETY: both requests write one `int` to the address given.
    let result =
        unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), request as _, value.as_mut_ptr()) };
    checked(result)?;
    // SAFETY: zeroed above, and written by the kernel since.
    Ok(usize::try_from(unsafe { value.assume_init() }).unwrap_or(0))
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn queues_are_counted() -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut near = TcpStream::connect(listener.local_addr()?)?;
        let (far, _) = listener.accept()?;
        near.write_all(b"abc")?;
        far.peek(&mut [0; 3])?;
        assert_eq!(unread(&far)?, 3);
        assert_eq!((unacknowledged(&far)?, unsent(&far)?), (0, 0));
        assert!(take_error(&near)?.is_none());
        assert!(!is_read_side_shut(&near)?);
        near.shutdown(std::net::Shutdown::Read)?;
        assert!(is_read_side_shut(&near)? && !is_read_side_shut(&far)?);
        Ok(())
    }

    #[test]
    fn options_are_written_and_read() -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        set_int(&listener, libc::IPPROTO_IP, libc::IP_TOS, 0xb8)?;
        let mut buffer = [0; 4];
        read(&listener, libc::IPPROTO_IP, libc::IP_TOS, &mut buffer)?;
        assert_eq!(i32::from_ne_bytes(buffer), 0xb8);
        assert_eq!(read_int(&listener, libc::IPPROTO_IP, libc::IP_TOS)?, 0xb8);
        set_u64(&listener, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, 1 << 40)?;
        assert!(set_int(&listener, libc::IPPROTO_IP, 9999, 1).is_err());
        Ok(())
    }
}
