//! The meter's frames: in band, so that whatever carries the payload carries them too.
//!
//! A client opens with [`PREFACE`]. Then both ends send frames: one byte of kind, eight bytes of
//! length (big-endian), then that many bytes, which are payload in a data frame and JSON in all
//! others. A data frame may be as long as the whole transfer; the other kinds are bounded. No kind
//! is an ASCII character, so that an HTTP or SSH server at the other end is recognised by its first
//! byte.
//!
//! A transfer is: `Request` from the client, `Accept` or `Refuse` from the server, data frames from
//! the sender, `End` from the sender and, after an upload, `Received` from the server. Every
//! receiver treats a connection that closes without `End` as cut. When all flows are done, the
//! client fetches the server's [`Log`]s with `Fetch` on a new connection, so that they take no
//! capacity from payload that is still in flight.
//!
//! A connection that opens with `Link` measures no payload of its own: it controls the datagrams of
//! [`super::link`].
//!
//! Invariant: nothing here does I/O, and no input panics.

use super::link::LinkMessage;
use super::message::{Accept, End, Fetch, Log, Received, Refusal, Request};
use serde::{Serialize, de::DeserializeOwned};

/// The first bytes from a client. The digit is the version.
pub(super) const PREFACE: &[u8; 15] = b"midhop-meter/2\n";
/// Longest control frame that a server reads.
pub(super) const CONTROL_MAX_SERVER: u64 = 1 << 10;
/// Longest control frame that a client reads: a [`Log`] with all its samples.
pub(super) const CONTROL_MAX_CLIENT: u64 = 2 << 20;

const HEADER: usize = 9;

const DATA: u8 = 0xd0;
const REQUEST: u8 = 0xd1;
const ACCEPT: u8 = 0xd2;
const REFUSE: u8 = 0xd3;
const END: u8 = 0xd4;
const RECEIVED: u8 = 0xd5;
const FETCH: u8 = 0xd6;
const LOG: u8 = 0xd7;
const DONE: u8 = 0xd8;
/// The last kind. An older server does not know it and takes its sender for a stranger.
const LINK: u8 = 0xd9;

/// A frame other than data.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ControlFrame {
    Request(Request),
    Accept(Accept),
    Refuse(Refusal),
    End(End),
    Received(Received),
    Fetch(Fetch),
    Log(Box<Log>),
    Done,
    Link(Box<LinkMessage>),
}

/// An item that a [`Decoder`] finds.
#[derive(Debug, PartialEq)]
pub(super) enum WireItem<'a> {
    /// Payload, never empty; the rest of its frame may follow in further items.
    Payload(&'a [u8]),
    /// A complete frame.
    Frame(ControlFrame),
}

/// What is wrong with the bytes of a peer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// A frame of no known kind: the peer is no meter, or something on the path changed bytes.
    #[error(
        "the other end does not speak the meter's protocol (frame kind {kind:#04x}); check host and port"
    )]
    Kind {
        /// The first byte of the frame.
        kind: u8,
    },
    /// A control frame that is longer than this end accepts.
    #[error("a control frame of {length} bytes is longer than the {max} bytes that this end reads")]
    Length {
        /// The announced length.
        length: u64,
        /// The limit of this end.
        max: u64,
    },
    /// A control frame whose body does not match its kind.
    #[error("a control frame of kind {kind:#04x} cannot be read; are both ends the same version?")]
    Body {
        /// The kind of the frame.
        kind: u8,
        /// What was wrong with it.
        source: serde_json::Error,
    },
}

impl ControlFrame {
    /// Appends the encoded frame to `out`.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Request(body) => json(REQUEST, body, out),
            Self::Accept(body) => json(ACCEPT, body, out),
            Self::Refuse(body) => json(REFUSE, body, out),
            Self::End(body) => json(END, body, out),
            Self::Received(body) => json(RECEIVED, body, out),
            Self::Fetch(body) => json(FETCH, body, out),
            Self::Log(body) => json(LOG, body, out),
            Self::Done => header(DONE, 0, out),
            Self::Link(body) => json(LINK, body, out),
        }
    }

    /// The frame's name in messages.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Request(_) => "request",
            Self::Accept(_) => "accept",
            Self::Refuse(_) => "refuse",
            Self::End(_) => "end",
            Self::Received(_) => "received",
            Self::Fetch(_) => "fetch",
            Self::Log(_) => "log",
            Self::Done => "done",
            Self::Link(message) => message.name(),
        }
    }
}

