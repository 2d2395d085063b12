//! A flow over a leg of known capacity: dedicated, configured or signalled by the modem.
//!
//! It sends at its part of that capacity from the first segment on, and does not treat losses as
//! congestion, because the leg carries nobody else's data. The window is a small multiple of
//! the product of rate and round-trip time; flows of one [`Leg`] share its capacity.
//!
//! Source: ours. The idea of a configured rate is Hysteria's ("Brutal"). Differences: the rate is
//! the leg's, not each flow's. The sender does not send faster to make up for losses, because lost
//! packets have used the channel. Evidence can reduce the rate: a queue that
//! stands for a round trip, or more losses than a channel has, show that the leg carries less than
//! configured. The flow then sends less than was delivered, and returns step by step.

mod hinted;
mod leg;

pub use hinted::Hinted;
pub use leg::Leg;

use crate::common::Common;
use crate::description::{Description, Parameters};
use crate::{
    Ack, CongestionControl, Controller, Established, Handover, Loss, LostSegment, Restart, Rto,
    Spurious,
};
use leg::Place;
use midhop_units::{Bytes, Duration, Instant, Rate};

/// The window after a timeout, which is also the minimum. Unit: segments.
const WINDOW_MIN: u64 = 4;
/// No bound: the largest window that TCP can offer (RFC 7323 section 2.3).
const WINDOW_OPEN: Bytes = Bytes::new(1 << 30);
/// The part of the delivery rate that is sent where the leg carries less than configured.
const RETREAT_PERCENT: u64 = 90;
/// The part of its share that a flow regains in a round.
const RETURN_PERCENT: u64 = 5;
/// The least that remains after a retreat. Unit: parts of the share.
const RETREAT_MAX: u64 = 64;
/// After a smaller rate is reported, so many rounds may have a queue of data that was sent at the larger one.
const ROUNDS_TO_DRAIN: u64 = 8;
/// Data that may wait at the sender itself for pacing: it is not in the leg's queue. Unit: segments.
const OWN_QUEUE: u64 = 4;

/// Settings of a [`KnownRate`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownRateSettings {
    /// The leg, and with it its rate.
    pub leg: Leg,
    /// The round-trip time, where it is known before it is measured.
    pub rtt: Option<Duration>,
    /// Bytes of each segment on the leg beyond its payload. Default: 52 bytes: IPv4, TCP,
    /// timestamps.
    pub overhead: Bytes,
    /// How long the smallest round-trip time is valid before a larger one replaces it. Default: 60 s.
    pub min_rtt_window: Duration,
    /// The limits of trust in the rate.
    pub bounds: KnownRateBounds,
}

/// The limits of trust in a known rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct KnownRateBounds {
    /// The window in hundredths of the product of rate and round-trip time. Default: 150.
    pub window_percent: u32,
    /// The longest queue that may stand for a round trip. Default: 100 ms.
    pub queue_max: Duration,
    /// The largest part of a round's data that the channel may lose. Unit: percent. Default: 20.
    pub loss_percent_max: u32,
    /// Whether the flow always sends at the rate, whatever is lost. Default: no.
    ///
    /// Losses, queues and timeouts do not change the rate, and no window limits the outstanding data; only buffers do.
    /// SCPS-TP sends like this with its congestion control off (CCSDS 714.0-B-2).
    #[cfg_attr(feature = "serde", serde(default))]
    pub open_loop: bool,
    /// Whether the rate may be wrong: a path that contradicts it is [measured](Hinted). Default: no.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "std::ops::Not::not"))]
    pub hint: bool,
}

impl Default for KnownRateBounds {
    fn default() -> Self {
        Self {
            window_percent: 150,
            queue_max: Duration::from_ms(100),
            loss_percent_max: 20,
            open_loop: false,
            hint: false,
        }
    }
}

impl KnownRateSettings {
    /// The defaults for `leg`.
    pub fn new(leg: Leg) -> Self {
        Self {
            leg,
            rtt: None,
            overhead: Bytes::new(52),
            min_rtt_window: Duration::from_s(60),
            bounds: KnownRateBounds::default(),
        }
    }
}

impl Parameters for KnownRateSettings {
    fn usual(rate: Option<Rate>) -> Option<Self> {
        rate.map(|rate| Self::new(Leg::new(rate)))
    }
}

/// The smallest round-trip time of the current window of time and of the one before.
#[derive(Debug, Clone, Copy, Default)]
struct MinRtt {
    current: Option<Duration>,
    previous: Option<Duration>,
    started: Instant,
}

