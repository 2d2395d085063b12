//! One end of a connection, from the first SYN to the last ACK.
//!
//! The steps: a segment arrives → is it ours and in the window ([`Endpoint::handle_segment`]) → what does
//! it acknowledge ([`crate::send`]) → what does it carry ([`crate::receive`]) → has an end closed →
//! what leaves now ([`Endpoint::poll_transmit`]) → when to look again ([`Endpoint::poll_timeout`]).
//!
//! Source: RFC 9293 §3.10, RFC 7323 §5 (PAWS), RFC 5961 (resets and SYNs out of place).

mod incoming;
mod observation;
mod outgoing;

use midhop_congestion::Controller;
use midhop_units::Instant;
use std::sync::Arc;

pub use self::observation::Placement;
use crate::{
    handshake::Opening,
    receive::Receiver,
    segment::{Flags, Segment},
    send::Sender,
    sequence::Space,
    settings::Settings,
};

/// One end of a TCP connection.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) settings: Arc<Settings>,
    pub(crate) life: Life,
    pub(crate) opening: Opening,
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    pub(crate) local: Space,
    pub(crate) remote: Space,
    pub(crate) agreed: Agreed,
    events: Events,
    /// A reset to send: boxed, since few endpoints ever send one.
    reset: Option<Box<Segment>>,
    /// Our FIN has left before the peer's has arrived: we wait out segments in flight.
    closed_first: bool,
    /// The moment until which pacing holds the sender back.
    paced_until: Instant,
    /// The path has marked congestion and the peer has not confirmed that it knows.
    echo_congestion: bool,
    quiet: Quiet,
}

/// Whether no data was to leave at the last call, and nothing has happened since that could change that.
/// A sent acknowledgement changes nothing: options that a segment no longer carries give
/// it room for more data, which waits for the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quiet {
    No,
    Yes,
    /// In addition, all is acknowledged and nothing is being repaired: an acknowledgement that repeats what is
    /// known has no effect at all. The receiver of a download is in this state with each segment that arrives.
    AtRest,
    /// Valid for this congestion window: a flow that shares its window with others may find it changed.
    While(u64),
}

/// The state of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    Listening,
    SynSent,
    SynReceived,
    /// Established, or closing in one direction or both.
    Open,
    TimeWait(Instant),
    Closed,
}

/// The options that both ends support.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Agreed {
    pub timestamps: bool,
    pub ecn: bool,
    pub scaling: bool,
    /// The shift of the peer's window field.
    pub peer_shift: u8,
    /// The peer's latest timestamp, to be echoed.
    pub recent: u32,
}

/// The states of RFC 9293 §3.3.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Waiting for a SYN.
    Listen,
    /// A SYN has been sent.
    SynSent,
    /// A SYN was received and answered.
    SynReceived,
    /// Data flows both ways.
    Established,
    /// We have closed.
    FinWait1,
    /// We have closed and the peer has acknowledged that.
    FinWait2,
    /// The peer has closed.
    CloseWait,
    /// Both have closed at once.
    Closing,
    /// The peer has closed, and so have we.
    LastAck,
    /// All is acknowledged; segments still in flight are waited out.
    TimeWait,
    /// There is no connection.
    Closed,
}

/// An event for the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The handshake is over.
    Connected,
    /// There is data to read.
    Readable,
    /// There is room again, after [`Endpoint::write`] had taken less than it was offered.
    Writable,
    /// The peer sends no more; everything it sent can be read.
    PeerClosed,
    /// The connection was cut short.
    Reset(Cause),
    /// Both directions have ended and are acknowledged.
    Closed,
}

/// What cut a connection short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The peer refused it: a reset for our SYN.
    Refused,
    /// The peer reset it.
    Peer,
    /// The peer did not answer.
    TimedOut,
    /// [`Endpoint::abort`] was called.
    Aborted,
}

/// Events that the application has not polled yet.
#[derive(Debug, Clone, Copy, Default)]
struct Events {
    connected: bool,
    readable: bool,
    writable: bool,
    peer_closed: bool,
    reset: Option<Cause>,
    closed: bool,
}

