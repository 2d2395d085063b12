//! Web-like traffic: users who load a page, read it, and load the next.
//!
//! A page is a main object; once that is there and parsed, the objects embedded in it come over up to
//! six connections at once, that of the main object among them. Then the user reads.
//!
//! Source: the web browsing model of IEEE 802.16m-08/004, "IEEE 802.16m Evaluation Methodology Document"
//! (2009), section 10.1, which is that of 3GPP2 C.R1002-0, "cdma2000 Evaluation Methodology" (2004), and
//! of 3GPP R1-070674 (2007). There: main objects lognormal (mu 8.37, sigma 1.37, 100 B to 2 MB), embedded
//! objects lognormal (mu 6.17, sigma 2.36, 50 B to 2 MB), their number a Pareto law (shape 1.1, least 2,
//! cut off at 55) less 2, parsing exponential (mean 0.13 s), reading exponential (mean 30 s). The means
//! printed beside them are 10,710 B, 7,758 B and 5.64; the laws as printed, drawn again outside of their
//! bounds, have 11.0 kB, 8.3 kB and 5.64, and 5.2 objects once their number is whole.
//!
//! The shape is that which was measured before: reading times and sizes with heavy tails (B. Mah, "An
//! Empirical Model of HTTP Network Traffic", INFOCOM 1997; P. Barford and M. Crovella, "Generating
//! Representative Web Workloads", SIGMETRICS 1998), pages of a main object and those within it (H.-K. Choi
//! and J. Limb, "A Behavioral Model of Web Traffic", ICNP 1999). Differs: connections as today's browsers
//! use them; users begin somewhere in a first reading time, not all at once.

use super::connections::{Connections, Turn};
use super::exchange::Amount;
use super::{App, Desk};
use crate::host::{Connect, Told};
use crate::packet::{End, FlowId};
use crate::random::Random;
use midhop_experiment::record::TrafficResult;
use midhop_experiment::traffic::TrafficPlan;
use midhop_units::{Duration, Instant, Seed};
use std::collections::BTreeSet;

/// Mean time that a user reads a page.
const READING: Duration = Duration::from_s(30);
/// Mean time that a main object takes to be parsed.
const PARSING: Duration = Duration::from_ms(130);
/// Connections at once of one page.
const CONNECTIONS: usize = 6;
/// The largest object. Unit: bytes.
const OBJECT_MAX: f64 = 2e6;

/// Users who load page after page.
#[derive(Debug)]
pub(crate) struct Web {
    plan: TrafficPlan,
    connect: Connect,
    users: Vec<User>,
    /// When users act next.
    wakes: BTreeSet<(Instant, u32)>,
    connections: Connections<Errand>,
}

/// A user.
#[derive(Debug)]
struct User {
    random: Random,
    /// The connection of the main object while that is parsed.
    parsing: Option<usize>,
    /// Embedded objects that nobody has asked for.
    left: Vec<u64>,
    /// Objects under way.
    under_way: usize,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy)]
struct Errand {
    user: u32,
    /// The object to ask for when it is open.
    size: u64,
    main: bool,
}

impl Web {
    /// So many users.
    pub fn new(plan: &TrafficPlan, connect: Connect, users: u32, seed: Seed) -> Self {
        let user = |number| User {
            random: Random::new(seed, &format!("{}.{number}", plan.name)),
            parsing: None,
            left: Vec::new(),
            under_way: 0,
        };
        Self {
            plan: plan.clone(),
            connect,
            users: (0..users).map(user).collect(),
            wakes: BTreeSet::new(),
            connections: Connections::new(),
        }
    }

    fn wake_later(&mut self, desk: &mut Desk<'_>, user: u32, after: Duration) {
        self.wakes.insert((desk.now() + after, user));
        self.set_alarm(desk);
    }

    fn set_alarm(&self, desk: &mut Desk<'_>) {
        let stop = Instant::START + self.plan.stop;
        let next = self.wakes.first().map_or(Instant::NEVER, |(at, _)| *at);
        desk.wake_at(if next < stop { next } else { Instant::NEVER });
    }

    /// A user goes on: with the embedded objects, or with the next page.
    fn act(&mut self, desk: &mut Desk<'_>, number: u32) {
        let user = &mut self.users[number as usize];
        let Some(main) = user.parsing.take() else {
            let size = main_object(&mut user.random);
            user.under_way = 1;
            let errand = Errand { user: number, size, main: true };
            self.connections.open(desk, &self.connect, End::Listener, errand);
            return;
        };
        let count = embedded_objects(&mut user.random);
        user.left = (0..count).map(|_| embedded_object(&mut user.random)).collect();
        if count == 0 {
            return self.end(desk, main, true);
        }
        user.under_way = count.min(CONNECTIONS);
        let errands: Vec<Errand> = (0..user.under_way)
            .filter_map(|_| Some(Errand { user: number, size: user.left.pop()?, main: false }))
            .collect();
        for (nth, errand) in errands.into_iter().enumerate() {
            if nth == 0 {
                self.ask(desk, main, errand);
            } else {
                self.connections.open(desk, &self.connect, End::Listener, errand);
            }
        }
    }

