//! The endpoint, against itself and against this machine's kernel.

mod pair;

mod behaviour;
mod kernel;
mod options;
mod properties;
mod recovery;
mod transfers;
