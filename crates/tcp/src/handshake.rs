//! The three-way handshake and the options that both ends agree on in it.
//!
//! Source: RFC 9293 §3.5 and §3.10.7.2–4, RFC 7323 §2–3, RFC 2018 §2, RFC 3168 §6.1.1.

use midhop_congestion::Established;
use midhop_units::{Duration, Instant};

use crate::{
    endpoint::{Cause, Endpoint, Life, refusal, stamp},
    segment::{Flags, Segment, SynOptions, TIMESTAMPS_SIZE, Timestamps},
    send::rto,
    sequence::Space,
    settings::MSS_MIN,
};

/// The progress of the handshake.
#[derive(Debug, Clone)]
pub(crate) struct Opening {
    /// Our SYN is to leave.
    due: bool,
    /// When the SYN is retransmitted.
    at: Instant,
    sent: u32,
    first_sent: Instant,
}

impl Opening {
    pub fn new(due: bool) -> Self {
        Self { due, at: Instant::NEVER, sent: 0, first_sent: Instant::START }
    }

    pub fn timeout(&self) -> Instant {
        self.at
    }
}

impl Endpoint {
    pub(crate) fn handshake(&mut self, now: Instant, segment: &Segment) {
        match self.life {
            Life::Listening => self.on_first_syn(now, segment),
            Life::SynSent => self.on_answer(now, segment),
            _ => self.on_third(now, segment),
        }
    }

    fn on_first_syn(&mut self, now: Instant, segment: &Segment) {
        let (syn, ack) = (Flags::SYN, Flags::ACK);
        if segment.flags.contains(ack) && !segment.flags.contains(Flags::RST) {
            self.refuse(segment);
        } else if segment.flags.contains(syn) && !segment.flags.contains(Flags::RST) {
            self.agree(segment);
            let asked = Flags::ECE | Flags::CWR;
            self.agreed.ecn = self.settings.ecn && segment.flags.contains(asked);
            self.life = Life::SynReceived;
            self.opening = Opening { first_sent: now, ..Opening::new(true) };
        }
    }

    fn on_answer(&mut self, now: Instant, segment: &Segment) {
        let acks = segment.flags.contains(Flags::ACK);
        let ours = acks && segment.acknowledgment == self.local.wire(1);
        if acks && !ours {
            return self.refuse(segment);
        }
        if segment.flags.contains(Flags::RST) {
            if ours {
                self.die(Cause::Refused);
            }
            return;
        }
        if !segment.flags.contains(Flags::SYN) {
            return;
        }
        self.agree(segment);
        if !ours {
            // Simultaneous open.
            let asked = Flags::ECE | Flags::CWR;
            self.agreed.ecn = self.settings.ecn && segment.flags.contains(asked);
            self.life = Life::SynReceived;
            self.opening.due = true;
            return;
        }
        let answered = segment.flags.contains(Flags::ECE) && !segment.flags.contains(Flags::CWR);
        self.agreed.ecn = self.settings.ecn && answered;
        self.establish(now, segment);
        self.sender.open_window(segment.window);
        self.receiver.owed.at_once();
    }

    fn on_third(&mut self, now: Instant, segment: &Segment) {
        let nxt = 1;
        let Some(start) = self.remote.position(segment.sequence, nxt) else { return };
        if segment.flags.contains(Flags::RST) {
            if start == nxt {
                self.die(Cause::Refused);
            }
            return;
        }
        if segment.flags.contains(Flags::SYN) && start == 0 {
            if !segment.flags.contains(Flags::ACK) {
                // The peer did not receive our SYN.
                self.opening.due = true;
                return;
            }
        } else if !segment.flags.contains(Flags::ACK) {
            return;
        }
        if segment.acknowledgment != self.local.wire(1) {
            return self.refuse(segment);
        }
        self.establish(now, segment);
        if segment.flags.contains(Flags::SYN) {
            self.sender.open_window(segment.window);
            self.receiver.owed.at_once();
        } else {
            self.receiver.owed.on_sent(1);
            self.take(now, segment, start);
        }
    }

    fn refuse(&mut self, segment: &Segment) {
        if let Some(reset) = refusal(segment) {
            self.reply(reset);
        }
    }

