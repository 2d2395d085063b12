//! The tunnel between two proxies, in virtual time.

mod flows;
mod pair;
mod way;

mod carrier;
mod endpoint;
mod fills;
mod repairs;
