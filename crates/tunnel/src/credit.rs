//! Flow control of single streams, in addition to QUIC's.
//!
//! QUIC grants credit for what has been read of a stream. To bound what a stalled reader holds, an end would have
//! to stop reading. Unread data waits in QUIC, which closes the whole connection when one stream
//! has too many gaps (quinn-proto 0.11.19: 1024; a third of what a geostationary leg has in flight at 40 %
//! loss). With a credit of its own, a stream can be read as it arrives, and what may arrive stays bounded.
//! `SPEC.md` §5.5.
//!
//! Decision 0021.

mod book;

pub use book::{CreditBook, CreditBounds, StreamCredit, held_max};

use crate::varint;
use bytes::Bytes;

/// The setting by which an end announces this credit, and how much of it each stream has at first; none: zero.
pub const SETTING: u64 = 0x2fec_0004;
/// The type of the unidirectional stream by which more is granted.
pub const STREAM: u64 = 0x2fec_0004;
/// A grant that adds less than this part of the window is not sent.
const NEWS_PARTS: u64 = 8;

/// The credit that this end gives to one stream.
#[derive(Debug, Clone, Copy)]
pub struct Grant {
    /// The offset up to which the peer may send, as last granted.
    limit: u64,
}

impl Grant {
    /// What each stream has at first. Unit: bytes.
    pub const fn new(first: u64) -> Self {
        Self { limit: first }
    }

    /// The offset up to which the peer may send, as last granted.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// So much of the stream has been passed on, and `window` bytes may be in flight or wait here. Returns the new
    /// limit if it is worth sending. A limit never shrinks.
    pub fn pass_on(&mut self, position: u64, window: u64) -> Option<u64> {
        let limit = position.saturating_add(window);
        if limit.saturating_sub(self.limit) < (window / NEWS_PARTS).max(1) {
            return None;
        }
        self.limit = limit;
        Some(limit)
    }
}

/// Writes a grant: a stream and the offset up to which the peer may send.
pub fn write(stream: u64, limit: u64, out: &mut Vec<u8>) {
    varint::write(stream, out);
    varint::write(limit, out);
}

/// Parses grants as they arrive.
#[derive(Debug, Default)]
pub struct CreditReader {
    kept: Vec<u8>,
}

impl CreditReader {
    /// The next stream and its limit; none: more bytes are needed.
    pub fn read(&mut self, input: &mut Bytes) -> Option<(u64, u64)> {
        varint::read_pair(&mut self.kept, input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_limit_is_sent_where_it_is_worth_it() {
        let mut grant = Grant::new(800);
        let granted: Vec<_> =
            [0, 99, 100, 150, 199, 200, 1000].map(|at| grant.pass_on(at, 800)).into();
        assert_eq!(granted, [None, None, Some(900), None, None, Some(1000), Some(1800)]);
        assert_eq!(Grant::new(0).pass_on(0, 0), None);
        assert_eq!(Grant::new(u64::MAX).pass_on(10, u64::MAX), None);
    }

    #[test]
    fn a_window_that_shrinks_takes_nothing_back_and_one_that_grows_is_sent_at_once() {
        let mut grant = Grant::new(800);
        assert_eq!(grant.pass_on(100, 80), None, "800 were granted before");
        assert_eq!(grant.pass_on(729, 80), None);
        assert_eq!(grant.pass_on(730, 80), Some(810));
        assert_eq!(grant.pass_on(731, 2400), Some(3131));
    }

    proptest! {
        #[test]
        fn grants_are_read_in_whatever_pieces_they_come(
            sent in proptest::collection::vec((0..=varint::MAX, 0..=varint::MAX), 0..20),
            piece in 1_usize..20,
        ) {
            let mut bytes = Vec::new();
            sent.iter().for_each(|(stream, limit)| write(*stream, *limit, &mut bytes));
            let (mut reader, mut read) = (CreditReader::default(), Vec::new());
            for part in bytes.chunks(piece) {
                let mut part = Bytes::copy_from_slice(part);
                read.extend(std::iter::from_fn(|| reader.read(&mut part)));
                prop_assert!(part.is_empty());
            }
            prop_assert_eq!(read, sent);
        }
    }
}
