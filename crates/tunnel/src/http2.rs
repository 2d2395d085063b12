//! Where HTTP/2 differs from HTTP/3, for a tunnel that falls back to TCP.
//!
//! Requests and responses have the same header fields, and the bytes of a flow are the payload of DATA
//! frames in both. Only error codes differ.
//!
//! Source: RFC 9113 §7 (error codes), §8.5 (CONNECT).

use crate::http3::Code;

/// The protocol's name in TLS ALPN.
pub const ALPN: &[u8] = b"h2";

/// HTTP/2's error codes and HTTP/3's.
///
/// If a code has several counterparts, the first one is sent.
const TABLE: [(u32, Code); 13] = [
    (0x0, Code::NO_ERROR),
    (0x1, Code::GENERAL_PROTOCOL_ERROR),
    (0x1, Code::MESSAGE_ERROR),
    (0x1, Code::FRAME_UNEXPECTED),
    (0x2, Code::INTERNAL_ERROR),
    (0x6, Code::FRAME_ERROR),
    (0x7, Code::REQUEST_REJECTED),
    (0x8, Code::REQUEST_CANCELLED),
    (0x8, Code::REQUEST_INCOMPLETE),
    (0x9, Code::DECOMPRESSION_FAILED),
    (0xa, Code::CONNECT_ERROR),
    (0xb, Code::EXCESSIVE_LOAD),
    (0xd, Code::VERSION_FALLBACK),
];

/// HTTP/2's number for a code.
pub fn reason(code: Code) -> u32 {
    /// `INTERNAL_ERROR`.
    const NONE_BETTER: u32 = 0x2;
    TABLE.iter().find(|(_, known)| *known == code).map_or(NONE_BETTER, |(reason, _)| *reason)
}

/// The code that HTTP/2's number stands for.
pub fn code(reason: u32) -> Code {
    let known = TABLE.iter().find(|(known, _)| *known == reason);
    known.map_or(Code::GENERAL_PROTOCOL_ERROR, |(_, code)| *code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_a_flow_means_the_same_in_both() {
        for (number, meant) in [
            (0x0, Code::NO_ERROR),
            (0x7, Code::REQUEST_REJECTED),
            (0x8, Code::REQUEST_CANCELLED),
            (0xa, Code::CONNECT_ERROR),
        ] {
            assert_eq!((reason(meant), code(number)), (number, meant));
        }
    }

    #[test]
    fn what_the_other_has_no_word_for_is_an_error_all_the_same() {
        assert_eq!(reason(Code(0x1f * 7 + 0x21)), 0x2);
        for number in [0x3, 0x5, 0xc, 0xe, u32::MAX] {
            assert_eq!(code(number), Code::GENERAL_PROTOCOL_ERROR);
        }
    }
}
