//! Records of flows of which one side is a tunnel, and how each is resumed.
//!
//! A record uses the words for the socket and the pipes that such a flow does not have.

use super::{NO_SOCKET, Record, at};
use crate::ends::Side;
use midhop_tunnel::resumption::FlowId;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The first word of such a flow's place.
pub const LIVE: u64 = 2;

/// How a flow is resumed if its other side is a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamRecord {
    /// Its identity.
    pub id: FlowId,
    /// The [name](super::name_of) of the peer at the other end of the tunnel.
    pub peer: u64,
    /// The name of its class.
    pub class: u64,
}

impl StreamRecord {
    /// Writes it to the words that the flow does not need otherwise. Returns the first word of the
    /// place.
    pub(super) fn write(&self, record: &Record, words: &[AtomicU64]) -> u64 {
        let lacks = side_without(record.sockets) as usize;
        let (high, low) = self.id.words();
        for (at, word) in [
            (at::PIPES[0], high),
            (at::PIPES[1], low),
            (at::COOKIES[lacks], self.peer),
            (at::LEGS[lacks], self.class),
        ] {
            words[at].store(word, Relaxed);
        }
        LIVE
    }

    pub(super) fn read(sockets: [RawFd; 2], words: &[AtomicU64]) -> Self {
        let get = |at: usize| words[at].load(Relaxed);
        let lacks = side_without(sockets) as usize;
        Self {
            id: FlowId::of_words(at::PIPES.map(get).into()),
            peer: get(at::COOKIES[lacks]),
            class: get(at::LEGS[lacks]),
        }
    }
}

impl Record {
    /// The side on which it has a socket; the client's if both sides have one.
    pub fn side(&self) -> Side {
        side_without(self.sockets).other()
    }
}

fn side_without(sockets: [RawFd; 2]) -> Side {
    if sockets[Side::Client as usize] == NO_SOCKET { Side::Client } else { Side::Server }
}

#[cfg(test)]
mod tests {
    use super::super::{Region, Register, tests::record};
    use super::*;
    use std::collections::BTreeSet;
    use std::io;

    #[test]
    fn flows_of_tunnels_are_found_by_the_next_process() -> io::Result<()> {
        let register = Register::new(1, 4)?;
        let (region, _) = Region::of(&register, 0);
        let stream = StreamRecord { id: FlowId::new([0xa5; 16]), peer: 1 << 63, class: 7 };
        let records = [0, 1].map(|lacks: usize| {
            let mut record =
                Record { pipes: [None, None], stream: Some(stream.clone()), ..record(10) };
            record.sockets[lacks] = NO_SOCKET;
            (record.cookies[lacks], record.legs[lacks]) = (stream.peer, stream.class);
            record
        });
        for record in &records {
            std::mem::forget(region.enter(record));
        }
        std::mem::forget(region);
        let (_, left) = Region::of(&register, 0);
        let found: Vec<_> = left.iter().map(|(_, record)| record.clone()).collect();
        assert_eq!(found, records);
        let sides: Vec<_> = found.iter().map(Record::side).collect();
        assert_eq!(sides, [Side::Server, Side::Client]);
        assert_eq!(register.descriptors(), BTreeSet::from([10, 11]));
        drop(left);
        Ok(())
    }
}
