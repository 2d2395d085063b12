//! A TCP segment between endpoints: header, options, and the place of its payload, but not the
//! payload.
//!
//! Source: RFC 9293 §3.1, options of RFC 2018 and RFC 7323. The numbers are those on the wire, 32 bits
//! wide, so that an agent on the path sees what a real one sees.

use std::fmt;

/// Room of the timestamps option in the header, padded.
pub(crate) const TIMESTAMPS_SIZE: u16 = 12;

/// A segment without the bytes it carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Segment {
    /// The offset in the sender's byte stream at which the payload begins.
    ///
    /// Not on the wire: it names the bytes that the caller puts there.
    pub offset: u64,
    /// The sequence number of the first byte, or of the SYN.
    pub sequence: u32,
    /// The next sequence number expected from the peer; meaningful with [`Flags::ACK`].
    pub acknowledgment: u32,
    /// Unit: bytes of payload.
    pub length: u32,
    /// The window field, before scaling.
    pub window: u16,
    /// SYN, ACK and so on.
    pub flags: Flags,
    /// The ECN field of the IP header (RFC 3168).
    pub ecn: Ecn,
    /// The timestamps option.
    pub timestamps: Option<Timestamps>,
    /// The SACK option.
    pub sack: SackBlocks,
    /// The options of a SYN.
    pub syn: SynOptions,
}

impl Segment {
    /// Its length in the sequence space: its payload, and one each for SYN and FIN.
    pub fn sequence_length(&self) -> u32 {
        self.length
            .saturating_add(u32::from(self.flags.contains(Flags::SYN)))
            .saturating_add(u32::from(self.flags.contains(Flags::FIN)))
    }

    /// Whether it is a pure acknowledgement.
    pub fn is_pure_ack(&self) -> bool {
        self.flags.without(Flags::ECE | Flags::CWR) == Flags::ACK && self.length == 0
    }

    /// Length of its options in the header, padded to words.
    pub fn options_size(&self) -> u32 {
        let timestamps = if self.timestamps.is_some() { u32::from(TIMESTAMPS_SIZE) } else { 0 };
        let sack = match self.sack.len() {
            0 => 0,
            blocks => 4 + 8 * u32::try_from(blocks).unwrap_or(0),
        };
        timestamps + sack + self.syn.size()
    }

    /// Its length in an IP packet: TCP header, options and payload.
    pub fn size(&self) -> u32 {
        HEADER_SIZE + self.options_size() + self.length
    }
}

/// The TCP header without options.
pub const HEADER_SIZE: u32 = 20;

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} seq {} len {}", self.flags, self.sequence, self.length)?;
        if self.flags.contains(Flags::ACK) {
            write!(f, " ack {} win {}", self.acknowledgment, self.window)?;
        }
        for block in self.sack.iter() {
            write!(f, " sack {}..{}", block.start, block.end)?;
        }
        Ok(())
    }
}

/// The control bits of a TCP header, in their order on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Flags(u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgment field is valid.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is valid.
    pub const URG: Self = Self(0x20);
    /// ECN echo.
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced.
    pub const CWR: Self = Self(0x80);

    /// The bits as on the wire.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The flags of these bits.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Whether all of `flags` are set.
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// These flags without `flags`.
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }
}

impl std::ops::BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl std::ops::BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (bit, letter) in "FSRPAUEC".chars().enumerate() {
            if self.0 & (1 << bit) != 0 {
                write!(f, "{letter}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flags({self})")
    }
}

/// The ECN field of an IP header (RFC 3168 §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ecn {
    /// The transport does not use ECN.
    #[default]
    NotCapable,
    /// ECT(0).
    Capable,
    /// ECT(1).
    CapableOne,
    /// Congestion was experienced.
    Congested,
}

/// The timestamps option (RFC 7323 §3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timestamps {
    /// TSval: the sender's clock. Unit: ms.
    pub value: u32,
    /// TSecr: the peer's clock, echoed.
    pub echo: u32,
}

/// Options of a SYN or SYN-ACK only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SynOptions {
    /// The largest payload that the sender accepts. Unit: bytes.
    pub mss: Option<u16>,
    /// The shift of all later window fields (RFC 7323 §2).
    pub window_scale: Option<u8>,
    /// Whether the sender accepts selective acknowledgements (RFC 2018 §2).
    pub sack_permitted: bool,
}

impl SynOptions {
    fn size(&self) -> u32 {
        let mss = if self.mss.is_some() { 4 } else { 0 };
        let scale = if self.window_scale.is_some() { 4 } else { 0 };
        mss + scale + if self.sack_permitted { 4 } else { 0 }
    }
}

/// Bytes that the receiver has: from `start` up to but without `end`, in sequence numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SackBlock {
    /// The first byte that it has.
    pub start: u32,
    /// The first byte that it does not have.
    pub end: u32,
}

/// Up to four SACK blocks, the latest first (RFC 2018 §4, RFC 2883).
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct SackBlocks {
    blocks: [SackBlock; 4],
    count: u8,
}

impl SackBlocks {
    /// As many as fit in a header without other options.
    pub const MAX: usize = 4;

    /// None.
    pub const NONE: Self = Self { blocks: [SackBlock { start: 0, end: 0 }; Self::MAX], count: 0 };

    /// Adds a block; ignores blocks beyond the fourth.
    pub fn push(&mut self, block: SackBlock) {
        if let Some(free) = self.blocks.get_mut(usize::from(self.count)) {
            *free = block;
            self.count += 1;
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The blocks in their order.
    pub fn as_slice(&self) -> &[SackBlock] {
        &self.blocks[..self.len()]
    }

    /// The blocks in their order.
    pub fn iter(&self) -> impl Iterator<Item = SackBlock> + '_ {
        self.as_slice().iter().copied()
    }
}

impl fmt::Debug for SackBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|block| block.start..block.end)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_small() {
        assert!(size_of::<Segment>() <= 96, "{}", size_of::<Segment>());
    }

    #[test]
    fn options_take_what_they_take_on_the_wire() {
        let mut segment = Segment {
            flags: Flags::ACK,
            timestamps: Some(Timestamps::default()),
            ..Segment::default()
        };
        assert_eq!(segment.size(), 32);
        for _ in 0..3 {
            segment.sack.push(SackBlock { start: 1, end: 2 });
        }
        assert_eq!(segment.size(), 60);
        assert!(segment.is_pure_ack());
        let syn = Segment {
            flags: Flags::SYN,
            syn: SynOptions { mss: Some(1460), window_scale: Some(7), sack_permitted: true },
            ..segment
        };
        assert_eq!(syn.sequence_length(), 1);
        assert!(!syn.is_pure_ack());
    }
}