impl Endpoint {
    /// An endpoint that opens a connection; the first [`Endpoint::poll_transmit`] gives the SYN.
    ///
    /// `initial` is its initial sequence number (RFC 9293 §3.4.1: it should not be guessable). Many
    /// endpoints may share their settings.
    pub fn connect(settings: impl Into<Arc<Settings>>, control: Controller, initial: u32) -> Self {
        Self::new(settings.into(), control, initial, Life::SynSent)
    }

    /// An endpoint that waits for one SYN.
    pub fn listen(settings: impl Into<Arc<Settings>>, control: Controller, initial: u32) -> Self {
        Self::new(settings.into(), control, initial, Life::Listening)
    }

    fn new(settings: Arc<Settings>, control: Controller, initial: u32, life: Life) -> Self {
        Self {
            sender: Sender::new(&settings, control),
            receiver: Receiver::new(&settings),
            life,
            opening: Opening::new(life == Life::SynSent),
            local: Space::new(initial),
            remote: Space::default(),
            agreed: Agreed::default(),
            events: Events::default(),
            reset: None,
            closed_first: false,
            paced_until: Instant::NEVER,
            echo_congestion: false,
            quiet: Quiet::No,
            settings,
        }
    }

    // What the application does.

    /// Offers `bytes` more to send; returns how many of them there is room for.
    pub fn write(&mut self, bytes: u64) -> u64 {
        if self.life == Life::Closed {
            return 0;
        }
        let taken = self.sender.stream.write(bytes, self.sender.una);
        if taken > 0 {
            self.quiet = Quiet::No;
        }
        taken
    }

    /// How many bytes [`Endpoint::write`] would take now.
    pub fn writable(&self) -> u64 {
        self.sender.stream.room(self.sender.una)
    }

    /// How many bytes may be read now.
    pub fn readable(&self) -> u64 {
        self.receiver.readable()
    }

    /// Reads up to `bytes`; returns how many. Their offsets follow those read before.
    pub fn read(&mut self, now: Instant, bytes: u64) -> u64 {
        self.receiver.read(now, bytes, self.sender.rtt.smoothed)
    }

    /// The application writes nothing more; what it has written is still sent, then a FIN.
    pub fn close(&mut self) {
        self.quiet = Quiet::No;
        self.sender.stream.close();
        if self.life == Life::Listening {
            self.life = Life::Closed;
        }
    }

    /// Ends the connection at once with a reset.
    pub fn abort(&mut self) {
        if matches!(self.life, Life::Open | Life::SynReceived) {
            self.reply(Segment {
                sequence: self.local.wire(self.sender.nxt),
                acknowledgment: self.remote.wire(self.receiver.nxt()),
                flags: Flags::RST | Flags::ACK,
                ..Segment::default()
            });
        }
        self.die(Cause::Aborted);
    }

