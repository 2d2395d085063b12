//! A committed rate: a sender may always use it on a shared path, as a floor under any window law.
//!
//! A satellite's operator and a site often agree on a rate that the site may use at any time
//! (DVB-RCS2's constant rate assignment, the committed rate of RFC 2697), and more while nobody else
//! needs it. A law that infers its part from losses takes minutes to reach it beside flows that already have
//! theirs, and loses it again with every loss. Here the window is never less than the product of the
//! committed rate and the round-trip time, queue included, from the first known round trip on. Above
//! that the law decides.
//!
//! Source: gTFRC (draft-lochin-ietf-tsvwg-gtfrc-02), which sends at the larger of the guarantee and the rate that
//! TFRC computes. Differences: windows instead of a rate, and evidence can reduce the committed rate.
//! Rounds that together lose more than a channel or a shared queue loses halve the
//! rate in use, and it returns step by step, like that of [`crate::known_rate`].
//!
//! A standing queue at the time when the window is raised shows other flows: slow start then ends at the
//! committed rate. Over an idle path it continues from there.
//!
//! Decision 0020.

use crate::{
    Ack, Established, Handover, LostSegment,
    hybla::queue_seen,
    segments::{NO_THRESHOLD, Segmented, saturated, us},
};
use midhop_units::{Bytes, Duration, Rate};

/// Rounds needed before a conclusion: where others overrun the queue, one or two rounds are
/// lossy whatever this flow does.
const ROUNDS: u64 = 4;
/// How much of the committed rate returns at a time. Unit: parts of it.
const RETURN_PARTS: u64 = 5;
/// The least rate in use; below it there is none. Unit: parts of the committed rate.
const PART_MIN: u64 = 64;

/// The settings of a committed rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommittedSettings {
    /// The rate, headers included.
    pub rate: Rate,
    /// Bytes of each segment on the path beyond its payload. Default: 52 bytes: IPv4, TCP,
    /// timestamps.
    pub overhead: Bytes,
    /// The round-trip time without queues, where it is known before it is measured.
    pub rtt: Option<Duration>,
    /// The largest part of the data of some rounds that may be lost. Unit: percent. Default: 20.
    pub loss_percent_max: u32,
}

impl CommittedSettings {
    /// The defaults for `rate`.
    pub fn new(rate: Rate) -> Self {
        Self { rate, overhead: Bytes::new(52), rtt: None, loss_percent_max: 20 }
    }
}

/// Observations of some round trips.
#[derive(Debug, Clone, Copy, Default)]
struct Evidence {
    /// The current round, and how many are over.
    round: u64,
    rounds: u64,
    acked: u64,
    lost: u64,
}

/// The rate that a window is kept at, as far as the evidence allows.
#[derive(Debug)]
pub(crate) struct Floor {
    settings: CommittedSettings,
    /// The part of the rate that the evidence allows.
    held: Rate,
    rtt_min: Option<Duration>,
    evidence: Evidence,
    /// Until an acknowledgement arrives, there may be no path to fill.
    timed_out: bool,
}

impl Floor {
    pub fn new(settings: CommittedSettings) -> Self {
        Self {
            settings,
            held: settings.rate,
            rtt_min: settings.rtt,
            evidence: Evidence::default(),
            timed_out: false,
        }
    }

    /// The least window over a round trip of `rtt`, in segments of `mss` bytes. Unit: segments.
    fn least(&self, rtt: Duration, mss: u32) -> u32 {
        let segment = u64::from(mss).saturating_add(self.settings.overhead.get());
        saturated(self.held.bytes_in(rtt).get() / segment.max(1))
    }

    /// Raises the window of `law` to the committed rate.
    pub fn raise(&self, law: &mut dyn Segmented) {
        if self.timed_out {
            return;
        }
        let window = law.segments();
        let Some(rtt) = window.srtt() else { return };
        let least = self.least(rtt, window.mss());
        let others = self.rtt_min.is_some_and(|least| queue_seen(us(least), us(rtt)));
        if window.cwnd >= least {
            return;
        }
        window.cwnd = least;
        if others && window.ssthresh >= NO_THRESHOLD {
            window.ssthresh = least;
        }
    }

    fn measure(&mut self, rtt: Option<Duration>) {
        self.rtt_min = self.rtt_min.into_iter().chain(rtt).min();
    }

    /// A round is over, perhaps the last needed: does the path carry the rate in use?
    fn judge(&mut self, round: u64) {
        self.evidence.round = round;
        self.evidence.rounds += 1;
        if self.evidence.rounds < ROUNDS {
            return;
        }
        let Evidence { acked, lost, rounds, .. } = self.evidence;
        self.evidence = Evidence { round, ..Evidence::default() };
        // Losses of a round with little data prove nothing: they are compared with the rate in use.
        let product = self.rtt_min.map_or(0, |rtt| self.held.bytes_in(rtt).get());
        let sent = acked.saturating_add(lost).max(product.saturating_mul(rounds));
        let most = u128::from(self.settings.loss_percent_max);
        let committed = self.settings.rate.bits_per_s();
        let held = self.held.bits_per_s();
        self.held = Rate::from_bits_per_s(if u128::from(lost) * 100 > u128::from(sent) * most {
            (held / 2).max(committed / PART_MIN)
        } else {
            held.saturating_add(committed / RETURN_PARTS).min(committed)
        });
    }

