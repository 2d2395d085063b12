//! The headers below QUIC (`SPEC-fec.md`).
//!
//! Every datagram of QUIC has the second bit of its first byte set (RFC 9000 §17, unless an end greases it, RFC
//! 9287). No datagram of this format has it. So both can share one path.

use bytes::{BufMut, Bytes, BytesMut};

/// The HTTP/3 setting by which an endpoint announces that it reads this format. Its value is the largest window of
/// a repair that it reads, in datagrams. Absent or zero: it does not read this format.
pub const SETTING: u64 = 0x2fec_0001;

/// What a repair takes beyond the largest datagram that it protects. QUIC must leave so much of the path's MTU
/// free. Unit: bytes.
pub const HEADROOM: u16 = 7;
/// The header of a protected datagram. Unit: bytes.
pub(super) const SOURCE_LEN: usize = 3;
/// The header of a repair, without the symbol.
pub(super) const REPAIR_LEN: usize = 5;
/// The length at the start of each symbol.
pub(super) const LENGTH_LEN: usize = 2;
const REPORT_LEN: usize = 21;
/// Numbers are counted modulo this.
pub(super) const NUMBERS: u32 = 1 << 21;

const QUIC_BIT: u8 = 0x40;
/// The upper three bits of the first byte.
const KINDS: u8 = 0xe0;
const SOURCE: u8 = 0x80;
const REPAIR: u8 = 0xa0;
const REPORT: u8 = 0x20;
const PLAIN: u8 = 0x00;

/// A parsed datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packet {
    /// A datagram of QUIC, without a header of ours, or behind a header that only makes it longer.
    Plain(Bytes),
    /// A protected datagram.
    Source {
        /// Counts all protected datagrams of this direction.
        number: u32,
        /// The datagram itself.
        datagram: Bytes,
    },
    /// A sum of datagrams.
    Repair(Repair),
    /// The peer's counts.
    Report(Report),
}

/// A sum of the datagrams in a window, each times its coefficient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// The first datagram of the window.
    pub first: u32,
    /// How many there are. Range: 1 to 128.
    pub count: u8,
    /// Which sum it is. Range: below 128.
    pub index: u8,
    /// The sum of their symbols: the datagram's length in two bytes, and itself.
    pub symbol: Bytes,
}

/// What a receiver has counted since it started, each modulo 2³².
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Datagrams that are known to be received or lost.
    pub judged: u32,
    /// How many of these are lost.
    pub lost: u32,
    /// In how many runs they were lost.
    pub runs: u32,
    /// Datagrams that repairs have recovered.
    pub repaired: u32,
    /// Datagrams that the path has marked with CE (RFC 3168).
    pub marked: u32,
}

impl Packet {
    /// Whether a datagram is a plain datagram of QUIC (RFC 9000 §17.2, §17.3.1).
    pub fn is_quic(datagram: &[u8]) -> bool {
        datagram.first().is_some_and(|first| first & QUIC_BIT != 0)
    }

    /// QUIC's part of a datagram, as [`parse`](Self::parse) finds it. None if there is none.
    pub fn quic_in(datagram: &[u8]) -> Option<&[u8]> {
        let first = *datagram.first()?;
        let header = match first & KINDS {
            _ if first & QUIC_BIT != 0 => 0,
            PLAIN => usize::from(HEADROOM),
            SOURCE => SOURCE_LEN,
            _ => return None,
        };
        datagram.get(header..).filter(|quic| !quic.is_empty())
    }

    /// Parses a datagram. `None`: it is neither QUIC's nor of this format, and must be dropped.
    pub fn parse(datagram: Bytes) -> Option<Self> {
        let first = *datagram.first()?;
        if first & QUIC_BIT != 0 {
            return Some(Self::Plain(datagram));
        }
        let bytes = datagram.as_ref();
        match first & KINDS {
            PLAIN if bytes.len() > usize::from(HEADROOM) => {
                Some(Self::Plain(datagram.slice(usize::from(HEADROOM)..)))
            }
            SOURCE if bytes.len() > SOURCE_LEN => {
                let number = number(bytes)?;
                Some(Self::Source { number, datagram: datagram.slice(SOURCE_LEN..) })
            }
            REPAIR if bytes.len() > REPAIR_LEN + LENGTH_LEN => {
                let (count, index) = (bytes[3], bytes[4]);
                let known = (1..=128).contains(&count) && index < 128;
                known.then_some(())?;
                let symbol = datagram.slice(REPAIR_LEN..);
                Some(Self::Repair(Repair { first: number(bytes)?, count, index, symbol }))
            }
            REPORT if bytes.len() >= REPORT_LEN => {
                let field = |at: usize| {
                    let field = bytes.get(1 + 4 * at..5 + 4 * at)?;
                    Some(u32::from_be_bytes(field.try_into().ok()?))
                };
                Some(Self::Report(Report {
                    judged: field(0)?,
                    lost: field(1)?,
                    runs: field(2)?,
                    repaired: field(3)?,
                    marked: field(4)?,
                }))
            }
            _ => None,
        }
    }
}