/// Appends the header of a data frame of `length` bytes to `out`.
pub(super) fn encode_data_header(length: u64, out: &mut Vec<u8>) {
    header(DATA, length, out);
}

fn json(kind: u8, body: &impl Serialize, out: &mut Vec<u8>) {
    // The bodies are our own plain structs, which the serialiser never refuses. If it did, the
    // reader would report the empty body as an error.
    let body = serde_json::to_vec(body).unwrap_or_default();
    header(kind, body.len() as u64, out);
    out.extend_from_slice(&body);
}

fn header(kind: u8, length: u64, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(&length.to_be_bytes());
}

/// Decodes frames from bytes that arrive in pieces of any size.
#[derive(Debug)]
pub(super) struct Decoder {
    state: State,
    control_max: u64,
}

#[derive(Debug)]
enum State {
    Header { bytes: [u8; HEADER], filled: usize },
    Data { left: u64 },
    Control { kind: u8, length: usize, body: Vec<u8> },
}

const NEW_FRAME: State = State::Header { bytes: [0; HEADER], filled: 0 };

impl Decoder {
    /// A decoder that refuses control frames longer than `control_max` bytes.
    pub(super) fn new(control_max: u64) -> Self {
        Self { state: NEW_FRAME, control_max }
    }

    /// Takes the next item from the front of `input`; none when all of `input` is used up.
    ///
    /// # Errors
    /// When the bytes are not valid frames; the connection cannot be used after that.
    pub(super) fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<WireItem<'a>>, WireError> {
        loop {
            match &mut self.state {
                State::Header { bytes, filled } => {
                    let taken = split_off(input, HEADER - *filled);
                    bytes[*filled..*filled + taken.len()].copy_from_slice(taken);
                    *filled += taken.len();
                    // An unknown kind is refused at its first byte: the rest might never arrive.
                    if *filled > 0 && !(DATA..=LINK).contains(&bytes[0]) {
                        return Err(WireError::Kind { kind: bytes[0] });
                    }
                    if *filled < HEADER {
                        return Ok(None);
                    }
                    let [kind, length @ ..] = *bytes;
                    self.state = self.begin(kind, u64::from_be_bytes(length))?;
                }
                State::Data { left: 0 } => self.state = NEW_FRAME,
                State::Data { left } => {
                    let most = usize::try_from(*left).unwrap_or(usize::MAX);
                    let taken = split_off(input, most);
                    *left -= taken.len() as u64;
                    return Ok(if taken.is_empty() {
                        None
                    } else {
                        Some(WireItem::Payload(taken))
                    });
                }
                State::Control { kind, length, body } => {
                    body.extend_from_slice(split_off(input, *length - body.len()));
                    if body.len() < *length {
                        return Ok(None);
                    }
                    let frame = decode(*kind, body)?;
                    self.state = NEW_FRAME;
                    return Ok(Some(WireItem::Frame(frame)));
                }
            }
        }
    }

    /// Whether the bytes so far are complete frames.
    pub(super) fn between_frames(&self) -> bool {
        matches!(self.state, State::Header { filled: 0, .. } | State::Data { left: 0 })
    }

    fn begin(&self, kind: u8, length: u64) -> Result<State, WireError> {
        if kind == DATA {
            return Ok(State::Data { left: length });
        }
        match usize::try_from(length) {
            Ok(bytes) if length <= self.control_max => {
                // Memory grows with the bytes that arrive, not with the announced length.
                Ok(State::Control { kind, length: bytes, body: Vec::new() })
            }
            _ => Err(WireError::Length { length, max: self.control_max }),
        }
    }
}

fn split_off<'a>(input: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (taken, rest) = input.split_at(input.len().min(most));
    *input = rest;
    taken
}

