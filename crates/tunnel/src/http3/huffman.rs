//! The static Huffman code of header fields, for decoding only: our own fields are too short to profit from it.
//!
//! Source: RFC 7541 §5.2 and appendix B. The code is canonical: codes of one length follow each other
//! in the order of their symbols, so the lengths define it.

use super::Code;

/// The end-of-string symbol.
const END: u16 = 256;
const BITS_MAX: usize = 30;

/// The length of each symbol's code; the last one is that of the end symbol. Unit: bits.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
     6, 10, 10, 12, 13,  6,  8, 11, 10, 10,  8, 11,  8,  6,  6,  6,
     5,  5,  5,  6,  6,  6,  6,  6,  6,  6,  7,  8, 15,  6, 12, 10,
    13,  6,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,
     7,  7,  7,  7,  7,  7,  7,  7,  8,  7,  8, 13, 19, 13, 14,  6,
    15,  5,  6,  5,  6,  5,  6,  6,  6,  5,  7,  7,  6,  6,  6,  5,
     6,  7,  6,  5,  5,  6,  7,  7,  7,  7,  7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

/// The symbols by length of their code, then by value.
const SYMBOLS: [u16; 257] = symbols();
/// How many codes of each length there are.
const COUNTS: [u32; BITS_MAX + 1] = counts();

const fn counts() -> [u32; BITS_MAX + 1] {
    let mut counts = [0; BITS_MAX + 1];
    let mut symbol = 0;
    while symbol < LENGTHS.len() {
        counts[LENGTHS[symbol] as usize] += 1;
        symbol += 1;
    }
    counts
}

const fn symbols() -> [u16; 257] {
    let mut symbols = [0; 257];
    let (mut bits, mut next) = (0, 0);
    while bits <= BITS_MAX {
        let mut symbol = 0;
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as usize == bits {
                symbols[next] = symbol as u16;
                next += 1;
            }
            symbol += 1;
        }
        bits += 1;
    }
    symbols
}

/// Reads a string that was Huffman-coded.
///
/// # Errors
/// If it contains the end symbol, or ends in anything but fewer than eight ones.
pub fn decode(coded: &[u8]) -> Result<Vec<u8>, Code> {
    let mut plain = Vec::with_capacity(coded.len() * 8 / 5);
    // The bits of the present symbol and their number, the first code of that length and its place.
    let (mut bits, mut length, mut first, mut place) = (0u32, 0usize, 0u32, 0u32);
    for at in 0..coded.len() * 8 {
        let bit = coded[at / 8] >> (7 - at % 8) & 1;
        bits = bits << 1 | u32::from(bit);
        length += 1;
        if length > BITS_MAX {
            return Err(Code::DECOMPRESSION_FAILED);
        }
        first <<= 1;
        let count = COUNTS[length];
        if bits >= first && bits - first < count {
            let symbol = SYMBOLS[(place + bits - first) as usize];
            if symbol == END {
                return Err(Code::DECOMPRESSION_FAILED);
            }
            plain.push(symbol as u8);
            (bits, length, first, place) = (0, 0, 0, 0);
        } else {
            first += count;
            place += count;
        }
    }
    // Padding: the first bits of the end symbol, which are all ones.
    if length >= 8 || bits != (1 << length) - 1 {
        return Err(Code::DECOMPRESSION_FAILED);
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rfc_s_examples_are_read() {
        // RFC 7541, appendix C.4 and C.6.
        for (coded, plain) in [
            (&b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"[..], "www.example.com"),
            (b"\xa8\xeb\x10\x64\x9c\xbf", "no-cache"),
            (b"\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf", "custom-value"),
            (
                b"\xd0\x7a\xbe\x94\x10\x54\xd4\x44\xa8\x20\x05\x95\x04\x0b\x81\x66\xe0\x82\xa6\x2d\x1b\xff",
                "Mon, 21 Oct 2013 20:13:21 GMT",
            ),
        ] {
            assert_eq!(decode(coded).expect("a string"), plain.as_bytes());
        }
        assert_eq!(decode(b""), Ok(Vec::new()));
    }

    #[test]
    fn wrong_padding_and_the_end_symbol_are_refused() {
        // A whole byte of padding, zeros as padding, the end symbol itself.
        for coded in [&b"\xa8\xeb\x10\x64\x9c\xbf\xff"[..], b"\xf0", b"\xff\xff\xff\xff"] {
            assert_eq!(decode(coded), Err(Code::DECOMPRESSION_FAILED), "{coded:x?}");
        }
    }
}
