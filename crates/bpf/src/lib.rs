//! Congestion control as BPF struct_ops programs, prebuilt, with their loader.
//!
//! A kernel often lacks the algorithms made for satellite paths. This crate brings four of them as
//! programs that the running kernel verifies and then offers under a name, like a module of its own:
//! any socket on the machine, in any network namespace, selects it with `TCP_CONGESTION`.
//!
//! ```text
//! resolve("hybla") ─► Resolution ─ activate(parameters) ─► Active ─ select(socket)
//!                      │ Kernel: the kernel has it            │ keeps the algorithm registered
//!                      └ Program: ours ──► ensure() ──────────┘ until dropped
//! ```
//!
//! # Names
//! With [`Parameters::default`] an algorithm is registered under [`Algorithm::kernel_name`]. Other
//! parameters give it another name ([`Parameters::kernel_name`]), made from the parameters. So the
//! name alone shows what a socket gets: two daemons, or two legs of one daemon, with different
//! parameters never use each other's algorithm.
//!
//! One more program, [`WINDOW`], gives a connection that was restored at another place the congestion window that it had.
//!
//! # Lifetime
//! A registration lives as long as a process holds its BPF link. [`ensure`] registers what is not
//! registered, and otherwise opens the existing link, so that two daemons hold the same
//! one and either may exit first; the kernel drops the algorithm with the last holder. Connections
//! that use it keep it until they close, held or not. Nothing is pinned: no bpffs need be mounted,
//! and a crash leaves nothing behind. Opening another process's link takes CAP_SYS_ADMIN. Without
//! it the algorithm is registered once more, under a name with a number; without the privilege to do
//! that either, the registration is used and not held ([`Hold::Borrowed`]), and vanishes with its owner.
//!
//! # Privilege
//! Registering takes CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN in the initial user namespace; selecting takes
//! CAP_NET_ADMIN over the network namespace only. A daemon registers first and then drops the rest.
//!
//! # Licence
//! The Rust code is under the workspace's licence. The programs in `programs/` and the objects in
//! `prebuilt/` are GPL-2.0-only, as the kernel demands of programs that call its functions.
//! `build-objects.sh` compares the objects with their sources; users need no compiler.

mod algorithm;
mod load;
mod object;
mod parameters;
mod privilege;
mod program;
mod registered;
mod resolve;
mod select;
mod window;

pub use algorithm::Algorithm;
pub use load::{Hold, LoadError, Loaded, Registration, ensure};
pub use object::OBJECTS;
pub use parameters::{HyblaBounds, ParameterError, Parameters, VegasThresholds};
pub use privilege::{Missing, missing_to_load};
pub use resolve::{Active, Resolution, ResolveError, resolve, resolve_by};
pub use select::{SelectError, available, select};
pub use window::{WINDOW, ensure_window, keeps_window};
