//! Netlink's messages, and a socket for them (`netlink(7)`).
//!
//! Invariant: no message from the kernel can make parsing read beyond its end.

use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    socket,
};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

const HEADER_BYTES: usize = 16;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Attributes and messages are padded to a multiple of this.
const ALIGN: usize = 4;
const NESTED: u16 = 1 << 15;

/// A message under construction.
#[derive(Debug)]
pub struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// A message of this type, with flags in addition to `NLM_F_REQUEST`, and with the header of its subsystem.
    pub fn new(kind: u16, flags: i32, header: &[u8]) -> Self {
        let flags = u16::try_from(libc::NLM_F_REQUEST | flags).unwrap_or(u16::MAX);
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(header);
        Self { bytes }
    }

    /// A message of a netfilter subsystem; `resource` is a queue number or a subsystem.
    pub fn netfilter(kind: u16, flags: i32, family: i32, resource: u16) -> Self {
        let family = u8::try_from(family).unwrap_or(0);
        let [high, low] = resource.to_be_bytes();
        Self::new(kind, flags, &[family, 0, high, low])
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN), 0);
        self
    }

    /// Adds an attribute that ends with a zero byte.
    #[must_use]
    pub fn with_name(self, kind: u16, name: &str) -> Self {
        let mut value = name.as_bytes().to_vec();
        value.push(0);
        self.with(kind, &value)
    }

    /// Adds an attribute that contains attributes.
    #[must_use]
    pub fn with_nested(mut self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        self = fill(self.with(kind | NESTED, &[]));
        let length = u16::try_from(self.bytes.len() - start).unwrap_or(u16::MAX);
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }

    /// Adds the header of a subsystem: what some attributes begin with that contain others.
    #[must_use]
    pub fn with_header(mut self, header: &[u8]) -> Self {
        self.bytes.extend_from_slice(header);
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN), 0);
        self
    }

    /// Sets its sequence number, so that its responses can be recognized.
    #[must_use]
    pub fn numbered(mut self, number: u32) -> Self {
        self.bytes[8..12].copy_from_slice(&number.to_ne_bytes());
        self
    }

    /// The bytes to send.
    pub fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes
    }
}

/// A received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received<'a> {
    /// Its type.
    pub kind: u16,
    /// The sequence number of the message that it responds to.
    pub number: u32,
    /// What follows netlink's own header.
    pub body: &'a [u8],
}

/// Splits what one `recv` returned into messages.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Received<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0)? as usize;
        let kind = u16_at(bytes, 4)?;
        let number = u32_at(bytes, 8)?;
        let body = bytes.get(HEADER_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some(Received { kind, number, body })
    })
}

/// Splits attributes: type, without its flags, and value.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some((kind, value))
    })
}

impl Received<'_> {
    /// For an acknowledgement or a refusal: the result.
    pub fn verdict(&self) -> Option<io::Result<()>> {
        if self.kind != ERROR {
            return None;
        }
        let number = i32::from_ne_bytes(u32_at(self.body, 0)?.to_ne_bytes());
        Some(if number == 0 {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(number.wrapping_neg()))
        })
    }

    /// For an acknowledgement or a refusal: the sequence number of the message that it is about.
    pub fn about(&self) -> Option<u32> {
        if self.kind == ERROR { u32_at(self.body, 4 + 8) } else { None }
    }
}

