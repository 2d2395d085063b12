//! Variable-length integers of QUIC and HTTP/3.
//!
//! Source: RFC 9000 §16.

use bytes::{Buf, Bytes};

/// The largest number that can be written.
pub const MAX: u64 = (1 << 62) - 1;

/// The longest form of a number. Unit: bytes.
pub const BYTES_MAX: usize = 8;

/// How many bytes `value` takes.
pub const fn length(value: u64) -> usize {
    match value {
        0..=0x3f => 1,
        0x40..=0x3fff => 2,
        0x4000..=0x3fff_ffff => 4,
        _ => 8,
    }
}

/// Appends `value`, which is cut to [`MAX`].
pub fn write(value: u64, out: &mut Vec<u8>) {
    let value = value.min(MAX);
    let length = length(value);
    let form = match length {
        1 => 0,
        2 => 1,
        4 => 2,
        _ => 3u64,
    };
    let marked = value | form << (length * 8 - 2);
    out.extend_from_slice(&marked.to_be_bytes()[8 - length..]);
}

/// Parses the number at the start of `input`. Returns it and its length; none if it is incomplete.
pub fn read(input: &[u8]) -> Option<(u64, usize)> {
    let first = *input.first()?;
    let length = 1usize << (first >> 6);
    let (head, rest) = input.get(..length)?.split_first()?;
    let value =
        rest.iter().fold(u64::from(head & 0x3f), |value, byte| value << 8 | u64::from(*byte));
    Some((value, length))
}

/// Takes two numbers, a kind and a length, off `input`. If `input` ends within them, `kept` stores the part that was
/// received.
pub fn read_pair(kept: &mut Vec<u8>, input: &mut Bytes) -> Option<(u64, u64)> {
    let before = kept.len();
    let fresh = input.len().min((2 * BYTES_MAX).saturating_sub(before));
    kept.extend_from_slice(input.get(..fresh)?);
    let numbers = read(kept).and_then(|(first, first_bytes)| {
        let (second, second_bytes) = read(kept.get(first_bytes..)?)?;
        Some((first, second, first_bytes + second_bytes))
    });
    match numbers {
        Some((first, second, bytes)) => {
            // The kept bytes alone were incomplete, so the numbers end within the input.
            input.advance(bytes.saturating_sub(before));
            kept.clear();
            Some((first, second))
        }
        None => {
            input.advance(fresh);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_rfc_s_examples_are_read() {
        // RFC 9000, appendix A.1; the last is a long form of 37.
        for (bytes, value) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ] {
            assert_eq!(read(bytes), Some((value, bytes.len())));
            assert_eq!(read(&bytes[..bytes.len() - 1]), None);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(value in 0..=MAX, rest: Vec<u8>) {
            let mut bytes = Vec::new();
            write(value, &mut bytes);
            prop_assert_eq!(bytes.len(), length(value));
            bytes.extend(rest);
            prop_assert_eq!(read(&bytes), Some((value, length(value))));
        }
    }
}
