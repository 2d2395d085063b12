//! Frames on control and request streams.
//!
//! DATA is passed on as it arrives, without a copy. Every other known frame is small, and is assembled first.
//! Unknown frames are skipped.
//!
//! Source: RFC 9114 §7.

use super::{Code, field::SECTION_BYTES_MAX};
use crate::varint;
use bytes::{Buf, Bytes};

/// Bytes of the flow.
pub const DATA: u64 = 0x00;
/// A section of header fields.
pub const HEADERS: u64 = 0x01;
/// The settings of an end.
pub const SETTINGS: u64 = 0x04;
/// The ID of the first request that is not served.
pub const GOAWAY: u64 = 0x07;
/// The sender has had more to send than the path took, for so many milliseconds: an extension.
pub const BACKLOG: u64 = 0x2fec_0003;
const CANCEL_PUSH: u64 = 0x03;
const PUSH_PROMISE: u64 = 0x05;
const MAX_PUSH_ID: u64 = 0x0d;
/// Frames of HTTP/2 that have no meaning here and are refused.
const RESERVED: [u64; 4] = [0x02, 0x06, 0x08, 0x09];

/// The largest frame that is assembled. Header fields may not exceed their own bound, so no conforming peer is
/// refused.
const PAYLOAD_BYTES_MAX: u64 = SECTION_BYTES_MAX as u64;

/// A frame, or a piece of a data frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Bytes of the flow: all of a frame's payload, or a piece of it. Never empty.
    Data(Bytes),
    /// A packed section of header fields.
    Headers(Vec<u8>),
    /// The peer's settings, packed.
    Settings(Vec<u8>),
    /// The peer will serve no request with this ID or a higher one.
    GoAway(u64),
    /// The peer has had more to send than the path took, for so many milliseconds.
    Backlog(u64),
    /// A frame that concerns server push.
    Push,
}

/// Appends a frame.
pub fn write(kind: u64, payload: &[u8], out: &mut Vec<u8>) {
    write_head(kind, payload.len(), out);
    out.extend_from_slice(payload);
}

/// Appends the head of a frame whose payload follows.
pub fn write_head(kind: u64, payload: usize, out: &mut Vec<u8>) {
    varint::write(kind, out);
    varint::write(payload as u64, out);
}

/// Splits a stream into frames.
#[derive(Debug, Default)]
pub struct FrameReader {
    head: Vec<u8>,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Head,
    Data {
        left: u64,
    },
    Skipped {
        left: u64,
    },
    Collected {
        kind: u64,
        left: usize,
        payload: Vec<u8>,
    },
}

impl FrameReader {
    /// Takes the next frame from the front of `input`; none: all of `input` was consumed, and more is needed.
    ///
    /// # Errors
    /// [`Code::FRAME_UNEXPECTED`] for a frame type that is never allowed, [`Code::EXCESSIVE_LOAD`] for a frame too
    /// large to be assembled, [`Code::FRAME_ERROR`] for a malformed one.
    pub fn read(&mut self, input: &mut Bytes) -> Result<Option<Frame>, Code> {
        loop {
            match &mut self.state {
                State::Head => {
                    let Some((kind, length)) = varint::read_pair(&mut self.head, input) else {
                        return Ok(None);
                    };
                    self.state = State::begin(kind, length)?;
                }
                State::Data { left: 0 } | State::Skipped { left: 0 } => self.state = State::Head,
                State::Collected { kind, left: 0, payload } => {
                    let (kind, payload) = (*kind, std::mem::take(payload));
                    self.state = State::Head;
                    return whole(kind, payload).map(Some);
                }
                _ if input.is_empty() => return Ok(None),
                State::Data { left } => {
                    let count = available(input, *left);
                    *left -= count as u64;
                    return Ok(Some(Frame::Data(input.split_to(count))));
                }
                State::Skipped { left } => {
                    let count = available(input, *left);
                    *left -= count as u64;
                    input.advance(count);
                }
                State::Collected { left, payload, .. } => {
                    let count = input.len().min(*left);
                    *left -= count;
                    payload.extend_from_slice(&input.split_to(count));
                }
            }
        }
    }

    /// Whether the stream may end here, between two frames.
    pub fn is_between_frames(&self) -> bool {
        match &self.state {
            State::Head => self.head.is_empty(),
            State::Data { left } | State::Skipped { left } => *left == 0,
            State::Collected { .. } => false,
        }
    }
}

