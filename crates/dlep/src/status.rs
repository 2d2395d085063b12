//! Status codes: how one end responds to what the other has sent.

/// A status code.
///
/// Source: RFC 8175 §13.1, table 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The request was followed.
    Success,
    /// The request was not followed, and the session continues.
    Continues(u8),
    /// The session ends.
    Ends(u8),
}

impl Status {
    /// The router is not interested in this destination.
    pub const NOT_INTERESTED: Self = Self::Continues(1);
    /// The request was refused.
    pub const REQUEST_DENIED: Self = Self::Continues(2);
    /// A message of an unknown type.
    pub const UNKNOWN_MESSAGE: Self = Self::Ends(128);
    /// A message that is not allowed in this state.
    pub const UNEXPECTED_MESSAGE: Self = Self::Ends(129);
    /// Data items that are invalid, or not allowed there.
    pub const INVALID_DATA: Self = Self::Ends(130);
    /// A destination that was not reported to be up.
    pub const INVALID_DESTINATION: Self = Self::Ends(131);
    /// Nothing was received in time.
    pub const TIMED_OUT: Self = Self::Ends(132);
    /// This end stops.
    pub const SHUTTING_DOWN: Self = Self::Ends(255);

    /// Its code on the wire.
    pub fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Continues(code) | Self::Ends(code) => code,
        }
    }

    /// The meaning of a code: up to 127 the session continues.
    pub fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Success,
            1..=127 => Self::Continues(code),
            128..=255 => Self::Ends(code),
        }
    }
}

/// Why this end does not accept what it received.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Refusal {
    /// The status to send to the other end.
    pub status: Status,
    /// What is wrong, for a person.
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