impl MinRtt {
    fn new(now: Instant, rtt: Option<Duration>) -> Self {
        Self { current: rtt, previous: None, started: now }
    }

    fn update(&mut self, now: Instant, window: Duration, rtt: Duration) {
        if now.saturating_since(self.started) > window {
            *self = Self { current: None, previous: self.current, started: now };
        }
        self.current = Some(self.current.map_or(rtt, |min| min.min(rtt)));
    }

    fn min(&self) -> Option<Duration> {
        self.current.into_iter().chain(self.previous).min()
    }
}

/// Observations of a round trip.
#[derive(Debug, Clone, Copy, Default)]
struct Round {
    number: u64,
    /// `None` in a round that began before the sender did.
    started: Option<Instant>,
    rtt_min: Option<Duration>,
    acked: u64,
    lost: u64,
    /// Whether the application ran out of data.
    app_limited: bool,
    rate_max: Rate,
    /// Whether the data acknowledged in it was sent at the present rate.
    settled: bool,
}

/// A flow of known rate as a controller.
#[derive(Debug)]
pub struct KnownRate {
    settings: KnownRateSettings,
    mss: u64,
    initial_window: u64,
    place: Place,
    min_rtt: MinRtt,
    /// Whether the round-trip time is not this path's, or configured and not measured.
    guessed: bool,
    path_since: Instant,
    round: Round,
    /// The rate that the evidence allows, where it is less than the share.
    ceiling: Option<Rate>,
    /// How often the flow has retreated since the evidence last allowed its share.
    retreats: u32,
    /// The round until which a queue is no evidence against the reported rate.
    drains_until: u64,
    timed_out: bool,
}

impl KnownRate {
    /// A new connection with segments of `mss`, and a window of `initial_window` segments until a
    /// round-trip time is known.
    pub fn new(mss: Bytes, initial_window: u32, settings: KnownRateSettings) -> Self {
        let mss = mss.get().max(1);
        Self {
            mss,
            initial_window: u64::from(initial_window).max(1).saturating_mul(mss),
            place: Place::new(settings.leg.clone()),
            min_rtt: MinRtt::new(Instant::START, settings.rtt),
            guessed: true,
            path_since: Instant::START,
            round: Round::default(),
            ceiling: None,
            retreats: 0,
            drains_until: 0,
            timed_out: false,
            settings,
        }
    }

    /// The rate that the evidence allows, where it is less than the flow's share of the leg.
    pub fn ceiling(&self) -> Option<Rate> {
        self.ceiling
    }

    /// How often evidence has reduced the rate since it last allowed the whole share.
    pub(crate) fn retreats(&self) -> u32 {
        self.retreats
    }

    /// Evidence to the contrary is forgotten.
    fn believe(&mut self) {
        (self.ceiling, self.retreats) = (None, 0);
        self.round.settled = false;
    }

    /// The rate that may be sent now, headers included.
    fn rate(&self) -> Rate {
        let share = self.place.share();
        self.ceiling.map_or(share, |ceiling| ceiling.min(share))
    }

    /// A segment with its headers. Unit: bytes.
    fn segment(&self) -> u64 {
        self.mss.saturating_add(self.settings.overhead.get())
    }

    /// The payload that a rate with headers carries.
    fn payload(&self, rate: Rate) -> Rate {
        part(rate, self.mss, self.segment())
    }

    /// The rate with headers that carries this payload.
    fn gross(&self, payload: Rate) -> Rate {
        part(payload, self.segment(), self.mss)
    }

    fn measure(&mut self, ack: &Ack) {
        let Some(rtt) = ack.rtt else { return };
        if ack.sample.is_some_and(|sample| sample.sent < self.path_since) {
            return;
        }
        if self.guessed {
            self.guessed = false;
            self.min_rtt = MinRtt::default();
        }
        self.min_rtt.update(ack.now, self.settings.min_rtt_window, rtt);
        self.round.rtt_min = Some(self.round.rtt_min.map_or(rtt, |min| min.min(rtt)));
    }

    /// A round is over: how much of its share does the flow use?
    fn claim(&mut self, now: Instant) {
        if !self.round.app_limited {
            return self.place.stay_busy();
        }
        let Some(started) = self.round.started else { return };
        let lasted = now.saturating_since(started);
        let sent = Bytes::new(self.round.acked.saturating_add(self.round.lost));
        let used = part(Rate::of(sent, lasted), self.segment(), self.mss);
        self.place.use_of(used, self.rate());
    }

