//! The algorithms: by the names that configurations and scenarios use, and with their own parameters.
//!
//! Each module of an algorithm has its [`Description`] and makes its law; only the list below
//! knows all of them. To add an algorithm, write its module and its line here.
//!
//! Decision 0039.

use crate::common::Common;
use crate::description::{Description, InKernel, Pacing, Parameters};
use crate::{
    Controller, bbr, cubic, dvegas, hybla, hybla_linux, known_rate, pulse, reno, vegas, vivace,
    westwood, xcp,
};
use midhop_units::Rate;
use std::fmt;

macro_rules! ignoring {
    ($ignored:ty, $kept:tt) => {
        $kept
    };
}

macro_rules! algorithms {
    ($($(#[$doc:meta])* $name:ident $(($own:ty))? = $law:ty,)+) => {
        /// A congestion control algorithm by name.
        ///
        /// The list is closed, since we define the meaning of each name; a kernel may know more names than these.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Algorithm {
            $($(#[$doc])* $name,)+
        }

        /// An algorithm with its own parameters.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Law {
            $($(#[$doc])* $name $(($own))?,)+
        }

        impl Algorithm {
            /// Every algorithm.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The description of it besides its law.
            pub const fn description(self) -> &'static Description {
                match self {
                    $(Self::$name => {
                        const DESCRIPTION: &Description = &<$law>::DESCRIPTION;
                        DESCRIPTION
                    })+
                }
            }
        }

        impl Law {
            /// Which algorithm it is.
            pub const fn algorithm(&self) -> Algorithm {
                match self {
                    $(Self::$name { .. } => Algorithm::$name,)+
                }
            }

            /// The law of `algorithm` if only its name is given, over a path of `rate`, where that is
            /// known. `None` for `known-rate` without a rate.
            pub fn usual(algorithm: Algorithm, rate: Option<Rate>) -> Option<Self> {
                Some(match algorithm {
                    $(Algorithm::$name => Self::$name $((<$own as Parameters>::usual(rate)?))?,)+
                })
            }

            /// A controller by this law.
            pub(crate) fn controller(&self, common: &Common<'_>) -> Controller {
                match self {
                    $(Self::$name $((ignoring!($own, own)))? => {
                        <$law>::controller(common $(, ignoring!($own, own))?)
                    })+
                }
            }
        }
    };
}

algorithms! {
    /// NewReno, in every kernel; repairs with or without SACK are the transport's task.
    Reno = reno::Reno,
    /// CUBIC, most kernels' default.
    Cubic = cubic::Cubic,
    /// BBR version 1: the kernel's.
    Bbr = bbr::v1::BbrV1,
    /// BBR version 3, as its draft describes it: simulated only.
    BbrV3 = bbr::v3::BbrV3,
    /// PCC Vivace: simulated only.
    Vivace = vivace::Vivace,
    /// The rate of a link that changes, found by pulses: in simulations and tunnels only.
    Pulse = pulse::Pulsed,
    /// The rate of a dedicated leg: simulated only.
    KnownRate(known_rate::KnownRateSettings) = known_rate::KnownRate,
    /// Hybla as in its paper, counted per segment: always ours.
    Hybla(hybla::ReferenceFlow) = hybla::Published,
    /// Hybla's law with a bounded slow start that tolerates a radio's losses: ours.
    HyblaPlus(hybla::HyblaSettings) = hybla::Hybla,
    /// Hybla as Linux computes it: the kernel's, else ours.
    HyblaLinux(hybla::ReferenceFlow) = hybla_linux::HyblaLinux,
    /// Westwood+: the kernel's, else ours.
    Westwood = westwood::Westwood,
    /// Vegas: the kernel's, else ours.
    Vegas(vegas::VegasThresholds) = vegas::Vegas,
    /// DVegas in our reading: in simulations only.
    DVegas(dvegas::DVegasThresholds) = dvegas::DVegas,
    /// XCP: in simulations only, as it needs routers that support it.
    Xcp(xcp::XcpSettings) = xcp::Xcp,
}

impl Algorithm {
    /// The name.
    pub const fn name(self) -> &'static str {
        self.description().name
    }

    /// The algorithm called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|algorithm| algorithm.name() == name)
    }

    /// The names of all.
    pub fn names() -> impl Iterator<Item = &'static str> + Clone {
        Self::ALL.iter().map(|algorithm| algorithm.name())
    }

    /// Whether this release has a program of its own for kernels that lack it.
    pub const fn is_ours(self) -> bool {
        matches!(self.description().kernel, InKernel::Program)
    }

    /// Whether a transport paces under it by default.
    pub const fn paces(self) -> bool {
        matches!(self.description().pacing, Pacing::Always | Pacing::Usually)
    }

    /// Whether a kernel's sockets can use it, if necessary with a program of ours; if not, it exists in
    /// simulations and tunnels only.
    pub const fn runs_in_kernel(self) -> bool {
        !matches!(self.description().kernel, InKernel::Never)
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
        for &algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::from_name(&algorithm.to_string()), Some(algorithm));
        }
        assert_eq!(Algorithm::from_name("Hybla"), None);
    }

    #[test]
    fn a_name_alone_is_a_law_unless_it_needs_a_rate() {
        for &algorithm in Algorithm::ALL {
            let law = Law::usual(algorithm, None);
            assert_eq!(law.is_none(), algorithm == Algorithm::KnownRate, "{algorithm}");
            let law = law.or_else(|| Law::usual(algorithm, Some(Rate::from_mbit_per_s(1))));
            assert_eq!(law.map(|law| law.algorithm()), Some(algorithm));
        }
    }

    #[test]
    fn what_comes_as_a_program_runs_in_a_kernel() {
        for algorithm in Algorithm::ALL {
            assert!(algorithm.runs_in_kernel() || !algorithm.is_ours(), "{algorithm}");
        }
        assert!(!Algorithm::Xcp.runs_in_kernel());
    }
}
