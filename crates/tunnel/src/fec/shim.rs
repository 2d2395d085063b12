//! The shim of one path: both halves, their timers and their cost.
//!
//! Decision 0016.

use super::decoder::Decoder;
use super::encoder::Encoder;
use super::redundancy::Redundancy;
use super::tally::{Sequence, Tally};
use super::wire::{self, NUMBERS, Packet, Report};
use super::{SPAN, WINDOW_MAX};
use crate::control::Pace;
use crate::pacer::Pacer;
use bytes::Bytes;
use midhop_units::{Duration, Instant};
use std::collections::VecDeque;

/// A repair covers what was sent within this part of a round trip: QUIC has retransmitted older datagrams.
const WINDOW_PER_RTT: u64 = 2;
/// A repair may always cover so many, however slow the leg.
const WINDOW_MIN: usize = 8;
/// A burst has ended once nothing has left for this part of a round trip.
const END_PER_RTT: u64 = 20;
const END_MIN: Duration = Duration::from_ms(3);
const END_MAX: Duration = Duration::from_ms(30);
/// Reports per round trip, and the shortest time between two. A report takes 49 bytes with headers.
const REPORTS_PER_RTT: u64 = 2;
const REPORT_MIN: Duration = Duration::from_ms(50);
/// What repairs of burst ends may take: this part of the protected bytes, so many bytes in each round trip, and
/// what was not used before, up to a bound. A leg with much traffic has few ends, and an idle one can afford them.
/// Each acknowledgement is an end, and must not be doubled.
const END_PART: u64 = 4;
const END_PER_RTT_BYTES: u64 = 150;
const END_BYTES_MAX: u64 = 12_000;
/// A queue of this part of a round trip is a sign of congestion. The constant below is added for delays of timers.
const QUEUEING_PER_RTT: u64 = 4;
const QUEUEING_MIN: Duration = Duration::from_ms(20);
/// So many datagrams after the last loss found are numbered. Repairs and reports of losses need numbers; a leg
/// without losses is spared the work.
const NUMBERED: u32 = 20_000;
/// No datagram of QUIC is larger, whatever the path's MTU.
pub(crate) const DATAGRAM_MAX: midhop_units::Bytes = midhop_units::Bytes::new(1500);
/// Repairs read for each source received, and before the first one. Limits the cost of a flood of repairs from an
/// attacker.
const REPAIRS_UNASKED: u32 = SPAN as u32;

/// The settings of a shim, which depend on its leg.
#[derive(Debug, Clone, PartialEq)]
pub struct FecSettings {
    /// The round-trip time without queues. Default: 600 ms.
    pub rtt: Duration,
    /// Repairs may add this much to what is sent; those of burst ends do not count. Default: 12 %. Unit: percent.
    pub overhead_percent_max: u32,
    /// Whether to repair although the path signals congestion. QUIC then does not see that signal: use it only for
    /// a leg that nobody else uses (RFC 9265 §4). Default: no.
    pub despite_congestion: bool,
}

impl Default for FecSettings {
    fn default() -> Self {
        Self { rtt: Duration::from_ms(600), overhead_percent_max: 12, despite_congestion: false }
    }
}

/// What a shim has done. Bytes are payloads of UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Protected datagrams sent.
    pub sources_sent: u64,
    /// Their bytes, headers included.
    pub source_bytes_sent: u64,
    /// Repairs sent.
    pub repairs_sent: u64,
    /// Their bytes, and those of reports.
    pub extra_bytes_sent: u64,
    /// Reports sent.
    pub reports_sent: u64,
    /// Protected datagrams received; recovered ones do not count.
    pub sources_received: u64,
    /// Repairs received.
    pub repairs_received: u64,
    /// Datagrams that repairs have recovered for QUIC.
    pub repaired: u64,
    /// Datagrams that were not understood.
    pub unknown: u64,
    /// The last report of the peer: the losses of this direction.
    pub reported: Report,
}

impl Stats {
    /// What repairs and reports add to what is sent. Range: ≥ 0.
    pub fn overhead(&self) -> f64 {
        self.extra_bytes_sent as f64 / self.source_bytes_sent.max(1) as f64
    }
}