/// A protected datagram with its header.
pub(super) fn source(number: u32, datagram: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(SOURCE_LEN + datagram.len());
    put_number(&mut bytes, SOURCE, number);
    bytes.put_slice(datagram);
    bytes.freeze()
}

/// A datagram that is not protected, made as long as its repair would be.
pub(super) fn plain(datagram: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(usize::from(HEADROOM) + datagram.len());
    bytes.put_bytes(PLAIN, usize::from(HEADROOM));
    bytes.put_slice(datagram);
    bytes.freeze()
}

impl Repair {
    pub(super) fn written(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(REPAIR_LEN + self.symbol.len());
        put_number(&mut bytes, REPAIR, self.first);
        bytes.put_u8(self.count);
        bytes.put_u8(self.index);
        bytes.put_slice(&self.symbol);
        bytes.freeze()
    }
}

impl Report {
    pub(super) fn written(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(REPORT_LEN);
        bytes.put_u8(REPORT);
        for field in [self.judged, self.lost, self.runs, self.repaired, self.marked] {
            bytes.put_u32(field);
        }
        bytes.freeze()
    }
}

/// The 21 bits behind the kind.
fn number(bytes: &[u8]) -> Option<u32> {
    let [first, second, third] = *bytes.first_chunk()?;
    Some(u32::from_be_bytes([0, first & !KINDS, second, third]))
}

fn put_number(bytes: &mut BytesMut, kind: u8, number: u32) {
    let [_, first, second, third] = (number % NUMBERS).to_be_bytes();
    bytes.put_slice(&[kind | first, second, third]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &'static [u8]) -> Option<Packet> {
        let packet = Packet::parse(Bytes::from_static(bytes));
        let quic = match &packet {
            Some(Packet::Plain(quic) | Packet::Source { datagram: quic, .. }) => Some(&quic[..]),
            _ => None,
        };
        assert_eq!(Packet::quic_in(bytes), quic, "{bytes:?}");
        packet
    }

    #[test]
    fn headers_are_those_of_the_specification() {
        let written = source(0x12_3456, b"quic");
        assert_eq!(written.as_ref(), b"\x92\x34\x56quic");
        let datagram = Bytes::from_static(b"quic");
        assert_eq!(
            Packet::parse(written),
            Some(Packet::Source { number: 0x12_3456, datagram: datagram.clone() })
        );
        let symbol = Bytes::from_static(b"\0\x04quic");
        let repair = Repair { first: 0x1f_ffff, count: 128, index: 5, symbol };
        let written = repair.written();
        assert_eq!(written.as_ref(), b"\xbf\xff\xff\x80\x05\0\x04quic");
        assert_eq!(written.len(), datagram.len() + usize::from(HEADROOM));
        assert_eq!(Packet::parse(written), Some(Packet::Repair(repair)));
        let report = Report { judged: 0x0102_0304, lost: 5, runs: 4, repaired: 3, marked: 2 };
        let written = report.written();
        assert_eq!(
            written.as_ref(),
            b"\x20\x01\x02\x03\x04\0\0\0\x05\0\0\0\x04\0\0\0\x03\0\0\0\x02"
        );
        assert_eq!(Packet::parse(written), Some(Packet::Report(report)));
        assert_eq!(plain(b"quic").as_ref(), b"\0\0\0\0\0\0\0quic");
        assert_eq!(Packet::parse(plain(b"quic")), Some(Packet::Plain(datagram)));
        for quic in [source(7, b"quic"), plain(b"quic"), Bytes::from_static(b"quic")] {
            assert_eq!(Packet::quic_in(&quic), Some(b"quic".as_slice()));
        }
    }

    #[test]
    fn quic_is_left_alone_and_what_is_unknown_dropped() {
        for quic in [b"\x40".as_slice(), b"\xc0\x01", b"\xff\xff\xff", b"\x60\x01\x02\x03"] {
            assert_eq!(read(quic), Some(Packet::Plain(Bytes::from_static(quic))));
        }
        let unknown: [&[u8]; 9] = [
            b"",
            b"\0\0\0\0\0\0\0",
            b"\x80\0\0",
            b"\xa0\0\0\x01\0\0\0",
            b"\xa0\0\0\0\0\0\x01a",
            b"\xa0\0\0\x81\0\0\x01a",
            b"\xa0\0\0\x01\x80\0\x01a",
            b"\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            b"\x90",
        ];
        for bytes in unknown {
            assert_eq!(read(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn what_is_behind_a_report_belongs_to_later_versions() {
        let longer: Bytes = [Report::default().written().as_ref(), b"more"].concat().into();
        assert_eq!(Packet::parse(longer), Some(Packet::Report(Report::default())));
    }
}
