//! Listeners that a data plane has left to the next one, with the connections that wait in them.
//!
//! Decision 0058.

use super::inherited::Inherited;
use super::register::Register;
use midhop_linux::sockopt;
use nix::libc;
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};

/// The listeners that this process may use. They stay open until this is dropped, also if they were
/// taken: if this process cannot serve, they belong to another one.
#[derive(Debug, Default)]
pub struct LeftDoors(Mutex<Vec<LeftDoor>>);

#[derive(Debug)]
struct LeftDoor {
    address: SocketAddr,
    listener: TcpListener,
    is_taken: bool,
}

impl LeftDoors {
    /// The listeners at wanted addresses. The others are closed, because they could occupy an
    /// address that is to be opened.
    pub fn of(register: &Register, inherited: &Inherited, wanted: &BTreeSet<SocketAddr>) -> Self {
        let mut left = Vec::new();
        for number in register.doors() {
            let Some(listener) = inherited.take(number, is_listening).map(TcpListener::from) else {
                continue;
            };
            let Ok(address) = listener.local_addr() else { continue };
            if wanted.contains(&address) {
                left.push(LeftDoor { address, listener, is_taken: false });
            } else {
                tracing::info!(%address, "a listener is closed: its address is no longer configured");
            }
        }
        Self(Mutex::new(left))
    }

    /// A listener at an address that no other call has taken.
    pub fn take(&self, address: SocketAddr) -> Option<TcpListener> {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let door = left.iter_mut().find(|door| !door.is_taken && door.address == address)?;
        let taken = door.listener.try_clone().ok()?;
        door.is_taken = true;
        Some(taken)
    }
}

/// Whether it is a TCP listener: the number may belong to something else by now.
fn is_listening(socket: BorrowedFd<'_>) -> bool {
    [(libc::SO_ACCEPTCONN, 1), (libc::SO_PROTOCOL, libc::IPPROTO_TCP)].iter().all(
        |(name, value)| {
            let mut room = [0; 4];
            sockopt::read(socket, libc::SOL_SOCKET, *name, &mut room).is_ok()
                && i32::from_ne_bytes(room) == *value
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, Read, Write};
    use std::net::TcpStream;
    use std::os::fd::{AsRawFd, IntoRawFd};

    #[test]
    fn a_listener_is_taken_once_with_what_waits_in_it() -> io::Result<()> {
        let listen = || TcpListener::bind("127.0.0.1:0");
        let (wanted, other, no_listener) = (listen()?, listen()?, tempfile::tempfile()?);
        let (address, closed) = (wanted.local_addr()?, other.local_addr()?);
        let mut client = TcpStream::connect(address)?;
        client.write_all(b"early")?;
        let register = Register::new(1, 1)?;
        let numbers = [wanted.into_raw_fd(), other.into_raw_fd(), no_listener.as_raw_fd()];
        register.note_doors(&numbers);
        let inherited = Inherited::of(register.descriptors());
        let left = LeftDoors::of(&register, &inherited, &BTreeSet::from([address]));
        assert!(TcpStream::connect(closed).is_err(), "it is not wanted");
        assert!(left.take(closed).is_none());
        let listener = left.take(address).expect("a listener");
        assert!(left.take(address).is_none(), "it is taken");
        drop(left);
        let mut early = String::new();
        let (mut accepted, _) = listener.accept()?;
        client.shutdown(std::net::Shutdown::Write)?;
        accepted.read_to_string(&mut early)?;
        assert_eq!(early, "early");
        // This test owns the descriptor, and not the list.
        std::mem::forget(inherited);
        drop(no_listener);
        Ok(())
    }
}