    /// A round is over: does the leg carry the configured rate?
    fn judge(&mut self) {
        if self.settings.bounds.open_loop {
            return;
        }
        let Round { rtt_min, acked, lost, rate_max, settled, .. } = self.round;
        let queue = match (rtt_min, self.min_rtt.min()) {
            (Some(rtt), Some(min)) => rtt.saturating_sub(min),
            _ => Duration::ZERO,
        };
        let own = self.rate().time_for(Bytes::new(OWN_QUEUE * self.segment()));
        let queue = queue.saturating_sub(own);
        let share = self.place.share();
        // One loss in a round with little data proves nothing: the losses are compared with the data that the
        // leg carries in a round.
        let product =
            self.min_rtt.min().map_or(0, |rtt| self.payload(self.rate()).bytes_in(rtt).get());
        let too_lossy = u128::from(lost) * 100
            > u128::from((acked + lost).max(product))
                * u128::from(self.settings.bounds.loss_percent_max);
        if queue > self.settings.bounds.queue_max || too_lossy {
            // A round sent before the last reduction proves nothing about it.
            if settled && rate_max > Rate::ZERO {
                let delivered = part(rate_max, self.segment(), self.mss);
                let retreat = part(delivered, RETREAT_PERCENT, 100).min(self.rate());
                self.ceiling = Some(retreat.max(part(share, 1, RETREAT_MAX)));
                self.retreats += u32::from(self.round.number >= self.drains_until);
                self.round.settled = false;
                return;
            }
        } else if let Some(ceiling) = self.ceiling
            && queue.as_ns() <= self.settings.bounds.queue_max.as_ns() / 2
        {
            let step = share.bits_per_s() / 100 * RETURN_PERCENT;
            let ceiling = Rate::from_bits_per_s(ceiling.bits_per_s().saturating_add(step));
            self.ceiling = (ceiling < share).then_some(ceiling);
            if self.ceiling.is_none() {
                self.retreats = 0;
            }
        }
        self.round.settled = true;
    }
}

/// `rate` × `numerator` / `denominator`, rounded down.
fn part(rate: Rate, numerator: u64, denominator: u64) -> Rate {
    let bits =
        u128::from(rate.bits_per_s()) * u128::from(numerator) / u128::from(denominator.max(1));
    Rate::from_bits_per_s(u64::try_from(bits).unwrap_or(u64::MAX))
}

impl KnownRate {
    pub(crate) const DESCRIPTION: Description = Description {
        name: "known-rate",
        keys: &["rate", "link", "window", "queue_max", "loss_max", "open_loop", "strict"],
        ..Description::OWN_RULE
    };

    pub(crate) fn controller(common: &Common<'_>, own: &KnownRateSettings) -> Controller {
        let (mss, initial_window) = (common.mss, common.initial_window);
        if own.bounds.hint {
            return Controller::new(Hinted::new(mss, initial_window, own.clone()));
        }
        Controller::new(Self::new(mss, initial_window, own.clone()))
    }
}

impl CongestionControl for KnownRate {
    fn on_established(&mut self, established: &Established) {
        if established.rtt.is_some() {
            self.min_rtt = MinRtt::new(established.now, established.rtt);
            self.guessed = false;
        }
    }

    fn on_ack(&mut self, ack: &Ack) {
        self.timed_out = false;
        if ack.round != self.round.number {
            self.judge();
            self.claim(ack.now);
            let (settled, started) = (self.round.settled, Some(ack.now));
            self.round = Round { number: ack.round, started, settled, ..Round::default() };
        }
        self.measure(ack);
        self.round.app_limited |= ack.sample.is_some_and(|sample| sample.is_app_limited);
        if ack.in_flight == Bytes::ZERO {
            self.place.be_silent();
        }
        self.round.acked = self.round.acked.saturating_add(ack.acked.get());
        self.round.rate_max = self.round.rate_max.max(ack.delivery_rate.unwrap_or(Rate::ZERO));
    }

    fn on_lost_segment(&mut self, segment: &LostSegment) {
        self.round.lost = self.round.lost.saturating_add(segment.size.get());
    }

    fn on_loss(&mut self, _loss: &Loss) {}

    fn on_rto(&mut self, _rto: &Rto) {
        // Until an acknowledgement arrives, there may be no path to fill.
        self.timed_out = true;
        self.round.lost = 0;
    }

    fn on_spurious(&mut self, _spurious: &Spurious) {
        self.timed_out = false;
    }

