//! One end of a connection, from the first SYN to the last ACK.
//!
//! The story: a segment comes → is it ours and in the window ([`Endpoint::handle_segment`]) → what does
//! it acknowledge ([`crate::send`]) → what does it carry ([`crate::receive`]) → has somebody closed →
//! what leaves now ([`Endpoint::poll_transmit`]) → when to look again ([`Endpoint::poll_timeout`]).
//!
//! Source: RFC 9293 §3.10, RFC 7323 §5 (PAWS), RFC 5961 (resets and SYNs out of place).

use midhop_congestion::CongestionControl;
use midhop_units::{Bytes, Duration, Instant, Rate};

use crate::{
    handshake::Opening,
    ranges::Span,
    receive::Receiver,
    segment::{Ecn, Flags, SackBlock, Segment, Timestamps},
    send::{Acknowledgment, Counters, Departure, Idle, Sender},
    sequence::Space,
    settings::Settings,
};

/// One end of a TCP connection.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) settings: Settings,
    pub(crate) life: Life,
    pub(crate) opening: Opening,
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    pub(crate) local: Space,
    pub(crate) remote: Space,
    pub(crate) agreed: Agreed,
    events: Events,
    /// A reset that is to leave.
    reset: Option<Segment>,
    /// Our FIN has left before the peer's has come: we wait out what is on its way.
    closed_first: bool,
    /// The sender waits for this moment to pace.
    paced_until: Instant,
    /// The path has marked congestion and the peer has not said that it knows.
    echo_congestion: bool,
}

/// Where an endpoint is.
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

/// What both ends can do.
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
    /// A SYN has come and was answered.
    SynReceived,
    /// Data flows both ways.
    Established,
    /// We have closed.
    FinWait1,
    /// We have closed and the peer knows.
    FinWait2,
    /// The peer has closed.
    CloseWait,
    /// Both have closed at once.
    Closing,
    /// The peer has closed, and so have we.
    LastAck,
    /// All is acknowledged; what is still on its way is waited out.
    TimeWait,
    /// There is no connection.
    Closed,
}

/// Something that the application may want to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The handshake is over.
    Connected,
    /// There is something to read.
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

