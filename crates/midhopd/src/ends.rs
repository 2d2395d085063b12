//! The two ends of a flow: which one is meant, where they are, and how they came to their end.

use std::io;
use std::net::SocketAddr;

/// The two ends of a flow, as the proxy sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The end that opened the flow.
    Client,
    /// The end that it connects to.
    Server,
}

impl Side {
    /// The opposite end.
    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// A side that went away without ending its stream.
#[derive(Debug)]
pub struct Broken {
    /// The side.
    pub side: Side,
    /// The reason: reset, unreachable, silent beyond all probes.
    pub error: io::Error,
}

/// The addresses of a flow, which are the same on both legs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ends {
    /// Address and port of the end that opened the flow.
    pub client: SocketAddr,
    /// Address and port of the end that it connects to.
    pub server: SocketAddr,
}

/// How a flow came to its end.
#[derive(Debug)]
pub struct RelayOutcome {
    /// `Ok` when both ends have ended their streams, with the side that does not know it yet; else the side that
    /// broke, and how.
    pub outcome: Result<Side, Broken>,
}
