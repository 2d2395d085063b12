//! Two ends of a connection around a link of midhop-path, in virtual time.
//!
//! The client requests objects, each by a flow of its own, and the server sends them. The same seed gives the same run.

mod end;

use end::End;
use midhop_congestion::Algorithm;
use midhop_path::{Direction, DirectionPlan, DirectionSpec, Link};
use midhop_pep::config::{PeerPlan, Plan};
use midhop_units::{Bytes, Duration, Instant, Rate, Seed};
use std::collections::BTreeMap;

pub type Datagram = bytes::Bytes;

/// The parameters of a run.
#[derive(Debug, Clone)]
pub struct Cell {
    pub rate: Rate,
    pub return_rate: Rate,
    pub rtt: Duration,
    /// As in a scenario: `"1 %"` or a table.
    pub loss: String,
    pub queue: String,
    /// The rate that the sender assumes. Default: the true one.
    pub assumed: Option<Rate>,
    /// More keys of the direction towards the client.
    pub more: String,
    /// More keys of the other direction.
    pub return_more: String,
    pub algorithm: Algorithm,
    /// Whether losses are repaired below QUIC.
    pub fec: bool,
    /// Timers fire at multiples of this only, as a runtime's do.
    pub tick: Duration,
    pub seed: u64,
}

impl Cell {
    pub fn new(rate_mbit: u64, loss: &str, algorithm: Algorithm) -> Self {
        Self {
            rate: Rate::from_mbit_per_s(rate_mbit),
            return_rate: Rate::from_mbit_per_s(5),
            rtt: Duration::from_ms(600),
            loss: loss.to_owned(),
            queue: "\"1.5 BDP\"".to_owned(),
            assumed: None,
            more: String::new(),
            return_more: String::new(),
            algorithm,
            fec: false,
            tick: Duration::from_ms(1),
            seed: 1,
        }
    }

    /// The most payload that the channel can carry in TCP segments over Ethernet: the reference of the tests.
    pub fn limit(&self) -> Rate {
        let carried = 1448.0 / 1500.0 * (1.0 - self.plan().loss_mean(1500).probability());
        Rate::from_bits_per_s((self.rate.bits_per_s() as f64 * carried) as u64)
    }

    pub fn bdp(&self) -> Bytes {
        self.rate.bytes_in(self.rtt)
    }

    fn plan(&self) -> DirectionPlan {
        let more = format!("loss = {}\nqueue = {}\n{}", self.loss, self.queue, self.more);
        self.direction(self.rate, &more)
    }

    fn direction(&self, rate: Rate, more: &str) -> DirectionPlan {
        let text = format!("rate = \"{rate}\"\ndelay = \"{}\"\n{more}", self.rtt / 2);
        let spec: DirectionSpec = toml::from_str(&text).expect("a direction");
        spec.resolve(self.rtt).expect("a plan")
    }

    /// The peer as the daemon's configuration resolves it: the tests prove what ships.
    fn peer(&self, rate: Rate, return_rate: Rate) -> PeerPlan {
        let repair = if self.fec { "auto" } else { "off" };
        // On a slow link a burst that is counted in packets lasts longer than usual timeouts.
        let text = format!(
            "[limits]\nmemory = \"1 GiB\"\n\
             [tunnel]\ncertificate = \"/c\"\nkey = \"/k\"\nauthority = \"/a\"\nlisten = \"127.0.0.1:443\"\n\
             [peers.far]\nrate = \"{rate}\"\nrate_in = \"{return_rate}\"\nrtt = \"{}\"\n\
             congestion = \"{}\"\nrepair = \"{repair}\"\ntimeout = \"100000 s\"\n",
            self.rtt, self.algorithm
        );
        Plan::read("pair.toml", &text).expect("a plan").peers.remove(0)
    }
}

/// An object in transit.
#[derive(Debug, Clone, Copy)]
pub struct Object {
    pub asked: Instant,
    pub first: Option<Instant>,
    pub done: Option<Instant>,
    pub received: u64,
}

/// The bytes in the queue of the link towards the client.
#[derive(Debug, Clone, Copy, Default)]
pub struct Standing {
    pub max: u64,
    area: f64,
    span: f64,
}

impl Standing {
    pub fn mean(&self) -> f64 {
        self.area / self.span.max(f64::MIN_POSITIVE)
    }
}

/// Both ends, and the path between them.
pub struct Pair {
    pub now: Instant,
    tick: Duration,
    pub server: End,
    pub client: End,
    pub down: Link<Datagram>,
    pub up: Link<Datagram>,
    pub objects: BTreeMap<u64, Object>,
    /// What the client's application has read.
    pub received: u64,
    pub standing: Standing,
}

