//! Namespaces, link emulator, load generator and runner.
//!
//! A plan of [`midhop_experiment`] becomes real kernels here: each node is a network
//! [`namespace`], each link a pair of virtual Ethernet devices with an emulator between them.
//!
//! Invariant: nothing is named in the host. Namespaces are held by file descriptors and processes,
//! so the kernel itself takes a lab down when its processes are gone, however they went.

pub mod bystander;
pub mod detach;
pub mod emulator;
pub mod isolation;
pub mod lab;
pub mod machine;
pub mod meter;
pub mod naive;
pub mod namespace;
pub mod netem;
pub mod probe;
pub mod runner;
pub mod signals;
pub mod state;