fn decode(kind: u8, body: &[u8]) -> Result<ControlFrame, WireError> {
    fn read<T: DeserializeOwned>(kind: u8, body: &[u8]) -> Result<T, WireError> {
        serde_json::from_slice(body).map_err(|source| WireError::Body { kind, source })
    }
    Ok(match kind {
        REQUEST => ControlFrame::Request(read(kind, body)?),
        ACCEPT => ControlFrame::Accept(read(kind, body)?),
        REFUSE => ControlFrame::Refuse(read(kind, body)?),
        END => ControlFrame::End(read(kind, body)?),
        RECEIVED => ControlFrame::Received(read(kind, body)?),
        FETCH => ControlFrame::Fetch(read(kind, body)?),
        LOG => ControlFrame::Log(read(kind, body)?),
        DONE => ControlFrame::Done,
        LINK => ControlFrame::Link(read(kind, body)?),
        kind => return Err(WireError::Kind { kind }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::message::{Amount, Direction};
    use proptest::prelude::*;

    fn drain(
        decoder: &mut Decoder,
        mut input: &[u8],
    ) -> Result<(Vec<ControlFrame>, Vec<u8>), WireError> {
        let (mut frames, mut payload) = (Vec::new(), Vec::new());
        while let Some(item) = decoder.next(&mut input)? {
            match item {
                WireItem::Payload(bytes) => payload.extend_from_slice(bytes),
                WireItem::Frame(frame) => frames.push(frame),
            }
        }
        assert!(input.is_empty());
        Ok((frames, payload))
    }

    fn request(congestion: Option<String>, seed: u64) -> ControlFrame {
        ControlFrame::Request(Request {
            session: 5,
            flow: 1,
            direction: Direction::Down,
            amount: Amount::Bytes(7),
            congestion,
            seed,
            interval_ns: Some(100_000_000),
            gaps: seed % 2 == 1,
        })
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut(
            seed: u64,
            name in proptest::option::of("[a-z_]{1,15}"),
            payload in proptest::collection::vec(any::<u8>(), 0..200),
            step in 1usize..50,
        ) {
            let sent = [
                request(name, seed),
                ControlFrame::End(End { bytes: seed, hash: "ab".to_owned() }),
                ControlFrame::Done,
            ];
            let mut bytes = Vec::new();
            sent[0].encode(&mut bytes);
            encode_data_header(payload.len() as u64, &mut bytes);
            bytes.extend_from_slice(&payload);
            sent[1].encode(&mut bytes);
            sent[2].encode(&mut bytes);
            let mut decoder = Decoder::new(CONTROL_MAX_SERVER);
            let (mut frames, mut received) = (Vec::new(), Vec::new());
            for piece in bytes.chunks(step) {
                let (more, data) = drain(&mut decoder, piece).expect("own frames");
                frames.extend(more);
                received.extend(data);
            }
            prop_assert_eq!(frames.as_slice(), sent.as_slice());
            prop_assert_eq!(received, payload);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = drain(&mut Decoder::new(64), &bytes);
        }

        #[test]
        fn no_changed_frame_panics(at: prop::sample::Index, to: u8) {
            let mut bytes = Vec::new();
            request(Some("cubic".to_owned()), 1).encode(&mut bytes);
            let at = at.index(bytes.len());
            bytes[at] = to;
            let _ = drain(&mut Decoder::new(CONTROL_MAX_SERVER), &bytes);
        }
    }

    #[test]
    fn a_stranger_is_known_by_its_first_byte() {
        let mut decoder = Decoder::new(CONTROL_MAX_CLIENT);
        assert!(matches!(drain(&mut decoder, b"H"), Err(WireError::Kind { kind: b'H' })));
    }

    #[test]
    fn a_long_control_frame_is_refused_before_its_body() {
        let mut bytes = Vec::new();
        header(REQUEST, CONTROL_MAX_SERVER + 1, &mut bytes);
        let result = drain(&mut Decoder::new(CONTROL_MAX_SERVER), &bytes);
        assert!(matches!(result, Err(WireError::Length { .. })), "{result:?}");
    }

    #[test]
    fn an_unknown_field_is_refused() {
        let mut bytes = Vec::new();
        let body = br#"{"session":1,"shell":"sh"}"#;
        header(FETCH, body.len() as u64, &mut bytes);
        bytes.extend_from_slice(body);
        let result = drain(&mut Decoder::new(CONTROL_MAX_SERVER), &bytes);
        assert!(matches!(result, Err(WireError::Body { kind: FETCH, .. })), "{result:?}");
    }
}
