//! The handshake of a client before its bytes flow, for either protocol, as a sans-IO machine.
//!
//! The caller passes in what it read ([`Handshake::handle_input`]), writes the output ([`Handshake::poll_output`])
//! and checks [`Handshake::state`]. It does so after each input. After the client's request, the caller tries to
//! connect and passes in the outcome ([`Handshake::answer`]).
//!
//! Invariant: bytes that follow the request are kept in order and returned by [`Handshake::into_rest`]; none is lost.
//! They are never more than arrived in one piece with the request's end, as no input is wanted after that.

use super::{http, socks};
use midhop_tunnel::cause::Cause;
pub use midhop_tunnel::target::Target;
use std::net::SocketAddr;

/// The result of a client's request: the address from which it is connected, or why it is not.
pub type DialOutcome = Result<SocketAddr, Cause>;

/// The state of a handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The request is incomplete.
    Reading,
    /// The client requests this target, and waits for [`Handshake::answer`].
    Asked(Target),
    /// The client has the response that it is connected: its bytes flow.
    Connected,
    /// The client was refused, or its request was wrong: to be closed once the output is written.
    Refused,
}

/// The protocol of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 CONNECT.
    HttpConnect,
    /// SOCKS5.
    Socks5,
}

/// One client's handshake.
#[derive(Debug)]
pub struct Handshake {
    protocol: Protocol,
    stage: Stage,
    input: Vec<u8>,
    /// How many bytes of `input` were searched for the end of an HTTP head.
    scanned: usize,
    output: Vec<u8>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Greeting,
    Request,
}

/// The result of parsing the input so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed<T> {
    /// It is incomplete.
    More,
    /// It is complete and took this many bytes.
    Done(T, usize),
    /// It is wrong: send this and close.
    Wrong(Vec<u8>),
}

impl Handshake {
    /// A client that has just connected.
    pub const fn new(protocol: Protocol) -> Self {
        let stage = match protocol {
            Protocol::HttpConnect => Stage::Request,
            Protocol::Socks5 => Stage::Greeting,
        };
        Self {
            protocol,
            stage,
            input: Vec::new(),
            scanned: 0,
            output: Vec::new(),
            state: State::Reading,
        }
    }

    /// Its state.
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Takes bytes from the client.
    pub fn handle_input(&mut self, bytes: &[u8]) {
        if self.state == State::Refused {
            return;
        }
        self.input.extend_from_slice(bytes);
        while self.state == State::Reading && self.advance() {}
    }

    /// Whether the caller should read more from the client.
    pub fn wants_input(&self) -> bool {
        self.state == State::Reading
    }

    /// The bytes to write to the client, if any.
    pub fn poll_output(&mut self) -> Option<Vec<u8>> {
        (!self.output.is_empty()).then(|| std::mem::take(&mut self.output))
    }

    /// Responds to the client's request with its outcome. Without a request nothing happens.
    pub fn answer(&mut self, outcome: DialOutcome) {
        if !matches!(self.state, State::Asked(_)) {
            return;
        }
        self.output.extend(match self.protocol {
            Protocol::HttpConnect => http::answer(outcome),
            Protocol::Socks5 => socks::answer(outcome),
        });
        self.state = match outcome {
            Ok(_) => State::Connected,
            Err(_) => State::Refused,
        };
    }

    /// The client's timeout has expired.
    pub fn handle_timeout(&mut self) {
        if self.state == State::Reading {
            self.output.extend(match self.protocol {
                Protocol::HttpConnect => http::too_late(),
                Protocol::Socks5 => Vec::new(),
            });
            self.state = State::Refused;
        }
    }

    /// The bytes that followed the request.
    pub fn into_rest(self) -> Vec<u8> {
        self.input
    }

    /// One step. Returns whether another may follow without further input.
    fn advance(&mut self) -> bool {
        match (self.protocol, self.stage) {
            (Protocol::Socks5, Stage::Greeting) => {
                let parsed = socks::parse_greeting(&self.input);
                if let Some(reply) = self.take(parsed) {
                    self.output.extend(reply);
                    self.stage = Stage::Request;
                    return true;
                }
            }
            (Protocol::Socks5, Stage::Request) => {
                let parsed = socks::parse_request(&self.input);
                self.ask(parsed);
            }
            (Protocol::HttpConnect, _) => {
                let parsed = http::parse(&self.input, self.scanned);
                self.scanned = self.input.len();
                self.ask(parsed);
            }
        }
        false
    }

    fn ask(&mut self, parsed: Parsed<Target>) {
        if let Some(target) = self.take(parsed) {
            self.state = State::Asked(target);
        }
    }

    fn take<T>(&mut self, parsed: Parsed<T>) -> Option<T> {
        match parsed {
            Parsed::More => None,
            Parsed::Done(value, length) => {
                self.input.drain(..length.min(self.input.len()));
                Some(value)
            }
            Parsed::Wrong(reply) => {
                self.output.extend(reply);
                self.input.clear();
                self.state = State::Refused;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
