//! The router's end of a session.
//!
//! Source: RFC 8175 §7.2 to §7.5 and §12.

use crate::{Inbox, Item, Kind, Mac, Message, Metrics, PeerType, Refusal, Status};
use midhop_units::{Duration, Instant, Rate};
use std::collections::BTreeMap;

/// How long a modem may take for its first answer.
const ANSWER_WITHIN: Duration = Duration::from_s(10);
/// How often this end sends a message.
const HEARTBEAT: Duration = Duration::from_s(5);
/// So many of the modem's intervals without anything end the session (§7.3.1: at least two).
const MISSED: u64 = 2;
/// No modem of any kind reaches more destinations at a time.
const DESTINATIONS_MAX: usize = 4096;

/// Why a session is over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The modem sent something invalid.
    #[error("the modem sent what is not valid: {0}")]
    Invalid(#[from] Refusal),
    /// The modem has not answered, or has stopped sending.
    #[error("the modem has sent nothing for {0}")]
    Silent(Duration),
    /// The modem ended it.
    #[error("the modem has ended the session with status {code}{words}")]
    Ended {
        /// Its status code.
        code: u8,
        /// Its own text, with a colon before it.
        words: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The first answer has not arrived.
    Asked,
    Open,
    Over,
}

/// A session with a modem, over a connection that has just been opened.
#[derive(Debug)]
pub struct Router {
    state: State,
    inbox: Inbox,
    outbox: Vec<u8>,
    /// When something was received last.
    received_at: Instant,
    sent_at: Instant,
    /// How long the modem may send nothing; none: without limit.
    silence_max: Option<Duration>,
    modem: Option<PeerType>,
    /// The metrics of all destinations that have none of their own.
    all: Metrics,
    destinations: BTreeMap<Mac, Metrics>,
}

impl Router {
    /// Begins a session: `description` is what the modem is sent as this end's name.
    pub fn new(now: Instant, description: &str) -> Self {
        let mut this = Self {
            state: State::Asked,
            inbox: Inbox::default(),
            outbox: Vec::new(),
            received_at: now,
            sent_at: now,
            silence_max: Some(ANSWER_WITHIN),
            modem: None,
            all: Metrics::default(),
            destinations: BTreeMap::new(),
        };
        let peer_type = PeerType { is_secured: false, description: description.to_owned() };
        this.send(
            now,
            Kind::SessionInitialization,
            vec![Item::HeartbeatInterval(HEARTBEAT), Item::PeerType(peer_type)],
        );
        this
    }

    /// Whether the modem has answered, and its metrics are known.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// The modem's description of itself.
    pub fn modem(&self) -> Option<&str> {
        self.modem.as_ref().map(|it| it.description.as_str())
    }

    /// The present rate of the link away from here: to `destination`, or, if none is named, to the only destination;
    /// else the rate that is reported for all. None: the modem does not report it, or does not reach the destination.
    pub fn rate(&self, destination: Option<Mac>) -> Option<Rate> {
        if !self.is_open() {
            return None;
        }
        let own = match destination {
            Some(mac) => Some(self.destinations.get(&mac)?),
            None if self.destinations.len() == 1 => self.destinations.values().next(),
            None => None,
        };
        own.and_then(|own| own.current_rate_transmit).or(self.all.current_rate_transmit)
    }

    /// How many destinations the modem reaches.
    pub fn destinations(&self) -> usize {
        self.destinations.len()
    }

    /// Takes the bytes to send now.
    pub fn to_send(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outbox)
    }

    /// When to call [`on_time`](Self::on_time) next.
    pub fn next_time(&self) -> Instant {
        let silent = self.silence_max.map_or(Instant::NEVER, |max| self.received_at + max);
        match self.state {
            // Nothing may follow the first message before its answer.
            State::Asked => silent,
            State::Open => silent.min(self.sent_at + HEARTBEAT),
            State::Over => Instant::NEVER,
        }
    }

    /// Sends a heartbeat if one is due.
    ///
    /// # Errors
    /// When nothing has arrived for too long. The bytes to send report that to the modem.
    pub fn on_time(&mut self, now: Instant) -> Result<(), SessionError> {
        if self.state == State::Over {
            return Ok(());
        }
        if let Some(max) = self.silence_max
            && now.saturating_since(self.received_at) >= max
        {
            self.end(now, Status::TIMED_OUT, "");
            return Err(SessionError::Silent(max));
        }
        if self.is_open() && now.saturating_since(self.sent_at) >= HEARTBEAT {
            self.send(now, Kind::Heartbeat, Vec::new());
        }
        Ok(())
    }

    /// `bytes` have arrived. The responses are among the bytes to send.
    ///
    /// # Errors
    /// When the session is over. The bytes to send report that to the modem.
    pub fn on_received(&mut self, now: Instant, bytes: &[u8]) -> Result<(), SessionError> {
        self.inbox.put(bytes);
        while self.state != State::Over {
            let result = match self.inbox.take() {
                Ok(None) => return Ok(()),
                Ok(Some(message)) => {
                    self.received_at = now;
                    self.take(now, &message)
                }
                Err(refusal) => Err(refusal.into()),
            };
            if let Err(error) = result {
                if let SessionError::Invalid(refusal) = &error {
                    let (status, what) = (refusal.status, refusal.what.clone());
                    self.end(now, status, &what);
                }
                self.state = State::Over;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Reports to the modem that this end stops.
    pub fn stop(&mut self, now: Instant) {
        if self.state != State::Over {
            self.end(now, Status::SHUTTING_DOWN, "");
        }
    }

    fn take(&mut self, now: Instant, message: &Message) -> Result<(), SessionError> {
        match (self.state, message.kind) {
            (_, Kind::SessionTermination) => {
                self.send(now, Kind::SessionTerminationResponse, Vec::new());
                Err(ended(message))
            }
            (State::Asked, Kind::SessionInitializationResponse) => self.open(message),
            (State::Open, Kind::Heartbeat) => Ok(()),
            (State::Open, Kind::SessionUpdate) => {
                self.all.update(&message.items);
                let done = vec![Item::Status(Status::Success, String::new())];
                self.send(now, Kind::SessionUpdateResponse, done);
                Ok(())
            }
            (State::Open, Kind::DestinationUp) => {
                let mac = message.destination()?;
                let status = if self.destinations.len() < DESTINATIONS_MAX {
                    self.destinations.entry(mac).or_default().update(&message.items);
                    Status::Success
                } else {
                    Status::NOT_INTERESTED
                };
                self.answer(now, Kind::DestinationUpResponse, mac, status);
                Ok(())
            }
            (State::Open, Kind::DestinationUpdate) => {
                let mac = message.destination()?;
                // After a refusal a modem sends no update of that destination (§12.11).
                let known = self.destinations.get_mut(&mac).ok_or_else(|| not_up(mac))?;
                known.update(&message.items);
                Ok(())
            }
            (State::Open, Kind::DestinationDown) => {
                let mac = message.destination()?;
                self.destinations.remove(&mac).ok_or_else(|| not_up(mac))?;
                self.answer(now, Kind::DestinationDownResponse, mac, Status::Success);
                Ok(())
            }
            (_, kind) => {
                let what = format!("{kind:?} has no place there");
                Err(Refusal::new(Status::UNEXPECTED_MESSAGE, what).into())
            }
        }
    }

    /// The modem has answered.
    fn open(&mut self, message: &Message) -> Result<(), SessionError> {
        if let Some((status, _)) = message.status()
            && status != Status::Success
        {
            return Err(ended(message));
        }
        let mut interval = None;
        for item in &message.items {
            match item {
                Item::HeartbeatInterval(every) => interval = Some(*every),
                Item::PeerType(peer_type) => self.modem = Some(peer_type.clone()),
                _ => {}
            }
        }
        let Some(interval) = interval else {
            return Err(Refusal::data("the first answer has no heartbeat interval").into());
        };
        self.silence_max = Some(interval * MISSED).filter(|max| !max.is_zero());
        self.all.update(&message.items);
        self.state = State::Open;
        Ok(())
    }

    fn answer(&mut self, now: Instant, kind: Kind, mac: Mac, status: Status) {
        self.send(now, kind, vec![Item::Mac(mac), Item::Status(status, String::new())]);
    }

    fn end(&mut self, now: Instant, status: Status, why: &str) {
        let items = vec![Item::Status(status, why.to_owned())];
        self.send(now, Kind::SessionTermination, items);
        self.state = State::Over;
    }

    fn send(&mut self, now: Instant, kind: Kind, items: Vec<Item>) {
        self.sent_at = now;
        self.outbox.extend_from_slice(&Message::new(kind, items).bytes());
    }
}

fn not_up(mac: Mac) -> Refusal {
    Refusal::new(Status::INVALID_DESTINATION, format!("{mac} is not up"))
}

fn ended(message: &Message) -> SessionError {
    let (status, words) = message.status().unwrap_or((Status::Success, ""));
    let words =
        if words.is_empty() { String::new() } else { format!(": {}", words.escape_debug()) };
    SessionError::Ended { code: status.code(), words }
}
