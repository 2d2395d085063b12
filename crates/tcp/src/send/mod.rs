//! The sending half of an endpoint: what may leave, what acknowledgements report, what the timers do.

mod answer;
pub(crate) mod buffer;
mod departure;
pub(crate) mod pacing;
mod phases;
pub(crate) mod rack;
pub(crate) mod rate;
pub(crate) mod recovery;
pub(crate) mod rto;
pub(crate) mod scoreboard;
pub(crate) mod sent;
mod timers;

use midhop_congestion::Controller;
use midhop_units::{Duration, Instant};

pub use self::phases::{PhaseTimes, SenderPhase};
pub(crate) use self::{
    answer::Acknowledgment,
    departure::{Departure, Idle},
};
use self::{
    buffer::Stream,
    pacing::Pacer,
    phases::Tally,
    rack::Rack,
    rate::Sampler,
    recovery::{Mode, Recovery},
    rto::RoundTrip,
    scoreboard::Scoreboard,
    sent::Found,
};
use crate::settings::Settings;

/// The sending half. Positions count the sequence space: 0 is the SYN, 1 the first byte.
#[derive(Debug)]
pub(crate) struct Sender {
    pub control: Controller,
    pub board: Scoreboard,
    pub stream: Stream,
    /// The first position that is not acknowledged.
    pub una: u64,
    /// The first position that was never sent.
    pub nxt: u64,
    /// The right edge of the peer's window.
    pub edge: u64,
    /// The furthest right edge that the peer ever offered.
    pub edge_max: u64,
    /// The largest window that the peer ever offered. Unit: bytes.
    pub window_max: u64,
    /// The payload of a full segment. Unit: bytes.
    pub mss: u32,
    /// Whether both ends use selective acknowledgements.
    pub sack: bool,
    pub rtt: RoundTrip,
    pub rack: Rack,
    pub recovery: Recovery,
    pub sampler: Sampler,
    pub pacer: Pacer,
    pub counters: Counters,
    pub phases: Tally,
    timer: Timer,
    /// When to look for late segments again.
    reorder_at: Instant,
    /// A timer has decided to send a segment regardless of the window.
    forced: Option<Forced>,
    /// The unanswered tail loss probe.
    probe: Option<Probe>,
    /// An RTT sample has come since the last probe.
    probe_allowed: bool,
    /// The position up to which a small segment was sent, for Nagle's rule as Minshall changed it.
    small_end: u64,
    usage: Usage,
    /// The window before anything was sent. Unit: bytes.
    first_window: u64,
    /// After idle time: a cap on the window; it grows with arriving data, until it is no less
    /// than the window. Unit: bytes.
    restart: Option<u64>,
    /// How often in a row the retransmission or persist timer has fired.
    pub expiries: u32,
    last_sent: Instant,
    /// A window reduction is to be reported to the peer.
    reduced: bool,
    /// Losses that the scoreboard has found and that are not yet reported to the congestion control.
    found: Found,
}

/// Counters of a connection's sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Segments with data or a FIN that were sent, retransmissions among them.
    pub segments_sent: u64,
    /// Retransmissions among them.
    pub retransmissions: u64,
    /// Recoveries begun without a timeout.
    pub recoveries: u32,
    /// Retransmission timeouts.
    pub timeouts: u32,
    /// Tail loss probes.
    pub probes: u32,
    /// Recoveries and timeouts that were spurious, and undone.
    pub undone: u32,
    /// Duplicates that the peer received.
    pub duplicates: u32,
    /// Round trips in which the path marked congestion.
    pub marked_rounds: u32,
}

/// What the one timer of a sender waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timer {
    Off,
    /// Nothing was acknowledged for too long.
    Retransmission(Instant),
    /// The tail may be lost.
    Probe(Instant),
    /// The peer's window may have opened.
    Persist(Instant),
}

/// A segment to send regardless of the congestion window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Forced {
    /// The first segment outstanding, or the first lost.
    Head,
    /// A tail loss probe.
    Tail,
    /// A window probe.
    Window,
}

/// An unanswered tail loss probe.
#[derive(Debug, Clone, Copy)]
struct Probe {
    /// The end of the sent data when it left.
    end: u64,
    retransmission: bool,
}

/// Whether the window limited the sender (net/ipv4/tcp_output.c, tcp_cwnd_validate).
#[derive(Debug, Clone, Copy, Default)]
struct Usage {
    limited: bool,
    /// The maximum in flight in the round. Unit: bytes.
    most: u64,
    /// The round ends when this is acknowledged.
    until: u64,
}

