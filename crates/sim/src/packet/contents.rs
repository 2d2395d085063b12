//! The contents of datagrams between two proxies. Packets have no bytes, and name their contents by a number.
//!
//! Invariant: every packet in flight with contents owns them, once; the code that ends such a packet frees them.

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

/// The contents of all datagrams in flight.
#[derive(Debug, Default)]
pub struct Contents {
    slots: Vec<(Bytes, u32)>,
    free: Vec<u32>,
}

impl Contents {
    /// Stores the contents of one packet.
    ///
    /// # Panics
    /// When four thousand million are in flight already.
    pub fn insert(&mut self, bytes: Bytes) -> ContentsId {
        if let Some(place) = self.free.pop() {
            self.slots[place as usize] = (bytes, 1);
            return ContentsId(place);
        }
        let place = u32::try_from(self.slots.len()).expect("room for more");
        self.slots.push((bytes, 1));
        ContentsId(place)
    }

    /// One more packet has the same contents.
    pub fn hold(&mut self, id: ContentsId) {
        self.slots[id.0 as usize].1 += 1;
    }

    /// Takes a packet's contents, for good.
    pub fn take(&mut self, id: ContentsId) -> Bytes {
        let (bytes, holders) = &mut self.slots[id.0 as usize];
        *holders -= 1;
        if *holders > 0 {
            return bytes.clone();
        }
        self.free.push(id.0);
        std::mem::take(bytes)
    }

    /// How many are in flight.
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
