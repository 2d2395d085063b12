//! The payload of the meter: pseudo-random, so that nothing on the path can compress it, and a pure
//! function of key and offset, so that no sender has to keep bytes for a repetition.

use midhop_units::Seed;

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
const WORD: u64 = 8;

/// An endless stream of bytes with random access.
///
/// Word `i` of the stream is the SplitMix64 finaliser of `key + i × γ`, little-endian.
#[derive(Debug, Clone, Copy)]
pub(super) struct Payload {
    key: u64,
}

impl Payload {
    /// The stream of flow `flow` in a run with `seed`.
    pub(super) fn of_flow(seed: Seed, flow: u32) -> Self {
        Self { key: seed.derive("meter").0.wrapping_add(mix(u64::from(flow).wrapping_mul(GAMMA))) }
    }

    /// Writes the bytes from `offset` on into `buffer`.
    pub(super) fn fill(self, offset: u64, buffer: &mut [u8]) {
        let mut index = offset / WORD;
        let skip = (offset % WORD) as usize;
        let mut rest = buffer;
        if skip != 0 {
            let word = self.word(index).to_le_bytes();
            let taken = rest.len().min(word.len() - skip);
            let (head, tail) = rest.split_at_mut(taken);
            head.copy_from_slice(&word[skip..skip + taken]);
            rest = tail;
            index += 1;
        }
        let mut words = rest.chunks_exact_mut(WORD as usize);
        for chunk in &mut words {
            chunk.copy_from_slice(&self.word(index).to_le_bytes());
            index = index.wrapping_add(1);
        }
        let last = words.into_remainder();
        let word = self.word(index).to_le_bytes();
        last.copy_from_slice(&word[..last.len()]);
    }

    #[inline(always)]
    fn word(self, index: u64) -> u64 {
        mix(self.key.wrapping_add(index.wrapping_mul(GAMMA)))
    }
}

#[inline(always)]
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_cut_gives_the_same_stream(offset in 0u64..10_000, length in 0usize..300, cut in 0usize..300) {
            let payload = Payload::of_flow(Seed(7), 3);
            let mut whole = vec![0; length];
            payload.fill(offset, &mut whole);
            let cut = cut.min(length);
            let mut parts = vec![0; length];
            payload.fill(offset, &mut parts[..cut]);
            payload.fill(offset + cut as u64, &mut parts[cut..]);
            prop_assert_eq!(whole, parts);
        }
    }

    #[test]
    fn flows_and_seeds_differ_and_every_byte_value_is_as_frequent() {
        let take = |seed, flow| {
            let mut bytes = vec![0; 1 << 18];
            Payload::of_flow(Seed(seed), flow).fill(0, &mut bytes);
            bytes
        };
        let one = take(1, 0);
        assert_ne!(one, take(1, 1));
        assert_ne!(one, take(2, 0));
        assert_eq!(one, take(1, 0));
        let mut counts = [0u32; 256];
        one.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
        // 1,024 expected of each; six standard deviations are 192.
        assert!(counts.iter().all(|&count| (832..1216).contains(&count)), "{counts:?}");
    }
}
