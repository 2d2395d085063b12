//! Drives a link in virtual time, checking its invariants after every call.

use midhop_path::{Direction, DirectionPlan, DirectionSpec, Link};
use midhop_units::{Bytes, Duration, Instant, Seed};

/// The direction described by this TOML, on a path of 600 ms.
pub fn plan(text: &str) -> DirectionPlan {
    let spec: DirectionSpec =
        toml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    spec.resolve(ms(600)).unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub fn ms(ms: u64) -> Duration {
    Duration::from_ms(ms)
}

pub fn at_ms(ms: u64) -> Instant {
    Instant::from_ns(ms * 1_000_000)
}

/// A packet's number and when it left the link.
pub type Came = (u64, Instant);

/// A link with a clock.
pub struct Driven {
    pub link: Link<u64>,
    pub now: Instant,
    pub came: Vec<Came>,
    next: u64,
}

impl Driven {
    pub fn new(plan: &DirectionPlan, seed: u64) -> Self {
        let link = Link::new(plan, Direction::Down, Seed(seed), Instant::START);
        Self { link, now: Instant::START, came: Vec::new(), next: 0 }
    }

    /// Advances time to `until`, calling the link exactly when it asks for it.
    pub fn run_until(&mut self, until: Instant) {
        self.run_at_most(until, u64::MAX);
    }

    /// Advances time to `until`, but after so many calls only in one step. Returns how many calls
    /// there were.
    pub fn run_at_most(&mut self, until: Instant, wakes_max: u64) -> u64 {
        let mut wakes = 0;
        while let Some(wake) = self.link.poll_timeout().filter(|wake| *wake <= until) {
            if wakes == wakes_max {
                break;
            }
            wakes += 1;
            assert!(wake > self.now, "asked to be woken at {wake:?}, which is now or past");
            self.now = wake;
            self.link.handle_timeout(wake);
            self.drain();
        }
        if until != Instant::NEVER {
            self.now = self.now.max(until);
            self.link.handle_timeout(self.now);
            self.drain();
        }
        wakes
    }

    /// Advances time to `at` and calls the link only then, whatever it asked for in between.
    pub fn wake_late(&mut self, at: Instant) {
        self.now = at;
        self.link.handle_timeout(at);
        self.drain();
    }

    /// Sends a packet into the link now.
    pub fn send(&mut self, bytes: u64) -> u64 {
        let number = self.next;
        self.next += 1;
        self.link.handle_input(self.now, Bytes::new(bytes), number);
        self.drain();
        number
    }

    /// Sends `count` packets, one every `gap`, then waits until the link is empty.
    pub fn send_every(&mut self, gap: Duration, count: u64, bytes: u64) {
        for _ in 0..count {
            self.send(bytes);
            self.run_until(self.now + gap);
        }
        self.run_dry();
    }

    /// Advances time until the link asks for no further call.
    pub fn run_dry(&mut self) {
        while let Some(wake) = self.link.poll_timeout() {
            self.run_until(wake);
        }
    }

    fn drain(&mut self) {
        while let Some(arrival) = self.link.poll_output(self.now) {
            assert!(arrival.due <= self.now, "came out before it was due");
            self.came.push((arrival.packet, arrival.due));
        }
        self.link.check_invariants();
    }
}
