//! The loop of one emulated link: take what arrived, send what is due, sleep until the next.

use super::filter::thin;
use super::frame::{Frame, Frames};
use super::lateness::Histogram;
use super::packet_socket::{Arrival, PacketSocket};
use super::post::{Heading, Post};
use super::{Policy, Wire, WireReport, scheduling};
use midhop_experiment::agents::SackRule;
use midhop_experiment::record::{Lateness, LinkResult, Series};
use midhop_path::{Cause, DirectionPlan};
use midhop_path::{Direction, Link};
use midhop_units::{Bytes, Duration, Instant, Rate, Seed};
use nix::sys::eventfd::EventFd;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Between two samples of queue and rate.
const SAMPLE_EVERY: Duration = Duration::from_ms(100);

/// Two sockets and the two links between them.
pub(super) struct Carrier {
    name: String,
    /// Towards the first node, then towards the second.
    directions: [LinkDirection; 2],
    /// The agents at the first node, and at the second: a direction ends at the post with its own
    /// index.
    posts: [Post; 2],
    frames: Frames,
    epoch: Instant,
    next_sample: Instant,
    stood_still: Duration,
}

/// One direction: where frames come from, what happens to them, how late they left.
struct LinkDirection {
    way: Direction,
    /// Where this direction's frames arrive. The other direction's leave there.
    socket: PacketSocket,
    link: Link<Frame>,
    ack_filter: Option<SackRule>,
    lateness: Histogram,
    arrivals: Vec<Arrival>,
    due: Vec<Frame>,
    promised: Vec<Instant>,
    sampled_bytes: Bytes,
    queue: Samples,
    rate: Samples,
}

/// A series while it is sampled.
#[derive(Default)]
struct Samples {
    time_s: Vec<f64>,
    value: Vec<f64>,
}

impl Samples {
    fn push(&mut self, time_s: f64, value: f64) {
        self.time_s.push(time_s);
        self.value.push(value);
    }

    fn into_series(self, quantity: &str, place: String, unit: &str) -> Series {
        Series {
            quantity: quantity.to_owned(),
            place,
            flow: None,
            unit: unit.to_owned(),
            time_s: self.time_s,
            value: self.value,
        }
    }
}

impl Carrier {
    /// A link whose traces and series count from `epoch`, between `sockets`: down, then up.
    pub(super) fn new(
        [down, up]: [PacketSocket; 2],
        wire: Wire,
        seed: Seed,
        epoch: Instant,
    ) -> Self {
        let seed = seed.derive(&wire.name);
        let directions = [(Direction::Down, down), (Direction::Up, up)]
            .map(|(way, socket)| LinkDirection::new(way, socket, &wire, seed, epoch));
        let [first, second] = wire.posts;
        let posts = [Post::new(&wire.nodes[0], first), Post::new(&wire.nodes[1], second)];
        Self {
            name: wire.name,
            directions,
            posts,
            frames: Frames::new(wire.mtu as usize),
            epoch,
            next_sample: epoch,
            stood_still: Duration::ZERO,
        }
    }

    /// Carries frames until asked to stop, with real-time priority. Making and freeing a ring takes
    /// milliseconds, so both happen without that priority: other links would be late.
    pub(super) fn run(mut self, stop: &EventFd) -> io::Result<WireReport> {
        let policy = scheduling::be_punctual();
        let result = self.carry(stop);
        scheduling::be_ordinary();
        self.report(result?, policy)
    }

    /// Carries frames until asked to stop. Gives the processor time that it took.
    fn carry(&mut self, stop: &EventFd) -> io::Result<Duration> {
        let cpu_at_start = scheduling::thread_cpu();
        let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut descriptors = [
            watch(stop.as_fd().as_raw_fd()),
            watch(self.directions[0].socket.as_fd().as_raw_fd()),
            watch(self.directions[1].socket.as_fd().as_raw_fd()),
        ];
        while descriptors[0].revents == 0 {
            for (index, descriptor) in descriptors[1..].iter().enumerate() {
                if descriptor.revents & libc::POLLIN != 0 {
                    self.take_arrivals(index)?;
                }
            }
            let now = scheduling::now();
            self.wake_posts(now);
            for index in 0..2 {
                self.send_due(index, now)?;
            }
            self.sample(now);
            let links =
                self.directions.iter().filter_map(|direction| direction.link.poll_timeout());
            let next = links.chain(self.posts.iter().filter_map(Post::poll_timeout));
            let wake = next.min().unwrap_or(Instant::NEVER).min(self.next_sample);
            let pause = wake.saturating_since(scheduling::now());
            scheduling::wait(&mut descriptors, Some(pause))?;
            for (direction, descriptor) in self.directions.iter().zip(&descriptors[1..]) {
                if descriptor.revents & libc::POLLERR != 0 {
                    // The condition persists: without this check the loop would spin with real-time
                    // priority.
                    direction.socket.check()?;
                }
            }
        }
        Ok(scheduling::thread_cpu().saturating_sub(cpu_at_start))
    }

