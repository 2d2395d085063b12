//! Two endpoints and a path between them that delays, loses, reorders and duplicates, from a seed.

use std::{cmp::Reverse, collections::BTreeMap};

use midhop_congestion::{Ack, CongestionControl, Controller, Handover, Loss, Rto, Spurious, reno};
use midhop_tcp::{Endpoint, Event, Segment, Settings, State};
use midhop_units::{Bytes, Duration, Instant, Rate};

/// Reno with nothing around it, so that these tests depend on no other crate's choices.
#[derive(Debug)]
pub struct PlainReno {
    mss: u64,
    cwnd: u32,
    ssthresh: u32,
    count: u32,
    before: (u32, u32),
}

impl PlainReno {
    pub fn control(settings: &Settings, cwnd: u32) -> Controller {
        Self::with_threshold(settings, cwnd, u32::MAX >> 1)
    }

    pub fn with_threshold(settings: &Settings, cwnd: u32, ssthresh: u32) -> Controller {
        let mss = settings.segment_payload().get();
        Controller::new(Self { mss, cwnd, ssthresh, count: 0, before: (cwnd, ssthresh) })
    }
}

impl CongestionControl for PlainReno {
    fn on_ack(&mut self, ack: &Ack) {
        if !ack.app_limited && ack.phase != midhop_congestion::Phase::Recovery {
            let acked = u32::try_from(ack.acked.get().div_ceil(self.mss)).unwrap_or(u32::MAX);
            (self.cwnd, self.count) = reno::grow(self.cwnd, self.count, self.ssthresh, acked);
        }
    }

    fn on_loss(&mut self, _: &Loss) {
        self.before = (self.cwnd, self.ssthresh);
        self.ssthresh = reno::halve(self.cwnd);
        self.cwnd = self.ssthresh;
    }

    fn on_rto(&mut self, _: &Rto) {
        self.before = (self.cwnd, self.ssthresh);
        self.ssthresh = reno::halve(self.cwnd);
        self.cwnd = 1;
    }

    fn on_spurious(&mut self, _: &Spurious) {
        self.cwnd = self.cwnd.max(self.before.0);
        self.ssthresh = self.ssthresh.max(self.before.1);
    }

    fn on_handover(&mut self, _: &Handover) {}

    fn window(&self) -> Bytes {
        Bytes::new(u64::from(self.cwnd) * self.mss)
    }

    fn pacing_rate(&self) -> Option<Rate> {
        None
    }
}

/// A window that never changes.
#[derive(Debug)]
pub struct Fixed(pub Bytes, pub Option<Rate>);

impl CongestionControl for Fixed {
    fn on_ack(&mut self, _: &Ack) {}
    fn on_loss(&mut self, _: &Loss) {}
    fn on_rto(&mut self, _: &Rto) {}
    fn on_spurious(&mut self, _: &Spurious) {}
    fn on_handover(&mut self, _: &Handover) {}

    fn window(&self) -> Bytes {
        self.0
    }

    fn pacing_rate(&self) -> Option<Rate> {
        self.1
    }
}

/// A small generator of its own, so that a seed means the same forever: SplitMix64.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// True so often in a thousand.
    pub fn per_mille(&mut self, often: u32) -> bool {
        self.roll() % 1000 < u64::from(often)
    }
}

/// What the path does to segments.
#[derive(Debug, Clone, Copy, Default)]
pub struct Path {
    pub delay: Duration,
    /// Up to so much more, so that segments overtake each other.
    pub jitter: Duration,
    pub loss_per_mille: u32,
    pub duplicate_per_mille: u32,
    /// Segments leave one after the other at this rate.
    pub rate: Option<Rate>,
}

/// Looks at, or changes, a segment from this side; true loses it.
pub type Touch = Box<dyn FnMut(usize, &mut Segment) -> bool>;

