//! Sequence numbers as an observer between the ends sees them: 32 bits, from a start that it may have
//! missed.
//!
//! Within an agent a direction's bytes have *positions* of 64 bits that never wrap. Those of the first
//! segment that the agent sees begin high enough that earlier bytes have positions too.

/// Where the first sequence number that an agent sees lies. Half the space of sequence numbers fits below.
const ORIGIN: u64 = 1 << 32;

/// The position of the first sequence number that an agent sees.
pub(crate) fn first(wire: u32) -> u64 {
    ORIGIN + u64::from(wire)
}

/// The position of a sequence number: the one closest to `near`.
pub(crate) fn position(wire: u32, near: u64) -> u64 {
    // The low 32 bits are the number on the wire.
    let ahead = wire.wrapping_sub(near as u32) as i32;
    near.saturating_add_signed(i64::from(ahead))
}

/// Whether the number or stamp `a` comes after `b` (RFC 7323 §5.2).
pub(crate) fn is_after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_go_on_where_numbers_wrap() {
        let near = first(u32::MAX - 10);
        assert_eq!(position(u32::MAX - 10, near), near);
        assert_eq!(position(5, near), near + 16);
        assert_eq!(position(u32::MAX - 1000, near), near - 990);
        assert_eq!(position(u32::MAX - 10, near + 16), near);
        // Also before the first, and beyond the second wrap.
        assert_eq!(position(0xffff_fff0, first(0)), first(0) - 16);
        assert_eq!(position(3, near + (1 << 32)), near + (1 << 32) + 14);
    }

    #[test]
    fn later_is_after_also_across_the_wrap() {
        assert!(is_after(1, 0) && !is_after(0, 0) && !is_after(0, 1));
        assert!(is_after(2, u32::MAX - 2) && !is_after(u32::MAX - 2, 2));
    }
}