/// Treats a refusal with one of the system's `codes` as success: the state is already as wanted.
///
/// # Errors
/// All other refusals.
pub fn allow(codes: &[i32], result: io::Result<()>) -> io::Result<()> {
    match &result {
        Err(error) if error.raw_os_error().is_some_and(|code| codes.contains(&code)) => Ok(()),
        _ => result,
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A netlink socket in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Channel {
    fd: OwnedFd,
}

impl Channel {
    /// Opens a channel to a subsystem family, such as [`SockProtocol::NetlinkNetFilter`].
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn open(protocol: SockProtocol) -> io::Result<Self> {
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        Ok(Self { fd })
    }

    /// Opens a channel for devices, addresses, routes and rules (`rtnetlink(7)`).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn routing() -> io::Result<Self> {
        Self::open(SockProtocol::NetlinkRoute)
    }

    /// A channel on a socket that is open already.
    pub fn of(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Opens a channel that receives multicast messages; `groups` has a bit for each group.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn subscribe(protocol: SockProtocol, groups: u32) -> io::Result<Self> {
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
        Ok(Self { fd })
    }

    /// Sends messages in one datagram.
    ///
    /// # Errors
    /// When the kernel does not accept them.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        send(self.fd.as_raw_fd(), bytes, MsgFlags::empty())?;
        Ok(())
    }

    /// Receives what is available; waits for it only if `wait`.
    ///
    /// # Errors
    /// When nothing is available, or messages were lost (`ENOBUFS`).
    pub fn receive<'a>(&self, buffer: &'a mut [u8], wait: bool) -> io::Result<&'a [u8]> {
        let flags = if wait { MsgFlags::empty() } else { MsgFlags::MSG_DONTWAIT };
        let count = recv(self.fd.as_raw_fd(), buffer, flags)?;
        Ok(&buffer[..count])
    }

    /// Sends messages that are numbered from 0 on, in one datagram. Only the last one requests an acknowledgement:
    /// the others cause no response if they succeed. Returns the result of each.
    ///
    /// # Errors
    /// When the kernel does not respond.
    pub fn request_all(&self, messages: Vec<Message>) -> io::Result<Vec<io::Result<()>>> {
        let mut outcomes: Vec<_> = messages.iter().map(|_| Ok(())).collect();
        let Some(last) = outcomes.len().checked_sub(1) else { return Ok(outcomes) };
        self.send(&messages.into_iter().flat_map(Message::finish).collect::<Vec<_>>())?;
        let mut buffer = vec![0; 8192];
        loop {
            for message in self::messages(self.receive(&mut buffer, true)?) {
                let (Some(verdict), Some(about)) = (message.verdict(), message.about()) else {
                    continue;
                };
                let about = usize::try_from(about).unwrap_or(usize::MAX);
                if let Some(outcome) = outcomes.get_mut(about) {
                    *outcome = verdict;
                }
                if about == last {
                    return Ok(outcomes);
                }
            }
        }
    }

    /// Requests a dump, and passes each message of the response to `take`.
    ///
    /// # Errors
    /// When the kernel refuses or does not respond.
    pub fn dump(
        &self,
        question: Message,
        buffer: &mut [u8],
        mut take: impl FnMut(Received<'_>),
    ) -> io::Result<()> {
        let question = question.finish();
        let number = u32_at(&question, 8);
        self.send(&question)?;
        loop {
            for message in messages(self.receive(buffer, true)?) {
                if Some(message.number) != number {
                    // The rest of the response to an earlier dump that was given up.
                    continue;
                }
                if message.kind == DONE {
                    return Ok(());
                }
                if let Some(verdict) = message.verdict() {
                    return verdict;
                }
                take(message);
            }
        }
    }

    /// Sends, then waits for one acknowledgement or the first refusal.
    ///
    /// # Errors
    /// The refusal.
    pub fn request(&self, bytes: &[u8]) -> io::Result<()> {
        self.send(bytes)?;
        let mut buffer = vec![0; 8192];
        loop {
            let received = self.receive(&mut buffer, true)?;
            if let Some(verdict) = messages(received).find_map(|message| message.verdict()) {
                return verdict;
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let bytes = Message::netfilter(0x0301, libc::NLM_F_ACK, libc::AF_INET, 7)
            .with(1, &[1, 2, 3])
            .with_nested(2, |inner| inner.with_name(4, "abc"))
            .finish();
        let message = messages(&bytes).next().expect("a message");
        assert_eq!((message.kind, message.number), (0x0301, 0));
        assert_eq!(&message.body[..4], &[2, 0, 0, 7]);
        let found: Vec<_> = attributes(&message.body[4..]).collect();
        assert_eq!(found[0], (1, &[1u8, 2, 3][..]));
        assert_eq!(found[1].0, 2);
        assert_eq!(attributes(found[1].1).next(), Some((4, &b"abc\0"[..])));
    }

    #[test]
    fn refusals_are_read() {
        let message = |number: i32| Message::new(ERROR, 0, &number.to_ne_bytes()).finish();
        let verdict = |bytes: Vec<u8>| messages(&bytes).next().expect("a message").verdict();
        let code = |bytes| verdict(bytes).expect("one").expect_err("refused").raw_os_error();
        assert!(verdict(message(0)).is_some_and(|it| it.is_ok()));
        assert_eq!(code(message(-2)), Some(2));
        // No errno of the system, but it must not panic.
        assert!(code(message(i32::MIN)).is_some());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_can_hurt(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            for message in messages(&bytes) {
                let _ = message.verdict();
                assert!(attributes(message.body).count() <= bytes.len());
            }
        }
    }
}