    /// Hands one intake of arrived packets to a direction's link, past the agents before it.
    fn take_arrivals(&mut self, index: usize) -> io::Result<()> {
        let mut arrivals = self.directions[index].receive(&self.frames)?;
        let post = 1 - index;
        for Arrival { at, frame } in arrivals.drain(..) {
            if self.posts[post].is_empty() {
                self.directions[index].enter(at, frame);
            } else {
                self.posts[post].handle_frame(at, frame, Heading::Out, &self.frames);
                self.go_on(post, at, at);
            }
        }
        self.directions[index].arrivals = arrivals;
        Ok(())
    }

    /// Carries on what the agents at an end pass on or send: onto the link at `now`, or to the
    /// node, due at `promised`.
    fn go_on(&mut self, post: usize, now: Instant, promised: Instant) {
        while let Some(onward) = self.posts[post].poll_output() {
            match onward.heading {
                Heading::Out => self.directions[1 - post].enter(now, onward.frame),
                Heading::In => self.directions[post].deliver(onward.frame, promised),
            }
        }
        self.notice_dropped(post);
    }

    /// Reports frames that the link's queue dropped to the agents at its entry.
    fn notice_dropped(&mut self, post: usize) {
        while let Some(dropped) = self.directions[1 - post].link.poll_dropped() {
            if matches!(dropped.cause, Cause::Queue | Cause::Aqm) {
                self.posts[post].handle_drop(dropped.packet);
            }
        }
    }

    /// Calls the agents whose timers are due.
    fn wake_posts(&mut self, now: Instant) {
        for post in 0..2 {
            if let Some(due) = self.posts[post].poll_timeout().filter(|due| *due <= now) {
                self.posts[post].handle_timeout(now, &self.frames);
                self.go_on(post, now, due);
            }
        }
    }

    /// Takes what leaves a direction's link by `now`, past the agents behind it.
    fn collect_due(&mut self, index: usize, now: Instant) {
        let direction = &mut self.directions[index];
        // Frames that agents have already released to the node do not meet them again.
        let behind = direction.due.len();
        direction.collect_due(now);
        if self.posts[index].is_empty() {
            return self.notice_dropped(1 - index);
        }
        let (frames, promised) =
            (direction.due.split_off(behind), direction.promised.split_off(behind));
        self.notice_dropped(1 - index);
        for (frame, promised) in frames.into_iter().zip(promised) {
            self.posts[index].handle_frame(now, frame, Heading::In, &self.frames);
            self.go_on(index, now, promised);
        }
    }

    /// Sends what one direction owes at `now`.
    fn send_due(&mut self, index: usize, now: Instant) -> io::Result<()> {
        self.collect_due(index, now);
        let [down, up] = &mut self.directions;
        let (direction, out) = if index == 0 { (down, up) } else { (up, down) };
        let mut sent = 0;
        while sent < direction.due.len() {
            match out.socket.send(&mut direction.due[sent..]) {
                Ok(count) => {
                    let left = scheduling::now();
                    for promised in &direction.promised[sent..sent + count] {
                        direction.lateness.record(left.saturating_since(*promised));
                    }
                    sent += count;
                }
                // The far device's queue is full, which ends at once for a virtual pair. The packet
                // has crossed the link already: dropping it now would be a loss that the link does
                // not have.
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::ENOBUFS | libc::EAGAIN | libc::EINTR)
                    ) =>
                {
                    std::thread::yield_now();
                }
                Err(error) => return Err(error),
            }
        }
        direction.promised.clear();
        direction.due.clear();
        Ok(())
    }

    fn sample(&mut self, now: Instant) {
        if now < self.next_sample {
            return;
        }
        self.notice_delay(now);
        let since = now.saturating_since(self.next_sample) + SAMPLE_EVERY;
        let time_s = now.saturating_since(self.epoch).as_s_f64();
        for direction in &mut self.directions {
            direction.sample(time_s, since);
        }
        self.next_sample = now + SAMPLE_EVERY;
    }

    /// A thread that misses a whole sampling interval was kept from the processor.
    fn notice_delay(&mut self, now: Instant) {
        let delay = now.saturating_since(self.next_sample);
        if delay >= SAMPLE_EVERY {
            self.stood_still += delay;
        }
    }

    fn report(mut self, cpu: Duration, policy: Policy) -> io::Result<WireReport> {
        // No frame is sent any more.
        let now = scheduling::now();
        self.notice_delay(now);
        let span = now.saturating_since(self.epoch);
        let mut missed = 0;
        let mut series = Vec::new();
        let mut results = Vec::new();
        for mut direction in self.directions {
            missed += direction.socket.dropped()?;
            let place = format!("{}.{}", self.name, direction.way.name());
            let lateness =
                Lateness { stood_still: self.stood_still, ..direction.lateness.summary() };
            results.push(direction.result(&self.name, span, cpu / 2, lateness));
            series.push(direction.queue.into_series("queue", place.clone(), "bytes"));
            series.push(direction.rate.into_series("rate", place, "Mbit/s"));
        }
        let directions = <[LinkResult; 2]>::try_from(results)
            .map_err(|_| io::Error::other("a link has two directions"))?;
        let met = self.posts.iter().filter(|post| !post.is_empty());
        let nodes = met.map(Post::result).collect();
        Ok(WireReport { directions, series, missed, nodes, policy: Some(policy) })
    }
}

