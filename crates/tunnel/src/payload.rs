//! How a stream carries a flow's bytes: as they are, or in capsules.
//!
//! The layer below is DATA frames, of HTTP/3 over QUIC or of HTTP/2 over TLS. Bytes are
//! passed on as they arrive and never copied, whatever length a capsule announces.
//!
//! Source: RFC 9297 §3.2 (capsules), draft-ietf-httpbis-connect-tcp-18 §3 (DATA, FINAL_DATA), `SPEC.md` §5.7 (CONFIRMED).

use crate::varint;
use bytes::{Buf, Bytes};

/// Bytes of the flow. The type is the one that the draft has for trials between implementations.
pub const DATA: u64 = 0x2028_d7f2;
/// The flow's last bytes.
pub const FINAL_DATA: u64 = 0x2028_d7f3;
/// The offset up to which the sender of this capsule has passed the other direction on, as one number of variable
/// length. For flows that [can be resumed](crate::resumption).
pub const CONFIRMED: u64 = 0x2fec_0005;

/// How a stream carries the bytes of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Payload {
    /// Unchanged: the flow ends where the stream ends.
    #[default]
    Raw,
    /// In capsules. The type of the last capsule marks the end: a stream that ends without it was truncated.
    Capsules,
}

impl Payload {
    /// The bytes to send before so many bytes of the flow.
    pub fn head(self, bytes: usize) -> Vec<u8> {
        match self {
            Self::Raw => Vec::new(),
            Self::Capsules => head(DATA, bytes),
        }
    }

    /// The bytes that mark the end of the flow; empty if the stream's own end does.
    pub fn end(self) -> Vec<u8> {
        match self {
            Self::Raw => Vec::new(),
            Self::Capsules => head(FINAL_DATA, 0),
        }
    }

    /// The bytes that confirm the other direction up to this offset; empty if there is no place for them.
    pub fn confirmation(self, offset: u64) -> Vec<u8> {
        match self {
            Self::Raw => Vec::new(),
            Self::Capsules => {
                let mut out = head(CONFIRMED, varint::length(offset));
                varint::write(offset, &mut out);
                out
            }
        }
    }
}

fn head(kind: u64, bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 * varint::BYTES_MAX);
    varint::write(kind, &mut out);
    varint::write(bytes as u64, &mut out);
    out
}

/// Why a stream's payload is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// The flow continues after its end.
    #[error("data arrived after the flow's end")]
    AfterTheEnd,
    /// The stream ended within a capsule.
    #[error("the stream ended within a capsule")]
    WithinACapsule,
    /// A confirmation is no number.
    #[error("a confirmation is not a number")]
    NoNumber,
}

/// Extracts a flow's bytes from what a stream carries.
#[derive(Debug, Default)]
pub struct PayloadReader {
    payload: Payload,
    head: Vec<u8>,
    state: State,
    ended: bool,
    /// The last confirmation, until it is taken.
    confirmed: Option<u64>,
}

#[derive(Debug, Default, Clone, Copy)]
enum State {
    #[default]
    Head,
    Bytes {
        left: u64,
        last: bool,
    },
    Skipped {
        left: u64,
    },
    /// A confirmation, whose number has so many bytes.
    Number {
        length: usize,
    },
}

impl PayloadReader {
    /// A reader that starts at a stream's first byte.
    pub fn new(payload: Payload) -> Self {
        Self { payload, ..Self::default() }
    }

    /// A reader of a flow whose end another process has read.
    pub fn ended(payload: Payload) -> Self {
        Self { payload, ended: true, ..Self::default() }
    }

