//! Why a plan has no record.

use crate::pep::ProxyError;
use midhop_config::KeyPath;
use std::io;

/// Why a plan has no record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A node's proxy is not possible.
    #[error("node {node} cannot have the proxy {pep}: {why}")]
    Pep {
        /// The node.
        node: String,
        /// Its proxy.
        pep: String,
        /// The reason.
        why: ProxyError,
    },
    /// A node's proxy cannot have a tunnel to another.
    #[error("the proxy on {node} cannot have a tunnel: {why}")]
    Tunnel {
        /// The node.
        node: String,
        /// Its place in the scenario.
        key: KeyPath,
        /// The reason.
        why: String,
    },
    /// A node's proxy repairs flows that it does not split.
    #[error(
        "the proxy on {node} assists flows, which the simulator has an agent for: kind = \"snoop\""
    )]
    Assist {
        /// The node.
        node: String,
        /// Its proxy.
        pep: String,
    },
    /// A node runs programs of the machine.
    #[error("node {node} runs programs, which a simulation does not support")]
    Programs {
        /// The node.
        node: String,
    },
    /// A congestion control that is not available.
    #[error("congestion control `{name}` is not available here: {why}")]
    Congestion {
        /// Its place in the scenario.
        key: KeyPath,
        /// The requested one.
        name: String,
        /// The problem.
        why: String,
        /// The available ones.
        hint: Option<String>,
    },
    /// The plan contradicts itself.
    #[error("the plan names {what}, which it does not describe")]
    Plan {
        /// The name that is missing.
        what: String,
    },
    /// Virtual time would not advance.
    #[error("the path from {from} to {to} has no delay; give one of its links a delay or a rate")]
    Timeless {
        /// The source of data.
        from: String,
        /// Its destination.
        to: String,
    },
    /// A trace could not be written.
    #[error("cannot write a trace: {0}")]
    Trace(#[from] io::Error),
    /// An interruption was requested.
    #[error("interrupted")]
    Interrupted,
}