impl State {
    fn begin(kind: u64, length: u64) -> Result<Self, Code> {
        Ok(match kind {
            DATA => Self::Data { left: length },
            HEADERS | SETTINGS | GOAWAY | BACKLOG | CANCEL_PUSH | MAX_PUSH_ID | PUSH_PROMISE => {
                if length > PAYLOAD_BYTES_MAX {
                    return Err(Code::EXCESSIVE_LOAD);
                }
                let left = usize::try_from(length).map_err(|_| Code::EXCESSIVE_LOAD)?;
                Self::Collected { kind, left, payload: Vec::new() }
            }
            kind if RESERVED.contains(&kind) => return Err(Code::FRAME_UNEXPECTED),
            _ => Self::Skipped { left: length },
        })
    }
}

fn available(input: &Bytes, left: u64) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX).min(input.len())
}

fn whole(kind: u64, payload: Vec<u8>) -> Result<Frame, Code> {
    Ok(match kind {
        HEADERS => Frame::Headers(payload),
        SETTINGS => Frame::Settings(payload),
        GOAWAY | BACKLOG => match varint::read(&payload) {
            Some((number, length)) if length == payload.len() => {
                if kind == GOAWAY {
                    Frame::GoAway(number)
                } else {
                    Frame::Backlog(number)
                }
            }
            _ => return Err(Code::FRAME_ERROR),
        },
        _ => Frame::Push,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(pieces: &[&[u8]]) -> Result<Vec<Frame>, Code> {
        let (mut reader, mut frames) = (FrameReader::default(), Vec::new());
        for piece in pieces {
            let mut input = Bytes::copy_from_slice(piece);
            while let Some(frame) = reader.read(&mut input)? {
                frames.push(frame);
            }
            assert!(input.is_empty());
        }
        Ok(frames)
    }

    #[test]
    fn frames_that_mean_nothing_are_skipped() {
        let mut stream = Vec::new();
        write(0x21, &[7; 300], &mut stream);
        write(DATA, b"", &mut stream);
        write(HEADERS, b"fields", &mut stream);
        write(0x1f * 9 + 0x21, b"", &mut stream);
        write(DATA, b"bytes", &mut stream);
        let expected =
            [Frame::Headers(b"fields".to_vec()), Frame::Data(Bytes::from_static(b"bytes"))];
        assert_eq!(all(&[&stream]).expect("frames"), expected);
    }

    #[test]
    fn frames_that_may_not_be_are_refused() {
        for (stream, code) in [
            (&[0x02, 0x00][..], Code::FRAME_UNEXPECTED),
            (&[0x09, 0x00], Code::FRAME_UNEXPECTED),
            (&[0x07, 0x00], Code::FRAME_ERROR),
            (&[0x07, 0x02, 0x01, 0x01], Code::FRAME_ERROR),
            (&[0x01, 0x80, 0x01, 0x00, 0x00], Code::EXCESSIVE_LOAD),
        ] {
            assert_eq!(all(&[stream]), Err(code), "{stream:x?}");
        }
    }

    #[test]
    fn a_stream_cut_within_a_frame_is_known() {
        let mut stream = Vec::new();
        write(DATA, b"bytes", &mut stream);
        for cut in 0..=stream.len() {
            let mut reader = FrameReader::default();
            let mut input = Bytes::copy_from_slice(&stream[..cut]);
            while reader.read(&mut input).expect("no fault").is_some() {}
            assert_eq!(reader.is_between_frames(), cut == 0 || cut == stream.len(), "cut at {cut}");
        }
    }

    proptest! {
        #[test]
        fn pieces_make_the_same_stream(
            payloads in proptest::collection::vec(
                (prop_oneof![Just(DATA), Just(HEADERS), Just(0x21)],
                 proptest::collection::vec(any::<u8>(), 0..400)), 0..8),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let mut stream = Vec::new();
            for (kind, payload) in &payloads {
                write(*kind, payload, &mut stream);
            }
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
            let join = |frames: Vec<Frame>| {
                let (mut data, mut headers) = (Vec::new(), Vec::new());
                for frame in frames {
                    match frame {
                        Frame::Data(bytes) => data.extend_from_slice(&bytes),
                        Frame::Headers(payload) => headers.push(payload),
                        other => panic!("{other:?}"),
                    }
                }
                (data, headers)
            };
            let of = |wanted| payloads.iter().filter(move |(kind, _)| *kind == wanted);
            let expected = (
                of(DATA).flat_map(|(_, payload)| payload.clone()).collect(),
                of(HEADERS).map(|(_, payload)| payload.clone()).collect(),
            );
            prop_assert_eq!(join(all(&pieces).expect("frames")), expected);
        }

        #[test]
        fn no_bytes_panic(stream: Vec<u8>) {
            let _ = all(&[&stream]);
        }
    }
}