impl Pair {
    /// A pair whose client has begun to connect.
    pub fn new(cell: &Cell) -> Self {
        #[expect(clippy::disallowed_methods, reason = "there is no other way to have an instant")]
        let base = std::time::Instant::now();
        let seed = Seed(cell.seed);
        let (down, up) = (cell.plan(), cell.direction(cell.return_rate, ""));
        let assumed = cell.assumed.unwrap_or(cell.rate);
        let server = End::server(&cell.peer(assumed, cell.return_rate), (base, seed));
        let client = End::client(&cell.peer(cell.return_rate, assumed), (base, seed));
        let mut pair = Self {
            now: Instant::START,
            tick: cell.tick,
            server,
            client,
            down: Link::new(&down, Direction::Down, seed, Instant::START),
            up: Link::new(&up, Direction::Up, seed, Instant::START),
            objects: BTreeMap::new(),
            received: 0,
            standing: Standing::default(),
        };
        pair.step();
        pair
    }

    /// A pair that has been connected for some round trips.
    pub fn connected(cell: &Cell) -> Self {
        let mut pair = Self::new(cell);
        pair.run_until(Instant::START + cell.rtt * 10 + Duration::from_s(1));
        assert!(pair.client.is_connected(), "no connection: {cell:?}");
        pair
    }

    /// The client requests an object.
    pub fn ask(&mut self, size: u64) -> u64 {
        let stream = self.client.ask(self.now, size);
        let object = Object { asked: self.now, first: None, done: None, received: 0 };
        self.objects.insert(stream, object);
        self.step();
        stream
    }

    pub fn run_for(&mut self, span: Duration) {
        self.run_until(self.now + span);
    }

    pub fn run_until(&mut self, until: Instant) {
        while let Some(next) = self.next().filter(|next| *next <= until) {
            self.advance(next);
            self.step();
        }
        self.advance(until);
    }

    /// Requests an object, and runs until it has arrived, or for `at_most`.
    pub fn fetch(&mut self, size: u64, at_most: Duration) -> Option<Duration> {
        let stream = self.ask(size);
        self.wait_for(stream, at_most)
    }

    /// Runs until the object has arrived, or for `at_most`.
    pub fn wait_for(&mut self, stream: u64, at_most: Duration) -> Option<Duration> {
        let until = self.now + at_most;
        while self.objects[&stream].done.is_none() {
            let next = self.next().filter(|next| *next <= until)?;
            self.advance(next);
            self.step();
        }
        let object = self.objects[&stream];
        object.done.map(|done| done - object.asked)
    }

    /// The payload that the client receives over `span` from now on, per second.
    pub fn goodput(&mut self, span: Duration) -> Rate {
        let before = self.received;
        self.run_for(span);
        Rate::of(Bytes::new(self.received - before), span)
    }

    /// The bytes in the queue since the last call.
    pub fn stood(&mut self) -> Standing {
        std::mem::take(&mut self.standing)
    }

    fn advance(&mut self, to: Instant) {
        let span = to.saturating_since(self.now).as_s_f64();
        self.standing.area += span * self.down.queue_bytes().get() as f64;
        self.standing.span += span;
        self.now = self.now.max(to);
    }

    fn next(&mut self) -> Option<Instant> {
        let ticked = |at: Option<Instant>| {
            let tick = self.tick.as_ns().max(1);
            at.map(|at| Instant::from_ns(at.as_ns().div_ceil(tick) * tick))
        };
        let links = self.down.poll_output_time().into_iter().chain(self.up.poll_output_time());
        let ends = [self.server.wake(), self.client.wake()];
        links.chain(ends.into_iter().filter_map(ticked)).min().map(|next| next.max(self.now))
    }

    fn step(&mut self) {
        let now = self.now;
        self.down.handle_timeout(now);
        self.up.handle_timeout(now);
        while let Some(arrival) = self.down.poll_output(now) {
            self.client.receive(now, arrival.packet);
        }
        while let Some(arrival) = self.up.poll_output(now) {
            self.server.receive(now, arrival.packet);
        }
        self.server.drive(now, |size, datagram| self.down.handle_input(now, size, datagram));
        self.standing.max = self.standing.max.max(self.down.queue_bytes().get());
        for (stream, bytes, finished) in self.client.read() {
            self.received += bytes;
            let object = self.objects.get_mut(&stream).expect("an object that was asked for");
            object.received += bytes;
            object.first.get_or_insert(now);
            if finished {
                object.done = Some(now);
            }
        }
        self.client.drive(now, |size, datagram| self.up.handle_input(now, size, datagram));
    }
}
