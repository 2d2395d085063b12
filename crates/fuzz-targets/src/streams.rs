//! A stream's bytes as a peer sends them: in any order, more than once, with gaps.

use bytes::Bytes;
use midhop_tunnel::reassembly::Reassembly;
use std::collections::BTreeSet;

/// Where the pieces of a stream lie. Unit: bytes.
const STREAM_BYTES: u64 = 4096;
const HELD_MAX: u64 = 1024;

/// Records of three bytes: where a piece begins (the lower 12 bits), how often the stream is read after it (the
/// others), and how long the piece is.
///
/// What comes out is the stream without a gap, each byte once. What is held is what arrived and did not come
/// out, and no more. It reports that it is full when it is.
pub fn reassembly(data: &[u8]) {
    let byte_at = |at: u64| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8;
    let mut reassembly = Reassembly::new(midhop_units::Bytes::new(HELD_MAX));
    let mut came = BTreeSet::new();
    let mut read = 0;
    for record in data.chunks_exact(3) {
        let place = u64::from(u16::from_le_bytes([record[0], record[1]]));
        let (start, reads) = (place % STREAM_BYTES, place / STREAM_BYTES);
        let end = (start + u64::from(record[2])).min(STREAM_BYTES);
        // Also at the largest offset of a stream, where nothing may wrap.
        let beyond = record[2] == 0;
        if beyond {
            reassembly.insert(u64::MAX - start, Bytes::from_static(&[0; STREAM_BYTES as usize]));
        } else {
            reassembly.insert(start, (start..end).map(byte_at).collect());
            came.extend(start..end);
        }
        for _ in 0..reads {
            let Some(bytes) = reassembly.pop() else { break };
            assert!(!bytes.is_empty());
            for byte in bytes {
                assert!(byte == byte_at(read) && came.contains(&read), "byte {read} was invented");
                read += 1;
            }
        }
        assert_eq!(reassembly.position(), read);
        let held = came.range(read..).count() as u64;
        assert_eq!(reassembly.held().get(), held);
        // Pieces cost more than their bytes.
        let cost = reassembly.cost().get();
        assert!(cost >= held);
        assert_eq!(reassembly.is_full(), cost >= HELD_MAX && !came.contains(&read));
    }
}
