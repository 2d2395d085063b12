//! Segments per second of CPU time: two endpoints back to back, a path that delays and loses.
//!
//! `cargo bench -p midhop-tcp` prints one line per window and loss. A segment counts when an endpoint has processed
//! it, with data or without.

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::{collections::VecDeque, time};

use midhop_congestion::{Ack, CongestionControl, Controller, Handover, Loss, Rto, Spurious};
use midhop_tcp::{Endpoint, Segment, Settings};
use midhop_units::{Bytes, Duration, Instant, Rate};

/// A window that never changes: what is measured is the transport.
#[derive(Debug)]
struct Fixed(Bytes);

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
        None
    }
}

/// One direction: a rate, a delay, and a loss drawn from a counter's bits.
struct Pipe {
    flying: VecDeque<(Instant, Segment)>,
    free_at: Instant,
    rate: Rate,
    dice: u64,
    loss_per_2_16: u64,
}

const DELAY: Duration = Duration::from_ms(300);

impl Pipe {
    fn new(rate: Rate, loss_per_2_16: u64) -> Self {
        let flying = VecDeque::new();
        Self { flying, free_at: Instant::START, rate, dice: 1, loss_per_2_16 }
    }

    fn send(&mut self, now: Instant, segment: Segment) {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        let size = Bytes::new(u64::from(segment.size()) + 20);
        self.free_at = now.max(self.free_at) + self.rate.time_for(size);
        if self.dice & 0xffff >= self.loss_per_2_16 {
            self.flying.push_back((self.free_at + DELAY, segment));
        }
    }
}

fn run(window: u64, loss_per_2_16: u64) {
    // `--short`: whether it runs, not how fast.
    let short = std::env::args().any(|word| word == "--short");
    let rounds = if short { (2, 2_000) } else { (100, 100_000) };
    let bytes = (window * rounds.0).max(rounds.1) * 1448;
    let settings = Settings {
        receive_buffer: Bytes::new(1 << 29),
        send_buffer: Bytes::new(1 << 29),
        ..Settings::default()
    };
    let fixed = || Controller::new(Fixed(Bytes::new(window * 1448)));
    let mut ends = [
        Endpoint::connect(settings.clone(), fixed(), 1),
        Endpoint::listen(settings.clone(), fixed(), 2),
    ];
    // As fast as a window per round trip: no queue, no idle time.
    let rate = Rate::of(Bytes::new(window * 1500), DELAY * 2);
    let mut pipes = [Pipe::new(rate, loss_per_2_16), Pipe::new(rate, 0)];
    let (mut now, mut left, mut segments, mut read) = (Instant::START, bytes, 0_u64, 0);
    let began = time::Instant::now();
    let mut side = 0;
    loop {
        left -= if left > 0 { ends[0].write(left) } else { 0 };
        read += ends[1].read(now, u64::MAX);
        while let Some(segment) = ends[side].poll_transmit(now) {
            pipes[side].send(now, segment);
        }
        while ends[side].poll_event().is_some() {}
        if read == bytes {
            break;
        }
        let arrivals = [1, 0].map(|from| pipes[from].flying.front().map(|&(at, _)| at));
        let timers = [0, 1].map(|to: usize| ends[to].poll_timeout());
        let earliest = |moments: [Option<Instant>; 2]| {
            let [first, second] = moments.map(|at| at.unwrap_or(Instant::NEVER));
            if first <= second { (first, 0) } else { (second, 1) }
        };
        let (arrival, timer) = (earliest(arrivals), earliest(timers));
        if arrival.0 <= timer.0 {
            (now, side) = arrival;
            if let Some((_, segment)) = pipes[1 - side].flying.pop_front() {
                ends[side].handle_segment(now, &segment);
                segments += 1;
            }
        } else {
            (now, side) = timer;
            assert!(now < Instant::NEVER, "nothing happens any more");
            ends[side].handle_timeout(now);
        }
    }
    let took = began.elapsed().as_secs_f64();
    let counters = ends[0].counters();
    println!(
        "window {window:>6}  loss {:>4.1} %  {:>9} segments  {:>6.2} M/s  {:>7} sent again  {} timeouts  goodput {:.0} %",
        loss_per_2_16 as f64 / 655.36,
        segments,
        segments as f64 / took / 1e6,
        counters.retransmissions,
        counters.timeouts,
        bytes as f64 * 8e2
            / (now.as_ns() as f64 / 1e9)
            / (rate.bits_per_s() as f64 * 1448.0 / 1500.0),
    );
}

fn main() {
    println!("endpoint {} B, segment {} B", size_of::<Endpoint>(), size_of::<Segment>());
    for loss_per_2_16 in [0, 655] {
        for window in [10, 1_000, 10_000] {
            run(window, loss_per_2_16);
        }
    }
}
