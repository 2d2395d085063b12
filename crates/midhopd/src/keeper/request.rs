//! What the data plane may ask of the keeper, and what it is answered.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A request. There is none that names a file, a program, a table or a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Request {
    /// The first: the configuration as it was read at the start. Comes before the data plane has read anything of
    /// strangers'; from then on the keeper reads the file itself.
    Begin {
        /// What the file is called in messages.
        name: String,
        /// What it says.
        text: String,
    },
    /// Interception is to be put in place.
    Install {
        /// So many workers wait for SYNs.
        queues: u16,
    },
    /// The configuration is to be read again and followed.
    Reload {
        /// Of the plan that the data plane has read.
        fingerprint: u64,
    },
    /// No new flow is to be taken from now on.
    Close,
    /// Interception is to be removed.
    Remove,
    /// The gate is to be shut, or opened: while it is shut, new flows pass by.
    Gate {
        /// Which of both.
        shut: bool,
    },
    /// How many SYNs the firewall let pass on its own, by why.
    Passed,
    /// The data plane ends in order: nothing is to stay.
    End,
}

/// What a request is answered; an error is in words.
pub type Answer = Result<Reply, RequestFailed>;

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct RequestFailed {
    /// What is told to the user.
    pub message: String,
    /// What would do.
    pub hint: Option<String>,
}

impl RequestFailed {
    /// Without a hint.
    pub fn new(message: impl ToString) -> Self {
        Self { message: message.to_string(), hint: None }
    }
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// It is done.
    Done,
    /// It is installed; whether connections are to be entered into connection tracking.
    Installed {
        /// Whether they are.
        tracked: bool,
    },
    /// Numbers by names.
    Counted(BTreeMap<String, u64>),
}
