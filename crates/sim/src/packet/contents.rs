//! What datagrams contain that one proxy sends another. Packets are without bytes, and name these by a number.
//!
//! Invariant: every packet with contents under way holds them, once; whoever ends such a packet gives them back.

use bytes::Bytes;

/// The contents of a datagram, by their place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentsId(u32);

impl ContentsId {
    pub(super) const fn number(self) -> u32 {
        self.0
    }

    pub(super) const fn of(number: u32) -> Self {
        Self(number)
    }
}

/// The contents of all datagrams under way.
#[derive(Debug, Default)]
pub struct Contents {
    slots: Vec<(Bytes, u32)>,
    free: Vec<u32>,
}

impl Contents {
    /// Takes what one packet will contain.
    ///
    /// # Panics
    /// When four thousand million are under way already.
    pub fn insert(&mut self, bytes: Bytes) -> ContentsId {
        if let Some(place) = self.free.pop() {
            self.slots[place as usize] = (bytes, 1);
            return ContentsId(place);
        }
        let place = u32::try_from(self.slots.len()).expect("room for more");
        self.slots.push((bytes, 1));
        ContentsId(place)
    }

    /// One more packet contains the same.
    pub fn hold(&mut self, id: ContentsId) {
        self.slots[id.0 as usize].1 += 1;
    }

    /// Gives out what a packet contains, for good.
    pub fn take(&mut self, id: ContentsId) -> Bytes {
        let (bytes, holders) = &mut self.slots[id.0 as usize];
        *holders -= 1;
        if *holders > 0 {
            return bytes.clone();
        }
        self.free.push(id.0);
        std::mem::take(bytes)
    }

    /// How many are under way.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether none are.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_stay_as_long_as_a_packet_has_them() {
        let mut contents = Contents::default();
        let [one, other] = [b"one", b"two"].map(|text| contents.insert(Bytes::from_static(text)));
        contents.hold(one);
        assert_eq!((contents.take(one), contents.len()), (Bytes::from_static(b"one"), 2));
        assert_eq!(contents.take(one), Bytes::from_static(b"one"));
        let again = contents.insert(Bytes::from_static(b"six"));
        assert_eq!((again, contents.take(other)), (one, Bytes::from_static(b"two")));
        assert_eq!(contents.take(again), Bytes::from_static(b"six"));
        assert!(contents.is_empty());
    }
}