    /// Takes the options that the peer's SYN offers and we support.
    fn agree(&mut self, segment: &Segment) {
        self.remote = Space::new(segment.sequence);
        self.receiver.room.edge = 1 + u64::from(self.first_window());
        self.receiver.owed.on_sent(1);
        let theirs = segment.syn;
        self.agreed.timestamps = self.settings.timestamps && segment.timestamps.is_some();
        self.agreed.recent = segment.timestamps.map_or(0, |stamps| stamps.value);
        self.sender.sack = self.settings.sack && theirs.sack_permitted;
        match theirs.window_scale.filter(|_| self.settings.window_scaling) {
            Some(shift) => {
                // RFC 7323 §2.3: more than 14 means 14.
                self.agreed.peer_shift = shift.min(14);
                self.receiver.shift = self.shift();
                self.agreed.scaling = true;
            }
            None => {
                (self.agreed.peer_shift, self.receiver.shift) = (0, 0);
                self.agreed.scaling = false;
            }
        }
        // RFC 9293 §3.7.1: without the option the MSS is 536.
        let mss = theirs.mss.unwrap_or(536).min(self.settings.mss).max(MSS_MIN);
        let options = if self.agreed.timestamps { TIMESTAMPS_SIZE } else { 0 };
        self.sender.mss = u32::from(mss - options);
    }

    /// The smallest shift with which the window field can express the whole buffer.
    fn shift(&self) -> u8 {
        let buffer = self.settings.receive_buffer.get();
        (0..14).find(|&shift| u64::from(u16::MAX) << shift >= buffer).unwrap_or(14)
    }

    /// The window of a SYN is not scaled.
    fn first_window(&self) -> u16 {
        u16::try_from(self.receiver.room.buffer).unwrap_or(u16::MAX)
    }

    /// The handshake is over, and is the first measurement of the round trip.
    fn establish(&mut self, now: Instant, segment: &Segment) {
        let rtt = if self.opening.sent <= 1 {
            Some(now.saturating_since(self.opening.first_sent))
        } else {
            let stamps = segment.timestamps.filter(|_| self.agreed.timestamps);
            stamps
                .map(|stamps| stamp(now).wrapping_sub(stamps.echo))
                .filter(|&age| age as i32 >= 0)
                .map(|age| Duration::from_ms(u64::from(age.max(1))))
        };
        if let Some(rtt) = rtt {
            self.sender.rtt.sample(now, rtt);
        }
        self.connected(now);
        self.sender.control.on_established(&Established { now, rtt });
    }

    pub(crate) fn opening_timeout(&mut self, now: Instant) {
        if self.opening.at > now {
            return;
        }
        if self.opening.sent > self.settings.syn_retries {
            return self.die(Cause::TimedOut);
        }
        self.opening.due = true;
    }

    pub(crate) fn opening_segment(&mut self, now: Instant) -> Option<Segment> {
        if !std::mem::take(&mut self.opening.due) {
            return None;
        }
        if self.opening.sent == 0 {
            self.opening.first_sent = now;
        }
        let wait = rto::INITIAL * (1 << self.opening.sent.min(6));
        self.opening.at = now + wait;
        self.opening.sent += 1;
        let answers = self.life == Life::SynReceived;
        let mut flags = Flags::SYN;
        let offers_ecn = if answers { self.agreed.ecn } else { self.settings.ecn };
        if answers {
            flags |= Flags::ACK;
            if offers_ecn {
                flags |= Flags::ECE;
            }
        } else if offers_ecn {
            flags |= Flags::ECE | Flags::CWR;
        }
        let offer = |ours: bool, theirs: bool| ours && (!answers || theirs);
        let scaling = offer(self.settings.window_scaling, self.agreed.scaling);
        Some(Segment {
            sequence: self.local.wire(0),
            acknowledgment: if answers { self.remote.wire(1) } else { 0 },
            window: self.first_window(),
            flags,
            timestamps: offer(self.settings.timestamps, self.agreed.timestamps)
                .then(|| Timestamps { value: stamp(now), echo: self.agreed.recent }),
            syn: SynOptions {
                mss: Some(self.settings.mss.max(MSS_MIN)),
                window_scale: scaling.then(|| self.shift()),
                sack_permitted: offer(self.settings.sack, self.sender.sack),
            },
            ..Segment::default()
        })
    }
}
