//! Puts a stream in order outside of QUIC.
//!
//! quinn-proto closes the whole connection when the data waiting on one stream has more than 1024 gaps
//! (0.11.19; "too many gaps in stream buffer"). A leg of 140 Mbit/s and 600 ms has 7,000 datagrams in
//! flight, and a full queue in front of it drops every second one: the tunnel would die with all of its flows.
//! Data that is read as it arrives does not wait in quinn. So each stream is read unordered (`read_chunk(_, false)`),
//! and put in order here.
//!
//! Flow control then follows what has arrived, not what is in order, so a gap does not stop the sender.
//! The memory is bounded here: while [`Reassembly::is_full`], only what the first gap waits for may be read.

use bytes::Bytes;
use std::collections::BTreeMap;

/// Unit: bytes. The memory that a piece needs beside its contents: its place in the map, and an allocation. A peer
/// that sends single bytes with gaps between them makes this end hold much more than it sends.
const PIECE_COST: u64 = 128;

/// The received bytes of one stream that wait for earlier ones.
///
/// Invariant: each byte of the stream is delivered once, in order, without a gap.
#[derive(Debug)]
pub struct Reassembly {
    /// The offset of the next byte to deliver.
    position: u64,
    /// By their offset, without overlaps, none before `position`.
    pieces: BTreeMap<u64, Bytes>,
    held: u64,
    held_max: u64,
}

impl Reassembly {
    /// A stream of which nothing has arrived. It [is full](Self::is_full) once what waits behind a gap costs
    /// `held_max` bytes.
    pub fn new(held_max: midhop_units::Bytes) -> Self {
        Self { position: 0, pieces: BTreeMap::new(), held: 0, held_max: held_max.get() }
    }

    /// Stores bytes received for this offset.
    pub fn insert(&mut self, offset: u64, bytes: Bytes) {
        let (mut offset, mut bytes) = (offset, bytes);
        let Some(end) = offset.checked_add(bytes.len() as u64) else { return };
        // QUIC delivers no byte twice, but nothing here depends on that.
        skip_to(&mut offset, &mut bytes, self.position);
        if let Some((before, piece)) = self.pieces.range(..=offset).next_back() {
            skip_to(&mut offset, &mut bytes, before + piece.len() as u64);
        }
        while !bytes.is_empty() {
            let next = self.pieces.range(offset..end).next().map(|(at, piece)| (*at, piece.len()));
            let here = next.map_or(bytes.len(), |(at, _)| to_len(at - offset).min(bytes.len()));
            if here > 0 {
                self.keep(offset, bytes.split_to(here));
                offset += here as u64;
            }
            let Some((at, len)) = next else { break };
            skip_to(&mut offset, &mut bytes, at + len as u64);
        }
    }

    /// Takes bytes received for this offset. Returns them at once if they are next and nothing waits.
    pub fn pass(&mut self, offset: u64, bytes: Bytes) -> Option<Bytes> {
        if offset == self.position && self.pieces.is_empty() && !bytes.is_empty() {
            self.position += bytes.len() as u64;
            return Some(bytes);
        }
        self.insert(offset, bytes);
        None
    }

    /// The next bytes in order, if they have arrived.
    pub fn pop(&mut self) -> Option<Bytes> {
        let first = self.pieces.first_entry().filter(|first| *first.key() == self.position)?;
        let bytes = first.remove();
        self.held -= bytes.len() as u64;
        self.position += bytes.len() as u64;
        Some(bytes)
    }

    /// Whether as much waits behind a gap as may.
    pub fn is_full(&self) -> bool {
        self.cost().get() >= self.held_max && !self.pieces.contains_key(&self.position)
    }

    /// The offset up to which the stream was delivered.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// How many bytes wait, in order or not.
    pub fn held(&self) -> midhop_units::Bytes {
        midhop_units::Bytes::new(self.held)
    }

    /// The memory that they need, which is more than their bytes.
    pub fn cost(&self) -> midhop_units::Bytes {
        midhop_units::Bytes::new(self.held + PIECE_COST * self.pieces.len() as u64)
    }

    fn keep(&mut self, offset: u64, bytes: Bytes) {
        self.held += bytes.len() as u64;
        // Copies what has to wait: it may be a small part of a large buffer of the socket.
        let waits = offset != self.position;
        let bytes = if waits { Bytes::copy_from_slice(&bytes) } else { bytes };
        self.pieces.insert(offset, bytes);
    }
}

/// Drops what is before `to`.
fn skip_to(offset: &mut u64, bytes: &mut Bytes, to: u64) {
    let skipped = to_len(to.saturating_sub(*offset)).min(bytes.len());
    drop(bytes.split_to(skipped));
    *offset += skipped as u64;
}

fn to_len(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The contents of the stream at these offsets.
    fn part(start: u64, end: u64) -> Bytes {
        (start..end).map(|at| (at * 7 % 251) as u8).collect()
    }

    fn drained(reassembly: &mut Reassembly) -> Vec<u8> {
        std::iter::from_fn(|| reassembly.pop()).flatten().collect()
    }

    #[test]
    fn what_is_behind_a_gap_waits_and_fills_it_up() {
        let mut reassembly = Reassembly::new(midhop_units::Bytes::new(100));
        reassembly.insert(50, part(50, 150));
        assert!(reassembly.is_full() && reassembly.pop().is_none());
        reassembly.insert(0, part(0, 50));
        assert!(!reassembly.is_full());
        assert_eq!(drained(&mut reassembly), part(0, 150));
        assert_eq!((reassembly.position(), reassembly.held().get()), (150, 0));
        reassembly.insert(u64::MAX - 1, part(0, 10));
        reassembly.insert(0, part(0, 150));
        assert_eq!(reassembly.held().get(), 0);
    }

    #[test]
    fn many_small_pieces_fill_it_before_their_bytes_do() {
        let mut reassembly = Reassembly::new(midhop_units::Bytes::new(1_000_000));
        let mut offset = 1;
        while !reassembly.is_full() {
            reassembly.insert(offset, part(offset, offset + 1));
            offset += 2;
        }
        assert!(reassembly.held().get() < 10_000, "{:?}", reassembly.held());
        assert!(reassembly.cost().get() <= 1_000_000 + PIECE_COST);
    }

    proptest! {
        #[test]
        fn pieces_in_any_order_give_the_stream(
            pieces in proptest::collection::vec((0_u64..900, 1_u64..200), 0..60),
            drain_every in 1_usize..8,
        ) {
            let mut reassembly = Reassembly::new(midhop_units::Bytes::new(u64::MAX));
            let (mut out, mut covered) = (Vec::new(), [false; 1100]);
            for (count, (start, len)) in pieces.into_iter().enumerate() {
                reassembly.insert(start, part(start, start + len));
                covered[start as usize..(start + len) as usize].fill(true);
                if count % drain_every == 0 {
                    out.extend(drained(&mut reassembly));
                }
            }
            out.extend(drained(&mut reassembly));
            let whole = covered.iter().take_while(|covered| **covered).count();
            prop_assert_eq!(&out[..], &part(0, whole as u64)[..]);
            let beyond = covered[whole..].iter().filter(|covered| **covered).count();
            prop_assert_eq!(reassembly.held().get(), beyond as u64);
        }
    }
}
