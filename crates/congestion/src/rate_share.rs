//! The division of a known rate among senders: max-min fairness by measured demands.
//!
//! A greedy sender wants all that it can get, and has an equal part of the rate that the others leave; a limited one
//! wants a certain rate. The caller decides which is which.
//!
//! Source: D. Bertsekas, R. Gallager, Data Networks, 2nd ed. 1992, §6.5.2; differs: one link, and demands that are
//! measured.

use midhop_units::Rate;

/// The demands of all senders on one rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Demands {
    /// Senders that want all they can get.
    pub greedy: u64,
    /// Senders that want a certain rate.
    pub limited: u64,
    /// The sum of the rates that the limited ones want.
    pub limited_rate: Rate,
}

impl Demands {
    /// The same with so many more greedy senders.
    #[must_use]
    pub fn with_greedy(self, more: u64) -> Self {
        Self { greedy: self.greedy + more, ..self }
    }

    /// Number of senders.
    pub fn count(&self) -> u64 {
        self.greedy + self.limited
    }

    /// An equal part of `all`.
    pub fn equal_part(&self, all: Rate) -> Rate {
        Rate::from_bits_per_s(all.bits_per_s() / self.count().max(1))
    }

    /// The allowance of a greedy one: an equal part of the rate that limited ones leave, and at least an equal part of
    /// `all`. Demands that were measured against another rate may exceed the rate.
    pub fn greedy_part(&self, all: Rate) -> Rate {
        let left = all.bits_per_s().saturating_sub(self.limited_rate.bits_per_s());
        Rate::from_bits_per_s(left / self.greedy.max(1)).max(self.equal_part(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_more_is_given_than_there_is(
            rate in 1_u64..1 << 40,
            greedy in 0_u64..1 << 20,
            wanted in proptest::collection::vec(0_u64..1 << 40, 0..20),
        ) {
            let (all, limited) = (Rate::from_bits_per_s(rate), wanted.len() as u64);
            let demands = Demands { greedy, limited, limited_rate: Rate::ZERO };
            let equal = demands.equal_part(all).bits_per_s();
            // A limited one wants less than an equal part.
            let together: u64 = wanted.iter().map(|wanted| wanted % (equal + 1)).sum();
            let demands = Demands { limited_rate: Rate::from_bits_per_s(together), ..demands };
            let each = demands.greedy_part(all).bits_per_s();
            prop_assert!(each * greedy + together <= rate && each >= equal);
        }
    }
}
