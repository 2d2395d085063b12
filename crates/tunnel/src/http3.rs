//! The part of HTTP/3 that CONNECT needs: frames, settings, header fields without a dynamic table.
//!
//! The published library has two layers. The upper one hides the ends of streams, which CONNECT has to
//! carry; the lower one is private: see decision 0014. This module is sans-IO, and small
//! enough to read beside the RFC.
//!
//! Source: RFC 9114 (HTTP/3), RFC 9204 (QPACK), RFC 9220 (extended CONNECT).

pub mod code;
pub mod field;
pub mod frame;
mod huffman;
pub mod settings;
mod table;

pub use code::Code;
pub use field::Field;
pub use frame::{Frame, FrameReader};
pub use settings::Settings;

use crate::credit;

/// The protocol's name in TLS ALPN.
pub const ALPN: &[u8] = b"h3";

/// The type of a unidirectional stream, from its first number.
///
/// Source: RFC 9114 §6.2, RFC 9204 §4.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// Settings and what concerns the whole connection.
    Control,
    /// Pushed responses, which are never requested.
    Push,
    /// Instructions for the QPACK decoder; there are none without a dynamic table.
    Encoder,
    /// Acknowledgements of such instructions.
    Decoder,
    /// The credit that an end grants to the peer's streams.
    Credit,
    /// Any other type, which is ignored.
    Unknown,
}

impl StreamKind {
    /// The type of a control stream.
    pub const CONTROL: u64 = 0;

    /// The kind of the stream whose first number is `number`.
    pub const fn of(number: u64) -> Self {
        match number {
            Self::CONTROL => Self::Control,
            1 => Self::Push,
            2 => Self::Encoder,
            3 => Self::Decoder,
            credit::STREAM => Self::Credit,
            _ => Self::Unknown,
        }
    }
}
