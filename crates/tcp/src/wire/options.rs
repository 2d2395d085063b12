//! TCP options: MSS, window scale, SACK, timestamps (RFC 9293 §3.2, RFC 2018, RFC 7323).

use super::{Segment, Timestamps};
use crate::segment::SackBlock;

const END: u8 = 0;
const NOTHING: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// The maximum that a header's length field can express.
const SPACE: usize = 40;

/// The options of a segment, padded to words; and their length in bytes.
///
/// SACK blocks that find no room are left out, the oldest first.
pub(super) fn write(segment: &Segment) -> ([u8; SPACE], usize) {
    let mut out = Out { bytes: [NOTHING; SPACE], used: 0 };
    if let Some(mss) = segment.syn.mss {
        let [high, low] = mss.to_be_bytes();
        out.put(&[MSS, 4, high, low]);
    }
    if segment.syn.sack_permitted {
        out.put(&[NOTHING, NOTHING, SACK_PERMITTED, 2]);
    }
    if let Some(shift) = segment.syn.window_scale {
        out.put(&[NOTHING, WINDOW_SCALE, 3, shift]);
    }
    if let Some(stamps) = segment.timestamps {
        out.put(&[NOTHING, NOTHING, TIMESTAMPS, 10]);
        out.put(&stamps.value.to_be_bytes());
        out.put(&stamps.echo.to_be_bytes());
    }
    let room = (SPACE - out.used).saturating_sub(4) / 8;
    let blocks = &segment.sack.as_slice()[..segment.sack.len().min(room)];
    if !blocks.is_empty() {
        // Four blocks at most.
        out.put(&[NOTHING, NOTHING, SACK, 2 + 8 * blocks.len() as u8]);
        for block in blocks {
            out.put(&block.start.to_be_bytes());
            out.put(&block.end.to_be_bytes());
        }
    }
    (out.bytes, out.used)
}

struct Out {
    bytes: [u8; SPACE],
    used: usize,
}

impl Out {
    fn put(&mut self, bytes: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.used..self.used + bytes.len()) {
            room.copy_from_slice(bytes);
            self.used += bytes.len();
        }
    }
}

/// Reads the options that it knows, skips unknown ones, and stops where the lengths are invalid.
pub(super) fn read(mut options: &[u8], segment: &mut Segment) {
    let syn = segment.flags.contains(crate::segment::Flags::SYN);
    while let Some((&kind, rest)) = options.split_first() {
        if kind == END {
            return;
        }
        if kind == NOTHING {
            options = rest;
            continue;
        }
        // The length counts itself and the kind.
        let Some(length) = rest.first().map(|&length| usize::from(length)) else { return };
        if length < 2 || length > options.len() {
            return;
        }
        let (option, after) = options.split_at(length);
        options = after;
        match (kind, &option[2..]) {
            (MSS, &[high, low]) if syn => segment.syn.mss = Some(u16::from_be_bytes([high, low])),
            (WINDOW_SCALE, &[shift]) if syn => segment.syn.window_scale = Some(shift),
            (SACK_PERMITTED, &[]) if syn => segment.syn.sack_permitted = true,
            (TIMESTAMPS, &[v0, v1, v2, v3, e0, e1, e2, e3]) => {
                segment.timestamps = Some(Timestamps {
                    value: u32::from_be_bytes([v0, v1, v2, v3]),
                    echo: u32::from_be_bytes([e0, e1, e2, e3]),
                });
            }
            (SACK, blocks) if !syn => {
                for block in blocks.chunks_exact(8) {
                    let word = |at: usize| {
                        u32::from_be_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
                    };
                    segment.sack.push(SackBlock { start: word(0), end: word(4) });
                }
            }
            _ => {}
        }
    }
}
