//! The next event: timers in the order of their time, and those of one time in the order in which
//! they were set.
//!
//! Each actor in virtual time (a link, an endpoint, an application) has one [`Timer`], so the
//! heap holds as many entries as there are actors, however many packets are in flight. A timer that is
//! moved to a later time keeps its place in the heap until its old time comes; only then it sinks. So a
//! retransmission timer, which every acknowledgement moves, costs two stores and no search.
//!
//! Invariants:
//! - Time never goes backwards, and no timer fires before its time or twice.
//! - The order in which timers fire depends only on the calls made: not on addresses, hashes or
//!   the machine.
//! - Once the heap has grown to the number of actors, nothing is allocated.

use midhop_units::Instant;
use std::cmp::Ordering;

/// Children of a heap node: four keep the tree flat and a node's children in one or two cache lines.
const ARITY: usize = 4;
/// The place of a timer that is not in the heap.
const NOWHERE: u32 = u32::MAX;

/// An actor that can be woken, at one time at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timer(u32);

impl Timer {
    /// Its number: less than the most timers that were ever in use at once.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    time: Instant,
    sequence: u64,
}

impl Key {
    /// Both in one number: the comparison needs no branch prediction.
    fn number(self) -> u128 {
        (u128::from(self.time.as_ns()) << 64) | u128::from(self.sequence)
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.number().cmp(&other.number())
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    key: Key,
    timer: u32,
}

#[derive(Debug, Clone, Copy)]
struct Set {
    /// When it fires; `NEVER` while it is not set.
    key: Key,
    /// Its place in the heap, where its key may be an earlier time.
    place: u32,
}

/// The clock of a run, and all its timers.
#[derive(Debug, Default)]
pub struct Engine {
    now: Instant,
    sequence: u64,
    heap: Vec<Entry>,
    timers: Vec<Set>,
    free: Vec<u32>,
    /// The root has fired and is still in the heap: a fired timer is mostly set again at once.
    root_fired: bool,
    fired: u64,
}

impl Engine {
    /// A clock at its start.
    pub fn new() -> Self {
        Self::default()
    }

    /// The time.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// How often a timer has fired.
    pub const fn fired(&self) -> u64 {
        self.fired
    }

    /// A new timer, not set.
    pub fn timer(&mut self) -> Timer {
        if let Some(timer) = self.free.pop() {
            return Timer(timer);
        }
        let timer = self.timers.len() as u32;
        let key = Key { time: Instant::NEVER, sequence: 0 };
        self.timers.push(Set { key, place: NOWHERE });
        Timer(timer)
    }

    /// Frees a timer. It must not be used any more.
    pub fn release(&mut self, timer: Timer) {
        self.set(timer, Instant::NEVER);
        self.free.push(timer.0);
    }

    /// Sets a timer, whether it was set before or not; one set to a past time fires now.
    /// [`Instant::NEVER`] stops it. Setting it to its current time changes nothing, not even its turn.
    pub fn set(&mut self, timer: Timer, at: Instant) {
        let at = at.max(self.now);
        let set = &mut self.timers[timer.index()];
        if set.key.time == at {
            return;
        }
        self.sequence += 1;
        let key = Key { time: at, sequence: self.sequence };
        set.key = key;
        let place = set.place as usize;
        if set.place == NOWHERE {
            if at != Instant::NEVER {
                self.heap.push(Entry { key, timer: timer.0 });
                self.rise(self.heap.len() - 1);
            }
        } else if self.root_fired && place == 0 {
            if at != Instant::NEVER {
                self.root_fired = false;
                self.heap[0].key = key;
                self.sink(0);
            }
        } else if key < self.heap[place].key {
            self.heap[place].key = key;
            self.rise(place);
        }
    }

    /// When a timer fires; [`Instant::NEVER`] while it is not set.
    pub fn deadline(&self, timer: Timer) -> Instant {
        self.timers[timer.index()].key.time
    }

    /// The next timer that fires by `until`, if any; the clock then stands at its time.
    pub fn next(&mut self, until: Instant) -> Option<Timer> {
        if self.root_fired {
            self.root_fired = false;
            self.take_root();
        }
        loop {
            let root = *self.heap.first()?;
            let set = &mut self.timers[root.timer as usize];
            if set.key != root.key {
                if set.key.time == Instant::NEVER {
                    self.take_root();
                } else {
                    self.heap[0].key = set.key;
                    self.sink(0);
                }
                continue;
            }
            if root.key.time > until {
                return None;
            }
            set.key.time = Instant::NEVER;
            self.now = root.key.time;
            self.root_fired = true;
            self.fired += 1;
            return Some(Timer(root.timer));
        }
    }

    fn take_root(&mut self) {
        let root = self.heap.swap_remove(0);
        self.timers[root.timer as usize].place = NOWHERE;
        if !self.heap.is_empty() {
            self.sink(0);
        }
    }

    /// Moves the entry at `place` towards the root as far as its key requires.
    fn rise(&mut self, mut place: usize) {
        let entry = self.heap[place];
        while place > 0 {
            let above = (place - 1) / ARITY;
            if self.heap[above].key <= entry.key {
                break;
            }
            self.put(place, self.heap[above]);
            place = above;
        }
        self.put(place, entry);
    }