/// What the application has not been told yet.
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
    /// `initial` is its initial sequence number (RFC 9293 §3.4.1: it should not be guessable).
    pub fn connect(settings: Settings, control: Box<dyn CongestionControl>, initial: u32) -> Self {
        Self::new(settings, control, initial, Life::SynSent)
    }

    /// An endpoint that waits for one SYN.
    pub fn listen(settings: Settings, control: Box<dyn CongestionControl>, initial: u32) -> Self {
        Self::new(settings, control, initial, Life::Listening)
    }

    fn new(
        settings: Settings,
        control: Box<dyn CongestionControl>,
        initial: u32,
        life: Life,
    ) -> Self {
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
            settings,
        }
    }

    // What the application does.

    /// Offers `bytes` more to send; returns how many of them there is room for.
    pub fn write(&mut self, bytes: u64) -> u64 {
        if self.life == Life::Closed {
            return 0;
        }
        self.sender.stream.write(bytes, self.sender.una)
    }

    /// How many bytes may be offered now.
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

    /// Nothing more will be written; what was is still sent, then a FIN.
    pub fn close(&mut self) {
        self.sender.stream.close();
        if self.life == Life::Listening {
            self.life = Life::Closed;
        }
    }

    /// Ends the connection at once with a reset.
    pub fn abort(&mut self) {
        if matches!(self.life, Life::Open | Life::SynReceived) {
            self.reset = Some(Segment {
                sequence: self.local.wire(self.sender.nxt),
                acknowledgment: self.remote.wire(self.receiver.nxt()),
                flags: Flags::RST | Flags::ACK,
                ..Segment::default()
            });
        }
        self.die(Cause::Aborted);
    }

    /// What has happened, one after the other.
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

    /// A segment has come. Its [`Segment::offset`] is not looked at.
    pub fn handle_segment(&mut self, now: Instant, segment: &Segment) {
        match self.life {
            Life::Listening | Life::SynSent | Life::SynReceived => self.handshake(now, segment),
            Life::Open | Life::TimeWait(_) => self.on_segment(now, segment),
            Life::Closed => {
                if self.reset.is_none() {
                    self.reset = refusal(segment);
                }
            }
        }
    }

    /// A moment that [`Endpoint::poll_timeout`] named has come, or a later one.
    pub fn handle_timeout(&mut self, now: Instant) {
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
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Segment> {
        if let Some(reset) = self.reset.take() {
            return Some(reset);
        }
        match self.life {
            Life::Listening | Life::Closed => None,
            Life::SynSent | Life::SynReceived => self.opening_segment(now),
            Life::Open => {
                let data = self.data_segment(now);
                data.or_else(|| self.acknowledgment(now))
            }
            Life::TimeWait(_) => self.acknowledgment(now),
        }
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

    // What an observer may ask.

    /// Where the connection is.
    pub fn state(&self) -> State {
        let ours = self.sender.stream.is_closed();
        let known = ours && self.sender.is_drained();
        match self.life {
            Life::Listening => State::Listen,
            Life::SynSent => State::SynSent,
            Life::SynReceived => State::SynReceived,
            Life::TimeWait(_) => State::TimeWait,
            Life::Closed => State::Closed,
            Life::Open => match (self.receiver.is_finished(), ours) {
                (false, false) => State::Established,
                (false, true) if known => State::FinWait2,
                (false, true) => State::FinWait1,
                (true, false) => State::CloseWait,
                (true, true) if self.closed_first => State::Closing,
                (true, true) => State::LastAck,
            },
        }
    }

    /// What the sender has counted.
    pub fn counters(&self) -> Counters {
        self.sender.counters
    }

    /// How much may be in flight.
    pub fn window(&self) -> Bytes {
        Bytes::new(self.sender.window())
    }

    /// What is in flight, as far as is known.
    pub fn in_flight(&self) -> Bytes {
        Bytes::new(self.sender.pipe())
    }

    /// How far the peer's window reaches beyond what it has acknowledged.
    pub fn peer_window(&self) -> Bytes {
        Bytes::new(self.sender.edge.saturating_sub(self.sender.una))
    }

    /// The smoothed round-trip time.
    pub fn smoothed_rtt(&self) -> Option<Duration> {
        self.sender.rtt.smoothed
    }

    /// The smallest round-trip time of late, as far back as Linux looks.
    pub fn minimum_rtt(&self) -> Option<Duration> {
        self.sender.rtt.minimum()
    }

    /// The retransmission timeout as it is now.
    pub fn retransmission_timeout(&self) -> Duration {
        self.sender.rtt.backed_off()
    }

    /// The rate at which segments leave, where they are paced.
    pub fn pacing_rate(&self) -> Option<Rate> {
        self.sender.control.pacing_rate().filter(|_| self.settings.pacing)
    }

    /// How many bytes of the stream the peer has acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.sender.una.min(self.sender.stream.end()).saturating_sub(1)
    }

    /// How many bytes of the peer's stream are there in order, read or not.
    pub fn received(&self) -> u64 {
        self.receiver.stream_end().saturating_sub(1)
    }

    /// What the endpoint takes in memory, its parts on the heap included. Unit: bytes.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.sender.memory() + self.receiver.reassembly.memory()
    }

    /// The congestion control, to tell it of things that no segment tells.
    pub fn congestion_control(&mut self) -> &mut dyn CongestionControl {
        &mut *self.sender.control
    }

    /// Where a segment's payload belongs in the peer's stream, as far as there is room for it:
    /// its offset there, how much of the payload to skip, and how much to keep.
    ///
    /// Asked before [`Endpoint::handle_segment`], by a caller that moves contents.
    pub fn placement(&self, segment: &Segment) -> Option<Placement> {
        if !matches!(self.life, Life::Open | Life::SynReceived) || segment.length == 0 {
            return None;
        }
        let nxt = self.receiver.nxt();
        let first = segment.flags.contains(Flags::SYN);
        let start = self.remote.position(segment.sequence, nxt)? + u64::from(first);
        let span = Span { start, end: start + u64::from(segment.length) };
        let room = self.receiver.within(span);
        let skip = nxt.saturating_sub(start);
        let keep = room.end.saturating_sub(start + skip);
        (keep > 0).then_some(Placement { offset: start + skip - 1, skip, length: keep })
    }

    fn on_segment(&mut self, now: Instant, segment: &Segment) {
        let nxt = self.receiver.nxt();
        let Some(start) = self.remote.position(segment.sequence, nxt) else { return };
        let end = start + u64::from(segment.sequence_length());
        let reset = segment.flags.contains(Flags::RST);
        if !reset && self.is_from_the_past(segment) {
            self.receiver.owed.at_once();
            return;
        }
        // As lenient as Linux: everything that touches what we have not acknowledged, or the window.
        let edge = self.receiver.room.edge.max(nxt);
        if end < self.receiver.owed.acknowledged() || start > edge {
            if !reset {
                self.receiver.note_outside(Span { start, end });
            }
            return;
        }
        if reset {
            if start == nxt {
                self.die(Cause::Peer);
            } else {
                // RFC 5961 §3.2: who really means it answers the challenge.
                self.receiver.owed.at_once();
            }
            return;
        }
        if segment.flags.contains(Flags::SYN) {
            self.receiver.owed.at_once();
            return;
        }
        self.take(now, segment, start);
    }

    /// PAWS (RFC 7323 §5.3): an older timestamp than the last one belongs to an old segment.
    fn is_from_the_past(&self, segment: &Segment) -> bool {
        self.agreed.timestamps
            && segment
                .timestamps
                .is_some_and(|stamps| (stamps.value.wrapping_sub(self.agreed.recent) as i32) < 0)
    }

    /// Takes in a segment that is acceptable: what it acknowledges, then what it carries.
    pub(crate) fn take(&mut self, now: Instant, segment: &Segment, start: u64) {
        if !segment.flags.contains(Flags::ACK) {
            return;
        }
        if let Some(stamps) = segment.timestamps.filter(|_| self.agreed.timestamps)
            && start <= self.receiver.owed.acknowledged()
        {
            self.agreed.recent = stamps.value;
        }
        let una = self.local.position(segment.acknowledgment, self.sender.una);
        match una {
            Some(una) if una > self.sender.nxt => {
                // It acknowledges what was never sent (RFC 9293 §3.10.7.4).
                self.receiver.owed.at_once();
                return;
            }
            Some(una) if una >= self.sender.una.max(1) => self.acknowledge(now, segment, una),
            _ => {}
        }
        if self.agreed.ecn {
            self.echo(segment);
        }
        if segment.length > 0 || segment.flags.contains(Flags::FIN) {
            let span = Span { start, end: start + u64::from(segment.length) };
            let taken = self.receiver.on_data(now, span, segment.flags.contains(Flags::FIN));
            self.events.readable |= taken.readable;
            self.events.peer_closed |= taken.closed;
        }
        self.close_when_done(now);
    }

    fn acknowledge(&mut self, now: Instant, segment: &Segment, una: u64) {
        let mut blocks = [None; 4];
        let mut duplicate = None;
        for (nth, block) in segment.sack.iter().enumerate() {
            let (Some(start), Some(end)) =
                (self.local.position(block.start, una), self.local.position(block.end, una))
            else {
                continue;
            };
            let span = Span { start, end };
            if start >= end || end > self.sender.nxt {
                continue;
            }
            // The first block may tell of a duplicate (RFC 2883 §4).
            let within = segment.sack.as_slice().get(1).filter(|_| nth == 0).is_some_and(|next| {
                self.local.position(next.start, una).is_some_and(|from| from <= start)
                    && self.local.position(next.end, una).is_some_and(|to| end <= to)
            });
            if nth == 0 && (end <= una || within) {
                duplicate = Some(span);
            } else if start >= una {
                blocks[nth] = Some(span);
            }
        }
        blocks.sort_unstable_by_key(|block| block.map_or(u64::MAX, |span| span.start));
        let echo = segment.timestamps.filter(|_| self.agreed.timestamps).and_then(|stamps| {
            let age = stamp(now).wrapping_sub(stamps.echo);
            // A stamp from the future was never ours.
            let age = (age as i32 >= 0).then(|| Duration::from_ms(u64::from(age)))?;
            Some((stamps.echo, age))
        });
        self.sender.on_ack(
            now,
            &Acknowledgment {
                una,
                blocks,
                duplicate,
                edge: una + (u64::from(segment.window) << self.agreed.peer_shift),
                echo,
                marked: self.agreed.ecn && segment.flags.contains(Flags::ECE),
                carries_data: segment.sequence_length() > 0,
            },
            &self.settings,
        );
        self.paced_until = Instant::NEVER;
        if self.sender.stream.has_room_again(self.sender.una) {
            self.sender.stream.starved = false;
            self.events.writable = true;
        }
    }

    /// RFC 3168 §6.1.3: congestion is echoed until the sender says that it has slowed down.
    fn echo(&mut self, segment: &Segment) {
        if segment.flags.contains(Flags::CWR) {
            self.echo_congestion = false;
        }
        if segment.ecn == Ecn::Congested && segment.length > 0 {
            self.echo_congestion = true;
            self.receiver.owed.at_once();
        }
    }

    /// Both directions have ended and both ends know.
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
        self.reset = Some(reset);
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

    // What leaves.

    fn data_segment(&mut self, now: Instant) -> Option<Segment> {
        if self.paced_until != Instant::NEVER && self.paced_until > now {
            return None;
        }
        let stamp = self.agreed.timestamps.then(|| stamp(now));
        let room = if self.receiver.reassembly.has_report() && self.sender.sack {
            4 + 8 * self.sack_limit().min(self.receiver.reassembly.reports()) as u32
        } else {
            0
        };
        match self.sender.depart(now, &self.settings, room, stamp) {
            Ok(departure) => {
                self.paced_until = Instant::NEVER;
                Some(self.compose(now, departure))
            }
            Err(idle) => {
                if let Idle::Paced(at) = idle {
                    self.paced_until = at;
                }
                None
            }
        }
    }

    fn compose(&mut self, now: Instant, departure: Departure) -> Segment {
        let mut segment = self.header(now, departure.start, departure.length);
        segment.offset = departure.start.saturating_sub(1);
        segment.length = departure.length;
        if departure.push {
            segment.flags |= Flags::PSH;
        }
        if departure.fin {
            segment.flags |= Flags::FIN;
            self.closed_first |= !self.receiver.is_finished();
        }
        if self.agreed.ecn && departure.length > 0 && !departure.retransmission {
            segment.ecn = Ecn::Capable;
            if departure.reduced {
                segment.flags |= Flags::CWR;
            }
        }
        segment
    }

    fn acknowledgment(&mut self, now: Instant) -> Option<Segment> {
        let due = self.receiver.owed.is_due(now);
        due.then(|| self.header(now, self.sender.nxt, 0))
    }

    /// A segment that acknowledges, and has room for so many bytes of payload.
    fn header(&mut self, now: Instant, start: u64, payload: u32) -> Segment {
        let nxt = self.receiver.nxt();
        let edge = self.receiver.offer();
        let mut flags = Flags::ACK;
        if self.echo_congestion {
            flags |= Flags::ECE;
        }
        let mut segment = Segment {
            sequence: self.local.wire(start),
            acknowledgment: self.remote.wire(nxt),
            window: u16::try_from((edge - nxt) >> self.receiver.shift).unwrap_or(u16::MAX),
            flags,
            timestamps: self
                .agreed
                .timestamps
                .then(|| Timestamps { value: stamp(now), echo: self.agreed.recent }),
            ..Segment::default()
        };
        if self.sender.sack && self.receiver.reassembly.has_report() {
            let room = self.sender.mss.saturating_sub(payload + 4) as usize / 8;
            let limit = self.sack_limit().min(room);
            let remote = self.remote;
            self.receiver.reassembly.report(limit, |span| {
                segment
                    .sack
                    .push(SackBlock { start: remote.wire(span.start), end: remote.wire(span.end) });
            });
            if limit == 0 {
                // A retransmission that fills the segment: the report follows alone.
                return segment;
            }
        }
        self.receiver.owed.on_sent(nxt);
        segment
    }

    /// How many SACK blocks the options have room for.
    fn sack_limit(&self) -> usize {
        if self.agreed.timestamps { 3 } else { 4 }
    }
}

/// Where a payload belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The offset in the peer's byte stream.
    pub offset: u64,
    /// How many bytes of the payload come before it.
    pub skip: u64,
    /// How many to keep.
    pub length: u64,
}

/// What an endpoint that knows of no connection answers (RFC 9293 §3.10.7.1).
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
