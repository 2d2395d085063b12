//! Messages with file descriptors between the two processes.
#![expect(unsafe_code, reason = "descriptors that were received come as numbers")]

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, UnixCredentials, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The most descriptors in one message.
pub const MOST: usize = 64;

/// Sends one message.
///
/// # Errors
/// When the other end is gone, or the message is too long.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
    let rights = [ControlMessage::ScmRights(descriptors)];
    let rights = if descriptors.is_empty() { &[] } else { &rights[..] };
    loop {
        let parts = [IoSlice::new(bytes)];
        let fd = socket.as_fd().as_raw_fd();
        match sendmsg::<()>(fd, &parts, rights, MsgFlags::MSG_NOSIGNAL, None) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Receives one message: its bytes and descriptors. None: the other end is gone.
///
/// # Errors
/// `WouldBlock` where there is no message and `wait` is not set.
pub fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    wait: bool,
) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let received = receive_from(socket, buffer, wait)?;
    Ok(received.map(|received| (received.length, received.descriptors)))
}

/// A message.
#[derive(Debug)]
pub struct Received {
    /// Unit: bytes.
    pub length: usize,
    /// The descriptors that were sent with it.
    pub descriptors: Vec<OwnedFd>,
    /// The sender, as the kernel attests it if the socket has `SO_PASSCRED`.
    pub sender: Option<UnixCredentials>,
}

/// The same, with the sender.
///
/// # Errors
/// As [`receive`].
pub fn receive_from(
    socket: impl AsFd,
    buffer: &mut [u8],
    wait: bool,
) -> io::Result<Option<Received>> {
    let mut flags = MsgFlags::MSG_CMSG_CLOEXEC;
    if !wait {
        flags |= MsgFlags::MSG_DONTWAIT;
    }
    let fd = socket.as_fd().as_raw_fd();
    let mut space = cmsg_space!([RawFd; MOST], UnixCredentials);
    loop {
        let mut parts = [IoSliceMut::new(buffer)];
        let message = match recvmsg::<()>(fd, &mut parts, Some(&mut space), flags) {
            Err(Errno::EINTR) => continue,
            message => message?,
        };
        let (mut descriptors, mut sender) = (Vec::new(), None);
        // The kernel closes descriptors that do not fit.
        for rights in message.cmsgs().into_iter().flatten() {
            match rights {
                ControlMessageOwned::ScmRights(numbers) => {
                    // SAFETY: the kernel has just opened them for this process, and nothing else
                    // owns them.
                    let own = numbers.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
                    descriptors.extend(own);
                }
                ControlMessageOwned::ScmCredentials(credentials) => sender = Some(credentials),
                _ => {}
            }
        }
        let length = message.bytes;
        return Ok((length > 0).then_some(Received { length, descriptors, sender }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn descriptors_arrive_with_their_message() -> io::Result<()> {
        let (near, far) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        let (mut one, other) = UnixStream::pair()?;
        send(&near, b"two", &[other.as_raw_fd(), other.as_raw_fd()])?;
        send(&near, b"none", &[])?;
        drop((near, other));
        let mut buffer = [0; 16];
        let (length, mut got) = receive(&far, &mut buffer, true)?.expect("a message");
        assert_eq!((&buffer[..length], got.len()), (&b"two"[..], 2));
        one.write_all(b"x")?;
        let mut through = UnixStream::from(got.pop().expect("a descriptor"));
        through.read_exact(&mut buffer[..1])?;
        assert_eq!(buffer[0], b'x');
        let (length, got) = receive(&far, &mut buffer, true)?.expect("a message");
        assert_eq!((&buffer[..length], got.len()), (&b"none"[..], 0));
        assert!(receive(&far, &mut buffer, true)?.is_none());
        Ok(())
    }
}