    fn on_rate(&mut self, rate: Rate) {
        if rate != self.place.leg().rate() {
            self.place.leg().set_rate(rate);
            self.believe();
            self.drains_until = self.round.number + ROUNDS_TO_DRAIN;
        }
    }

    fn on_handover(&mut self, handover: &Handover) {
        if let Some(rate) = handover.rate {
            self.place.leg().set_rate(rate);
        }
        self.path_since = handover.now;
        self.min_rtt = MinRtt::new(handover.now, handover.rtt.or(self.min_rtt.min()));
        self.guessed = true;
        (self.ceiling, self.retreats) = (None, 0);
        self.round = Round { number: self.round.number, ..Round::default() };
    }

    fn on_restart(&mut self, _restart: &Restart) {
        self.place.be_busy();
        // Data that arrives in this round was not sent in the one before.
        self.round.started = None;
    }

    fn window(&self) -> Bytes {
        if self.settings.bounds.open_loop {
            return WINDOW_OPEN;
        }
        if self.timed_out {
            return Bytes::new(WINDOW_MIN * self.mss);
        }
        let Some(min_rtt) = self.min_rtt.min() else {
            return Bytes::new(self.initial_window);
        };
        let bdp = u128::from(self.payload(self.rate()).bytes_in(min_rtt).get());
        let window = bdp * u128::from(self.settings.bounds.window_percent) / 100;
        let window = u64::try_from(window).unwrap_or(u64::MAX);
        Bytes::new(window.max(WINDOW_MIN * self.mss))
    }

    fn pacing_rate(&self) -> Option<Rate> {
        // A leg with a rate of zero is down: try now and then.
        Some(self.payload(self.rate()).max(Rate::from_bits_per_s(self.mss * 8)))
    }

    fn governs_recovery(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RateSample;

    const RATE: Rate = Rate::from_mbit_per_s(20);

    /// Three rounds of a tenth of a second, in each of which ten segments arrive, and the rate after.
    fn after_three_rounds(flow: &mut KnownRate, first: u64, lacking_data: bool) -> Option<Rate> {
        for round in first..first + 3 {
            let sample = RateSample { is_app_limited: lacking_data, ..RateSample::default() };
            flow.on_ack(&Ack {
                now: Instant::START + Duration::from_ms(100 * round),
                acked: Bytes::new(10_000),
                in_flight: Bytes::new(10_000),
                round,
                // A window of one and a half products is never used up where data is paced.
                app_limited: true,
                sample: Some(sample),
                ..Ack::default()
            });
        }
        flow.pacing_rate()
    }

    #[test]
    fn only_a_lack_of_data_gives_up_a_part_of_the_leg() {
        let leg = Leg::new(RATE);
        let settings =
            KnownRateSettings { overhead: Bytes::ZERO, ..KnownRateSettings::new(leg.clone()) };
        let mut flow = KnownRate::new(Bytes::new(1000), 10, settings.clone());
        flow.on_restart(&Restart { now: Instant::START, app_limited: false });
        assert_eq!(after_three_rounds(&mut flow, 1, true), Some(RATE), "nobody else wants it");
        let mut other = KnownRate::new(Bytes::new(1000), 10, settings);
        other.on_restart(&Restart { now: Instant::START, app_limited: false });
        let half = Some(Rate::from_mbit_per_s(10));
        assert_eq!(after_three_rounds(&mut flow, 4, false), half);
        // 0.8 Mbit/s used: a quarter of an equal part is kept.
        assert_eq!(after_three_rounds(&mut flow, 7, true), Some(Rate::from_bits_per_s(2_500_000)));
        assert_eq!(after_three_rounds(&mut flow, 10, false), half, "it has data again");
    }

    #[test]
    fn a_handover_is_believed_and_its_old_delay_is_not() {
        let mut flow = KnownRate::new(Bytes::new(1000), 10, KnownRateSettings::new(Leg::new(RATE)));
        let (now, rtt) = (Instant::START, Some(Duration::from_ms(100)));
        flow.on_established(&Established { now, rtt });
        flow.on_handover(&Handover { now, rtt: None, rate: Some(Rate::from_mbit_per_s(5)) });
        assert_eq!(flow.place.leg().rate(), Rate::from_mbit_per_s(5));
        flow.on_ack(&Ack { now, rtt: Some(Duration::from_ms(300)), ..Ack::default() });
        assert_eq!(flow.min_rtt.min(), Some(Duration::from_ms(300)));
    }
}
