//! Selects the next segment to leave: retransmissions first, then new data, as far as the windows allow.
//!
//! Source: RFC 6675 §4 (NextSeg), RFC 9293 §3.8.6.2.1 (silly-window avoidance), Nagle's rule as
//! Minshall changed it, RFC 5681 §4.1 (restart after idle).

use midhop_congestion::Restart;
use midhop_units::Instant;

use super::{Forced, Mode, Sender, Timer, Usage};
use crate::settings::Settings;

/// A segment that is to leave, in positions of the sequence space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Departure {
    pub start: u64,
    /// Payload. Unit: bytes.
    pub length: u32,
    pub fin: bool,
    pub push: bool,
    pub retransmission: bool,
    /// The first new segment since a reduction for an ECN mark.
    pub reduced: bool,
}

/// Why nothing leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Idle {
    /// There is nothing to send, or a small segment waits for more.
    Nothing,
    /// The congestion window is full.
    Window,
    /// The peer's window is full.
    PeerWindow,
    /// Pacing holds it back.
    Paced(Instant),
}

impl Sender {
    /// The next segment to leave, already recorded as sent; or why there is none.
    ///
    /// `room`: the room that other options of a segment take. `stamp`: its timestamp.
    pub fn depart(
        &mut self,
        now: Instant,
        settings: &Settings,
        room: u32,
        stamp: Option<u32>,
    ) -> Result<Departure, Idle> {
        let departure = self.choose(now, settings, room);
        match departure {
            Ok(departure) => self.book(now, settings, departure, stamp),
            Err(Idle::Nothing) => {
                if self.stream.end() == self.nxt && self.pipe() < self.window() {
                    self.sampler.on_app_limited(self.board.in_flight());
                }
                self.note_usage(false);
            }
            Err(Idle::Window) => self.note_usage(true),
            Err(Idle::PeerWindow) => {
                self.note_usage(false);
                self.guard_window(now, settings);
            }
            Err(Idle::Paced(_)) => {}
        }
        departure
    }

    fn choose(&mut self, now: Instant, settings: &Settings, room: u32) -> Result<Departure, Idle> {
        if let Some(forced) = self.forced.take()
            && let Some(departure) = self.forced(forced, room)
        {
            return Ok(departure);
        }
        if self.board.lost_bytes() == 0 && self.nxt == self.stream.end_with_fin() {
            return Err(Idle::Nothing);
        }
        let free = self.window().saturating_sub(self.pipe());
        let prefer_new = self.recovery.prefer_new;
        if let Some(index) = self.board.next_lost().filter(|_| !prefer_new) {
            let length = self.board.get(index).map_or(0, |sent| sent.length);
            // The first retransmission of a recovery always leaves (RFC 9937 §6).
            if free < u64::from(length.min(self.mss)) && self.pipe() > 0 {
                return Err(Idle::Window);
            }
            return self.paced(now, settings, self.again(index));
        }
        if !settings.limited_transmit && self.is_disordered() {
            return Err(Idle::Window);
        }
        let departure = self.new_data(settings, room)?;
        if free < u64::from(departure.length) && self.pipe() > 0 {
            return Err(Idle::Window);
        }
        self.paced(now, settings, Some(departure))
    }

    /// Duplicate acknowledgements were received, too few for a recovery.
    fn is_disordered(&self) -> bool {
        self.recovery.mode == Mode::Open
            && (self.board.sacked_segments() > 0 || self.recovery.duplicates > 0)
    }

    fn paced(
        &self,
        now: Instant,
        settings: &Settings,
        departure: Option<Departure>,
    ) -> Result<Departure, Idle> {
        let departure = departure.ok_or(Idle::Nothing)?;
        match self.pacer.wait(now).filter(|_| settings.pacing) {
            Some(at) => Err(Idle::Paced(at)),
            None => Ok(departure),
        }
    }

    /// Retransmits the segment at `index`.
    fn again(&self, index: usize) -> Option<Departure> {
        let sent = self.board.get(index)?;
        // Only a FIN stands behind the last byte.
        let fin = sent.end() > self.stream.end();
        Some(Departure {
            start: sent.start,
            length: sent.length - u32::from(fin),
            fin,
            push: fin || sent.end() == self.stream.end(),
            retransmission: true,
            reduced: false,
        })
    }

    /// The next segment that was never sent.
    fn new_data(&self, settings: &Settings, room: u32) -> Result<Departure, Idle> {
        if self.nxt == self.stream.end_with_fin() {
            return Err(Idle::Nothing);
        }
        let waiting = self.stream.end().saturating_sub(self.nxt);
        let usable = self.edge.saturating_sub(self.nxt);
        let full = u64::from(self.mss.saturating_sub(room).max(1));
        let length = waiting.min(full).min(usable);
        let rest = length == waiting;
        let fin = rest && self.stream.is_closed();
        if length == 0 && !fin {
            return Err(if waiting > 0 { Idle::PeerWindow } else { Idle::Nothing });
        }
        if !rest && length < full {
            // The peer's window cuts a segment short: sent only if the window is half of its largest.
            let worth = length >= (self.window_max / 2).max(1) && self.board.is_empty();
            if !worth {
                return Err(Idle::PeerWindow);
            }
        }
        let small = length < full && !fin;
        if small && settings.nagle && self.una < self.small_end {
            return Err(Idle::Nothing);
        }
        Ok(Departure {
            start: self.nxt,
            length: u32::try_from(length).unwrap_or(self.mss),
            fin,
            push: rest,
            retransmission: false,
            reduced: self.reduced,
        })
    }

