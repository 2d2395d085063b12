//! Flows that outlive their carriers: their identities and fields, and what each end keeps of one.
//!
//! The near end gives a flow an identity. While the flow lasts, each end keeps what it has sent until the other end
//! has passed it on. When the carrier is gone, the near end requests the flow again over another one, and both ends
//! continue where the other one stopped.
//!
//! Offsets count the bytes of one direction of a flow. Its end counts as one more, so that one number covers
//! that, too.
//!
//! Source: `SPEC.md` §5.7.

mod received;
mod sent;

pub use received::ReceivedBytes;
pub use sent::{NotResumable, SentBytes};

use crate::http3::Field;
use std::fmt;
use std::str::FromStr;

/// The setting: for how many seconds an end keeps a flow whose carrier is gone.
pub const SETTING: u64 = 0x2fec_0005;
/// Request and response field: the identity of a flow that can be resumed.
const FLOW: &str = "midhop-flow";
/// Request and response field: the offset up to which the sender has received a flow that is resumed.
const RECEIVED: &str = "midhop-received";
/// Response field, where the carrier has no settings of ours: the value of [`SETTING`].
const RESUME: &str = "midhop-resume";

/// The identity of a flow: random, so that nobody guesses another one's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId([u8; 16]);

impl FlowId {
    /// The identity made of these random bytes.
    pub const fn new(random: [u8; 16]) -> Self {
        Self(random)
    }

    /// As two numbers, the first one's bits in front.
    pub fn words(&self) -> (u64, u64) {
        let bits = u128::from_be_bytes(self.0);
        #[expect(clippy::cast_possible_truncation, reason = "each half is a number of its own")]
        ((bits >> 64) as u64, bits as u64)
    }

    /// The identity of [these](Self::words).
    pub fn of_words((high, low): (u64, u64)) -> Self {
        Self((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
    }
}

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Whoever knows an identity, and is the peer, may take the flow over: logs do not show it whole.
impl fmt::Debug for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FlowId({:08x}…)", u128::from_be_bytes(self.0) >> 96)
    }
}

impl FromStr for FlowId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let digits = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if text.len() != 32 || !digits {
            return Err(InvalidId);
        }
        u128::from_str_radix(text, 16).map(|it| Self(it.to_be_bytes())).map_err(|_| InvalidId)
    }
}

/// Not the identity of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an identity has 32 hexadecimal digits")]
pub struct InvalidId;

/// What a request contains about resumption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resumption {
    /// The flow that it opens may be resumed under this identity.
    Offered(FlowId),
    /// It opens no flow, but resumes this one.
    Requested {
        /// Which flow.
        id: FlowId,
        /// The offset up to which the near end has received it.
        received: u64,
    },
}

impl Resumption {
    /// As fields of a request.
    pub fn fields(&self) -> Vec<Field> {
        match self {
            Self::Offered(id) => vec![granted(*id)],
            Self::Requested { id, received } => vec![granted(*id), resumed(*received)],
        }
    }

    /// Decodes it from the fields of a request; none: the request has no valid fields for it. A request with an offset
    /// and without an identity neither resumes nor opens a flow.
    ///
    /// # Errors
    /// When it is to resume a flow, and does not name it or an offset.
    pub fn decode(fields: &[Field]) -> Result<Option<Self>, InvalidId> {
        let id = value(fields, FLOW).and_then(|text| text.parse().ok());
        match (id, value(fields, RECEIVED)) {
            (id, None) => Ok(id.map(Self::Offered)),
            (Some(id), Some(received)) => {
                let received = received.parse().map_err(|_| InvalidId)?;
                Ok(Some(Self::Requested { id, received }))
            }
            (None, Some(_)) => Err(InvalidId),
        }
    }
}

/// Field of the response that grants a flow: it may be resumed under this identity.
pub fn granted(id: FlowId) -> Field {
    Field::new(FLOW, id.to_string())
}

/// Whether a response grants that a flow may be resumed under this identity.
pub fn grants(fields: &[Field], id: FlowId) -> bool {
    value(fields, FLOW).and_then(|text| text.parse().ok()) == Some(id)
}

/// Field of the response that resumes a flow: up to where the far end has received it.
pub fn resumed(received: u64) -> Field {
    Field::new(RECEIVED, received.to_string())
}

/// Up to where the far end has received a flow that its response resumes.
pub fn resumed_at(fields: &[Field]) -> Option<u64> {
    value(fields, RECEIVED)?.parse().ok()
}

/// Field of any response over a carrier without settings of ours: for how many seconds this end keeps flows.
pub fn announced(seconds: u64) -> Field {
    Field::new(RESUME, seconds.to_string())
}

/// For how many seconds the far end keeps flows, by its response.
pub fn announcement(fields: &[Field]) -> Option<u64> {
    value(fields, RESUME)?.parse().ok()
}

fn value<'a>(fields: &'a [Field], name: &str) -> Option<&'a str> {
    fields.iter().find(|field| field.name == name).map(|field| field.value.as_ref())
}

#[cfg(test)]
mod tests;
