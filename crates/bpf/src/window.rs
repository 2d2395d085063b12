//! The congestion window of a connection that was restored.
//!
//! Decision 0069.

use crate::Algorithm;
use crate::load::{Hold, LoadError, ensure_program};
use crate::{object::OBJECTS, program::Program};

/// The congestion control that gives a socket a window, and nothing else: see [`ensure_window`].
pub const WINDOW: &str = "midhop_window";

const PROGRAM: Program = Program { title: WINDOW, object: OBJECTS[5].1, built_name: WINDOW };

/// Makes [`WINDOW`] selectable while the result lives, by the name in it. A connection that selects it takes its congestion window from
/// the socket's `TCP_NOTSENT_LOWAT` and its slow start threshold from `TCP_USER_TIMEOUT`, both in segments; 0 as a
/// window changes nothing. The caller changes both options back and selects a congestion control that sends:
/// `midhop_linux::tcp_repair::seed` does all of that.
///
/// Not every algorithm keeps a window that it finds: see [`keeps_window`].
///
/// # Errors
/// When it is not registered and cannot be, see [`LoadError`].
pub fn ensure_window() -> Result<(String, Hold), LoadError> {
    ensure_program(&PROGRAM, WINDOW, &[])
}

/// Whether a connection that selects the congestion control of this name keeps its window. Hybla's module in the kernel, and
/// ours that computes the same, begin with one of their own.
pub fn keeps_window(kernel_name: &str) -> bool {
    let ours = Algorithm::HyblaLinux;
    // By its beginning: another process may have the whole name.
    let [default, made] = [&ours.kernel_name()[..KERNEL_NAME_UNIQUE], ours.prefix()];
    let begins_anew = Some(kernel_name) == ours.kernel_equivalent();
    !begins_anew && !kernel_name.starts_with(default) && !kernel_name.starts_with(made)
}

/// Unit: bytes. How much of [`Algorithm::kernel_name`] no other algorithm's begins with.
const KERNEL_NAME_UNIQUE: usize = 13;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Parameters;
    use std::time::Duration;

    #[test]
    fn only_hybla_as_linux_has_it_begins_anew() {
        let parameters = Parameters { rtt0: Duration::from_millis(50), ..Parameters::default() };
        for parameters in [Parameters::default(), parameters] {
            for algorithm in Algorithm::ALL {
                let name = parameters.kernel_name(algorithm).expect("valid");
                let numbered = format!("{}_7", &name[..name.len().min(KERNEL_NAME_UNIQUE)]);
                for name in [name, numbered] {
                    assert_eq!(keeps_window(&name), algorithm != Algorithm::HyblaLinux, "{name}");
                }
            }
        }
        assert!(!keeps_window("hybla"));
        for name in ["cubic", "bbr", "reno", ""] {
            assert!(keeps_window(name), "{name}");
        }
    }
}
