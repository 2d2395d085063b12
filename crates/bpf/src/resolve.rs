//! From the name in a configuration to the algorithm of a socket.

use crate::{Algorithm, LoadError, Loaded, Parameters, SelectError, available, ensure, select};
use std::os::fd::AsFd;

/// What a configured name stands for on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resolution {
    /// The kernel has it, under this name.
    Kernel(String),
    /// One of our programs, which is to be registered.
    Program(Algorithm),
}

/// Why a name stands for nothing on this machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// Neither the kernel nor this crate knows it.
    #[error(
        "congestion control \"{name}\" is neither in this kernel nor among ours \
         (hybla, hybla-plus, hybla-linux, westwood, vegas); the kernel's own are in \
         /proc/sys/net/ipv4/tcp_available_congestion_control"
    )]
    Unknown {
        /// The name as configured.
        name: String,
    },
    /// It exists in simulations only.
    #[error(
        "congestion control \"{algorithm}\" exists in simulations only; \
         a socket can have the kernel's own or one of ours (hybla, hybla-plus, hybla-linux, westwood, vegas)"
    )]
    SimulatedOnly {
        /// What was configured.
        algorithm: midhop_congestion::Algorithm,
    },
}

/// Finds what `name` stands for.
///
/// "hybla" and "hybla-plus" are always our program: the kernel's module of the first name counts per
/// acknowledgement. "hybla-linux" is that module where the kernel has it, else our program
/// that computes the same. "westwood" and "vegas" are the kernel's where it has them, else ours.
/// Every other name is the kernel's.
///
/// # Errors
/// When the name stands for nothing here.
pub fn resolve(name: &str) -> Result<Resolution, ResolveError> {
    resolve_by(name, available)
}

/// The same, for a caller that knows in another way which of the kernel's own algorithms are available.
///
/// # Errors
/// When the name stands for nothing here.
pub fn resolve_by(
    name: &str,
    available: impl Fn(&str) -> bool,
) -> Result<Resolution, ResolveError> {
    match Algorithm::from_name(name) {
        Some(algorithm) => Ok(match algorithm.kernel_equivalent() {
            Some(own) if available(own) => Resolution::Kernel(own.to_owned()),
            _ => Resolution::Program(algorithm),
        }),
        None if available(name) => Ok(Resolution::Kernel(name.to_owned())),
        None => Err(match midhop_congestion::Algorithm::from_name(name) {
            Some(algorithm) if !algorithm.runs_in_kernel() => {
                ResolveError::SimulatedOnly { algorithm }
            }
            _ => ResolveError::Unknown { name: name.to_owned() },
        }),
    }
}

/// An algorithm ready to be selected, and kept so while this value lives.
#[derive(Debug)]
#[non_exhaustive]
pub enum Active {
    /// The kernel's own, under this name.
    Kernel(String),
    /// Ours.
    Program(Loaded),
}

impl Resolution {
    /// Makes it selectable.
    ///
    /// # Errors
    /// When one of our programs cannot be registered; the kernel's own never fail here.
    pub fn activate(&self, parameters: &Parameters) -> Result<Active, LoadError> {
        match self {
            Self::Kernel(name) => Ok(Active::Kernel(name.clone())),
            Self::Program(algorithm) => ensure(*algorithm, parameters).map(Active::Program),
        }
    }
}

impl Active {
    /// The name to select it by.
    pub fn kernel_name(&self) -> &str {
        match self {
            Self::Kernel(name) => name,
            Self::Program(loaded) => loaded.kernel_name(),
        }
    }

    /// Makes `socket` use it.
    ///
    /// # Errors
    /// When the kernel refuses, see [`SelectError`].
    pub fn select(&self, socket: impl AsFd) -> Result<(), SelectError> {
        select(socket, self.kernel_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lists_of_algorithms_agree() {
        for algorithm in midhop_congestion::Algorithm::ALL {
            let program = Algorithm::from_name(algorithm.name());
            assert_eq!(program.is_some(), algorithm.is_ours(), "{algorithm}");
        }
    }

    #[test]
    fn hybla_is_ours_and_the_rest_the_kernels_where_it_has_them() {
        let program = |algorithm| Some(Resolution::Program(algorithm));
        let kernel = |name: &str| Some(Resolution::Kernel(name.to_owned()));
        for (name, bare, rich) in [
            ("hybla", program(Algorithm::Hybla), program(Algorithm::Hybla)),
            ("hybla-plus", program(Algorithm::HyblaPlus), program(Algorithm::HyblaPlus)),
            ("hybla-linux", program(Algorithm::HyblaLinux), kernel("hybla")),
            ("westwood", program(Algorithm::Westwood), kernel("westwood")),
            ("vegas", program(Algorithm::Vegas), kernel("vegas")),
            ("cubic", kernel("cubic"), kernel("cubic")),
            ("illinois", None, kernel("illinois")),
        ] {
            assert_eq!(resolve_by(name, |own| own == "cubic").ok(), bare, "{name}");
            assert_eq!(resolve_by(name, |_| true).ok(), rich, "{name}");
        }
        let error = resolve("no-such-thing").expect_err("it stands for nothing");
        assert!(error.to_string().contains("no-such-thing"));
        let error = resolve_by("xcp", |own| own == "cubic").expect_err("no kernel has it");
        assert!(error.to_string().contains("\"xcp\" exists in simulations only"), "{error}");
        let theirs = resolve_by("xcp", |own| own == "xcp").expect("a kernel of somebody's has it");
        assert_eq!(theirs, Resolution::Kernel("xcp".to_owned()));
        let error = resolve_by("bbr", |_| false).expect_err("a module that is not loaded");
        assert!(matches!(error, ResolveError::Unknown { .. }), "{error}");
    }
}