/// Stands between QUIC and its socket, for one path.
///
/// `T` goes with each datagram: its destination or source address, and its ECN field. A datagram that the shim
/// makes gets a copy of the newest `T`.
///
/// After each call, call [`poll_delivery`](Self::poll_delivery) and [`poll_output`](Self::poll_output) until they
/// return none. Set a timer for [`poll_timeout`](Self::poll_timeout), and call `poll_output` again when it expires.
///
/// Until both sides have [agreed](Self::agree), QUIC's datagrams leave unchanged.
#[derive(Debug)]
pub struct Shim<T> {
    settings: FecSettings,
    pace: Pace,
    pacer: Pacer<(Bytes, T)>,
    /// The most datagrams that a repair may cover, for the peer and for us; `None` until agreed.
    window_max: Option<usize>,
    /// Whether the shim has been proposed to the peer, which has not answered yet.
    proposed: bool,
    sending: Sending<T>,
    receiving: Receiving<T>,
    stats: Stats,
}

/// The sending half.
#[derive(Debug)]
struct Sending<T> {
    encoder: Encoder,
    redundancy: Redundancy,
    /// How many more datagrams are numbered.
    numbered: u32,
    /// Losses that the connection has found.
    losses: u64,
    /// Parts of a repair that are due.
    owed: f64,
    /// Datagrams since the last repair; then datagrams since the last burst end, and repairs since then.
    open: usize,
    burst: usize,
    burst_repairs: usize,
    /// What repairs of ends may still take. Unit: bytes.
    end_bytes: u64,
    earned_until: Instant,
    /// When a datagram was last pushed or left.
    busy: Instant,
    tag: Option<T>,
}

/// The receiving half.
#[derive(Debug)]
struct Receiving<T> {
    sequence: Sequence,
    tally: Tally,
    decoder: Decoder,
    deliveries: VecDeque<(Bytes, T)>,
    /// How many more repairs will be read.
    repairs: u32,
    report_at: Option<Instant>,
    reported: Report,
}

impl<T: Clone> Shim<T> {
    /// A shim that passes everything unchanged, at `pace`.
    pub fn new(settings: FecSettings, pace: Pace, now: Instant) -> Self {
        let overhead_max = f64::from(settings.overhead_percent_max) / 100.0;
        let redundancy = Redundancy::new(overhead_max, settings.despite_congestion);
        let losses = pace.losses();
        Self {
            pacer: Pacer::new(pace.clone(), now),
            pace,
            window_max: None,
            proposed: false,
            sending: Sending {
                encoder: Encoder::default(),
                redundancy,
                numbered: 0,
                losses,
                owed: 0.0,
                open: 0,
                burst: 0,
                burst_repairs: 0,
                end_bytes: END_BYTES_MAX,
                earned_until: now,
                busy: now,
                tag: None,
            },
            receiving: Receiving {
                sequence: Sequence::default(),
                tally: Tally::default(),
                decoder: Decoder::new(),
                deliveries: VecDeque::new(),
                repairs: REPAIRS_UNASKED,
                report_at: None,
                reported: Report::default(),
            },
            stats: Stats::default(),
            settings,
        }
    }

    /// The peer may soon announce support. Until it is [known](Self::agree) whether it does, probes of the path's
    /// MTU are dropped: they cannot be as large as a repair yet, and what passes without a header may not pass with
    /// one.
    pub fn propose(&mut self) {
        self.proposed = true;
    }

    /// The peer supports the shim, and repairs that cover up to `window` datagrams; zero: it does not support the
    /// shim after all.
    pub fn agree(&mut self, window: usize) {
        self.proposed = false;
        self.window_max = (window > 0).then(|| window.min(WINDOW_MAX));
    }

    /// Another connection of the same path has begun, or more is known of it. Uses its settings and pace from now
    /// on. Both sides have to agree again. The loss estimate stays; the statistics are reset.
    pub fn follow(&mut self, settings: FecSettings, pace: Pace) {
        let overhead_max = f64::from(settings.overhead_percent_max) / 100.0;
        self.sending.redundancy.bound(overhead_max, settings.despite_congestion);
        self.pacer.follow(pace.clone());
        self.sending.losses = pace.losses();
        (self.settings, self.pace, self.window_max) = (settings, pace, None);
        self.proposed = false;
        self.stats = Stats::default();
    }

    /// The pace.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Whether QUIC must keep its datagrams for now.
    pub fn is_full(&self) -> bool {
        self.pacer.is_full()
    }

    /// QUIC has more, and must keep it.
    pub fn refuse(&mut self) {
        self.pacer.refuse();
    }

