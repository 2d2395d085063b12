//! Web-like traffic: users who load a page, read it, and load the next.
//!
//! A page is a main object; once that is received and parsed, its embedded objects are transferred over up to
//! six connections at once, including that of the main object. Then the user reads.
//!
//! [`midhop_experiment::traffic::page`] decides their sizes and number.

use super::connections::{Connections, Turn};
use super::exchange::Amount;
use super::{App, AppContext};
use crate::host::{Connect, SocketEvent};
use crate::packet::{End, FlowId};
use midhop_experiment::random::Random;
use midhop_experiment::record::TrafficResult;
use midhop_experiment::traffic::{TrafficPlan, page};
use midhop_units::{Duration, Instant, Seed};
use std::collections::BTreeSet;

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
    /// Embedded objects that nobody has requested.
    left: Vec<u64>,
    /// Objects being transferred.
    under_way: usize,
}

/// The purpose of a connection.
#[derive(Debug, Clone, Copy)]
struct Errand {
    user: u32,
    /// The object to request when it is open.
    size: u64,
    main: bool,
}

impl Web {
    /// So many users.
    pub fn new(plan: &TrafficPlan, connect: Connect, users: u32, seed: Seed) -> Self {
        let user = |number| User {
            random: plan.random_of_user(seed, number),
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

    fn wake_later(&mut self, context: &mut AppContext<'_>, user: u32, after: Duration) {
        self.wakes.insert((context.now() + after, user));
        self.set_alarm(context);
    }

    fn set_alarm(&self, context: &mut AppContext<'_>) {
        let stop = Instant::START + self.plan.stop;
        let next = self.wakes.first().map_or(Instant::NEVER, |(at, _)| *at);
        context.wake_at(if next < stop { next } else { Instant::NEVER });
    }

    /// A user continues: with the embedded objects, or with the next page.
    fn act(&mut self, context: &mut AppContext<'_>, number: u32) {
        let user = &mut self.users[number as usize];
        let Some(main) = user.parsing.take() else {
            let size = page::main_object(&mut user.random);
            user.under_way = 1;
            let errand = Errand { user: number, size, main: true };
            self.connections.open(context, &self.connect, End::Listener, errand);
            return;
        };
        user.left = page::embedded_objects(&mut user.random);
        if user.left.is_empty() {
            return self.end(context, main, true);
        }
        user.under_way = user.left.len().min(page::CONNECTIONS);
        let errands: Vec<Errand> = (0..user.under_way)
            .filter_map(|_| Some(Errand { user: number, size: user.left.pop()?, main: false }))
            .collect();
        for (nth, errand) in errands.into_iter().enumerate() {
            if nth == 0 {
                self.ask(context, main, errand);
            } else {
                self.connections.open(context, &self.connect, End::Listener, errand);
            }
        }
    }

    fn read(&mut self, context: &mut AppContext<'_>, user: u32) {
        let reading = page::reading(&mut self.users[user as usize].random);
        self.wake_later(context, user, reading);
    }

    fn ask(&mut self, context: &mut AppContext<'_>, at: usize, errand: Errand) {
        let Some(connection) = self.connections.at(at) else { return };
        connection.what = errand;
        if self.connections.ask(context, at, Amount::Bytes(errand.size)) {
            self.go_on(context, at);
        }
    }

    /// An object is complete: its page continues.
    fn go_on(&mut self, context: &mut AppContext<'_>, at: usize) {
        let Some(connection) = self.connections.at(at) else { return };
        let errand = connection.what;
        let user = &mut self.users[errand.user as usize];
        if errand.main {
            user.parsing = Some(at);
            user.under_way = 0;
            let parsing = page::parsing(&mut user.random);
            self.wake_later(context, errand.user, parsing);
        } else if let Some(size) = user.left.pop() {
            self.ask(context, at, Errand { size, ..errand });
        } else {
            self.end(context, at, true);
        }
    }

    /// A connection has nothing more to do; with the last one the page is complete, as far as it arrived.
    fn end(&mut self, context: &mut AppContext<'_>, at: usize, complete: bool) {
        let Some(errand) = self.connections.end(context, at, complete) else { return };
        let user = &mut self.users[errand.user as usize];
        if user.parsing == Some(at) {
            // Continues in any case, then with the next page.
            user.parsing = None;
            return;
        }
        user.under_way = user.under_way.saturating_sub(1);
        if user.under_way == 0 {
            user.left.clear();
            self.read(context, errand.user);
        }
    }
}

impl App for Web {
    fn start(&mut self, context: &mut AppContext<'_>) {
        for number in 0..self.users.len() as u32 {
            self.read(context, number);
        }
    }

    fn handle_timeout(&mut self, context: &mut AppContext<'_>) {
        while let Some(&(at, user)) = self.wakes.first() {
            if at > context.now() {
                break;
            }
            self.wakes.pop_first();
            self.act(context, user);
        }
        self.set_alarm(context);
    }

    fn handle(&mut self, context: &mut AppContext<'_>, flow: FlowId, end: End, event: SocketEvent) {
        match self.connections.handle(context, flow, end, event) {
            Some((at, Turn::Opened)) => {
                let Some(connection) = self.connections.at(at) else { return };
                let errand = connection.what;
                self.ask(context, at, errand);
            }
            Some((at, Turn::Complete)) => self.go_on(context, at),
            Some((at, Turn::Failed)) => self.end(context, at, false),
            None => {}
        }
    }

    fn traffic_result(&self, end: Instant) -> Option<TrafficResult> {
        Some(self.connections.result(&self.plan, end))
    }
}
