//! Keeps a data plane's descriptors while the next program starts ahead.
//!
//! The holder is to become another program while the data plane still relays. Executing it ends the
//! sharing of descriptors. So the holder first starts a *caretaker*, which shares the data plane's
//! table as the holder did. When the next program is ready, it asks the caretaker to end the data
//! plane and to send it what that has left. The descriptors have other numbers there, which
//! [`Register::renumber`] enters.
//!
//! A compromised data plane can write into the caretaker's end of the channel, as it shares its
//! descriptors. So the other end takes only messages of which the kernel attests that the caretaker
//! has sent them.

use super::register::Register;
use crate::keeper::descriptors::{self, MOST};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt::PassCred,
};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use socket2::SockRef;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Asks the caretaker to end the data plane, and to send what it has left.
const STOP: u8 = b's';
/// The same, and the keeper is to leave the firewall to the next program's keeper.
const STOP_AND_LEAVE: u8 = b'l';
/// Numbers of descriptors that come with the message.
const NUMBERS: u8 = b'n';
/// A piece of what is left beside descriptors, as JSON.
const PIECE: u8 = b'p';
/// The end.
const LAST: u8 = b'e';
/// Unit: bytes. The most in one message.
const MESSAGE_BYTES: usize = 16 << 10;
/// How long the caretaker may take. The keeper may be changing the firewall.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a data plane has left beside its descriptors. Keys may be added.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct LeftState {
    /// The text of the configuration that was followed. None: it was not kept, or the keeper stays.
    pub text: Option<String>,
    /// Unit: nanoseconds of the monotonic clock. When the data plane was ended.
    pub stopped_ns: u64,
    /// Whether a requested reload is still to be done.
    pub owes_reload: bool,
    /// Why it cannot be continued.
    pub error: Option<String>,
}

/// The caretaker, for the process that it serves.
#[derive(Debug)]
pub struct Caretaker {
    channel: OwnedFd,
    process: Pid,
}

/// Creates both ends of a channel: the caretaker's, and the other one.
///
/// # Errors
/// When the kernel refuses.
pub fn channel() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = SockType::SeqPacket;
    let (own, other) = socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC)?;
    setsockopt(&other, PassCred, &true)?;
    Ok((own, other))
}

impl Caretaker {
    /// The caretaker with this process number, at the other end of a channel.
    pub fn at(channel: OwnedFd, process: Pid) -> Self {
        Self { channel, process }
    }

    /// Its process number.
    pub fn process(&self) -> Pid {
        self.process
    }

