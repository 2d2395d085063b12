//! A whole plan on real kernels: nodes, links, routes, proxies and programs.
//!
//! ```text
//! Network::build   namespaces, devices, addresses, routes; nothing moves yet
//! Network::start   frames are carried; the clock of the plan begins
//! Network::finish  what each link did
//! ```
//! Dropping a [`Network`] at any stage takes it down.

mod network;
mod proxy;
mod stack;
mod visit;

pub use network::{LabError, Links, Network, NetworkReport};
pub use proxy::{Proxy, ProxyError, check_daemon, find_daemon};
pub use stack::lacking;
pub use visit::{VisitError, publish, visit};
