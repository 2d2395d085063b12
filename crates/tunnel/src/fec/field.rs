//! The field of 256 elements, and a Cauchy matrix of coefficients in it: each square submatrix is invertible.
//!
//! The polynomial is x⁸ + x⁴ + x³ + x² + 1, that of RFC 5510 §8.1 and RFC 8681 §3.6; addition is
//! exclusive or.

/// The polynomial without its highest term.
const POLYNOMIAL: u8 = 0x1d;
/// Half of the elements stand for datagrams, the other half for repairs.
const HALF: u8 = 128;
const BYTES: u64 = 0x0101_0101_0101_0101;
const INVERSES: [u8; 256] = inverses();

/// The coefficient of the datagram with this number in a repair with this index: 1 / (x + y), an
/// element of a Cauchy matrix, whose square submatrices are all invertible.
pub(super) fn coefficient(repair: u8, number: u32) -> u8 {
    let y = (number % u32::from(HALF)) as u8;
    inverse((repair | HALF) ^ y)
}

/// The product of two elements.
pub(super) const fn product(a: u8, b: u8) -> u8 {
    let (mut a, mut b, mut product) = (a, b, 0);
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        let carry = a >> 7;
        a = (a << 1) ^ (carry * POLYNOMIAL);
        b >>= 1;
    }
    product
}

/// 1 / `a`; zero for zero.
pub(super) fn inverse(a: u8) -> u8 {
    INVERSES[usize::from(a)]
}

/// Adds `factor` × `what` to `to`, up to the shorter length.
///
/// Eight bytes at a time: each bit of a byte adds its own multiple of the factor, and a bit times
/// a byte carries nothing into the next.
pub(super) fn add_multiple(to: &mut [u8], what: &[u8], factor: u8) {
    let multiples: [u64; 8] = std::array::from_fn(|bit| u64::from(product(factor, 1 << bit)));
    let multiplied = |word: u64| {
        multiples.iter().zip(0..).fold(0, |sum, (multiple, bit): (&u64, u32)| {
            sum ^ ((word >> bit) & BYTES).wrapping_mul(*multiple)
        })
    };
    let len = to.len().min(what.len());
    let (mut to, mut what) = (to[..len].chunks_exact_mut(8), what[..len].chunks_exact(8));
    for (to, what) in (&mut to).zip(&mut what) {
        let sum = word(to) ^ multiplied(word(what));
        to.copy_from_slice(&sum.to_le_bytes());
    }
    for (to, what) in to.into_remainder().iter_mut().zip(what.remainder()) {
        *to ^= multiplied(u64::from(*what)) as u8;
    }
}

/// Multiplies each byte.
pub(super) fn scale(bytes: &mut [u8], factor: u8) {
    for byte in bytes {
        *byte = product(*byte, factor);
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

const fn inverses() -> [u8; 256] {
    let mut inverses = [0; 256];
    let mut a = 1;
    while a < 256 {
        let mut b = 1;
        while b < 256 {
            if product(a as u8, b as u8) == 1 {
                inverses[a] = b as u8;
                break;
            }
            b += 1;
        }
        a += 1;
    }
    inverses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_field_of_the_rfcs() {
        assert_eq!(product(0x80, 2), 0x1d);
        assert_eq!(product(0x57, 0x83), 0x31);
        assert!((1..=255).all(|a| product(a, inverse(a)) == 1));
    }

    #[test]
    fn multiples_are_added_at_any_length() {
        let what: Vec<u8> = (0..=255).collect();
        for factor in 0..=255 {
            for len in [0, 1, 7, 8, 9, 255] {
                let mut sum = vec![0x5a; len];
                add_multiple(&mut sum, &what, factor);
                let one_by_one = what.iter().take(len).map(|byte| 0x5a ^ product(*byte, factor));
                assert!(sum.iter().copied().eq(one_by_one), "{factor}, {len}");
            }
        }
    }

    #[test]
    fn coefficients_are_those_of_the_specification() {
        // 1 / 0x80, 1 / 0x81, 1 / (0x83 + 0x05), and one after the index wraps. The values were checked with
        // another program.
        assert_eq!(coefficient(0, 0), inverse(0x80));
        assert_eq!(coefficient(1, 128), inverse(0x81));
        assert_eq!(coefficient(3, 5), inverse(0x86));
        assert_eq!(coefficient(131, 133), inverse(0x86));
        assert_eq!([coefficient(0, 0), coefficient(0, 1), coefficient(5, 130)], [0x1b, 0x54, 0xb0]);
    }
}
