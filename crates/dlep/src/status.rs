//! How one end says what it thinks of what the other has sent.

/// A status code.
///
/// Source: RFC 8175 §13.1, table 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It was followed.
    Success,
    /// It was not followed, and the session goes on.
    Continues(u8),
    /// The session ends.
    Ends(u8),
}

impl Status {
    /// The router wants to know nothing of this destination.
    pub const NOT_INTERESTED: Self = Self::Continues(1);
    /// The request was refused.
    pub const REQUEST_DENIED: Self = Self::Continues(2);
    /// A message of a type that there is not.
    pub const UNKNOWN_MESSAGE: Self = Self::Ends(128);
    /// A message that has no place in this state.
    pub const UNEXPECTED_MESSAGE: Self = Self::Ends(129);
    /// Data items that are not valid, or have no place there.
    pub const INVALID_DATA: Self = Self::Ends(130);
    /// A destination that was not reported to be up.
    pub const INVALID_DESTINATION: Self = Self::Ends(131);
    /// Nothing was received in time.
    pub const TIMED_OUT: Self = Self::Ends(132);
    /// This end stops.
    pub const SHUTTING_DOWN: Self = Self::Ends(255);

    /// As it is sent.
    pub fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Continues(code) | Self::Ends(code) => code,
        }
    }

    /// What a code means: up to 127 a session goes on.
    pub fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Success,
            1..=127 => Self::Continues(code),
            128..=255 => Self::Ends(code),
        }
    }
}

/// What this end received and does not take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Refusal {
    /// What the other end is to be sent.
    pub status: Status,
    /// What is wrong with it, for a person.
    pub what: String,
}

impl Refusal {
    pub(crate) fn new(status: Status, what: impl Into<String>) -> Self {
        Self { status, what: what.into() }
    }

    pub(crate) fn data(what: impl Into<String>) -> Self {
        Self::new(Status::INVALID_DATA, what)
    }
}
