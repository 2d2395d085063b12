//! A fuzzer's bytes as a script: small numbers and pieces of text, read one after another.

/// The rest of a script.
#[derive(Debug, Clone)]
pub struct Script<'a>(pub &'a [u8]);

impl<'a> Script<'a> {
    /// The next byte; none at the end.
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// A number below `limit`, which is not 0; 0 at the end.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte().unwrap_or(0)) % limit
    }

    /// A number of two bytes; 0 at the end.
    pub fn short(&mut self) -> u16 {
        u16::from_be_bytes([self.byte().unwrap_or(0), self.byte().unwrap_or(0)])
    }

    /// A number of any size: a byte with its length in bytes, then these.
    pub fn number(&mut self) -> u64 {
        let length = self.below(9);
        self.take(length).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// A piece of text: its length in a byte, then as much of it as is left.
    pub fn text(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte().unwrap_or(0));
        self.take(length)
    }

    fn take(&mut self, length: usize) -> &'a [u8] {
        let (piece, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        piece
    }
}