    /// Has the data plane ended, and takes its descriptors into this process. The register has
    /// their numbers here from now on. `keeper_leaves`: its keeper ends, and leaves the firewall.
    ///
    /// # Errors
    /// When the caretaker is gone, or cannot send them.
    pub fn take_over(self, register: &Register, keeper_leaves: bool) -> io::Result<LeftState> {
        let order = if keeper_leaves { STOP_AND_LEAVE } else { STOP };
        SockRef::from(&self.channel).set_read_timeout(Some(PATIENCE))?;
        descriptors::send(&self.channel, &[order], &[])?;
        let (mut numbers, mut text) = (HashMap::new(), Vec::new());
        let mut buffer = vec![0; MESSAGE_BYTES];
        loop {
            let received = descriptors::receive_from(&self.channel, &mut buffer, true)?;
            let received = received.ok_or(io::ErrorKind::UnexpectedEof)?;
            if received.sender.is_none_or(|sender| sender.pid() != self.process.as_raw()) {
                continue;
            }
            match buffer[..received.length].split_first() {
                Some((&NUMBERS, bytes)) => {
                    let before = bytes.as_chunks().0.iter().map(|it| RawFd::from_ne_bytes(*it));
                    numbers.extend(before.zip(received.descriptors));
                }
                Some((&PIECE, bytes)) => text.extend_from_slice(bytes),
                Some((&LAST, _)) => break,
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        let left: LeftState = serde_json::from_slice(&text)?;
        if let Some(error) = left.error {
            return Err(io::Error::other(error));
        }
        // From here on they belong to the holder's table, as if it had always shared it.
        let numbers = numbers.into_iter().map(|(before, now)| (before, now.into_raw_fd()));
        register.renumber(&numbers.collect());
        Ok(left)
    }
}

impl AsFd for Caretaker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// Waits for an order, in the caretaker. Returns whether the keeper is to leave. None: nobody will
/// give an order any more.
pub fn wait_for_order(channel: &OwnedFd) -> Option<bool> {
    loop {
        let mut order = [0];
        let (length, _) = descriptors::receive(channel, &mut order, true).ok()??;
        match (length, order) {
            (1, [STOP]) => return Some(false),
            (1, [STOP_AND_LEAVE]) => return Some(true),
            // From a data plane that is not what was started.
            _ => {}
        }
    }
}

/// Sends descriptors and the rest, from the caretaker.
///
/// # Errors
/// When the other end is gone.
pub fn send(channel: &OwnedFd, numbers: &BTreeSet<RawFd>, left: &LeftState) -> io::Result<()> {
    let numbers: Vec<RawFd> = numbers.iter().copied().collect();
    for some in numbers.chunks(MOST) {
        let mut message = vec![NUMBERS];
        message.extend(some.iter().flat_map(|number| number.to_ne_bytes()));
        descriptors::send(channel, &message, some)?;
    }
    for piece in serde_json::to_vec(left)?.chunks(MESSAGE_BYTES - 1) {
        let message: Vec<u8> = std::iter::once(PIECE).chain(piece.iter().copied()).collect();
        descriptors::send(channel, &message, &[])?;
    }
    descriptors::send(channel, &[LAST], &[])
}

/// Ends a process by force and waits for that, if this one is its parent.
pub fn end_by_force(process: Pid) {
    let _ = kill(process, Signal::SIGKILL);
    let _ = waitpid(process, None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survival::register::{Region, tests::record};
    use nix::unistd::getpid;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn descriptors_get_other_numbers_and_stay_those_of_their_flows() -> io::Result<()> {
        let register = Register::new(1, 200)?;
        let (region, _) = Region::of(&register, 0);
        let mut pairs = Vec::new();
        for n in 0..150 {
            let (one, other) = UnixStream::pair()?;
            let mut record = record(n);
            record.sockets = [one.as_raw_fd(), other.as_raw_fd()];
            record.pipes = [Some((one.as_raw_fd(), other.as_raw_fd())), Some((9999, 9998))];
            std::mem::forget(region.enter(&record));
            pairs.push((one, other));
        }
        let numbers: BTreeSet<_> =
            pairs.iter().flat_map(|(one, other)| [one.as_raw_fd(), other.as_raw_fd()]).collect();
        let (own, other) = channel()?;
        let text = "x".repeat(3 * MESSAGE_BYTES);
        let left = LeftState { text: Some(text.clone()), ..LeftState::default() };
        let sending = std::thread::spawn(move || {
            assert_eq!(wait_for_order(&own), Some(true));
            send(&own, &numbers, &left).expect("it is sent");
        });
        let taken = Caretaker::at(other, getpid()).take_over(&register, true)?;
        sending.join().expect("it is sent");
        assert_eq!(taken.text, Some(text));
        drop(pairs);
        let (_, flows) = Region::of(&register, 0);
        assert_eq!(flows.len(), 150);
        let inherited = crate::survival::inherited::Inherited::of(register.descriptors());
        for (_, record) in flows {
            assert_eq!(record.pipes, [Some((record.sockets[0], record.sockets[1])), None]);
            let [mut one, mut other] = record.sockets.map(|number| {
                UnixStream::from(inherited.take(number, |_| true).expect("it is open"))
            });
            one.write_all(b"x")?;
            other.read_exact(&mut [0])?;
        }
        Ok(())
    }

    #[test]
    fn only_the_caretaker_is_believed() -> io::Result<()> {
        let register = Register::new(1, 1)?;
        let (own, other) = channel()?;
        send(&own, &BTreeSet::new(), &LeftState::default())?;
        drop(own);
        let stranger = Caretaker::at(other, Pid::from_raw(1));
        assert!(stranger.take_over(&register, false).is_err());
        Ok(())
    }
}
