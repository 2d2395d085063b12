//! The share of a link that other flows leave: how it is measured, and the law that competes for it.
//!
//! Where a queue stands all the time, the arrivals of a pulse show who else is in it. If this flow is alone, the link
//! delivers a faster stream no faster. Beside other flows it delivers the stream faster, at their cost, in proportion
//! to what they hold of the link. On a path of capacity C that carries R of our data, a sending rate that is larger by
//! ΔS makes the delay grow faster by ΔS / C. Our share R / C follows from that.
//!
//! Decision 0057.

use super::drains::Drains;
use crate::arrivals::Span;
use crate::bbr::v1::BbrV1;
use crate::cubic::Cubic;
use crate::segments::{Segmented, saturated};
use crate::{Ack, CongestionControl, Loss, LostSegment, Restart, Rto, SlowStart, Spurious};
use midhop_units::{Bytes, Duration, Instant, Rate, Seed};

/// All of a link. Unit of shares: 1/1024.
pub(super) const ALL: i64 = 1024;
/// A share is the mean over about so many pulses.
const ANSWERS: i64 = 8;
/// The share is not used before so many pulses.
const ANSWERS_MIN: u32 = 6;
/// From this share on the link is ours alone.
const ALONE: i64 = ALL * 7 / 8;
/// If more than this part of so many segments is lost, the other flows do not respond to losses.
const INSENSITIVE_PART: u64 = 48;
const ENOUGH: u64 = 256;
/// The window relative to CUBIC's: segments that leave evenly are lost more often than bursts, and pulses fill a queue.
const WEIGHT: (u64, u64) = (3, 2);
/// A law is judged after this time at the earliest.
const SETTLING: Duration = Duration::from_s(5);
const SETTLING_ROUNDS: u64 = 6;
/// Whether other flows yield is measured over this time.
const COUNTED: Duration = Duration::from_s(10);
/// How long BBR is not tried after it was found wrong.
const PATIENCE: Duration = Duration::from_s(60);
const PATIENCE_MAX: Duration = Duration::from_s(960);
/// No flow competes once the queue has been empty for two round trips and this time: BBR's flows empty it for less.
const EMPTY: Duration = Duration::from_ms(500);
const EMPTY_ROUNDS: u64 = 2;

/// Our share of what the link delivers, by the spans before a pulse and in it. Unit: 1/1024. `None`: the pulse was not
/// faster enough.
pub(super) fn part(before: Span, pulse: Span) -> Option<i64> {
    let (slow, fast) = (before.sent_at().bits_per_s(), pulse.sent_at().bits_per_s());
    let more = i64::try_from(fast.checked_sub(slow)?).ok()?;
    let ours = i64::try_from(before.arrived_at().bits_per_s()).ok()?;
    if i128::from(more) * 4 < i128::from(ours) {
        return None;
    }
    let grown = pulse.growth_q20() - before.growth_q20();
    let part = i128::from(ours) * i128::from(grown) / i128::from(more) / 1024;
    i64::try_from(part.clamp(-i128::from(2 * ALL), i128::from(3 * ALL))).ok()
}

/// The competing law.
#[derive(Debug, Clone)]
enum Law {
    /// Against flows that fill the queue until it drops.
    Cubic(Cubic),
    /// Against flows that do not respond to drops, and empty the queue every ten seconds.
    Bbr(BbrV1),
}

impl Law {
    fn get(&self) -> &dyn CongestionControl {
        match self {
            Self::Cubic(law) => law,
            Self::Bbr(law) => law,
        }
    }

    fn get_mut(&mut self) -> &mut dyn CongestionControl {
        match self {
            Self::Cubic(law) => law,
            Self::Bbr(law) => law,
        }
    }
}

/// Competes with other flows, in place of the law for a link without others, and detects when no others are left.
#[derive(Debug, Clone)]
pub(super) struct Contest {
    mss: u64,
    law: Law,
    srtt: Duration,
    drains: Drains,
    /// Our share of what the link delivers. Unit: 1/1024.
    part: i64,
    answers: u32,
    /// For how long the queue has been empty.
    empty: Duration,
    /// Since the last loss that counted.
    acked: u64,
    lost: u64,
    /// Bytes acknowledged and lost recently.
    all: (u64, u64),
    /// What the link carries, as far as known.
    link: Rate,
    /// From which time, and from which delivered byte on, the rate of this law is measured.
    counted: (Instant, u64),
    /// When this law began, and from when on BBR may replace it.
    began: Option<Instant>,
    not_before: Instant,
    patience: Duration,
}

/// `rate` × `numerator` / `denominator`.
fn times(rate: Rate, numerator: i64, denominator: i64) -> Rate {
    let bits =
        i128::from(rate.bits_per_s()) * i128::from(numerator) / i128::from(denominator.max(1));
    Rate::from_bits_per_s(u64::try_from(bits).unwrap_or(0))
}

fn cubic(mss: u64, window: u64, rtt: Duration) -> Law {
    let mut law = Cubic::new(Bytes::new(mss), SlowStart::Classic, true);
    let segments = law.segments();
    segments.cwnd = saturated(window / mss.max(1) * WEIGHT.1 / WEIGHT.0).max(2);
    segments.ssthresh = segments.cwnd;
    segments.sample(rtt);
    Law::Cubic(law)
}

impl Contest {
    /// Begins with a `window` over a round trip of `rtt`, on a link that carries at least `link`.
    pub fn new(mss: u64, window: Bytes, rtt: Duration, link: Rate) -> Self {
        Self {
            mss,
            law: cubic(mss, window.get(), rtt),
            srtt: rtt,
            drains: Drains::default(),
            part: ALL / 2,
            answers: 0,
            empty: Duration::ZERO,
            acked: 0,
            lost: 0,
            all: (0, 0),
            link,
            counted: (Instant::START, 0),
            began: None,
            not_before: Instant::START,
            patience: PATIENCE,
        }
    }

