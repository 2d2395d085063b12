//! The frames of a recorded connection between two meters, decoded without the connection.

use super::wire::{CONTROL_MAX_CLIENT, CONTROL_MAX_SERVER, Decoder, WireError, WireItem};

/// Which end reads the bytes; it decides how long a control frame may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// The bytes came from a server.
    Client,
    /// The bytes came from a client, behind its preface.
    Server,
}

/// The frames that one end of a connection sent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Outline {
    /// Control frames by name, in their order.
    pub frames: Vec<&'static str>,
    /// Payload, all data frames together. Unit: bytes.
    pub payload: u64,
    /// Whether the bytes end at the end of a frame.
    pub complete: bool,
}

impl Outline {
    /// Decodes `bytes` as a meter does that reads them from its socket in pieces of `piece` bytes.
    /// A `piece` of 0 counts as 1.
    ///
    /// # Errors
    /// When the bytes are not valid frames.
    pub fn of(reader: Reader, bytes: &[u8], piece: usize) -> Result<Self, WireError> {
        let mut decoder = Decoder::new(match reader {
            Reader::Client => CONTROL_MAX_CLIENT,
            Reader::Server => CONTROL_MAX_SERVER,
        });
        let mut outline = Self::default();
        for mut piece in bytes.chunks(piece.max(1)) {
            while let Some(item) = decoder.next(&mut piece)? {
                match item {
                    WireItem::Payload(payload) => outline.payload += payload.len() as u64,
                    WireItem::Frame(frame) => outline.frames.push(frame.name()),
                }
            }
        }
        outline.complete = decoder.between_frames();
        Ok(outline)
    }
}