/// Loses the first transmission of the client's full segments with these numbers, counted from 1.
pub fn losing(numbers: &'static [u64]) -> Touch {
    const MSS: u64 = 1448;
    let mut reached = 0;
    Box::new(move |side, segment| {
        let number = segment.offset / MSS + 1;
        let first = side == 0 && segment.length > 0 && number > reached;
        reached = if first { number } else { reached };
        first && numbers.contains(&number)
    })
}

/// A segment that was sent, for tests to examine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub at: Instant,
    pub from: usize,
    pub segment: Segment,
    pub dropped: bool,
}

/// Two endpoints, one path each way.
pub struct Pair {
    pub ends: [Endpoint; 2],
    pub path: Path,
    pub dice: Dice,
    pub now: Instant,
    /// Called with each segment before its loss is drawn.
    pub touch: Touch,
    /// When segments arrived at each side.
    pub arrivals: [Vec<Instant>; 2],
    pub seen: Vec<Seen>,
    pub keep_seen: bool,
    pub events: [Vec<Event>; 2],
    pub check: bool,
    free_at: [Instant; 2],
    sent: u64,
    flying: BTreeMap<(Instant, u64), (usize, Segment)>,
    /// What each side still wants to write, and whether it then closes.
    pub to_write: [u64; 2],
    pub close: [bool; 2],
    /// How much each side reads at once; `None`: everything.
    pub read_limit: [Option<u64>; 2],
    pub read: [u64; 2],
    pub steps: u64,
}

impl Pair {
    pub fn new(client: Endpoint, server: Endpoint, path: Path, seed: u64) -> Self {
        Self {
            ends: [client, server],
            path,
            dice: Dice(seed),
            now: Instant::START,
            touch: Box::new(|_, _| false),
            arrivals: [Vec::new(), Vec::new()],
            seen: Vec::new(),
            keep_seen: false,
            events: [Vec::new(), Vec::new()],
            check: true,
            free_at: [Instant::START; 2],
            sent: 0,
            flying: BTreeMap::new(),
            to_write: [0; 2],
            close: [false; 2],
            read_limit: [None; 2],
            read: [0; 2],
            steps: 0,
        }
    }

    /// Two ends with the same settings; the client's congestion control is given.
    pub fn with(settings: &Settings, control: Controller, path: Path) -> Self {
        let client = Endpoint::connect(settings.clone(), control, 0xffff_f000);
        let server = Endpoint::listen(settings.clone(), PlainReno::control(settings, 10), 77);
        let mut pair = Self::new(client, server, path, 1);
        pair.keep_seen = true;
        pair
    }

    /// Runs until this moment, whatever happens.
    pub fn run_to(&mut self, until: Instant) {
        self.run(until, |_| false);
        self.now = self.now.max(until);
    }

    /// What this side has sent with payload: when, at which offset, and whether it was lost.
    pub fn data(&self, side: usize) -> Vec<(Instant, u64, bool)> {
        let data = self.seen.iter().filter(|seen| seen.from == side && seen.segment.length > 0);
        data.map(|seen| (seen.at, seen.segment.offset, seen.dropped)).collect()
    }

    /// Two ends with the same settings and Reno.
    pub fn reno(settings: &Settings, path: Path, seed: u64) -> Self {
        let client =
            Endpoint::connect(settings.clone(), PlainReno::control(settings, 10), 0xffff_f000);
        let server = Endpoint::listen(settings.clone(), PlainReno::control(settings, 10), 77);
        Self::new(client, server, path, seed)
    }

    fn drain(&mut self, side: usize) {
        loop {
            self.application(side);
            let Some(segment) = self.ends[side].poll_transmit(self.now) else { break };
            self.verify(side);
            self.fly(side, segment);
        }
        while let Some(event) = self.ends[side].poll_event() {
            self.events[side].push(event);
        }
    }