    /// Takes a datagram that QUIC sends.
    pub fn push(&mut self, now: Instant, datagram: Bytes, tag: T) {
        self.sending.busy = now;
        self.sending.tag = Some(tag.clone());
        // A probe of the path's MTU is not protected: a repair would hide its loss, and would be lost as well.
        let is_probe = self.is_probe(datagram.len());
        let Some(window_max) = self.window_max else {
            if !(self.proposed && is_probe) {
                self.depart(now, datagram, tag);
            }
            return;
        };
        if is_probe {
            return self.depart(now, wire::plain(&datagram), tag);
        }
        if !self.sending.numbers(self.pace.losses()) {
            return self.depart(now, datagram, tag);
        }
        let source = self.sending.encoder.take(now, &datagram);
        self.stats.sources_sent += 1;
        self.stats.source_bytes_sent += source.len() as u64;
        self.depart(now, source, tag);
        let rtt = self.settings.rtt;
        let sending = &mut self.sending;
        sending.earn(now, datagram.len() as u64, rtt);
        sending.open += 1;
        sending.burst += 1;
        if self.pace.queueing() > rtt / QUEUEING_PER_RTT + QUEUEING_MIN {
            sending.redundancy.on_congestion(now);
        }
        let since = Instant::START
            + now.saturating_since(Instant::START).saturating_sub(rtt / WINDOW_PER_RTT);
        sending.encoder.narrow(since, window_max, WINDOW_MIN);
        if !sending.redundancy.is_on(now) {
            sending.owed = 0.0;
            return;
        }
        sending.owed += sending.redundancy.ratio(sending.encoder.len());
        if sending.owed >= 1.0 {
            sending.owed -= 1.0;
            sending.burst_repairs += 1;
            sending.open = 0;
            self.repair(now);
        }
    }

    /// How many of QUIC's datagrams may leave now unchanged, without being [pushed](Self::push): at most `max`, and
    /// none while something waits or while datagrams are numbered.
    pub fn room(&mut self, now: Instant, max: usize) -> usize {
        let sending = &self.sending;
        let is_numbering = sending.numbered > 0
            || sending.losses != self.pace.losses()
            || sending.encoder.len() > 0;
        if self.window_max.is_some() && is_numbering {
            return 0;
        }
        let size = self.pace.datagram_max().min(DATAGRAM_MAX);
        self.pacer.room(now, size, max)
    }

    /// So many datagrams of QUIC, of `size` bytes together, leave unchanged. There was [room](Self::room) for them.
    pub fn pass(&mut self, now: Instant, count: usize, size: usize, tag: T) {
        self.sending.busy = now;
        self.sending.tag = Some(tag);
        self.pacer.pass(count, midhop_units::Bytes::new(size as u64));
    }

    /// Whether a datagram of this size probes the path's MTU: a probe must be [pushed](Self::push).
    pub fn is_probe(&self, size: usize) -> bool {
        size as u64 > self.pace.datagram_max().get()
    }

    /// The next datagram that may leave; [`poll_output`](Self::poll_output) removes it.
    pub fn peek_output(&mut self, now: Instant) -> Option<&(Bytes, T)> {
        self.make(now);
        self.pacer.peek(now)
    }

    /// Makes what is due at this time: repairs of a burst end, and reports.
    fn make(&mut self, now: Instant) {
        if self.end_at().is_some_and(|at| at <= now) {
            self.end(now);
        }
        if self.receiving.report_at.is_some_and(|at| at <= now) {
            self.report(now);
        }
    }

    /// The next datagram that may leave.
    pub fn poll_output(&mut self, now: Instant) -> Option<(Bytes, T)> {
        self.make(now);
        let left = self.pacer.pop(now)?;
        self.sending.busy = now;
        Some(left)
    }

