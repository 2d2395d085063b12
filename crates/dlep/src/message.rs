//! Messages, and how they are found in a stream of bytes.
//!
//! Source: RFC 8175 §11.2 and §15.3.

use crate::{Item, Mac, Refusal, Status};

/// The header before the items: a message's type and their length.
const HEADER: usize = 4;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)+) => {
        /// A message's type.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Kind {
            $($(#[$doc])* $name = $code,)+
        }

        impl Kind {
            fn of(code: u16) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)+
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// The router begins.
    SessionInitialization = 1,
    /// The modem's answer, with what it reports of all destinations.
    SessionInitializationResponse = 2,
    /// Something about the whole session has changed.
    SessionUpdate = 3,
    /// The answer to that.
    SessionUpdateResponse = 4,
    /// One end ends the session.
    SessionTermination = 5,
    /// The answer to that.
    SessionTerminationResponse = 6,
    /// The modem reaches a destination.
    DestinationUp = 7,
    /// The router's answer.
    DestinationUpResponse = 8,
    /// The router requests a destination.
    DestinationAnnounce = 9,
    /// The modem's answer.
    DestinationAnnounceResponse = 10,
    /// A destination is not reached any more.
    DestinationDown = 11,
    /// The answer to that.
    DestinationDownResponse = 12,
    /// The metrics of a destination have changed.
    DestinationUpdate = 13,
    /// The router requests other characteristics of a link.
    LinkCharacteristicsRequest = 14,
    /// The modem's answer.
    LinkCharacteristicsResponse = 15,
    /// Its sender is alive.
    Heartbeat = 16,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its type.
    pub kind: Kind,
    /// Its data items, in their order on the wire.
    pub items: Vec<Item>,
}

impl Message {
    /// A message with these items.
    pub fn new(kind: Kind, items: Vec<Item>) -> Self {
        Self { kind, items }
    }

    /// Its encoding.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = vec![0; HEADER];
        for item in &self.items {
            item.write(&mut out);
        }
        out.truncate(HEADER + usize::from(u16::MAX));
        let length = u16::try_from(out.len() - HEADER).unwrap_or(u16::MAX);
        out[..2].copy_from_slice(&(self.kind as u16).to_be_bytes());
        out[2..HEADER].copy_from_slice(&length.to_be_bytes());
        out
    }

    /// The destination that it is about.
    ///
    /// # Errors
    /// When it names none.
    pub fn destination(&self) -> Result<Mac, Refusal> {
        let named = self.items.iter().find_map(|item| match item {
            Item::Mac(mac) => Some(*mac),
            _ => None,
        });
        named.ok_or_else(|| Refusal::data(format!("{:?} names no destination", self.kind)))
    }

    /// Its status, and the text with it; none: it has no status.
    pub fn status(&self) -> Option<(Status, &str)> {
        self.items.iter().find_map(|item| match item {
            Item::Status(status, words) => Some((*status, words.as_str())),
            _ => None,
        })
    }

    fn read(code: u16, mut rest: &[u8]) -> Result<Self, Refusal> {
        let kind = Kind::of(code).ok_or_else(|| {
            Refusal::new(Status::UNKNOWN_MESSAGE, format!("a message of type {code}"))
        })?;
        let mut items: Vec<Item> = Vec::new();
        while !rest.is_empty() {
            let (item, following) = Item::read(rest)?;
            // Not checked for addresses: a message may have thousands.
            if !item.may_repeat() && items.iter().any(|other| other.kind() == item.kind()) {
                return Err(Refusal::data(format!("data item {} twice in {kind:?}", item.kind())));
            }
            items.push(item);
            rest = following;
        }
        Ok(Self { kind, items })
    }
}

/// The received bytes that are no whole message yet: at most one message's bytes.
#[derive(Debug, Default)]
pub struct Inbox(Vec<u8>);

impl Inbox {
    /// `bytes` have arrived.
    pub fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next whole message; none: more must arrive.
    ///
    /// # Errors
    /// When the next bytes are no message, or have invalid items.
    pub fn take(&mut self) -> Result<Option<Message>, Refusal> {
        let Some(&[kind_high, kind_low, high, low]) = self.0.first_chunk() else { return Ok(None) };
        let end = HEADER + usize::from(u16::from_be_bytes([high, low]));
        if self.0.len() < end {
            return Ok(None);
        }
        let message =
            Message::read(u16::from_be_bytes([kind_high, kind_low]), &self.0[HEADER..end]);
        self.0.drain(..end);
        message.map(Some)
    }
}
