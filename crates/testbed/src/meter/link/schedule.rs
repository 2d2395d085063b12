//! The schedule of a measurement: what to do when, so that it ends within its time on any link.
//!
//! A state machine without clock and socket: it is called at a moment for the next task, and is
//! given the task's result. Before each task it estimates the cost: to send it, to drain what the
//! link could not carry meanwhile, and to exchange the messages around it. A task that would not
//! end in time is left out, with a note in the report. The caller stops waiting at the end of the
//! time.

use super::end::{PATIENCE, SILENCE};
use super::estimate::Arrived;
use super::found::{set_loss, set_rate};
use super::search::{Next, Search};
use super::train::Train;
use crate::meter::message::Direction;
use midhop_experiment::measured::LinkDirection;
use midhop_units::{Bytes, Duration, Rate};

/// The part of the link's rate at which losses are counted.
const LOSS_AT: f64 = 0.8;
/// The parts of the remaining time that the search of a rate may take: down, then up.
const RATE_PARTS: [f64; 2] = [0.6, 0.75];
/// The longest round trip that is assumed: the far end may send anything.
const RTT_MAX: Duration = Duration::from_s(60);
/// The time that the end of a measurement takes in addition to its tasks.
pub(super) const END: Duration = Duration::from_ms(500);
/// What a TCP flow may leave in the link's queue when its time is over.
const IN_FLIGHT: Bytes = Bytes::new(64_000);

/// How long the parts of a measurement may take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Times {
    /// The whole measurement.
    pub(super) most: Duration,
    /// A long train of the search of a rate.
    pub(super) rate: Duration,
    /// A train by which losses are counted.
    pub(super) loss: Duration,
    /// A TCP flow; zero: there is none.
    pub(super) tcp: Duration,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Task {
    /// Send a train.
    Train {
        direction: Direction,
        rate: Rate,
        time: Duration,
        /// Its purpose, for users.
        purpose: &'static str,
    },
    /// Let one TCP flow send, and abort it after `most`.
    Tcp { direction: Direction, most: Duration },
    /// The measurement is complete.
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Rate,
    Loss,
    Tcp,
}

const PHASES: [(Phase, Direction); 6] = [
    (Phase::Rate, Direction::Down),
    (Phase::Rate, Direction::Up),
    (Phase::Loss, Direction::Down),
    (Phase::Loss, Direction::Up),
    (Phase::Tcp, Direction::Down),
    (Phase::Tcp, Direction::Up),
];

/// A search under way.
#[derive(Debug)]
struct Searching {
    search: Search,
    next: Next,
    /// When it has to be over.
    until: Duration,
}

/// The tasks of a measurement. All moments count from its beginning.
#[derive(Debug)]
pub(super) struct Schedule {
    times: Times,
    rate_max: Rate,
    rtt: Duration,
    phase: usize,
    searching: Option<Searching>,
    /// The rate of the current train for losses.
    loss_at: Option<Rate>,
    /// What was found so far: down, up.
    pub(super) ways: [LinkDirection; 2],
    /// The directions in which too little arrived to measure.
    pub(super) nothing: Vec<Direction>,
    /// What was left out, or failed, in sentences.
    pub(super) notes: Vec<String>,
}

