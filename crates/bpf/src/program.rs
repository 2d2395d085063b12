//! The prebuilt programs: an object, and the congestion control in it.

use crate::{Algorithm, object::OBJECTS};

/// A prebuilt program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    /// Its name in messages.
    pub(crate) title: &'static str,
    /// The object that it is loaded from.
    pub(crate) object: &'static [u8],
    /// Its name there.
    pub(crate) built_name: &'static str,
}

impl Program {
    /// The one that computes an algorithm.
    pub(crate) const fn of(algorithm: Algorithm) -> Self {
        let object = match algorithm {
            Algorithm::Hybla | Algorithm::HyblaPlus => OBJECTS[0].1,
            Algorithm::HyblaLinux => OBJECTS[1].1,
            Algorithm::Vegas => OBJECTS[3].1,
            Algorithm::Westwood => OBJECTS[4].1,
        };
        Self { title: algorithm.name(), object, built_name: algorithm.built_name() }
    }
}
