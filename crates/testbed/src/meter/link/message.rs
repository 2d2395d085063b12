//! Messages of the two ends of a link's measurement over TCP.

use super::estimate::Arrived;
use super::train::Train;
use super::wire::Token;
use serde::{Deserialize, Serialize};

/// A message of either end. The client asks, the server answers each once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(in crate::meter) enum LinkMessage {
    /// Client: requests a session.
    Open {},
    /// Server: opens it. Its datagrams go to the port of the TCP connection.
    Opened {
        /// The token, hexadecimal.
        token: String,
        /// The fastest train. Unit: bits per second.
        rate_bit_per_s_max: u64,
    },
    /// Client: asks whether its datagrams have arrived.
    Attached {},
    /// Server: whether they have.
    AttachedIs {
        /// Whether.
        yes: bool,
    },
    /// Client: requests a train.
    Send(Train),
    /// Server: the train is sent.
    Sent(Sent),
    /// Client: announces a train.
    Expect(Train),
    /// Server: is ready for it.
    Ready {},
    /// Client: the train is sent; asks for what arrived.
    Collect(Sent),
    /// Server: what arrived.
    Arrived(Arrived),
}

/// What a sender did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::meter) struct Sent {
    /// Packets that were sent, from the begin of the train on.
    pub(super) packets: u32,
}

impl LinkMessage {
    /// The name of the message, for users.
    pub(in crate::meter) fn name(&self) -> &'static str {
        match self {
            Self::Open {} => "link: open",
            Self::Opened { .. } => "link: opened",
            Self::Attached {} => "link: attached?",
            Self::AttachedIs { .. } => "link: attached",
            Self::Send(_) => "link: send",
            Self::Sent(_) => "link: sent",
            Self::Expect(_) => "link: expect",
            Self::Ready {} => "link: ready",
            Self::Collect(_) => "link: collect",
            Self::Arrived(_) => "link: arrived",
        }
    }
}

impl Token {
    /// The token as text.
    pub(super) fn to_hex(self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
    }

    /// The token that `text` represents, if any.
    pub(super) fn from_hex(text: &str) -> Option<Self> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| digits)?;
        Some(Self(number.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_written() {
        let token = Token([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        assert_eq!(token.to_hex(), "000102030405060708090a0b0c0d0eff");
        assert_eq!(Token::from_hex(&token.to_hex()), Some(token));
        for text in
            ["", "ff", "+00102030405060708090a0b0c0d0eff", "g00102030405060708090a0b0c0d0eff"]
        {
            assert_eq!(Token::from_hex(text), None, "{text}");
        }
    }
}
