//! The loop of one emulated link: take what arrived, send what is due, sleep until the next.

use super::filter::thin;
use super::frame::{Frame, Frames};
use super::lateness::Histogram;
use super::packet_socket::{Arrival, PacketSocket};
use super::{Policy, Wire, WireReport, scheduling};
use midhop_experiment::agents::SackRule;
use midhop_experiment::record::{Lateness, LinkResult, Series};
use midhop_path::DirectionPlan;
use midhop_path::link::{Direction as Way, Link};
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
    directions: [Direction; 2],
    frames: Frames,
    epoch: Instant,
    next_sample: Instant,
    stood_still: Duration,
}

/// One direction: where frames come from, what happens to them, how late they left.
struct Direction {
    way: Way,
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

/// A series in the making.
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
        let down = Direction::new(Way::Down, down, &wire, seed, epoch);
        let up = Direction::new(Way::Up, up, &wire, seed, epoch);
        Self {
            name: wire.name,
            directions: [down, up],
            frames: Frames::new(wire.mtu as usize),
            epoch,
            next_sample: epoch,
            stood_still: Duration::ZERO,
        }
    }

    /// Carries frames until told to stop, before all other work of the machine: not so what comes before
    /// and after, since to make and to free a ring takes milliseconds, which other links would miss.
    pub(super) fn run(mut self, stop: &EventFd) -> io::Result<WireReport> {
        let policy = scheduling::be_punctual();
        let result = self.carry(stop);
        scheduling::be_ordinary();
        self.report(result?, policy)
    }

    /// Carries frames until told to stop. Gives the processor time that it took.
    fn carry(&mut self, stop: &EventFd) -> io::Result<Duration> {
        let cpu_at_start = scheduling::thread_cpu();
        let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut descriptors = [
            watch(stop.as_fd().as_raw_fd()),
            watch(self.directions[0].socket.as_fd().as_raw_fd()),
            watch(self.directions[1].socket.as_fd().as_raw_fd()),
        ];
        while descriptors[0].revents == 0 {
            for (direction, descriptor) in self.directions.iter_mut().zip(&descriptors[1..]) {
                if descriptor.revents & libc::POLLERR != 0 {
                    // It stays so: going on would be a loop without a pause, before all other work.
                    direction.socket.check()?;
                }
                if descriptor.revents & libc::POLLIN != 0 {
                    direction.take_arrivals(&self.frames)?;
                }
            }
            let now = scheduling::now();
            for index in 0..2 {
                self.send_due(index, now)?;
            }
            self.sample(now);
            let next = self.directions.iter().filter_map(|direction| direction.link.poll_timeout());
            let wake = next.min().unwrap_or(Instant::NEVER).min(self.next_sample);
            let pause = wake.saturating_since(scheduling::now());
            scheduling::wait(&mut descriptors, Some(pause))?;
        }
        Ok(scheduling::thread_cpu().saturating_sub(cpu_at_start))
    }

    /// Sends what one direction owes at `now`.
    fn send_due(&mut self, index: usize, now: Instant) -> io::Result<()> {
        let [down, up] = &mut self.directions;
        let (direction, out) = if index == 0 { (down, up) } else { (up, down) };
        direction.collect_due(now);
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
                // The far device's queue is full, which for a virtual pair passes at once. The
                // packet has crossed the link already: dropping it now would be an invented loss.
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

    /// Who misses a whole tick of the clock was kept from the processor.
    fn notice_delay(&mut self, now: Instant) {
        let delay = now.saturating_since(self.next_sample);
        if delay >= SAMPLE_EVERY {
            self.stood_still += delay;
        }
    }

    fn report(mut self, cpu: Duration, policy: Policy) -> io::Result<WireReport> {
        // Nothing is sent any more.
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
        Ok(WireReport { directions, series, missed, policy: Some(policy) })
    }
}

/// Where the frames of both directions of `wire`, down and up, arrive: in the namespace that this thread is in.
pub(super) fn open_sockets(wire: &Wire) -> io::Result<[PacketSocket; 2]> {
    let open = |interface: &str, plan| {
        PacketSocket::open(interface, wire.mtu as usize, packets_waiting(plan, wire))
    };
    // A direction's frames arrive where its sender is: down comes from the second node.
    Ok([open(&wire.second, &wire.down)?, open(&wire.first, &wire.up)?])
}

/// How many full packets may wait before the link's wire: as its queue has room for, and as ever come.
fn packets_waiting(plan: &DirectionPlan, wire: &Wire) -> u64 {
    let waiting = plan.queue.in_full_packets(wire.mtu).min(wire.burst);
    waiting.get().div_ceil(u64::from(wire.mtu.max(1)))
}

impl Direction {
    fn new(way: Way, socket: PacketSocket, wire: &Wire, seed: Seed, epoch: Instant) -> Self {
        let [down_filter, up_filter] = wire.ack_filters;
        let (plan, ack_filter) = match way {
            Way::Down => (&wire.down, down_filter),
            Way::Up => (&wire.up, up_filter),
        };
        Self {
            way,
            socket,
            link: Link::new(plan, way, seed, epoch).marking(Frame::mark),
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

    /// Hands one intake of arrived packets to the link, each with the moment that the kernel got it:
    /// the emulator's own delay in taking it is thereby counted as lateness, not as the link's.
    fn take_arrivals(&mut self, frames: &Frames) -> io::Result<()> {
        let real_ahead_ns = scheduling::real_ahead_ns();
        self.socket.receive(real_ahead_ns, frames, &mut self.arrivals)?;
        // Nothing has arrived later than now, whatever was done to the wall clock. Read behind the last
        // of them: who stood still meanwhile would let those leave early that came while it did.
        let now = scheduling::now();
        for Arrival { at, frame } in self.arrivals.drain(..) {
            if !frame.is_unicast_ip() {
                continue;
            }
            let at = at.min(now);
            let left = match self.ack_filter {
                Some(rule) => thin(&mut self.link, at, frame, rule == SackRule::Keep),
                None => Some(frame),
            };
            if let Some(frame) = left {
                self.link.handle_input(at, Bytes::new(frame.packet_len() as u64), frame);
            }
        }
        Ok(())
    }

    /// Takes what leaves the link by `now`.
    fn collect_due(&mut self, now: Instant) {
        self.link.handle_timeout(now);
        while let Some(arrival) = self.link.poll_output(now) {
            self.promised.push(arrival.due);
            self.due.push(arrival.packet);
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