impl Sender {
    pub fn new(settings: &Settings, control: Controller) -> Self {
        Self {
            control,
            board: Scoreboard::default(),
            stream: Stream::new(settings.send_buffer.get().max(1)),
            una: 0,
            nxt: 1,
            edge: 0,
            edge_max: 0,
            window_max: 0,
            mss: 536,
            sack: false,
            rtt: RoundTrip::default(),
            rack: Rack::default(),
            recovery: Recovery::default(),
            sampler: Sampler::default(),
            pacer: Pacer::default(),
            counters: Counters::default(),
            phases: Tally::default(),
            timer: Timer::Off,
            reorder_at: Instant::NEVER,
            forced: None,
            probe: None,
            probe_allowed: true,
            small_end: 0,
            usage: Usage::default(),
            first_window: 0,
            restart: None,
            expiries: 0,
            last_sent: Instant::START,
            reduced: false,
            found: Found::default(),
        }
    }

    /// The handshake is over: the peer has our SYN.
    pub fn open(&mut self) {
        self.una = 1;
        self.nxt = 1;
        self.recovery.judged = 1;
    }

    /// The window of the peer's SYN, which is not scaled.
    pub fn open_window(&mut self, window: u16) {
        self.edge = 1 + u64::from(window);
        self.edge_max = self.edge;
        self.window_max = u64::from(window);
    }

    /// Everything offered has been acknowledged, the FIN too if there is one.
    pub fn is_drained(&self) -> bool {
        self.una == self.stream.end_with_fin()
    }

    /// Everything offered has left and is acknowledged, and nothing is being repaired, probed or undone.
    pub fn is_at_rest(&self) -> bool {
        self.is_drained()
            && self.board.is_empty()
            && self.sampler.is_app_limited()
            && self.recovery.is_at_rest()
            && self.restart.is_none()
            && self.forced.is_none()
            && self.probe.is_none()
            && self.expiries == 0
    }

    /// Data that counts as in flight. Unit: bytes.
    pub fn pipe(&self) -> u64 {
        // Without selective acknowledgements each duplicate stands for a segment that arrived.
        let arrived = u64::from(self.recovery.duplicates) * u64::from(self.mss);
        self.board.in_flight().saturating_sub(arrived)
    }

    fn pipe_segments(&self) -> u32 {
        self.board.segments_in_flight().saturating_sub(self.recovery.duplicates)
    }

    /// The limit of data in flight.
    pub fn window(&self) -> u64 {
        let allowed = self.recovery.window.unwrap_or_else(|| self.control.window().get());
        self.restart.map_or(allowed, |restart| restart.min(allowed))
    }

    /// Notes how far the window was used, once a round.
    fn note_usage(&mut self, limited: bool) {
        let in_flight = self.pipe();
        if self.una >= self.usage.until {
            self.usage = Usage { limited, most: in_flight, until: self.nxt };
        } else {
            if in_flight > self.usage.most {
                self.usage.most = in_flight;
                self.usage.limited = limited;
                self.usage.until = self.nxt;
            } else {
                self.usage.limited |= limited;
            }
        }
    }

    /// Whether the window limits the sender: otherwise it must not grow.
    fn is_window_limited(&self) -> bool {
        if self.restart.is_some() {
            return false;
        }
        let never_reduced = self.counters.recoveries + self.counters.timeouts == 0;
        self.usage.limited || (never_reduced && self.window() < 2 * self.usage.most)
    }

    /// Memory on the heap. Unit: bytes.
    pub fn memory(&self) -> usize {
        self.board.memory() + self.control.memory()
    }

    /// When the next timer fires; [`Instant::NEVER`] if none is set.
    pub fn timeout(&self) -> Instant {
        let timer = match self.timer {
            Timer::Off => Instant::NEVER,
            Timer::Retransmission(at) | Timer::Probe(at) | Timer::Persist(at) => at,
        };
        timer.min(self.reorder_at)
    }

    /// The length of a timer that was doubled at each expiry.
    fn backed_off(&self, settings: &Settings) -> Duration {
        self.rtt.backed_off(settings.rto)
    }

    /// # Errors
    /// The invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        self.board.check()?;
        let ends = [
            (self.una <= self.nxt, "una beyond nxt"),
            (self.nxt <= self.stream.end_with_fin().max(1), "nxt beyond what was offered"),
            (self.nxt <= self.edge_max.max(1) + self.slack(), "nxt beyond the window"),
            (
                self.board.is_empty()
                    || self.board.first().map(|sent| sent.start) == Some(self.una),
                "the scoreboard does not begin at una",
            ),
            (
                self.board.is_empty() || self.board.last().map(|sent| sent.end()) == Some(self.nxt),
                "the scoreboard does not end at nxt",
            ),
            (!self.board.is_empty() || self.una == self.nxt || self.una == 0, "something is lost"),
            (
                self.board.is_empty() || self.timer != Timer::Off || self.forced.is_some(),
                "no timer guards what is outstanding",
            ),
            (
                self.recovery.mode == Mode::Open || self.recovery.point <= self.nxt,
                "a recovery ends beyond nxt",
            ),
        ];
        ends.into_iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, what)| Err(what.to_owned()))
    }

    /// A FIN needs no room.
    fn slack(&self) -> u64 {
        // A scaled window may shrink by less than its unit, the largest of which is 2^14 (RFC 7323 §2.4).
        u64::from(self.stream.is_closed()) + (1 << 14)
    }
}