/// The sockets that receive the frames of both directions of `wire`, down and up, in this thread's
/// namespace.
pub(super) fn open_sockets(wire: &Wire) -> io::Result<[PacketSocket; 2]> {
    let open = |interface: &str, plan| {
        PacketSocket::open(interface, wire.mtu as usize, packets_waiting(plan, wire))
    };
    // A direction's frames arrive at the hub's device of their sender: down comes from the second
    // node.
    Ok([open(&wire.second, &wire.down)?, open(&wire.first, &wire.up)?])
}

/// How many full packets may wait before the link: what fits into its queue, but no more than the
/// largest burst.
fn packets_waiting(plan: &DirectionPlan, wire: &Wire) -> u64 {
    let waiting = plan.queue.in_full_packets(wire.mtu).min(wire.burst);
    waiting.get().div_ceil(u64::from(wire.mtu.max(1)))
}

impl LinkDirection {
    fn new(way: Direction, socket: PacketSocket, wire: &Wire, seed: Seed, epoch: Instant) -> Self {
        let [down_filter, up_filter] = wire.ack_filters;
        let (plan, ack_filter, sender) = match way {
            Direction::Down => (&wire.down, down_filter, &wire.posts[1]),
            Direction::Up => (&wire.up, up_filter, &wire.posts[0]),
        };
        let mut link = Link::new(plan, way, seed, epoch).marking(Frame::mark);
        if !sender.agents.is_empty() {
            link = link.keeping_dropped();
        }
        Self {
            way,
            socket,
            link,
            ack_filter,
            lateness: Histogram::new(),
            arrivals: Vec::new(),
            due: Vec::new(),
            promised: Vec::new(),
            sampled_bytes: Bytes::ZERO,
            queue: Samples::default(),
            rate: Samples::default(),
        }
    }

    /// Receives one intake of packets. Each has the time at which the kernel received it, so that
    /// the emulator's own delay counts as lateness and not as delay of the link.
    fn receive(&mut self, frames: &Frames) -> io::Result<Vec<Arrival>> {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        self.socket.receive(scheduling::real_ahead_ns(), frames, &mut arrivals)?;
        // No packet arrived later than now, even when the wall clock was set. The clock is read
        // after the last packet was received. If it were read before, and this thread were delayed
        // in between, packets that arrived during the delay would leave early.
        let now = scheduling::now();
        arrivals.retain(|arrival| arrival.frame.is_unicast_ip());
        arrivals.iter_mut().for_each(|arrival| arrival.at = arrival.at.min(now));
        Ok(arrivals)
    }

    /// Puts a packet on the link.
    fn enter(&mut self, at: Instant, frame: Frame) {
        let left = match self.ack_filter {
            Some(rule) => thin(&mut self.link, at, frame, rule == SackRule::Keep),
            None => Some(frame),
        };
        if let Some(frame) = left {
            self.link.handle_input(at, Bytes::new(frame.packet_len() as u64), frame);
        }
    }

    /// Queues a packet that is due at the far node.
    fn deliver(&mut self, frame: Frame, promised: Instant) {
        self.due.push(frame);
        self.promised.push(promised);
    }

    /// Takes what leaves the link by `now`.
    fn collect_due(&mut self, now: Instant) {
        self.link.handle_timeout(now);
        while let Some(arrival) = self.link.poll_output(now) {
            self.deliver(arrival.packet, arrival.due);
        }
    }

    fn sample(&mut self, time_s: f64, since: Duration) {
        let bytes_out = self.link.counters().bytes_out;
        let passed = bytes_out - self.sampled_bytes;
        self.sampled_bytes = bytes_out;
        self.queue.push(time_s, self.link.queue_bytes().get() as f64);
        self.rate.push(time_s, Rate::of(passed, since).mbit_per_s());
    }

    fn result(&self, name: &str, span: Duration, cpu: Duration, lateness: Lateness) -> LinkResult {
        LinkResult {
            lateness: Some(lateness),
            cpu: Some(cpu),
            ..LinkResult::counted(name, self.way, self.link.counters(), span)
        }
    }
}
