//! The datagrams of a link's measurement.
//!
//! All numbers are big-endian. Times are the sender's `CLOCK_REALTIME`, in nanoseconds.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | `MHL` and the version |
//! | 16 | the session's token |
//! | 1 | kind |
//! | 4 | the train |
//! | 4 | number in the train, or of the ping |
//! | 8 | when it was sent |
//! | 8 | when the ping that it answers was received there |
//! | 8 | when the ping that it answers was sent |
//!
//! Only a train's datagrams are longer: filler follows that nothing on the path can compress.
//!
//! Invariant: no input panics; bytes that are not exactly such a datagram are ignored.

/// What each datagram begins with; the last byte is the version.
const MAGIC: [u8; 4] = *b"MHL\x01";
/// Length of all that is not filler. Unit: bytes.
pub(super) const HEADER: usize = 53;
/// The longest datagram that is sent or read: a train's. Unit: bytes.
pub(super) const DATAGRAM_MAX: usize = 1472;

/// The secret of a session, which proves that a datagram's sender has read the session's TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Token(pub(super) [u8; 16]);

/// What a datagram is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Client to server: makes the client's address known.
    Hello,
    /// Server to client: answers a hello.
    Seen,
    /// Client to server: requests a pong.
    Ping,
    /// Server to client: answers a ping.
    Pong,
    /// A packet of a train.
    Train,
}

/// A datagram without its filler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Datagram {
    pub(super) token: Token,
    pub(super) kind: Kind,
    pub(super) train: u32,
    pub(super) number: u32,
    pub(super) sent_ns: u64,
    /// Of a pong: when the ping was received. Else 0.
    pub(super) ping_received_ns: u64,
    /// Of a pong: when the ping was sent. Else 0.
    pub(super) ping_sent_ns: u64,
}

impl Datagram {
    /// A datagram that answers nothing.
    pub(super) fn new(token: Token, kind: Kind) -> Self {
        let (train, number, sent_ns) = (0, 0, 0);
        Self { token, kind, train, number, sent_ns, ping_received_ns: 0, ping_sent_ns: 0 }
    }

    /// Writes the datagram, without filler.
    pub(super) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..20].copy_from_slice(&self.token.0);
        bytes[20] = match self.kind {
            Kind::Hello => 1,
            Kind::Seen => 2,
            Kind::Ping => 3,
            Kind::Pong => 4,
            Kind::Train => 5,
        };
        bytes[21..25].copy_from_slice(&self.train.to_be_bytes());
        bytes[25..29].copy_from_slice(&self.number.to_be_bytes());
        bytes[29..37].copy_from_slice(&self.sent_ns.to_be_bytes());
        bytes[37..45].copy_from_slice(&self.ping_received_ns.to_be_bytes());
        bytes[45..].copy_from_slice(&self.ping_sent_ns.to_be_bytes());
        bytes
    }

    /// Reads a datagram; none where the bytes are no datagram of ours.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let header: &[u8; HEADER] = bytes.first_chunk()?;
        if header[..4] != MAGIC || bytes.len() > DATAGRAM_MAX {
            return None;
        }
        let kind = match header[20] {
            1 => Kind::Hello,
            2 => Kind::Seen,
            3 => Kind::Ping,
            4 => Kind::Pong,
            5 => Kind::Train,
            _ => return None,
        };
        if kind != Kind::Train && bytes.len() != HEADER {
            return None;
        }
        let word = |at: usize| header[at..at + 4].try_into().map(u32::from_be_bytes).ok();
        let long = |at: usize| header[at..at + 8].try_into().map(u64::from_be_bytes).ok();
        Some(Self {
            token: Token(header[4..20].try_into().ok()?),
            kind,
            train: word(21)?,
            number: word(25)?,
            sent_ns: long(29)?,
            ping_received_ns: long(37)?,
            ping_sent_ns: long(45)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VECTOR: [u8; HEADER] = [
        b'M', b'H', b'L', 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 4, 0, 0, 0, 7,
        0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 1, 0,
    ];

    fn pong() -> Datagram {
        Datagram {
            token: Token([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
            kind: Kind::Pong,
            train: 7,
            number: 0x102,
            sent_ns: 3,
            ping_received_ns: 4,
            ping_sent_ns: 256,
        }
    }

    #[test]
    fn a_datagram_has_these_bytes() {
        assert_eq!(pong().encode(), VECTOR);
        assert_eq!(Datagram::decode(&VECTOR), Some(pong()));
    }

    #[test]
    fn what_is_not_ours_is_none() {
        let changed = |at: usize, to: u8| {
            let mut bytes = VECTOR;
            bytes[at] = to;
            Datagram::decode(&bytes)
        };
        assert_eq!(changed(0, b'm'), None);
        assert_eq!(changed(3, 2), None, "another version");
        assert_eq!(changed(20, 0), None, "an unknown kind");
        assert_eq!(changed(20, 6), None, "an unknown kind");
        assert_eq!(Datagram::decode(&VECTOR[..HEADER - 1]), None, "cut short");
        assert_eq!(Datagram::decode(&[&VECTOR[..], &[0]].concat()), None, "a pong with more");
        let train = Datagram { kind: Kind::Train, ..pong() };
        let mut long = train.encode().to_vec();
        long.resize(DATAGRAM_MAX, 9);
        assert_eq!(Datagram::decode(&long), Some(train));
        long.push(9);
        assert_eq!(Datagram::decode(&long), None, "too long");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..1600)) {
            let _ = Datagram::decode(&bytes);
        }

        #[test]
        fn no_change_to_a_datagram_panics(at: prop::sample::Index, to: u8, cut: prop::sample::Index) {
            let mut bytes = VECTOR;
            bytes[at.index(HEADER)] = to;
            if let Some(read) = Datagram::decode(&bytes) {
                prop_assert_eq!(read.encode(), bytes);
            }
            let _ = Datagram::decode(&bytes[..cut.index(HEADER)]);
        }
    }
}