    fn application(&mut self, side: usize) {
        let end = &mut self.ends[side];
        if self.to_write[side] > 0 {
            self.to_write[side] -= end.write(self.to_write[side]);
        }
        if self.close[side] && self.to_write[side] == 0 && end.state() != State::Listen {
            end.close();
            self.close[side] = false;
        }
        self.read[side] += end.read(self.now, self.read_limit[side].unwrap_or(u64::MAX));
    }

    fn fly(&mut self, side: usize, mut segment: Segment) {
        let mut dropped = (self.touch)(side, &mut segment);
        dropped |= self.dice.per_mille(self.path.loss_per_mille);
        if self.keep_seen {
            self.seen.push(Seen { at: self.now, from: side, segment, dropped });
        }
        if dropped {
            return;
        }
        let copies = 1 + u32::from(self.dice.per_mille(self.path.duplicate_per_mille));
        for _ in 0..copies {
            let mut at = self.now;
            if let Some(rate) = self.path.rate {
                at = at.max(self.free_at[side])
                    + rate.time_for(Bytes::new(u64::from(segment.size()) + 20));
                self.free_at[side] = at;
            }
            let jitter = self.path.jitter.as_ns();
            let extra = if jitter > 0 { self.dice.roll() % jitter } else { 0 };
            let at = at + self.path.delay + Duration::from_ns(extra);
            self.sent += 1;
            self.flying.insert((at, self.sent), (1 - side, segment));
        }
    }

    fn verify(&self, side: usize) {
        if self.check
            && let Err(broken) = self.ends[side].check_invariants()
        {
            panic!("side {side} at {:?}: {broken}", self.now);
        }
    }

    /// Runs until `done` holds, or until nothing is left to happen. Returns false if `until` comes first.
    pub fn run(&mut self, until: Instant, mut done: impl FnMut(&Self) -> bool) -> bool {
        self.drain(0);
        self.drain(1);
        while !done(self) {
            self.steps += 1;
            let timers = [0, 1].map(|side| self.ends[side].poll_timeout());
            let flight = self.flying.keys().next().map(|&(at, _)| at);
            let next = timers.into_iter().flatten().chain(flight).map(Reverse).max();
            let Some(Reverse(next)) = next else { return done(self) };
            if next > until {
                return false;
            }
            assert!(self.steps < 5_000_000, "no end after {} steps", self.steps);
            self.now = self.now.max(next);
            if flight == Some(next) {
                let Some((_, (side, segment))) = self.flying.pop_first() else { continue };
                if self.keep_seen {
                    self.arrivals[side].push(self.now);
                }
                self.ends[side].handle_segment(self.now, &segment);
                self.verify(side);
                self.drain(side);
            } else {
                let side = usize::from(timers[0] != Some(next));
                self.ends[side].handle_timeout(self.now);
                self.verify(side);
                self.drain(side);
                assert!(
                    self.ends[side].poll_timeout().is_none_or(|at| at > self.now),
                    "side {side} wants to be asked again at {:?}",
                    self.now
                );
            }
        }
        true
    }

    /// Writes so much from each side, closes both, and runs to the end.
    pub fn transfer(&mut self, bytes: [u64; 2]) {
        self.to_write = bytes;
        self.close = [true, true];
        let until = Instant::START + Duration::from_s(4 * 3600);
        let ended =
            self.run(until, |pair| (0..2).all(|side| pair.events[side].contains(&Event::Closed)));
        if !ended || self.read != [bytes[1], bytes[0]] {
            for seen in self.seen.iter().rev().take(40).rev() {
                let Seen { at, from, segment, dropped } = seen;
                let lost = if *dropped { " lost" } else { "" };
                eprintln!("{:>12.3} ms side {from}: {segment}{lost}", at.as_ns() as f64 / 1e6);
            }
        }
        assert!(
            ended && self.read == [bytes[1], bytes[0]],
            "read {:?} of {bytes:?}, states {:?}, events {:?} at {:?}",
            self.read,
            [self.ends[0].state(), self.ends[1].state()],
            self.events,
            self.now,
        );
    }
}
