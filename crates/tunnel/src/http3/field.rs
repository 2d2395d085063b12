//! Header fields, compressed with the static table only.
//!
//! Neither end of ours has a dynamic table, so each field section stands alone, and no stream waits for another. A
//! decoder must still support the static table and the Huffman code, because other implementations use both.
//!
//! Source: RFC 9204 §4.5.

use super::{Code, huffman, table::ENTRIES};
use std::borrow::Cow;

/// The largest section that is read, counted as RFC 9114 §4.2.2 counts it.
pub const SECTION_BYTES_MAX: usize = 16 << 10;
/// What each field counts in addition to its name and value.
const FIELD_OVERHEAD: usize = 32;

/// A header field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Its name, which begins with a colon for pseudo-header fields.
    pub name: Cow<'static, str>,
    /// Its value.
    pub value: Cow<'static, str>,
}

impl Field {
    /// A field.
    pub fn new(name: impl Into<Cow<'static, str>>, value: impl Into<Cow<'static, str>>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

/// Packs fields.
pub fn encode(fields: &[Field]) -> Vec<u8> {
    // Required Insert Count and Base are both 0.
    let mut out = vec![0, 0];
    for Field { name, value } in fields {
        let same = ENTRIES.iter().position(|(known, of)| known == name && of == value);
        let named = || ENTRIES.iter().position(|(known, _)| known == name);
        if let Some(index) = same {
            write_integer(0b1100_0000, 6, index, &mut out);
            continue;
        }
        if let Some(index) = named() {
            write_integer(0b0101_0000, 4, index, &mut out);
        } else {
            write_integer(0b0010_0000, 3, name.len(), &mut out);
            out.extend_from_slice(name.as_bytes());
        }
        write_integer(0, 7, value.len(), &mut out);
        out.extend_from_slice(value.as_bytes());
    }
    out
}

/// Unpacks a section.
///
/// # Errors
/// [`Code::DECOMPRESSION_FAILED`] when it is malformed or refers to a dynamic table,
/// [`Code::EXCESSIVE_LOAD`] when there is too much in it, [`Code::MESSAGE_ERROR`] when a name or value
/// is not text.
pub fn decode(section: &[u8]) -> Result<Vec<Field>, Code> {
    let mut input = Input(section);
    let (_, required) = input.integer(8)?;
    let (_, _base) = input.integer(7)?;
    if required != 0 {
        return Err(Code::DECOMPRESSION_FAILED);
    }
    let (mut fields, mut counted) = (Vec::new(), 0);
    while let Some(&first) = input.0.first() {
        let field = if first & 0x80 != 0 {
            let (bits, index) = input.integer(6)?;
            let (name, value) = entry(bits & 0x40 != 0, index)?;
            Field::new(name, value)
        } else if first & 0x40 != 0 {
            let (bits, index) = input.integer(4)?;
            let (name, _) = entry(bits & 0x10 != 0, index)?;
            Field::new(name, input.string(7)?)
        } else if first & 0x20 != 0 {
            let name = input.string(3)?;
            Field::new(name, input.string(7)?)
        } else {
            // Post-base references: without a dynamic table there are none.
            return Err(Code::DECOMPRESSION_FAILED);
        };
        counted += field.name.len() + field.value.len() + FIELD_OVERHEAD;
        if counted > SECTION_BYTES_MAX {
            return Err(Code::EXCESSIVE_LOAD);
        }
        fields.push(field);
    }
    Ok(fields)
}

fn entry(is_static: bool, index: usize) -> Result<(&'static str, &'static str), Code> {
    let entry = ENTRIES.get(index).filter(|_| is_static);
    entry.copied().ok_or(Code::DECOMPRESSION_FAILED)
}

/// Appends an integer whose first `prefix` bits share a byte with `bits`.
fn write_integer(bits: u8, prefix: u32, value: usize, out: &mut Vec<u8>) {
    let most = (1usize << prefix) - 1;
    if value < most {
        out.push(bits | value as u8);
        return;
    }
    out.push(bits | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        out.push(rest as u8 & 0x7f | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// The input that is left to parse.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Result<u8, Code> {
        let (&first, rest) = self.0.split_first().ok_or(Code::DECOMPRESSION_FAILED)?;
        self.0 = rest;
        Ok(first)
    }

    /// An integer with `prefix` bits in its first byte. Returns that byte as well.
    fn integer(&mut self, prefix: u32) -> Result<(u8, usize), Code> {
        let first = self.byte()?;
        let most = (1usize << prefix) - 1;
        let mut value = usize::from(first) & most;
        if value < most {
            return Ok((first, value));
        }
        // No length or index needs more bytes here, so the value stays far from overflow.
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok((first, value));
            }
        }
        Err(Code::DECOMPRESSION_FAILED)
    }

    /// A string whose length has `prefix` bits in the first byte. The bit before them is set if the string is
    /// Huffman-coded.
    fn string(&mut self, prefix: u32) -> Result<String, Code> {
        let (first, length) = self.integer(prefix)?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Code::DECOMPRESSION_FAILED)?;
        self.0 = rest;
        let coded = first & 1 << prefix != 0;
        let plain = if coded { huffman::decode(bytes)? } else { bytes.to_vec() };
        String::from_utf8(plain).map_err(|_| Code::MESSAGE_ERROR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_rfc_s_example_is_read() {
        // RFC 9204, appendix B.1.
        let section = b"\x00\x00\x51\x0b/index.html";
        let fields = decode(section).expect("fields");
        assert_eq!(fields, [Field::new(":path", "/index.html")]);
        assert_eq!(encode(&fields), section);
    }

    #[test]
    fn what_other_people_s_software_packs_is_read() {
        // From ls-qpack 2.6, which Huffman-codes a string if that makes it shorter.
        let section = b"\x00\x00\xcf\x50\x8e\x41\x6c\xee\x5b\x17\x2f\x91\xd3\x5d\x05\xb8\xf0\x1e\x07\
            \x5f\x50\x88\x25\xb6\x50\xc3\xcb\x85\xc5\xc1\x2c\xf2\xb1\xe4\x93\x07\x7e\x7c\x7d\x7b\x20\x5c\x5e";
        let fields = [
            Field::new(":method", "CONNECT"),
            Field::new(":authority", "server.example:8080"),
            Field::new("user-agent", "curl/8.16.0"),
            Field::new("x-odd", "~|}{ \\^"),
        ];
        assert_eq!(decode(section), Ok(fields.to_vec()));
    }

    #[test]
    fn dynamic_entries_are_refused() {
        for section in [
            &b"\x03\x81\x10\x11"[..],
            b"\x00\x00\x80",
            b"\x00\x00\x40\x01x",
            b"\x00\x00\x10",
            b"\x00\x00\x00\x01x",
            b"\x00\x00\xff\x80\x80\x80\x80\x80\x01",
            b"\x00\x00\xff\x30",
            b"\x00",
        ] {
            assert_eq!(decode(section), Err(Code::DECOMPRESSION_FAILED), "{section:x?}");
        }
    }

    #[test]
    fn a_section_that_swells_is_refused() {
        let mut section = vec![0, 0];
        section.extend([0xc0 | 17; 1000]);
        assert_eq!(decode(&section), Err(Code::EXCESSIVE_LOAD));
    }

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(pairs in proptest::collection::vec((":?[a-z-]{1,40}", "[ -~]{0,300}"), 0..20)) {
            let fields: Vec<Field> =
                pairs.into_iter().map(|(name, value)| Field::new(name, value)).collect();
            prop_assert_eq!(decode(&encode(&fields)), Ok(fields));
        }

        #[test]
        fn no_bytes_panic(section: Vec<u8>) {
            let _ = decode(&section);
        }
    }
}
