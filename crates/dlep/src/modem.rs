//! The modem's end of a session, as far as a laboratory needs one.
//!
//! Source: RFC 8175 §7.2 to §7.5 and §12.

use crate::{Inbox, Item, Kind, Mac, Message, PeerType, Refusal, Status};
use midhop_units::{Duration, Instant, Rate};

/// How often this end sends a message.
const HEARTBEAT: Duration = Duration::from_s(1);

/// A session with a router that has connected.
#[derive(Debug)]
pub struct Modem {
    inbox: Inbox,
    outbox: Vec<u8>,
    is_open: bool,
    is_over: bool,
    sent_at: Instant,
    /// The rate of all links.
    rate: Rate,
    destinations: Vec<Mac>,
    /// The router's responses: the message that each responds to, and its status.
    answers: Vec<(Kind, Option<Status>)>,
}

impl Modem {
    /// A modem whose links have `rate` away from it, and lead to `destinations`.
    pub fn new(now: Instant, rate: Rate, destinations: Vec<Mac>) -> Self {
        Self {
            inbox: Inbox::default(),
            outbox: Vec::new(),
            is_open: false,
            is_over: false,
            sent_at: now,
            rate,
            destinations,
            answers: Vec::new(),
        }
    }

    /// Whether the router has begun the session.
    pub fn is_open(&self) -> bool {
        self.is_open && !self.is_over
    }

    /// Whether one end has ended it.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// The router's responses so far: the message that each responds to, and its status.
    pub fn answers(&self) -> &[(Kind, Option<Status>)] {
        &self.answers
    }

    /// Takes the bytes to send now.
    pub fn to_send(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outbox)
    }

    /// When to call [`on_time`](Self::on_time) next.
    pub fn next_time(&self) -> Instant {
        if self.is_open() { self.sent_at + HEARTBEAT } else { Instant::NEVER }
    }

    /// Sends a heartbeat if one is due.
    pub fn on_time(&mut self, now: Instant) {
        if self.next_time() <= now {
            self.send(now, Kind::Heartbeat, Vec::new());
        }
    }

    /// The rate of all links is now `rate`.
    pub fn change(&mut self, now: Instant, rate: Rate) {
        if std::mem::replace(&mut self.rate, rate) != rate && self.is_open() {
            self.send(now, Kind::SessionUpdate, vec![Item::CurrentRateTransmit(rate)]);
        }
    }

    /// The rate to one destination is now `rate`.
    pub fn change_to(&mut self, now: Instant, destination: Mac, rate: Rate) {
        let items = vec![Item::Mac(destination), Item::CurrentRateTransmit(rate)];
        self.send(now, Kind::DestinationUpdate, items);
    }

    /// A destination can no longer be reached.
    pub fn lose(&mut self, now: Instant, destination: Mac) {
        self.send(now, Kind::DestinationDown, vec![Item::Mac(destination)]);
    }

    /// `bytes` have arrived.
    ///
    /// # Errors
    /// When they are invalid, or not allowed in this state.
    pub fn on_received(&mut self, now: Instant, bytes: &[u8]) -> Result<(), Refusal> {
        self.inbox.put(bytes);
        while let Some(message) = self.inbox.take()? {
            self.take(now, &message)?;
        }
        Ok(())
    }

    fn take(&mut self, now: Instant, message: &Message) -> Result<(), Refusal> {
        match (self.is_open, message.kind) {
            (false, Kind::SessionInitialization) => {
                self.is_open = true;
                self.begin(now);
            }
            (true, Kind::Heartbeat) => {}
            (
                true,
                kind @ (Kind::SessionUpdateResponse
                | Kind::DestinationUpResponse
                | Kind::DestinationDownResponse),
            ) => self.answers.push((kind, message.status().map(|(status, _)| status))),
            (_, Kind::SessionTermination) => {
                self.answers.push((message.kind, message.status().map(|(status, _)| status)));
                self.send(now, Kind::SessionTerminationResponse, Vec::new());
                self.is_over = true;
            }
            (_, Kind::SessionTerminationResponse) => self.is_over = true,
            (_, kind) => {
                let what = format!("{kind:?} has no place there");
                return Err(Refusal::new(Status::UNEXPECTED_MESSAGE, what));
            }
        }
        Ok(())
    }

    /// The first answer has every metric (§12.6).
    fn begin(&mut self, now: Instant) {
        let peer_type =
            PeerType { is_secured: false, description: "midhop's laboratory modem".to_owned() };
        let items = vec![
            Item::Status(Status::Success, String::new()),
            Item::PeerType(peer_type),
            Item::HeartbeatInterval(HEARTBEAT),
            Item::MaximumRateReceive(self.rate),
            Item::MaximumRateTransmit(self.rate),
            Item::CurrentRateReceive(self.rate),
            Item::CurrentRateTransmit(self.rate),
            Item::Latency(Duration::ZERO),
        ];
        self.send(now, Kind::SessionInitializationResponse, items);
        for mac in self.destinations.clone() {
            self.send(now, Kind::DestinationUp, vec![Item::Mac(mac)]);
        }
    }

    fn send(&mut self, now: Instant, kind: Kind, items: Vec<Item>) {
        self.sent_at = now;
        self.outbox.extend_from_slice(&Message::new(kind, items).bytes());
    }
}