    pub fn window(&self) -> u64 {
        let window = self.law.get().window().get();
        window.saturating_mul(WEIGHT.0) / WEIGHT.1
    }

    /// One window per round trip.
    pub fn rate(&self) -> Rate {
        Rate::of(Bytes::new(self.window()), self.srtt.max(Duration::from_us(1)))
    }

    /// Window and rate of a law that probes by itself.
    pub fn own(&self) -> Option<(Bytes, Rate)> {
        match &self.law {
            Law::Cubic(_) => None,
            Law::Bbr(law) => Some((law.window(), law.pacing_rate()?)),
        }
    }

    /// A cycle is over. `empty`: whether its data found an empty queue; `answer`: the share that its pulse showed.
    /// Returns whether no other flows compete.
    pub fn conclude(&mut self, empty: bool, lasted: Duration, answer: Option<i64>) -> bool {
        if self.own().is_some() {
            return false;
        }
        self.empty = if empty { self.empty.saturating_add(lasted) } else { Duration::ZERO };
        if let Some(answer) = answer.filter(|_| !empty) {
            self.answers += 1;
            self.part += (answer - self.part) / ANSWERS.min(i64::from(self.answers));
        }
        self.empty >= EMPTY + self.srtt * EMPTY_ROUNDS
            || (self.answers >= ANSWERS_MIN && self.part >= ALONE)
    }

    pub fn on_ack(&mut self, ack: &Ack, rtt: Duration, base: Duration) {
        self.acked = self.acked.saturating_add(ack.acked.get());
        self.all.0 = self.all.0.saturating_add(ack.acked.get());
        if self.all.0 > 4 * ENOUGH * self.mss {
            self.all = (self.all.0 / 2, self.all.1 / 2);
        }
        self.srtt = Duration::from_ns(self.srtt.as_ns() / 8 * 7 + rtt.as_ns() / 8);
        self.law.get_mut().on_ack(ack);
        self.drains.see(ack.now, rtt, base);
        let began = *self.began.get_or_insert(ack.now);
        let lasted = ack.now.saturating_since(began);
        let delivered = ack.delivered.get();
        if lasted < (rtt * SETTLING_ROUNDS).max(SETTLING) {
            // Losses and drained queues in this time are effects of the previous law.
            self.drains = Drains::default();
            self.all = (0, 0);
            self.counted = (ack.now, delivered);
            return;
        }
        let rate = self.rate();
        match &self.law {
            Law::Cubic(_) if ack.now >= self.not_before => {
                if self.drains.are_recent(ack.now) && self.are_insensitive() {
                    let all = delivered.saturating_add(ack.in_flight.get());
                    self.counted = (ack.now, delivered);
                    let seed = Seed(ack.now.as_ns());
                    let mss = Bytes::new(self.mss);
                    let rate = rate.clamp(times(self.link, 1, 5), times(self.link, 1, 4));
                    self.law = Law::Bbr(BbrV1::resumed(mss, seed, ack.now, rate, base, all));
                    if self.answers >= ANSWERS_MIN {
                        self.link = self.link.max(times(rate, ALL, self.part.max(ALL / 16)));
                    }
                }
            }
            Law::Bbr(law) => {
                let bandwidth = law.bandwidth();
                // BBR's flows leave another BBR flow no more than an equal share; flows that yield to losses leave it
                // most of the link.
                let most = times(self.link, 5, 8);
                let (since, from) = self.counted;
                let span = ack.now.saturating_since(since);
                let mut yielded = false;
                if span > COUNTED {
                    let rate = Rate::of(Bytes::new(delivered.saturating_sub(from)), span);
                    yielded = rate > most;
                    self.counted = (ack.now, delivered);
                }
                if yielded {
                    self.not_before = ack.now + self.patience;
                    self.patience = (self.patience * 2).min(PATIENCE_MAX);
                }
                if yielded || !self.drains.are_recent(ack.now) {
                    self.law = cubic(self.mss, bandwidth.min(most).bytes_in(rtt).get(), rtt);
                    self.answers = 0;
                    self.began = None;
                    self.empty = Duration::ZERO;
                }
            }
            Law::Cubic(_) => {}
        }
    }

    /// Whether the other flows do not respond to losses: flows that do so would lose less.
    fn are_insensitive(&self) -> bool {
        let all = self.all.0.saturating_add(self.all.1);
        all > ENOUGH * self.mss && self.all.1 > all / INSENSITIVE_PART
    }

    pub fn on_lost_segment(&mut self, segment: &LostSegment) {
        self.lost = self.lost.saturating_add(segment.size.get());
        self.all.1 = self.all.1.saturating_add(segment.size.get());
        self.law.get_mut().on_lost_segment(segment);
    }

    /// A loss is congestion unless the radio, which loses `radio_q16` / 65536, explains half of all losses since the
    /// last one.
    pub fn on_loss(&mut self, loss: &Loss, radio_q16: u64) {
        let all = u128::from(self.acked) + u128::from(self.lost);
        if u128::from(self.lost) * 65_536 > 2 * u128::from(radio_q16) * all {
            self.law.get_mut().on_loss(loss);
            self.acked = 0;
            self.lost = 0;
        }
    }

    pub fn on_rto(&mut self, rto: &Rto) {
        self.law.get_mut().on_rto(rto);
    }

    pub fn on_spurious(&mut self, spurious: &Spurious) {
        self.law.get_mut().on_spurious(spurious);
    }

    pub fn on_restart(&mut self, restart: &Restart) {
        self.law.get_mut().on_restart(restart);
    }
}
