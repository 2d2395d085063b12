//! The algorithms by the names that configurations and scenarios use.

use std::fmt;

/// A congestion control algorithm by name.
///
/// The list is closed where the meaning is ours to define; a kernel may know more names than these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// NewReno, every kernel's; repairs with or without SACK are the transport's, not its.
    Reno,
    /// CUBIC, most kernels' default.
    Cubic,
    /// BBR version 1: the kernel's.
    Bbr,
    /// BBR version 3, as its draft describes it: simulated only.
    BbrV3,
    /// PCC Vivace: simulated only.
    Vivace,
    /// The rate of a dedicated leg: simulated only.
    KnownRate,
    /// Hybla as its paper has it, counted per segment: always ours.
    Hybla,
    /// Hybla's law with a bounded slow start that tolerates a radio's losses: ours.
    HyblaPlus,
    /// Hybla as Linux computes it: the kernel's, else ours.
    HyblaLinux,
    /// Westwood+: the kernel's, else ours.
    Westwood,
    /// Vegas: the kernel's, else ours.
    Vegas,
    /// DVegas as we read it: in simulations only.
    DVegas,
    /// XCP: in simulations only, as it needs routers that know it.
    Xcp,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Self; 13] = [
        Self::Reno,
        Self::Cubic,
        Self::Bbr,
        Self::BbrV3,
        Self::Vivace,
        Self::KnownRate,
        Self::Hybla,
        Self::HyblaPlus,
        Self::HyblaLinux,
        Self::Westwood,
        Self::Vegas,
        Self::DVegas,
        Self::Xcp,
    ];

    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reno => "reno",
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
            Self::BbrV3 => "bbr3",
            Self::Vivace => "vivace",
            Self::KnownRate => "known-rate",
            Self::Hybla => "hybla",
            Self::HyblaPlus => "hybla-plus",
            Self::HyblaLinux => "hybla-linux",
            Self::Westwood => "westwood",
            Self::Vegas => "vegas",
            Self::DVegas => "dvegas",
            Self::Xcp => "xcp",
        }
    }

    /// The algorithm called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// Whether this release brings a program of its own for kernels that lack it.
    pub const fn is_ours(self) -> bool {
        matches!(
            self,
            Self::Hybla | Self::HyblaPlus | Self::HyblaLinux | Self::Westwood | Self::Vegas
        )
    }

    /// Whether a transport under it paces without being told to: the law is a rate, or, as with
    /// `hybla-plus`, the program asks the kernel for it.
    pub const fn paces(self) -> bool {
        matches!(self, Self::Bbr | Self::BbrV3 | Self::Vivace | Self::KnownRate | Self::HyblaPlus)
    }

    /// Whether it is a window that [a committed rate](crate::committed) can stand beneath.
    pub const fn takes_committed_rate(self) -> bool {
        matches!(
            self,
            Self::Reno
                | Self::Cubic
                | Self::Westwood
                | Self::Hybla
                | Self::HyblaPlus
                | Self::Vegas
                | Self::DVegas
        )
    }

    /// Whether a kernel's sockets can use it, be it with a program of ours; if not, it exists in
    /// simulations only.
    pub const fn runs_in_kernel(self) -> bool {
        matches!(self, Self::Reno | Self::Cubic | Self::Bbr) || self.is_ours()
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
    fn names_read_back() {
        for algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::from_name(&algorithm.to_string()), Some(algorithm));
        }
        assert_eq!(Algorithm::from_name("Hybla"), None);
    }

    #[test]
    fn what_comes_as_a_program_runs_in_a_kernel() {
        for algorithm in Algorithm::ALL {
            assert!(algorithm.runs_in_kernel() || !algorithm.is_ours(), "{algorithm}");
        }
        assert!(!Algorithm::Xcp.runs_in_kernel());
    }
}
