//! The MAC address by which a modem names a destination.

use std::fmt;
use std::str::FromStr;

/// A MAC address: of six bytes (EUI-48), or of eight (EUI-64).
///
/// Source: RFC 8175 §13.7.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac {
    bytes: [u8; 8],
    length: usize,
}

impl Mac {
    /// An address of six or eight bytes; `None` for other lengths.
    pub fn new(address: &[u8]) -> Option<Self> {
        let length = address.len();
        if length != 6 && length != 8 {
            return None;
        }
        let mut bytes = [0; 8];
        bytes[..length].copy_from_slice(address);
        Some(Self { bytes, length })
    }

    /// Its bytes, in the order in which they are sent.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// A text that is no MAC address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is no MAC address such as \"02:00:5e:10:00:01\": six or eight bytes in hexadecimal, with colons between"
)]
pub struct ParseMacError(String);

impl FromStr for Mac {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let byte = |part: &str| {
            let is_byte = part.len() == 2 && part.bytes().all(|it| it.is_ascii_hexdigit());
            is_byte.then(|| u8::from_str_radix(part, 16).ok())?
        };
        let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
        bytes.and_then(|bytes| Self::new(&bytes)).ok_or_else(|| ParseMacError(text.to_owned()))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, byte) in self.bytes().iter().enumerate() {
            let colon = if place == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for text in ["02:00:5e:10:00:01", "02:00:5e:ff:fe:10:00:01"] {
            assert_eq!(text.parse::<Mac>().expect("an address").to_string(), text);
        }
        for text in
            ["", "02:00:5e:10:00", "2:0:5e:10:0:1", "02-00-5e-10-00-01", "+2:00:5e:10:00:01"]
        {
            assert_eq!(text.parse::<Mac>(), Err(ParseMacError(text.to_owned())), "{text}");
        }
    }
}