    fn read(&mut self, desk: &mut Desk<'_>, user: u32) {
        let reading = self.users[user as usize].random.time(READING, None);
        self.wake_later(desk, user, reading);
    }

    fn ask(&mut self, desk: &mut Desk<'_>, at: usize, errand: Errand) {
        let Some(connection) = self.connections.at(at) else { return };
        connection.what = errand;
        if self.connections.ask(desk, at, Amount::Bytes(errand.size)) {
            self.go_on(desk, at);
        }
    }

    /// An object is there: its page goes on.
    fn go_on(&mut self, desk: &mut Desk<'_>, at: usize) {
        let Some(connection) = self.connections.at(at) else { return };
        let errand = connection.what;
        let user = &mut self.users[errand.user as usize];
        if errand.main {
            user.parsing = Some(at);
            user.under_way = 0;
            let parsing = user.random.time(PARSING, None);
            self.wake_later(desk, errand.user, parsing);
        } else if let Some(size) = user.left.pop() {
            self.ask(desk, at, Errand { size, ..errand });
        } else {
            self.end(desk, at, true);
        }
    }

    /// A connection has nothing more to do; with the last one the page is there, as far as it came.
    fn end(&mut self, desk: &mut Desk<'_>, at: usize, complete: bool) {
        let Some(errand) = self.connections.end(desk, at, complete) else { return };
        let user = &mut self.users[errand.user as usize];
        if user.parsing == Some(at) {
            // It is to go on anyhow, then with the next page.
            user.parsing = None;
            return;
        }
        user.under_way = user.under_way.saturating_sub(1);
        if user.under_way == 0 {
            user.left.clear();
            self.read(desk, errand.user);
        }
    }
}

impl App for Web {
    fn start(&mut self, desk: &mut Desk<'_>) {
        for number in 0..self.users.len() as u32 {
            self.read(desk, number);
        }
    }

    fn handle_timeout(&mut self, desk: &mut Desk<'_>) {
        while let Some(&(at, user)) = self.wakes.first() {
            if at > desk.now() {
                break;
            }
            self.wakes.pop_first();
            self.act(desk, user);
        }
        self.set_alarm(desk);
    }

    fn handle(&mut self, desk: &mut Desk<'_>, flow: FlowId, end: End, told: Told) {
        match self.connections.handle(desk, flow, end, told) {
            Some((at, Turn::Opened)) => {
                let Some(connection) = self.connections.at(at) else { return };
                let errand = connection.what;
                self.ask(desk, at, errand);
            }
            Some((at, Turn::Complete)) => self.go_on(desk, at),
            Some((at, Turn::Failed)) => self.end(desk, at, false),
            None => {}
        }
    }

    fn traffic_result(&self, end: Instant) -> Option<TrafficResult> {
        Some(self.connections.result(&self.plan, end))
    }
}

/// The size of a page's main object. Unit: bytes.
fn main_object(random: &mut Random) -> u64 {
    random.lognormal(8.37, 1.37, 100.0, OBJECT_MAX) as u64
}

/// The size of an object within a page. Unit: bytes.
fn embedded_object(random: &mut Random) -> u64 {
    random.lognormal(6.17, 2.36, 50.0, OBJECT_MAX) as u64
}

/// How many objects there are within a page.
fn embedded_objects(random: &mut Random) -> usize {
    random.pareto_cut(1.1, 2.0, 55.0) as usize - 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_as_the_model_has_them() {
        let mut random = Random::new(Seed(3), "pages");
        let draws = 200_000;
        let mut mean = |draw: &mut dyn FnMut(&mut Random) -> f64| {
            (0..draws).map(|_| draw(&mut random)).sum::<f64>() / f64::from(draws)
        };
        let main = mean(&mut |random| main_object(random) as f64);
        assert!((10_700.0..11_300.0).contains(&main), "{main}");
        let embedded = mean(&mut |random| embedded_object(random) as f64);
        assert!((7_700.0..8_700.0).contains(&embedded), "{embedded}");
        let count = mean(&mut |random| embedded_objects(random) as f64);
        assert!((5.1..5.3).contains(&count), "{count}");
        let most = (0..draws).map(|_| embedded_objects(&mut random)).max();
        assert_eq!(most, Some(53));
    }
}
