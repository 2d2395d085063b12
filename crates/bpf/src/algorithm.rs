//! The algorithms that come as BPF programs.

use std::fmt;

/// A congestion control algorithm that this crate can register with the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Hybla as its paper has it, counted per segment.
    Hybla,
    /// The same program with a bounded slow start, tolerant of a radio's losses.
    HyblaPlus,
    /// Hybla as the kernel's own module computes it, bit for bit.
    HyblaLinux,
    /// Westwood+.
    Westwood,
    /// Vegas.
    Vegas,
}

impl Algorithm {
    /// Every algorithm, in the order of the documentation.
    pub const ALL: [Self; 5] =
        [Self::Hybla, Self::HyblaPlus, Self::HyblaLinux, Self::Westwood, Self::Vegas];

    /// The law that it computes, by the names that all crates share.
    pub const fn law(self) -> midhop_congestion::Algorithm {
        match self {
            Self::Hybla => midhop_congestion::Algorithm::Hybla,
            Self::HyblaPlus => midhop_congestion::Algorithm::HyblaPlus,
            Self::HyblaLinux => midhop_congestion::Algorithm::HyblaLinux,
            Self::Westwood => midhop_congestion::Algorithm::Westwood,
            Self::Vegas => midhop_congestion::Algorithm::Vegas,
        }
    }

    /// The name in configurations and scenarios.
    pub const fn name(self) -> &'static str {
        self.law().name()
    }

    /// The algorithm that configurations call `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// The name it is registered under with default parameters.
    ///
    /// Range: at most 15 characters (TCP_CA_NAME_MAX less the final zero).
    pub const fn kernel_name(self) -> &'static str {
        match self {
            Self::Hybla => "midhop_hybla04",
            Self::HyblaPlus => "midhop_hyblapls",
            Self::HyblaLinux => "midhop_hyblalx",
            Self::Westwood => "midhop_westwood",
            Self::Vegas => "midhop_vegas",
        }
    }

    /// The name under which some kernels carry the same law themselves. Ours is used where they do
    /// not; [`Algorithm::Hybla`] and [`Algorithm::HyblaPlus`] differ from every kernel's and have none.
    pub const fn kernel_equivalent(self) -> Option<&'static str> {
        match self {
            Self::Hybla | Self::HyblaPlus => None,
            Self::HyblaLinux => Some("hybla"),
            Self::Westwood => Some("westwood"),
            Self::Vegas => Some("vegas"),
        }
    }

    /// The name in the object that it is loaded from.
    pub(crate) const fn built_name(self) -> &'static str {
        match self {
            Self::HyblaPlus => Self::Hybla.kernel_name(),
            _ => self.kernel_name(),
        }
    }

    /// The six letters that begin a name made from parameters.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Hybla => "mhybla",
            Self::HyblaPlus => "mhypls",
            Self::HyblaLinux => "mhylnx",
            Self::Westwood => "mhwest",
            Self::Vegas => "mhvega",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_names_fit_and_differ() {
        for algorithm in Algorithm::ALL {
            assert!(algorithm.kernel_name().len() <= 15, "{}", algorithm.kernel_name());
            assert_eq!(algorithm.prefix().len(), 6);
            assert_eq!(Algorithm::from_name(algorithm.name()), Some(algorithm));
            let same = Algorithm::ALL.into_iter().filter(|other| {
                other.kernel_name() == algorithm.kernel_name()
                    || other.prefix() == algorithm.prefix()
            });
            assert_eq!(same.count(), 1, "{algorithm}");
        }
        assert_eq!(Algorithm::from_name("cubic"), None);
        // There is a program for exactly those algorithms that the laws' crate calls ours.
        let ours = midhop_congestion::Algorithm::ALL.iter().copied().filter(|law| law.is_ours());
        assert!(ours.eq(Algorithm::ALL.into_iter().map(Algorithm::law)));
    }
}
