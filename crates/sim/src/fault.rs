//! Why a plan gives no record.

use crate::pep::ProxyError;
use midhop_config::KeyPath;
use std::io;

/// Why a plan gave no record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A node's proxy cannot be had.
    #[error("node {node} cannot have the proxy {pep}: {why}")]
    Pep {
        /// The node.
        node: String,
        /// Its proxy.
        pep: String,
        /// Why not.
        why: ProxyError,
    },
    /// A node's proxy cannot have a tunnel to another.
    #[error("the proxy on {node} cannot have a tunnel: {why}")]
    Tunnel {
        /// The node.
        node: String,
        /// Where it stands in the scenario.
        key: KeyPath,
        /// Why not.
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
    /// A node runs programs of the machine's.
    #[error("node {node} runs programs, which a simulation has no place for")]
    Programs {
        /// The node.
        node: String,
    },
    /// A congestion control that is not to be had.
    #[error("congestion control `{name}` is not to be had here: {why}")]
    Congestion {
        /// Where it stands in the scenario.
        key: KeyPath,
        /// What it asks for.
        name: String,
        /// What is wrong with it.
        why: String,
        /// What there is.
        hint: Option<String>,
    },
    /// The plan contradicts itself.
    #[error("the plan names {what}, which it does not describe")]
    Plan {
        /// What is named and missing.
        what: String,
    },
    /// Virtual time would stand still.
    #[error("the way from {from} to {to} takes no time; give one of its links a delay or a rate")]
    Timeless {
        /// Where data comes from.
        from: String,
        /// Where it goes.
        to: String,
    },
    /// A trace could not be written.
    #[error("cannot write a trace: {0}")]
    Trace(#[from] io::Error),
    /// Somebody asked to stop.
    #[error("interrupted")]
    Interrupted,
}
