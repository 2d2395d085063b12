//! Two shims, and a path with configurable faults, in virtual time.

use bytes::Bytes;
use midhop_tunnel::control::Pace;
use midhop_tunnel::fec::{FecSettings, Shim, WINDOW_MAX};
use midhop_units::{Duration, Instant, Rate};
use std::collections::BTreeMap;

/// Pseudo-random numbers, the same for the same seed (SplitMix64).
pub struct Chance(pub u64);

impl Chance {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound.max(1)
    }

    pub fn happens(&mut self, probability: f64) -> bool {
        (self.bits() >> 11) as f64 / ((1_u64 << 53) as f64) < probability
    }
}

/// The probabilities of a path's faults.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// A run of losses begins.
    pub loss: f64,
    /// The mean number of datagrams in such a run; zero: one.
    pub burst: f64,
    pub duplicate: f64,
    /// A datagram is late, by up to the following number of milliseconds.
    pub late: f64,
    pub late_ms: u64,
    /// A bit is flipped.
    pub corrupt: f64,
    /// A datagram arrives that nobody has sent.
    pub garbage: f64,
    /// The path marks a datagram.
    pub mark: f64,
}

/// A shim on each side; datagrams go from the near one to the far one, reports come back.
pub struct Way {
    pub now: Instant,
    pub near: Shim<u8>,
    pub far: Shim<u8>,
    pub faults: Faults,
    pub chance: Chance,
    delay: Duration,
    bad: bool,
    under_way: BTreeMap<(Instant, u64), (bool, Bytes)>,
    count: u64,
    /// The datagrams that the far shim has delivered to its QUIC.
    pub delivered: Vec<Bytes>,
}

impl Way {
    pub fn new(settings: &FecSettings, rate: Option<Rate>, faults: Faults, seed: u64) -> Self {
        let pace = || Pace::of(rate, midhop_units::Bytes::new(28));
        let now = Instant::START;
        let mut near = Shim::new(settings.clone(), pace(), now);
        let mut far = Shim::new(settings.clone(), pace(), now);
        near.agree(WINDOW_MAX);
        far.agree(WINDOW_MAX);
        // Their connections have found losses.
        near.pace().loses();
        far.pace().loses();
        // The shim learns the destination only from datagrams that QUIC sends.
        far.push(now, Bytes::from_static(b"\x40"), 7);
        Self {
            now,
            near,
            far,
            faults,
            chance: Chance(seed),
            delay: settings.rtt / 2,
            bad: false,
            under_way: BTreeMap::new(),
            count: 0,
            delivered: Vec::new(),
        }
    }

    /// The near QUIC sends, once there is room.
    pub fn send(&mut self, datagram: &[u8]) {
        while self.near.is_full() {
            let next = self.next().expect("a full queue empties");
            self.now = self.now.max(next);
            self.step();
        }
        self.near.push(self.now, Bytes::copy_from_slice(datagram), 7);
        self.step();
    }

    pub fn run_for(&mut self, span: Duration) {
        let until = self.now + span;
        while let Some(next) = self.next().filter(|next| *next <= until) {
            self.now = self.now.max(next);
            self.step();
        }
        self.now = until;
    }

    fn next(&self) -> Option<Instant> {
        let arrival = self.under_way.keys().next().map(|(at, _)| *at);
        let timers = [arrival, self.near.poll_timeout(), self.far.poll_timeout()];
        timers.into_iter().flatten().min()
    }

    fn step(&mut self) {
        let now = self.now;
        while let Some(first) = self.under_way.first_entry().filter(|first| first.key().0 <= now) {
            let (to_far, datagram) = first.remove();
            let marked = to_far && self.chance.happens(self.faults.mark);
            let shim = if to_far { &mut self.far } else { &mut self.near };
            shim.handle_input(now, datagram, 7, marked);
            while let Some((datagram, tag)) = shim.poll_delivery() {
                assert_eq!(tag, 7);
                if to_far {
                    self.delivered.push(datagram);
                }
            }
        }
        while let Some((datagram, _)) = self.near.poll_output(now) {
            self.carry(datagram);
        }
        while let Some((datagram, _)) = self.far.poll_output(now) {
            self.put(self.delay, false, datagram);
        }
        for shim in [&self.near, &self.far] {
            assert!(shim.poll_timeout().is_none_or(|at| at > now), "a timer does not go off");
        }
    }

    fn carry(&mut self, datagram: Bytes) {
        let faults = self.faults;
        let leave = if faults.burst > 1.0 { 1.0 / faults.burst } else { 1.0 };
        self.bad = if self.bad { !self.chance.happens(leave) } else { false }
            || self.chance.happens(faults.loss);
        if self.bad {
            return;
        }
        if self.chance.happens(faults.garbage) {
            let len = self.chance.below(60) as usize;
            let garbage = (0..len).map(|_| self.chance.bits() as u8).collect();
            self.put(self.delay, true, garbage);
        }
        let mut delay = self.delay;
        if self.chance.happens(faults.late) {
            delay += Duration::from_ms(self.chance.below(faults.late_ms));
        }
        if self.chance.happens(faults.duplicate) {
            let later = Duration::from_ms(self.chance.below(faults.late_ms));
            self.put(delay + later, true, datagram.clone());
        }
        let mut datagram = datagram;
        if self.chance.happens(faults.corrupt) {
            let mut bytes = datagram.to_vec();
            let at = self.chance.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << self.chance.below(8);
            datagram = bytes.into();
        }
        self.put(delay, true, datagram);
    }

    fn put(&mut self, delay: Duration, to_far: bool, datagram: Bytes) {
        self.count += 1;
        self.under_way.insert((self.now + delay, self.count), (to_far, datagram));
    }
}

/// What the best code leaves unrepaired at `loss` with blocks of `sources` and `repairs`: the mean part of the
/// sources that is missing because more are lost than there are repairs.
pub fn left_by_a_block(sources: u32, repairs: u32, loss: f64) -> f64 {
    let all = sources + repairs;
    let mut left = 0.0;
    let mut probability = (1.0 - loss).powi(all as i32);
    for lost in 0..=all {
        if lost > repairs {
            left += probability * f64::from(lost) / f64::from(all);
        }
        let more = f64::from(all - lost) / f64::from(lost + 1);
        probability *= more * loss / (1.0 - loss);
    }
    left
}