    /// Takes the next bytes of the flow from the front of `input`, at least one. `None`: all of `input` was
    /// consumed, and more is needed, or the flow [has ended](Self::has_ended).
    ///
    /// # Errors
    /// When the flow continues after its end.
    pub fn read(&mut self, input: &mut Bytes) -> Result<Option<Bytes>, PayloadError> {
        if self.payload == Payload::Raw {
            return Ok((!input.is_empty()).then(|| std::mem::take(input)));
        }
        loop {
            match &mut self.state {
                State::Head => {
                    let Some((kind, left)) = varint::read_pair(&mut self.head, input) else {
                        return Ok(None);
                    };
                    self.state = match kind {
                        DATA | FINAL_DATA if self.ended => return Err(PayloadError::AfterTheEnd),
                        DATA | FINAL_DATA => State::Bytes { left, last: kind == FINAL_DATA },
                        CONFIRMED => match usize::try_from(left) {
                            Ok(length @ 1..=varint::BYTES_MAX) => State::Number { length },
                            _ => return Err(PayloadError::NoNumber),
                        },
                        _ => State::Skipped { left },
                    };
                }
                State::Bytes { left: 0, last } => {
                    self.ended = *last;
                    self.state = State::Head;
                }
                State::Skipped { left: 0 } => self.state = State::Head,
                _ if input.is_empty() => return Ok(None),
                State::Bytes { left, .. } => {
                    let count = available(input, *left);
                    *left -= count as u64;
                    return Ok(Some(input.split_to(count)));
                }
                State::Skipped { left } => {
                    let count = available(input, *left);
                    *left -= count as u64;
                    input.advance(count);
                }
                State::Number { length } => {
                    let count = input.len().min(*length - self.head.len());
                    self.head.extend_from_slice(&input.split_to(count));
                    if self.head.len() < *length {
                        continue;
                    }
                    let (number, read) = varint::read(&self.head).ok_or(PayloadError::NoNumber)?;
                    if read != self.head.len() {
                        return Err(PayloadError::NoNumber);
                    }
                    self.confirmed = Some(number);
                    self.head.clear();
                    self.state = State::Head;
                }
            }
        }
    }

    /// The flow continues in another stream of the same form.
    pub fn begin_again(&mut self) {
        *self = Self { payload: self.payload, ended: self.ended, ..Self::default() };
    }

    /// Takes the last confirmation that was read.
    pub fn take_confirmed(&mut self) -> Option<u64> {
        self.confirmed.take()
    }

    /// Whether the end of the flow has been read, and all bytes before it.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The stream has ended, and all its bytes have been read. Returns true if the flow has ended, false if it was
    /// truncated.
    ///
    /// # Errors
    /// When the stream may not end here.
    pub fn close(&mut self) -> Result<bool, PayloadError> {
        if self.payload == Payload::Raw {
            self.ended = true;
        }
        let between = self.head.is_empty() && matches!(self.state, State::Head);
        if between { Ok(self.ended) } else { Err(PayloadError::WithinACapsule) }
    }
}

