//! Sequence numbers: 32 bits on the wire, 64 within.
//!
//! Within, one direction of a connection counts *positions*: 0 is the SYN, 1 the first byte of the
//! stream, and they never wrap. A [`Space`] knows the initial sequence number and translates.

/// The sequence space of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Space {
    initial: u32,
}

impl Space {
    pub fn new(initial: u32) -> Self {
        Self { initial }
    }

    /// The sequence number of a position.
    pub fn wire(self, position: u64) -> u32 {
        // Only the low 32 bits travel.
        self.initial.wrapping_add(position as u32)
    }

    /// The position of a sequence number, if it is the one closest to `near`.
    ///
    /// `None` if that lies before the SYN.
    pub fn position(self, wire: u32, near: u64) -> Option<u64> {
        let ahead = wire.wrapping_sub(self.wire(near)) as i32;
        near.checked_add_signed(i64::from(ahead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_survive_the_wrap() {
        let space = Space::new(0xffff_fff0);
        for position in [0, 1, 15, 16, 17, 1 << 31, (1 << 32) + 5, 7 << 32] {
            let wire = space.wire(position);
            for near in [position.saturating_sub(1 << 30), position, position + (1 << 30)] {
                assert_eq!(space.position(wire, near), Some(position));
            }
        }
        assert_eq!(space.position(0xffff_ffef, 0), None);
    }
}
