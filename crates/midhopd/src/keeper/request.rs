//! What the data plane may request from the keeper, and the responses.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A request. None of them names a file, a program, a table or a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Request {
    /// The first request: the configuration as it was read at the start. It is sent before the data plane has read
    /// anything from strangers. From then on the keeper reads the file itself.
    Begin {
        /// The file's name in messages.
        name: String,
        /// Its text.
        text: String,
        /// The text of the configuration that a previous program was started with. That program has
        /// left interception installed. Some keys keep the values that they have there.
        before: Option<String>,
    },
    /// From the holder, after a data plane was killed: the keeper finishes with that data plane,
    /// whose requests have their responses and whose lines have ended. The next data plane begins.
    Succeed {
        /// A number that the response repeats.
        nonce: u64,
    },
    /// The first request of each data plane: its process.
    Serving {
        /// Its number.
        process: i32,
    },
    /// Requests the text of the configuration that is followed.
    Text,
    /// Installs interception. A data plane that succeeds another finds it installed.
    Install {
        /// The number of workers that wait for SYNs.
        queues: u16,
    },
    /// Reads the configuration again and applies it.
    Reload {
        /// The fingerprint of the plan that the data plane has read.
        fingerprint: u64,
    },
    /// Takes no new flow from now on.
    Close,
    /// Removes interception.
    Remove,
    /// Shuts or opens the gate. While it is shut, new flows pass by.
    Gate {
        /// Whether to shut it.
        shut: bool,
    },
    /// Requests how many SYNs the firewall let pass without the daemon, by reason.
    Passed,
    /// From the holder, before another program takes over: the keeper finishes the change that it
    /// is making, and ends without removing anything.
    Leave,
    /// Announces that the data plane ends in order: everything is to be removed.
    End,
}

/// The response to a request. An error is in words.
pub type Answer = Result<Reply, RequestFailed>;

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct RequestFailed {
    /// The message to the user.
    pub message: String,
    /// What the user can do.
    pub hint: Option<String>,
}

impl RequestFailed {
    /// Creates one without a hint.
    pub fn new(message: impl ToString) -> Self {
        Self { message: message.to_string(), hint: None }
    }
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Done,
    /// Interception is installed.
    Installed {
        /// Whether connections are entered into connection tracking.
        tracked: bool,
    },
    /// The response to [`Request::Succeed`].
    Succeeded {
        /// As requested.
        nonce: u64,
    },
    /// The configuration.
    Text(String),
    /// Numbers by names.
    Counted(BTreeMap<String, u64>),
}