fn available(input: &Bytes, left: u64) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX).min(input.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn capsule(kind: u64, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        varint::write(kind, &mut out);
        varint::write(payload.len() as u64, &mut out);
        out.extend_from_slice(payload);
        out
    }

    /// What a reader gets from a stream of capsules that arrives in these pieces: the bytes, and how it ends.
    fn all(pieces: &[&[u8]]) -> (Vec<u8>, Result<bool, PayloadError>) {
        let (mut reader, mut bytes) = (PayloadReader::new(Payload::Capsules), Vec::new());
        for piece in pieces {
            let mut input = Bytes::copy_from_slice(piece);
            loop {
                match reader.read(&mut input) {
                    Ok(Some(more)) => {
                        assert!(!more.is_empty());
                        bytes.extend_from_slice(&more);
                    }
                    Ok(None) => break,
                    Err(wrong) => return (bytes, Err(wrong)),
                }
            }
            assert!(input.is_empty());
        }
        let ended = reader.has_ended();
        let end = reader.close();
        assert!(end.is_err() || end == Ok(ended));
        (bytes, end)
    }

    /// Test vectors of another implementation; its capsule types are those of an earlier draft.
    #[test]
    fn capsules_are_written_as_others_write_them() {
        let mut out = Payload::Capsules.head(8);
        out.extend_from_slice(b"upstream");
        out.extend(Payload::Capsules.end());
        let expected = b"\xa0\x28\xd7\xf2\x08upstream\xa0\x28\xd7\xf3\x00";
        assert_eq!(out, expected);
        assert_eq!(all(&[expected]), (b"upstream".to_vec(), Ok(true)));
        // The last bytes may be in the capsule that ends the flow.
        let last = b"\xa0\x28\xd7\xf3\x0adownstream";
        assert_eq!(all(&[last]), (b"downstream".to_vec(), Ok(true)));
        assert_eq!((Payload::Raw.head(8), Payload::Raw.end()), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_stream_of_raw_bytes_ends_where_it_ends() {
        let mut reader = PayloadReader::new(Payload::Raw);
        let mut input = Bytes::from_static(b"\xa0\x28\xd7\xf3\x00");
        assert_eq!(reader.read(&mut input), Ok(Some(Bytes::from_static(b"\xa0\x28\xd7\xf3\x00"))));
        assert_eq!(reader.read(&mut input), Ok(None));
        assert!(!reader.has_ended());
        assert_eq!((reader.close(), reader.has_ended()), (Ok(true), true));
    }

    /// A stream cut at any point is complete only at its end; a cut never looks like an end.
    #[test]
    fn a_stream_cut_anywhere_is_not_whole() {
        let stream = [
            capsule(DATA, b"some bytes"),
            capsule(0x21, b"whatever"),
            capsule(DATA, b""),
            capsule(FINAL_DATA, b"the last"),
            capsule(0, b"more of the rest"),
        ];
        let sums = stream.iter().scan(0, |sum, capsule| {
            *sum += capsule.len();
            Some(*sum)
        });
        let sums: Vec<usize> = sums.collect();
        let stream = stream.concat();
        for cut in 0..=stream.len() {
            let (_, end) = all(&[&stream[..cut]]);
            let expected = match cut {
                _ if cut == sums[3] || cut == sums[4] => Ok(true),
                _ if cut == 0 || sums.contains(&cut) => Ok(false),
                _ => Err(PayloadError::WithinACapsule),
            };
            assert_eq!(end, expected, "cut at {cut}");
        }
    }

    #[test]
    fn confirmations_are_read_between_the_bytes() {
        let stream = [
            Payload::Capsules.confirmation(5),
            capsule(DATA, b"some bytes"),
            Payload::Capsules.confirmation(70_000),
            Payload::Capsules.end(),
            Payload::Capsules.confirmation(varint::MAX),
        ];
        let stream = stream.concat();
        assert_eq!(all(&[&stream]), (b"some bytes".to_vec(), Ok(true)));
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(all(&bytes), (b"some bytes".to_vec(), Ok(true)));
        let mut reader = PayloadReader::new(Payload::Capsules);
        assert!(reader.read(&mut Bytes::from(stream)).is_ok_and(|bytes| bytes.is_some()));
        assert_eq!((reader.take_confirmed(), reader.take_confirmed()), (Some(5), None));
        assert!(Payload::Raw.confirmation(5).is_empty());
        for wrong in [&b""[..], b"\x40", b"\x05\x05", b"123456789"] {
            let stream = capsule(CONFIRMED, wrong);
            assert_eq!(all(&[&stream]).1, Err(PayloadError::NoNumber));
        }
    }

    #[test]
    fn nothing_of_the_flow_comes_after_its_end() {
        for kind in [DATA, FINAL_DATA] {
            for last in [&b""[..], b"x"] {
                let stream = [capsule(FINAL_DATA, last), capsule(kind, b"")].concat();
                assert_eq!(all(&[&stream]), (last.to_vec(), Err(PayloadError::AfterTheEnd)));
            }
        }
    }

    /// A capsule of any size is passed on as it arrives, and not kept.
    #[test]
    fn a_capsule_of_the_largest_size_takes_no_room() {
        for kind in [DATA, FINAL_DATA, 0x21] {
            let mut head = Vec::new();
            varint::write(kind, &mut head);
            varint::write(varint::MAX, &mut head);
            let mut reader = PayloadReader::new(Payload::Capsules);
            assert_eq!(reader.read(&mut Bytes::from(head)), Ok(None));
            for _ in 0..1000 {
                let mut input = Bytes::from_static(&[7; 4096]);
                let read = reader.read(&mut input).expect("no fault");
                assert_eq!(read.map(|it| it.len()), (kind != 0x21).then_some(4096));
            }
            assert!(reader.head.capacity() <= 64 && !reader.has_ended());
            assert_eq!(reader.close(), Err(PayloadError::WithinACapsule));
        }
    }

    proptest! {
        #[test]
        fn pieces_make_the_same_flow(
            capsules in proptest::collection::vec(
                (prop_oneof![4 => Just(DATA), 1 => Just(0x21), 1 => any::<u32>().prop_map(u64::from)],
                 proptest::collection::vec(any::<u8>(), 0..300)), 0..8),
            last in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..300)),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let capsules: Vec<_> = capsules.into_iter().filter(|it| it.0 != FINAL_DATA).collect();
            let (mut stream, mut expected) = (Vec::new(), Vec::new());
            for (kind, payload) in capsules.iter().map(|it| (it.0, &it.1))
                .chain(last.iter().map(|last| (FINAL_DATA, last)))
            {
                stream.extend(capsule(kind, payload));
                if kind == DATA || kind == FINAL_DATA {
                    expected.extend_from_slice(payload);
                }
            }
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
            prop_assert_eq!(all(&pieces), (expected, Ok(last.is_some())));
        }

        #[test]
        fn no_bytes_panic(stream: Vec<u8>) {
            let _ = all(&[&stream]);
        }
    }
}