    pub fn on_established(&mut self, established: &Established) {
        self.measure(established.rtt);
    }

    pub fn on_ack(&mut self, ack: &Ack) {
        self.timed_out = false;
        if ack.round != self.evidence.round {
            self.judge(ack.round);
        }
        self.evidence.acked = self.evidence.acked.saturating_add(ack.acked.get());
        self.measure(ack.rtt);
    }

    pub fn on_rto(&mut self) {
        self.timed_out = true;
        self.evidence.lost = 0;
    }

    pub fn on_spurious(&mut self) {
        self.timed_out = false;
    }

    pub fn on_handover(&mut self, handover: &Handover) {
        self.rtt_min = handover.rtt;
    }

    pub fn on_lost_segment(&mut self, segment: &LostSegment) {
        self.evidence.lost = self.evidence.lost.saturating_add(segment.size.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::Windowed;
    use crate::opening::ActiveOpening;
    use crate::{Loss, Rto, SlowStart, cubic::Cubic, testing::ack};
    use midhop_units::Instant;

    const MSS: u64 = 1000;
    /// A hundred segments in a round trip of half a second.
    const RATE: Rate = Rate::from_bits_per_s(1_600_000);
    const RTT: Duration = Duration::from_ms(500);

    fn sender(rtt: Option<Duration>) -> Windowed {
        let law = Cubic::new(Bytes::new(MSS), SlowStart::Classic, true);
        let own = CommittedSettings { overhead: Bytes::ZERO, rtt, ..CommittedSettings::new(RATE) };
        let floor = Some(Box::new(Floor::new(own)));
        Windowed { law: Box::new(law), opening: ActiveOpening::Burst, floor }
    }

    fn established(rtt_before: Option<Duration>, rtt: Duration) -> Windowed {
        let mut sender = sender(rtt_before);
        sender.on_established(&Established { now: Instant::START, rtt: Some(rtt) });
        sender
    }

    fn held(sender: &Windowed) -> Rate {
        sender.floor.as_ref().expect("one is committed").held
    }

    fn lose(sender: &mut Windowed, segments: u64) {
        for _ in 0..segments {
            sender
                .on_lost_segment(&LostSegment { size: Bytes::new(MSS), ..LostSegment::default() });
        }
        let lost = Bytes::new(segments * MSS);
        sender.on_loss(&Loss { now: Instant::START, lost, in_flight: Bytes::new(100 * MSS) });
    }

    fn round(sender: &mut Windowed, number: u64, segments: u64, rtt: Duration) {
        let rtt = Some(rtt);
        for _ in 0..segments {
            sender.on_ack(&Ack { rtt, app_limited: true, ..ack(number, MSS) });
        }
    }

    #[test]
    fn the_window_begins_at_what_is_committed_and_no_loss_takes_it_below() {
        let mut sender = established(None, RTT);
        assert_eq!(sender.law.window(), Bytes::new(100 * MSS));
        assert!(sender.law.is_in_slow_start(), "nobody else is there");
        lose(&mut sender, 1);
        assert_eq!(sender.law.window(), Bytes::new(100 * MSS));
        assert!(!sender.law.is_in_slow_start());
    }

    #[test]
    fn a_queue_that_others_have_filled_ends_slow_start_there() {
        let doubled = Duration::from_ms(1000);
        let sender = established(Some(RTT), doubled);
        assert_eq!(sender.law.window(), Bytes::new(200 * MSS), "the same rate over a longer way");
        assert!(!sender.law.is_in_slow_start());
    }

    #[test]
    fn what_the_law_has_found_above_is_its_own_to_give_up() {
        let mut sender = established(None, RTT);
        sender.law.segments().cwnd = 200;
        lose(&mut sender, 1);
        assert_eq!(sender.law.window(), Bytes::new(140 * MSS));
        lose(&mut sender, 1);
        assert_eq!(sender.law.window(), Bytes::new(100 * MSS), "98 would be the law's");
    }

    #[test]
    fn a_path_that_loses_a_quarter_is_not_what_was_promised() {
        let mut sender = established(None, RTT);
        let mut rounds = 1..;
        let mut pass = |sender: &mut Windowed, count: usize, lost: u64| {
            for number in rounds.by_ref().take(count) {
                lose(sender, lost);
                round(sender, number, 100 - lost, RTT);
            }
        };
        pass(&mut sender, 1, 0);
        // A round that others have overrun proves nothing.
        pass(&mut sender, 1, 60);
        pass(&mut sender, 3, 0);
        assert_eq!(held(&sender), RATE);
        pass(&mut sender, 4, 30);
        assert_eq!(held(&sender), Rate::from_bits_per_s(800_000));
        lose(&mut sender, 30);
        assert!(sender.law.window() < Bytes::new(100 * MSS), "{}", sender.law.window());
        pass(&mut sender, 16, 0);
        assert_eq!(held(&sender), RATE);
    }

    #[test]
    fn after_a_timeout_nothing_is_held_until_something_is_acknowledged() {
        let mut sender = established(None, RTT);
        sender.on_rto(&Rto { now: Instant::START, in_flight: Bytes::new(100 * MSS) });
        assert_eq!(sender.law.window(), Bytes::new(MSS));
        round(&mut sender, 1, 1, RTT);
        assert_eq!(sender.law.window(), Bytes::new(100 * MSS));
    }
}