    /// Moves the entry at `place` away from the root as far as its key requires.
    fn sink(&mut self, mut place: usize) {
        let entry = self.heap[place];
        loop {
            let first = place * ARITY + 1;
            let last = (first + ARITY).min(self.heap.len());
            let Some(below) = self.heap.get(first..last) else { break };
            let (mut least, mut number) = (place, entry.key.number());
            for (nth, entry) in below.iter().enumerate() {
                let other = entry.key.number();
                (least, number) =
                    if other < number { (first + nth, other) } else { (least, number) };
            }
            if least == place {
                break;
            }
            self.put(place, self.heap[least]);
            place = least;
        }
        self.put(place, entry);
    }

    fn put(&mut self, place: usize, entry: Entry) {
        self.heap[place] = entry;
        self.timers[entry.timer as usize].place = place as u32;
    }

    /// For tests: checks what must hold after every call.
    ///
    /// # Panics
    /// When the heap is out of order, or a timer would fire too late or not at all.
    pub fn check_invariants(&self) {
        for (place, entry) in self.heap.iter().enumerate().skip(1) {
            let above = &self.heap[(place - 1) / ARITY];
            assert!(above.key < entry.key, "a heap out of order");
        }
        for (timer, set) in self.timers.iter().enumerate() {
            if set.place == NOWHERE {
                assert_eq!(set.key.time, Instant::NEVER, "a timer that will not fire");
                continue;
            }
            let entry = &self.heap[set.place as usize];
            assert_eq!(entry.timer as usize, timer, "a timer that is somewhere else");
            let fired = self.root_fired && set.place == 0;
            assert!(fired || entry.key.time <= set.key.time, "a timer that will fire too late");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn at(ns: u64) -> Instant {
        Instant::from_ns(ns)
    }

    fn drain(engine: &mut Engine) -> Vec<(u64, usize)> {
        std::iter::from_fn(|| {
            let timer = engine.next(Instant::NEVER - midhop_units::Duration::from_ns(1))?;
            Some((engine.now().as_ns(), timer.index()))
        })
        .collect()
    }

    #[test]
    fn timers_of_one_moment_fire_in_the_order_in_which_they_were_set() {
        let mut engine = Engine::new();
        let timers: Vec<Timer> = (0..6).map(|_| engine.timer()).collect();
        for index in [3, 0, 5, 1] {
            engine.set(timers[index], at(10));
        }
        engine.set(timers[2], at(9));
        engine.set(timers[0], at(12));
        engine.set(timers[0], at(10));
        engine.set(timers[5], at(10));
        assert_eq!(drain(&mut engine), [(9, 2), (10, 3), (10, 5), (10, 1), (10, 0)]);
    }

    #[test]
    fn a_timer_set_to_the_past_fires_now() {
        let mut engine = Engine::new();
        let timer = engine.timer();
        engine.set(timer, at(50));
        assert_eq!(engine.next(at(49)), None);
        assert_eq!(engine.next(at(50)), Some(timer));
        engine.set(timer, at(20));
        assert_eq!(drain(&mut engine), [(50, 0)]);
    }

    #[test]
    fn a_released_timer_never_fires_for_its_first_owner() {
        let mut engine = Engine::new();
        let timer = engine.timer();
        engine.set(timer, at(10));
        engine.release(timer);
        let next = engine.timer();
        assert_eq!(next, timer);
        engine.set(next, at(30));
        assert_eq!(drain(&mut engine), [(30, 0)]);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Set { timer: usize, after: u64 },
        Stop { timer: usize },
        Next { within: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..9usize, 0..12u64).prop_map(|(timer, after)| Step::Set { timer, after }),
            1 => (0..9usize).prop_map(|timer| Step::Stop { timer }),
            3 => (0..9u64).prop_map(|within| Step::Next { within }),
        ]
    }

    proptest! {
        #[test]
        fn the_engine_is_a_sorted_list(steps in proptest::collection::vec(step(), 1..300)) {
            let mut engine = Engine::new();
            let timers: Vec<Timer> = (0..9).map(|_| engine.timer()).collect();
            let mut model: BTreeMap<(u64, u64), usize> = BTreeMap::new();
            for (number, step) in steps.into_iter().enumerate() {
                let now = engine.now().as_ns();
                let known = |model: &BTreeMap<_, usize>, timer| {
                    model.iter().find(|(_, of)| **of == timer).map(|(&key, _)| key)
                };
                match step {
                    Step::Set { timer, after } => {
                        engine.set(timers[timer], at(now + after));
                        let before = known(&model, timer);
                        if before.is_none_or(|(time, _)| time != now + after) {
                            before.and_then(|key| model.remove(&key));
                            model.insert((now + after, number as u64), timer);
                        }
                    }
                    Step::Stop { timer } => {
                        engine.set(timers[timer], Instant::NEVER);
                        known(&model, timer).and_then(|key| model.remove(&key));
                    }
                    Step::Next { within } => {
                        let until = now + within;
                        let due = model.first_key_value().filter(|((time, _), _)| *time <= until);
                        let due = due.map(|(&key, &timer)| (key, timer));
                        prop_assert_eq!(
                            engine.next(at(until)).map(Timer::index),
                            due.map(|(_, timer)| timer)
                        );
                        if let Some((key, _)) = due {
                            prop_assert_eq!(engine.now().as_ns(), key.0);
                            model.remove(&key);
                        }
                    }
                }
                engine.check_invariants();
            }
        }
    }
}