impl Schedule {
    /// The tasks over a link whose round trip is `rtt`, with no train faster than `rate_max`.
    pub(super) fn new(times: Times, rtt: Duration, rate_max: Rate) -> Self {
        Self {
            times,
            rate_max,
            rtt: rtt.min(RTT_MAX),
            phase: 0,
            searching: None,
            loss_at: None,
            ways: Default::default(),
            nothing: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// The next task, `elapsed` after the beginning. The result of the last task is known.
    pub(super) fn next(&mut self, elapsed: Duration) -> Task {
        let end = self.times.most.saturating_sub(END);
        while let Some(&(phase, direction)) = PHASES.get(self.phase) {
            let task = match phase {
                Phase::Rate => self.next_train(direction, elapsed, end),
                Phase::Loss => self.loss(direction, elapsed, end),
                Phase::Tcp => self.tcp(direction, elapsed, end),
            };
            if let Some(task) = task {
                return task;
            }
            self.phase += 1;
        }
        Task::Done
    }

    /// Handles the arrivals of the train that was the last task.
    pub(super) fn arrived(&mut self, arrived: &Arrived) {
        if let Some(searching) = &mut self.searching {
            searching.next = searching.search.judge(arrived);
            return;
        }
        if let (Some(&(Phase::Loss, direction)), Some(at)) = (PHASES.get(self.phase), self.loss_at)
        {
            set_loss(&mut self.ways[index(direction)], at.bits_per_s() as f64, arrived);
        }
        self.phase += 1;
    }

    /// Handles the end of the TCP flow that was the last task.
    pub(super) fn flowed(&mut self, failure: Option<String>) {
        if let (Some(&(_, direction)), Some(why)) = (PHASES.get(self.phase), failure) {
            self.notes.push(format!("{}: no TCP flow: {why}", name(direction)));
        }
        self.phase += 1;
    }

    /// Ends the measurement in the middle of a task, when its time is over. Results so far are
    /// kept.
    pub(super) fn stop(&mut self) {
        while let Some(&(phase, direction)) = PHASES.get(self.phase) {
            match phase {
                Phase::Rate => self.finish(direction),
                Phase::Loss => {}
                Phase::Tcp => self.no_time_for_tcp(direction),
            }
            self.phase += 1;
        }
    }

    fn next_train(
        &mut self,
        direction: Direction,
        elapsed: Duration,
        end: Duration,
    ) -> Option<Task> {
        if self.searching.is_none() {
            let (search, next) = Search::begin(self.times.rate, self.rate_max);
            let part = RATE_PARTS[index(direction)];
            let until = elapsed + end.saturating_sub(elapsed).scale(part);
            self.searching = Some(Searching { search, next, until });
        }
        let searching = self.searching.as_ref()?;
        match searching.next.clone() {
            Next::Train(rate, time) => {
                let train = Train::lasting(1, rate, time);
                let cost = self.cost(&train, searching.search.arrival_rate());
                if elapsed + cost <= searching.until {
                    return Some(Task::Train { direction, rate, time, purpose: "rate" });
                }
                self.finish(direction);
            }
            Next::Found(found) => {
                self.searching = None;
                set_rate(&mut self.ways[index(direction)], &found);
            }
            Next::Nothing => {
                self.searching = None;
                self.nothing.push(direction);
            }
        }
        None
    }

    /// Ends a search before it is complete.
    fn finish(&mut self, direction: Direction) {
        let found = self.searching.take().and_then(|it| it.search.finish());
        match found {
            Some(found) => set_rate(&mut self.ways[index(direction)], &found),
            None => {
                self.notes.push(format!("{}: no rate: there was no time left", name(direction)))
            }
        }
    }

    fn loss(&mut self, direction: Direction, elapsed: Duration, end: Duration) -> Option<Task> {
        let way = &self.ways[index(direction)];
        if !way.is_known() {
            return None;
        }
        let rate = Rate::from_bits_per_s((way.rate_bit_per_s * LOSS_AT) as u64);
        let cost = self.cost(&Train::lasting(1, rate, self.times.loss), Some(way.rate_bit_per_s));
        // The report itself notes that losses were not counted.
        (elapsed + cost <= end).then(|| {
            self.loss_at = Some(rate);
            Task::Train { direction, rate, time: self.times.loss, purpose: "loss" }
        })
    }

    fn tcp(&mut self, direction: Direction, elapsed: Duration, end: Duration) -> Option<Task> {
        let time = self.times.tcp;
        if time.is_zero() || !self.ways[index(direction)].is_known() {
            return None;
        }
        let rate = Rate::from_bits_per_s(self.ways[index(direction)].rate_bit_per_s as u64);
        let cost = (time + self.rtt * 6).saturating_add(rate.time_for(IN_FLIGHT));
        if elapsed.saturating_add(cost) > end {
            self.no_time_for_tcp(direction);
            return None;
        }
        Some(Task::Tcp { direction, most: end.saturating_sub(elapsed) })
    }

    fn no_time_for_tcp(&mut self, direction: Direction) {
        if !self.times.tcp.is_zero() && self.ways[index(direction)].is_known() {
            self.notes.push(format!("{}: no TCP flow: there was no time left", name(direction)));
        }
    }

    /// How long a train takes in all where packets arrive at `arrival_bit_per_s`: until its last
    /// packet has crossed the link or is given up, and with the messages before and after it.
    fn cost(&self, train: &Train, arrival_bit_per_s: Option<f64>) -> Duration {
        let sending = train.time();
        let draining = arrival_bit_per_s.map_or(Duration::ZERO, |rate| {
            let rate = Rate::from_bits_per_s((rate as u64).max(1));
            rate.time_for(train.bytes()).saturating_sub(sending).min(PATIENCE.into())
        });
        sending + draining + Duration::from(SILENCE) + self.rtt * 3
    }
}

pub(super) fn index(direction: Direction) -> usize {
    match direction {
        Direction::Down => 0,
        Direction::Up => 1,
    }
}

pub(super) fn name(direction: Direction) -> &'static str {
    match direction {
        Direction::Down => "down",
        Direction::Up => "up",
    }
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::Synthetic;
    use super::super::train::RATE_MAX;
    use super::*;

    const TIMES: Times = Times {
        most: Duration::from_s(60),
        rate: Duration::from_s(4),
        loss: Duration::from_s(4),
        tcp: Duration::from_s(3),
    };

    /// A measurement over simulated links, in virtual time.
    struct Walk {
        schedule: Schedule,
        elapsed: Duration,
        tasks: Vec<Task>,
    }

    fn walk(times: Times, rtt: Duration, begins: Duration, mut link: Synthetic) -> Walk {
        let mut schedule = Schedule::new(times, rtt, RATE_MAX);
        let (mut elapsed, mut tasks) = (begins, Vec::new());
        loop {
            let task = schedule.next(elapsed);
            tasks.push(task.clone());
            match task {
                Task::Done => return Walk { schedule, elapsed, tasks },
                Task::Tcp { direction, .. } => {
                    let rate = schedule.ways[index(direction)].rate_bit_per_s as u64;
                    let left = Rate::from_bits_per_s(rate).time_for(Bytes::new(50_000));
                    elapsed = elapsed + times.tcp + rtt * 4 + left;
                    schedule.flowed(None);
                }
                Task::Train { rate, time, .. } => {
                    let (train, mut arrivals) = link.carry(rate, time);
                    let sent = train.time();
                    let last = 9_000_000_000 + sent.as_ns() + Duration::from(PATIENCE).as_ns();
                    arrivals.retain(|arrival| arrival.at_ns <= last);
                    let through = arrivals.iter().map(|it| it.at_ns - 9_000_000_000).max();
                    let through = Duration::from_ns(through.unwrap_or(0)).max(sent);
                    elapsed = elapsed + through + rtt * 2 + Duration::from(SILENCE);
                    schedule.arrived(&Arrived::of(&arrivals, train.packets, 0));
                }
            }
            assert!(tasks.len() < 100, "{tasks:?}");
        }
    }

    fn lossy(rate: fn(f64) -> f64) -> Synthetic {
        Synthetic { loss: (0.05, 1.0), queue: 1e6, ..Synthetic::new(rate) }
    }

    #[test]
    fn every_link_is_measured_within_the_time() {
        type Carried = fn(f64) -> f64;
        let rates: [(f64, Carried); 6] = [
            (64e3, |_| 64e3),
            (128e3, |_| 128e3),
            (1e6, |_| 1e6),
            (20e6, |_| 20e6),
            (200e6, |_| 200e6),
            (32e3, |_| 32e3),
        ];
        for (true_rate, rate) in rates {
            for rtt in [1, 40, 600, 1_200].map(Duration::from_ms) {
                for seed in 0..2 {
                    let link = Synthetic { seed, ..lossy(rate) };
                    let walk = walk(TIMES, rtt, Duration::from_s(8), link);
                    let context = format!("{true_rate} {rtt} {:?}", walk.tasks);
                    assert!(walk.elapsed <= TIMES.most, "{} {context}", walk.elapsed);
                    for way in &walk.schedule.ways {
                        // The rate is that of arrivals, before the losses are known.
                        let found = way.rate_bit_per_s / true_rate;
                        let tolerance = if way.loss_at_bit_per_s.is_some() { 0.15 } else { 0.2 };
                        let far = (found - 1.0).abs() > tolerance;
                        assert!(
                            !far || way.rate_at_least_because.is_some() || true_rate < 64e3,
                            "{way:?} {context}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_slow_link_has_its_rates_and_notes_what_was_left_out() {
        let walk = walk(TIMES, Duration::from_ms(600), Duration::from_s(6), lossy(|_| 64e3));
        let (schedule, tasks) = (&walk.schedule, &walk.tasks);
        for way in &schedule.ways {
            assert!((way.rate_bit_per_s / 64e3 - 1.0).abs() < 0.15, "{way:?} {tasks:?}");
            assert_eq!(way.rate_at_least_because, None, "{tasks:?}");
            assert!(way.loss_at_bit_per_s.is_some(), "{tasks:?}");
        }
        assert_eq!(
            schedule.notes,
            [
                "down: no TCP flow: there was no time left",
                "up: no TCP flow: there was no time left"
            ]
        );
    }

    #[test]
    fn a_satellite_link_has_everything() {
        let walk = walk(TIMES, Duration::from_ms(600), Duration::from_s(4), lossy(|_| 20e6));
        assert_eq!(walk.schedule.notes, Vec::<String>::new(), "{:?}", walk.tasks);
        assert!(walk.schedule.ways.iter().all(|way| way.loss_at_bit_per_s.is_some()));
        let flows = walk.tasks.iter().filter(|task| matches!(task, Task::Tcp { .. }));
        assert_eq!(flows.count(), 2);
    }

    #[test]
    fn time_that_is_over_keeps_what_is_known() {
        let mut schedule = Schedule::new(TIMES, Duration::from_ms(600), RATE_MAX);
        let mut link = Synthetic::new(|_| 64e3);
        let Task::Train { rate, time, .. } = schedule.next(Duration::from_s(5)) else {
            panic!("no train");
        };
        let (train, arrivals) = link.carry(rate, time);
        schedule.arrived(&Arrived::of(&arrivals, train.packets, 0));
        schedule.stop();
        assert_eq!(schedule.next(Duration::from_s(60)), Task::Done);
        assert!((schedule.ways[0].rate_bit_per_s / 64e3 - 1.0).abs() < 0.1, "{schedule:?}");
        assert!(!schedule.ways[1].is_known());
        assert_eq!(
            schedule.notes,
            ["up: no rate: there was no time left", "down: no TCP flow: there was no time left"]
        );
    }
}