    /// What a timer has decided to send.
    fn forced(&mut self, forced: Forced, room: u32) -> Option<Departure> {
        match forced {
            Forced::Head => {
                let index = self.board.next_lost().or((!self.board.is_empty()).then_some(0))?;
                self.again(index)
            }
            Forced::Tail => {
                let fresh = Settings { nagle: false, ..Settings::default() };
                let departure = match self.new_data(&fresh, room) {
                    Ok(departure) => departure,
                    Err(_) => self.again(self.board.len().checked_sub(1)?)?,
                };
                Some(departure)
            }
            Forced::Window if self.edge > self.nxt => {
                let waiting = self.stream.end().saturating_sub(self.nxt);
                let usable = (self.edge - self.nxt).min(u64::from(self.mss));
                let length = waiting.min(usable);
                (length > 0).then(|| Departure {
                    start: self.nxt,
                    length: u32::try_from(length).unwrap_or(1),
                    fin: false,
                    push: true,
                    retransmission: false,
                    reduced: false,
                })
            }
            // An empty segment at an old position, which the peer must answer, as in Linux.
            Forced::Window => Some(Departure {
                start: self.una.saturating_sub(1),
                length: 0,
                fin: false,
                push: false,
                retransmission: false,
                reduced: false,
            }),
        }
    }

    /// Nothing is in flight and a segment is about to leave.
    fn restart(&mut self, now: Instant, settings: &Settings) {
        let app_limited = self.sampler.is_app_limited();
        self.control.on_restart(&Restart { now, app_limited });
        if self.counters.segments_sent == 0 {
            self.first_window = self.control.window().get();
            return;
        }
        let timeout = self.rtt.timeout(settings.rto);
        let mut idle = now.saturating_since(self.last_sent);
        let restarts = settings.slow_start_after_idle && !self.control.governs_recovery();
        if restarts && idle > timeout {
            // Half for each timeout that passed, not below the initial window, as in Linux.
            let mut restart = self.control.window().get();
            while idle > timeout && restart > self.first_window {
                restart /= 2;
                idle = idle.saturating_sub(timeout);
            }
            self.restart = Some(restart.max(self.first_window));
            self.usage = Usage::default();
        }
    }

    /// Arrived data widens the cap that idle time has set, until the window is below it.
    pub(super) fn widen_restart(&mut self, arrived: u64) {
        let window = self.control.window().get();
        let widened = self.restart.map(|cap| cap + arrived);
        self.restart = widened.filter(|cap| *cap < window);
    }

    /// Records a segment as sent.
    fn book(
        &mut self,
        now: Instant,
        settings: &Settings,
        departure: Departure,
        stamp: Option<u32>,
    ) {
        let length = departure.length + u32::from(departure.fin);
        if length == 0 {
            return;
        }
        let was_idle = self.board.is_empty();
        if was_idle {
            self.restart(now, settings);
        }
        let snapshot = self.sampler.on_send(now, self.board.in_flight(), length);
        self.counters.segments_sent += 1;
        self.last_sent = now;
        if departure.retransmission {
            self.counters.retransmissions += 1;
            let index = self.board.at_or_after(departure.start);
            self.recovery.undo.on_retransmission(stamp, self.board.resent_segments());
            self.board.resend(index, now, snapshot);
        } else {
            self.board.push(departure.start, length, departure.fin, now, snapshot);
            self.nxt = departure.start + u64::from(length);
            self.reduced = false;
            if departure.length < self.mss {
                self.small_end = self.nxt;
            }
        }
        self.recovery.on_send();
        if settings.pacing {
            // Without headers, as Linux paces (net/ipv4/tcp_output.c, tcp_update_skb_after_send): the rate
            // counts payload, since BBR's is its measured delivery rate.
            let spread = self.una <= 1 && self.control.spreads();
            self.pacer.on_send(now, departure.length.into(), self.control.pacing_rate(), spread);
        }
        // The retransmission of the first segment restarts the timer (RFC 6675 §6), as in Linux.
        let repairs_first = departure.retransmission && departure.start == self.una;
        if was_idle || repairs_first || matches!(self.timer, Timer::Off | Timer::Persist(_)) {
            self.arm(now, settings);
        } else if !departure.retransmission {
            self.arm_probe(now, settings);
        }
        if was_idle {
            self.note_phase(now);
        }
    }
}