    /// When to poll for output again.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let own = [self.pacer.wake(), self.end_at(), self.receiving.report_at];
        own.into_iter().flatten().min()
    }

    /// Takes a datagram received from the peer; `marked` if the path reports congestion (ECN: CE).
    pub fn handle_input(&mut self, now: Instant, datagram: Bytes, tag: T, marked: bool) {
        let receiving = &mut self.receiving;
        if marked {
            receiving.tally.on_marked();
        }
        let Some(packet) = Packet::parse(datagram) else {
            self.stats.unknown += 1;
            return;
        };
        let deliveries = &mut receiving.deliveries;
        let tally = &mut receiving.tally;
        let repaired = &mut self.stats.repaired;
        match packet {
            Packet::Plain(datagram) => return deliveries.push_back((datagram, tag)),
            Packet::Source { number, datagram } => {
                self.stats.sources_received += 1;
                receiving.repairs = (receiving.repairs + 1).min(REPAIRS_UNASKED);
                // Deliver every source: QUIC detects duplicates, and a recovered datagram may be false.
                deliveries.push_back((datagram.clone(), tag.clone()));
                let Some(number) = receiving.sequence.admit(number) else { return };
                tally.on_source(number);
                receiving.decoder.on_source(number, &datagram, |given| {
                    *repaired += 1;
                    tally.on_repaired();
                    deliveries.push_back((given, tag.clone()));
                });
            }
            Packet::Repair(repair) => {
                self.stats.repairs_received += 1;
                let Some(left) = receiving.repairs.checked_sub(1) else { return };
                receiving.repairs = left;
                let last = (repair.first + u32::from(repair.count) - 1) % NUMBERS;
                let Some(last) = receiving.sequence.admit(last) else { return };
                tally.on_known(last);
                receiving.decoder.on_repair(last, &repair, |given| {
                    *repaired += 1;
                    tally.on_repaired();
                    deliveries.push_back((given, tag.clone()));
                });
            }
            Packet::Report(report) => {
                if self.window_max.is_some() {
                    self.sending.on_report(now, &report);
                }
                return;
            }
        }
        let interval = (self.settings.rtt / REPORTS_PER_RTT).max(REPORT_MIN);
        if self.window_max.is_some() && receiving.tally.report() != receiving.reported {
            receiving.report_at.get_or_insert(now + interval);
        }
    }

    /// The next datagram for QUIC.
    pub fn poll_delivery(&mut self) -> Option<(Bytes, T)> {
        self.receiving.deliveries.pop_front()
    }

    /// The statistics so far.
    pub fn stats(&self) -> Stats {
        Stats { reported: self.sending.redundancy.reported(), ..self.stats }
    }

    /// The fraction of datagrams that the peer has recently missed, before repairs.
    pub fn loss(&self) -> f64 {
        self.sending.redundancy.loss()
    }

    /// When the present burst counts as ended.
    fn end_at(&self) -> Option<Instant> {
        let sending = &self.sending;
        let open = self.window_max.is_some() && sending.open > 0 && self.pacer.is_empty();
        let wait = (self.settings.rtt / END_PER_RTT).clamp(END_MIN, END_MAX);
        (open && sending.redundancy.is_on(sending.busy)).then(|| sending.busy + wait)
    }

    /// Protects the end of a burst: the datagrams that no repair covers well enough yet.
    fn end(&mut self, now: Instant) {
        let sending = &mut self.sending;
        let own = sending.redundancy.at_end(sending.open);
        let rest = sending.redundancy.at_end(sending.burst).saturating_sub(sending.burst_repairs);
        sending.open = 0;
        for _ in 0..own.max(rest) {
            if !self.repair_end(now) {
                // The next repair covers it, if one follows soon.
                return;
            }
        }
        let sending = &mut self.sending;
        (sending.burst, sending.burst_repairs, sending.owed) = (0, 0, 0.0);
        sending.encoder.begin_again();
    }

    fn repair_end(&mut self, now: Instant) -> bool {
        let cost = self.sending.encoder.repair_len() as u64;
        let Some(left) = self.sending.end_bytes.checked_sub(cost) else { return false };
        self.sending.end_bytes = left;
        self.sending.burst_repairs += 1;
        self.repair(now);
        true
    }

    fn repair(&mut self, now: Instant) {
        let Some(tag) = self.sending.tag.clone() else { return };
        let Some(repair) = self.sending.encoder.repair() else { return };
        let written = repair.written();
        self.stats.repairs_sent += 1;
        self.stats.extra_bytes_sent += written.len() as u64;
        self.depart(now, written, tag);
    }

    fn report(&mut self, now: Instant) {
        self.receiving.report_at = None;
        let Some(tag) = self.sending.tag.clone() else { return };
        let report = self.receiving.tally.report();
        self.receiving.reported = report;
        let written = report.written();
        self.stats.reports_sent += 1;
        self.stats.extra_bytes_sent += written.len() as u64;
        self.depart(now, written, tag);
    }

    fn depart(&mut self, now: Instant, datagram: Bytes, tag: T) {
        let size = midhop_units::Bytes::new(datagram.len() as u64);
        self.pacer.push(now, size, (datagram, tag));
    }
}

