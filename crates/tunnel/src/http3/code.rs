//! Error codes of HTTP/3.
//!
//! Source: RFC 9114 §8.1, RFC 9204 §6.

use std::fmt;

/// Why a stream or a connection was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(pub u64);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        impl Code {
            $($(#[$doc])* pub const $name: Self = Self($number);)*

            /// Its name in the standard; none: it has none.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// Nothing is wrong.
    NO_ERROR = 0x100, "H3_NO_ERROR";
    /// A violation of the protocol for which there is no more specific code.
    GENERAL_PROTOCOL_ERROR = 0x101, "H3_GENERAL_PROTOCOL_ERROR";
    /// This end failed.
    INTERNAL_ERROR = 0x102, "H3_INTERNAL_ERROR";
    /// The peer opened a stream of a type that it may not open.
    STREAM_CREATION_ERROR = 0x103, "H3_STREAM_CREATION_ERROR";
    /// A stream has ended that the connection cannot do without.
    CLOSED_CRITICAL_STREAM = 0x104, "H3_CLOSED_CRITICAL_STREAM";
    /// A frame that is not allowed there.
    FRAME_UNEXPECTED = 0x105, "H3_FRAME_UNEXPECTED";
    /// A frame of the wrong size or form.
    FRAME_ERROR = 0x106, "H3_FRAME_ERROR";
    /// The peer behaves in a way that causes too much load.
    EXCESSIVE_LOAD = 0x107, "H3_EXCESSIVE_LOAD";
    /// An invalid push or stream ID.
    ID_ERROR = 0x108, "H3_ID_ERROR";
    /// Invalid settings.
    SETTINGS_ERROR = 0x109, "H3_SETTINGS_ERROR";
    /// A control stream that did not begin with settings.
    MISSING_SETTINGS = 0x10a, "H3_MISSING_SETTINGS";
    /// The request was not processed.
    REQUEST_REJECTED = 0x10b, "H3_REQUEST_REJECTED";
    /// The request is not needed any more.
    REQUEST_CANCELLED = 0x10c, "H3_REQUEST_CANCELLED";
    /// The stream ended before the request was complete.
    REQUEST_INCOMPLETE = 0x10d, "H3_REQUEST_INCOMPLETE";
    /// A malformed message.
    MESSAGE_ERROR = 0x10e, "H3_MESSAGE_ERROR";
    /// The TCP connection behind a CONNECT was reset or broke.
    CONNECT_ERROR = 0x10f, "H3_CONNECT_ERROR";
    /// The request is to be repeated over HTTP/1.1.
    VERSION_FALLBACK = 0x110, "H3_VERSION_FALLBACK";
    /// Header fields that cannot be decoded.
    DECOMPRESSION_FAILED = 0x200, "QPACK_DECOMPRESSION_FAILED";
    /// An invalid instruction on the encoder stream.
    ENCODER_STREAM_ERROR = 0x201, "QPACK_ENCODER_STREAM_ERROR";
    /// An invalid instruction on the decoder stream.
    DECODER_STREAM_ERROR = 0x202, "QPACK_DECODER_STREAM_ERROR";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#x}", self.0),
        }
    }
}