    /// The next event, in the order in which they happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        let events = &mut self.events;
        if std::mem::take(&mut events.connected) {
            return Some(Event::Connected);
        }
        if std::mem::take(&mut events.readable) {
            return Some(Event::Readable);
        }
        if std::mem::take(&mut events.peer_closed) {
            return Some(Event::PeerClosed);
        }
        if std::mem::take(&mut events.writable) {
            return Some(Event::Writable);
        }
        if let Some(cause) = events.reset.take() {
            return Some(Event::Reset(cause));
        }
        std::mem::take(&mut events.closed).then_some(Event::Closed)
    }

    // What the path does.

    /// A segment was received. Its [`Segment::offset`] is ignored.
    pub fn handle_segment(&mut self, now: Instant, segment: &Segment) {
        if self.quiet != Quiet::AtRest {
            self.quiet = Quiet::No;
        }
        match self.life {
            Life::Listening | Life::SynSent | Life::SynReceived => self.handshake(now, segment),
            Life::Open | Life::TimeWait(_) => self.on_segment(now, segment),
            Life::Closed => {
                if self.reset.is_none() {
                    self.reset = refusal(segment).map(Box::new);
                }
            }
        }
    }

    /// A moment that [`Endpoint::poll_timeout`] named has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.quiet = Quiet::No;
        if self.paced_until <= now {
            self.paced_until = Instant::NEVER;
        }
        match self.life {
            Life::SynSent | Life::SynReceived => self.opening_timeout(now),
            Life::Open => {
                if self.sender.on_timeout(now, &self.settings).is_err() {
                    self.die(Cause::TimedOut);
                }
            }
            Life::TimeWait(until) if until <= now => self.finish(),
            Life::TimeWait(_) | Life::Listening | Life::Closed => {}
        }
    }

    /// The next segment to leave, if any.
    #[inline]
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Segment> {
        // Mostly nothing is to leave, so that case is answered at once.
        if self.has_nothing_to_send(now) { None } else { self.next_segment(now) }
    }

    fn next_segment(&mut self, now: Instant) -> Option<Segment> {
        if let Some(reset) = self.reset.take() {
            return Some(*reset);
        }
        match self.life {
            Life::Listening | Life::Closed => None,
            Life::SynSent | Life::SynReceived => self.opening_segment(now),
            Life::Open => {
                let data = if self.is_quiet() { None } else { self.data_segment(now) };
                data.or_else(|| self.acknowledgment(now))
            }
            Life::TimeWait(_) => self.acknowledgment(now),
        }
    }

    /// Whether [`Endpoint::poll_transmit`] is known to give nothing now.
    #[inline]
    pub fn has_nothing_to_send(&self, now: Instant) -> bool {
        self.life == Life::Open
            && self.reset.is_none()
            && self.is_quiet()
            && !self.receiver.owed.is_due(now)
    }

    /// When to call [`Endpoint::handle_timeout`], if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let at = match self.life {
            Life::Listening | Life::Closed => Instant::NEVER,
            Life::SynSent | Life::SynReceived => self.opening.timeout(),
            Life::Open => self.sender.timeout().min(self.receiver.owed.due()).min(self.paced_until),
            Life::TimeWait(until) => until,
        };
        (at != Instant::NEVER).then_some(at)
    }

    /// Both directions have ended and both ends know that.
    fn close_when_done(&mut self, now: Instant) {
        let ours = self.sender.stream.is_closed() && self.sender.is_drained();
        if !ours || !self.receiver.is_finished() {
            return;
        }
        match self.life {
            Life::Open if self.closed_first => {
                self.events.closed = true;
                self.life = Life::TimeWait(now + self.settings.time_wait);
            }
            Life::Open => {
                self.events.closed = true;
                self.finish();
            }
            _ => {}
        }
    }

    /// The connection is over; its memory is given back.
    fn finish(&mut self) {
        self.life = Life::Closed;
        self.sender.board.release();
    }

    pub(crate) fn reply(&mut self, reset: Segment) {
        self.reset = Some(Box::new(reset));
    }

    pub(crate) fn die(&mut self, cause: Cause) {
        if self.life != Life::Closed {
            self.events.reset = Some(cause);
        }
        self.finish();
    }

    pub(crate) fn connected(&mut self, now: Instant) {
        self.life = Life::Open;
        self.events.connected = true;
        self.sender.open();
        self.receiver.open(now);
    }
}

/// The response of an endpoint without a connection (RFC 9293 §3.10.7.1).
pub fn refusal(segment: &Segment) -> Option<Segment> {
    if segment.flags.contains(Flags::RST) {
        return None;
    }
    Some(if segment.flags.contains(Flags::ACK) {
        Segment { sequence: segment.acknowledgment, flags: Flags::RST, ..Segment::default() }
    } else {
        Segment {
            acknowledgment: segment.sequence.wrapping_add(segment.sequence_length()),
            flags: Flags::RST | Flags::ACK,
            ..Segment::default()
        }
    })
}

/// The clock of the timestamps option: milliseconds, as in Linux.
pub(crate) fn stamp(now: Instant) -> u32 {
    // It wraps; only differences count.
    (now.as_ns() / 1_000_000) as u32
}