impl<T> Sending<T> {
    /// Whether the next datagram is numbered; `losses` have been found so far.
    fn numbers(&mut self, losses: u64) -> bool {
        if self.losses != losses {
            (self.losses, self.numbered) = (losses, NUMBERED);
        }
        let Some(left) = self.numbered.checked_sub(1) else {
            // The last numbered datagram is long ago.
            if self.encoder.len() > 0 {
                (self.open, self.burst, self.burst_repairs, self.owed) = (0, 0, 0, 0.0);
                self.encoder.begin_again();
            }
            return false;
        };
        self.numbered = left;
        true
    }

    fn on_report(&mut self, now: Instant, report: &Report) {
        let known = self.redundancy.reported().lost;
        self.redundancy.on_report(now, report);
        if self.redundancy.reported().lost != known {
            self.numbered = NUMBERED;
        }
    }

    /// The budget for repairs of burst ends grows with what is sent and with time.
    fn earn(&mut self, now: Instant, bytes: u64, rtt: Duration) {
        let passed = now.saturating_since(self.earned_until);
        self.earned_until = self.earned_until.max(now);
        let of_time = u128::from(passed.as_ns()) * u128::from(END_PER_RTT_BYTES)
            / u128::from(rtt.as_ns().max(1));
        let of_time = u64::try_from(of_time).unwrap_or(END_BYTES_MAX);
        let earned = self.end_bytes.saturating_add(of_time).saturating_add(bytes / END_PART);
        self.end_bytes = earned.min(END_BYTES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shim that has agreed, and whose peer reports that one datagram of a hundred was lost.
    fn shim(pace: &Pace) -> Shim<()> {
        let mut shim = Shim::new(FecSettings::default(), pace.clone(), Instant::START);
        shim.agree(WINDOW_MAX);
        let report = Report { judged: 5000, lost: 50, runs: 50, ..Report::default() };
        shim.handle_input(Instant::START, report.written(), (), false);
        shim
    }

    fn output(shim: &mut Shim<()>, now: Instant) -> Vec<Bytes> {
        std::iter::from_fn(|| shim.poll_output(now)).map(|(datagram, ())| datagram).collect()
    }

    fn pace() -> Pace {
        Pace::of(None, midhop_units::Bytes::new(28))
    }

    #[test]
    fn a_probe_of_the_mtu_is_not_protected_and_as_long_as_a_repair() {
        let pace = pace();
        pace.carries(1200);
        let mut shim = shim(&pace);
        shim.push(Instant::START, Bytes::from_static(&[0x40; 1300]), ());
        assert_eq!(output(&mut shim, Instant::START)[0].len(), 1300 + usize::from(wire::HEADROOM));
        assert_eq!((shim.stats().sources_sent, shim.poll_timeout()), (0, None));
        shim.push(Instant::START, Bytes::from_static(&[0x40; 1200]), ());
        assert_eq!(output(&mut shim, Instant::START)[0].len(), 1203);
        let end = shim.poll_timeout().expect("the end of a burst");
        assert_eq!(output(&mut shim, end)[0].len(), 1207);
    }

    #[test]
    fn a_probe_of_the_mtu_means_nothing_until_it_is_known_how_large_datagrams_will_be() {
        let pace = pace();
        pace.carries(1200);
        for (window, len) in [(WINDOW_MAX, 1307), (0, 1300)] {
            let mut shim = Shim::new(FecSettings::default(), pace.clone(), Instant::START);
            shim.propose();
            shim.push(Instant::START, Bytes::from_static(&[0x40; 1300]), ());
            shim.push(Instant::START, Bytes::from_static(&[0x40; 1200]), ());
            let lens = |shim: &mut Shim<()>| -> Vec<_> {
                output(shim, Instant::START).iter().map(Bytes::len).collect()
            };
            assert_eq!(lens(&mut shim), [1200]);
            shim.agree(window);
            shim.push(Instant::START, Bytes::from_static(&[0x40; 1300]), ());
            assert_eq!(lens(&mut shim), [len]);
        }
    }

    #[test]
    fn a_leg_that_loses_nothing_is_spared_all_of_it() {
        let pace = pace();
        let mut shim = Shim::new(FecSettings::default(), pace.clone(), Instant::START);
        shim.agree(WINDOW_MAX);
        let len = |shim: &mut Shim<()>| {
            shim.push(Instant::START, Bytes::from_static(&[0x40; 1000]), ());
            output(shim, Instant::START).iter().map(Bytes::len).sum::<usize>()
        };
        assert_eq!(len(&mut shim), 1000);
        pace.loses();
        let sent = (0..NUMBERED).map(|_| len(&mut shim));
        assert_eq!(sent.sum::<usize>(), NUMBERED as usize * 1003);
        assert_eq!((len(&mut shim), shim.poll_timeout()), (1000, None));
        // A loss that the peer reports counts as much.
        let report = Report { judged: 9000, lost: 1, runs: 1, ..Report::default() };
        shim.handle_input(Instant::START, report.written(), (), false);
        assert_eq!(len(&mut shim), 1003);
    }

    #[test]
    fn what_is_to_be_numbered_does_not_leave_as_it_is() {
        let now = Instant::START;
        let pace = pace();
        let mut shim: Shim<()> = Shim::new(FecSettings::default(), pace.clone(), now);
        pace.loses();
        assert_eq!(shim.room(now, 44), 44, "nothing is agreed");
        shim.agree(WINDOW_MAX);
        assert_eq!(shim.room(now, 44), 0, "something was lost");
        let mut clean = Shim::new(FecSettings::default(), pace, now);
        clean.agree(WINDOW_MAX);
        assert_eq!(clean.room(now, 44), 44, "nothing was lost since");
        clean.push(now, Bytes::from_static(&[0x40; 1000]), ());
        assert_eq!(clean.room(now, 44), 0, "one waits");
        assert_eq!(clean.peek_output(now).map(|(datagram, ())| datagram.len()), Some(1000));
        assert_eq!(output(&mut clean, now).len(), 1);
        assert_eq!(clean.room(now, 44), 44);
    }

    #[test]
    fn the_end_of_a_burst_is_protected_once_it_is_silent() {
        let mut shim = shim(&pace());
        for _ in 0..5 {
            shim.push(Instant::START, Bytes::from_static(&[0x40; 1000]), ());
        }
        assert_eq!(output(&mut shim, Instant::START).len(), 5);
        let end = Instant::START + END_MAX;
        assert_eq!(shim.poll_timeout(), Some(end));
        // More arrives in time, so the burst ends later.
        let now = Instant::START + Duration::from_ms(29);
        shim.push(now, Bytes::from_static(&[0x40; 1000]), ());
        assert_eq!(output(&mut shim, now).len(), 1);
        assert_eq!(output(&mut shim, end), Vec::<Bytes>::new());
        let [repair] = &output(&mut shim, now + END_MAX)[..] else { panic!("not one repair") };
        let Some(Packet::Repair(repair)) = Packet::parse(repair.clone()) else {
            panic!("no repair")
        };
        assert_eq!((repair.first, repair.count), (0, 6));
        assert_eq!(shim.poll_timeout(), None);
    }

    #[test]
    fn a_standing_queue_ends_repairs_for_a_while() {
        let pace = pace();
        let mut shim = shim(&pace);
        pace.queues(Duration::from_ms(200));
        shim.push(Instant::START, Bytes::from_static(&[0x40; 1000]), ());
        assert_eq!(output(&mut shim, Instant::START).len(), 1);
        assert_eq!(shim.poll_timeout(), None);
        pace.queues(Duration::from_ms(20));
        let later = Instant::START + Duration::from_s(11);
        shim.push(later, Bytes::from_static(&[0x40; 1000]), ());
        assert_eq!(output(&mut shim, later).len(), 1);
        assert_eq!(shim.poll_timeout(), Some(later + END_MAX));
    }

    #[test]
    fn another_connection_has_to_agree_anew() {
        let mut shim = shim(&pace());
        shim.follow(FecSettings { overhead_percent_max: 20, ..FecSettings::default() }, pace());
        shim.push(Instant::START, Bytes::from_static(&[0x40; 1000]), ());
        assert_eq!(output(&mut shim, Instant::START), [Bytes::from_static(&[0x40; 1000])]);
        shim.agree(8);
        assert!(shim.loss() > 0.009);
        shim.push(Instant::START, Bytes::from_static(&[0x40; 1000]), ());
        assert_eq!(output(&mut shim, Instant::START)[0].len(), 1003);
    }

    #[test]
    fn a_flood_of_repairs_is_read_as_far_as_datagrams_come() {
        let mut shim = shim(&pace());
        let symbol = Bytes::from_static(&[1; 100]);
        for at in 0..1000_u32 {
            let index = (at % 128) as u8;
            let repair = wire::Repair { first: at, count: 128, index, symbol: symbol.clone() };
            shim.handle_input(Instant::START, repair.written(), (), false);
        }
        assert_eq!(shim.receiving.repairs, 0);
        shim.handle_input(Instant::START, wire::source(2000, b"\x40"), (), false);
        assert_eq!(shim.receiving.repairs, 1);
    }
}
