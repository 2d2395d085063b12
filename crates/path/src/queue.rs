//! The queue before the bottleneck: its limit, and which packets it refuses.

use crate::aqm::AqmPlan;
use crate::codel::Codel;
use crate::counters::Cause;
use crate::pie::Pie;
use crate::resolve::{QUEUE_BYTES_MAX, QUEUE_PACKETS_MAX, ResolveError, check_number};
use midhop_units::{Bytes, Duration, Instant, Rate, Seed};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{collections::VecDeque, fmt, str::FromStr};

const EXPECTED_SPEC: &str =
    "a queue such as \"1.5 MB\", \"100 packets\", \"1.5 BDP\" or \"200 ms\"";
const EXPECTED_LIMIT: &str = "a queue limit such as \"1.5 MB\" or \"100 packets\"";

/// Ten full-sized packets: an initial window of RFC 6928 must fit into the queue of any link.
const DEFAULT_BYTES_MIN: Bytes = Bytes::new(15_000);
/// The limit on a link without a rate, where packets wait only during an outage that holds them.
const DEFAULT_BYTES_UNLIMITED: Bytes = Bytes::new(64 << 20);

/// The queue limit of a link as written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum QueueSpec {
    /// The most bytes that wait.
    Bytes(Bytes),
    /// The most packets that wait.
    Packets(u64),
    /// This multiple of rate × round-trip time of the path.
    Bdp(f64),
    /// As much as the link sends in this time.
    Time(Duration),
}

impl QueueSpec {
    /// Converts limits that are relative to rate and round-trip time into bytes.
    ///
    /// Without a queue given, the limit is one BDP of the path, but no less than ten full packets.
    /// One BDP is the least with which one loss-based flow that halves its window keeps the link
    /// busy.
    pub(crate) fn resolve(
        spec: Option<Self>,
        rate: Option<Rate>,
        path_rtt: Duration,
    ) -> Result<QueueLimit, ResolveError> {
        let limit = match (spec, rate) {
            (None, None) => QueueLimit::Bytes(DEFAULT_BYTES_UNLIMITED),
            (None, Some(rate)) => {
                let bdp = rate.bytes_in(path_rtt).clamp(DEFAULT_BYTES_MIN, QUEUE_BYTES_MAX);
                QueueLimit::Bytes(bdp)
            }
            (Some(Self::Bytes(bytes)), _) => QueueLimit::Bytes(bytes),
            (Some(Self::Packets(packets)), _) => QueueLimit::Packets(packets),
            (Some(relative @ (Self::Bdp(_) | Self::Time(_))), None) => {
                return Err(ResolveError::missing(
                    "rate",
                    format!("a queue of {relative} has no size on an unlimited link"),
                ));
            }
            (Some(Self::Bdp(factor)), Some(rate)) => {
                check_number("queue", factor, 0.0..=1e6)?;
                QueueLimit::Bytes(rate.bytes_in(path_rtt).scale(factor))
            }
            (Some(Self::Time(time)), Some(rate)) => QueueLimit::Bytes(rate.bytes_in(time)),
        };
        match limit {
            QueueLimit::Bytes(bytes) if bytes > QUEUE_BYTES_MAX => Err(ResolveError::out_of_range(
                "queue",
                bytes,
                format!("at most {QUEUE_BYTES_MAX}"),
            )),
            QueueLimit::Packets(packets) if packets > QUEUE_PACKETS_MAX => {
                let hint = format!("at most {QUEUE_PACKETS_MAX} packets");
                Err(ResolveError::out_of_range("queue", limit, hint))
            }
            _ => Ok(limit),
        }
    }
}

impl fmt::Display for QueueSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Packets(packets) => write!(f, "{packets} packets"),
            Self::Bdp(factor) => write!(f, "{factor} BDP"),
            Self::Time(time) => time.fmt(f),
        }
    }
}

impl FromStr for QueueSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("\"{text}\" is not {EXPECTED_SPEC}");
        if let Some(number) = text.strip_suffix("BDP") {
            let factor: f64 = number.trim().parse().map_err(|_| refused())?;
            return if factor.is_finite() && factor >= 0.0 {
                Ok(Self::Bdp(factor))
            } else {
                Err(refused())
            };
        }
        if let Ok(time) = text.parse() {
            return Ok(Self::Time(time));
        }
        match text.parse() {
            Ok(QueueLimit::Bytes(bytes)) => Ok(Self::Bytes(bytes)),
            Ok(QueueLimit::Packets(packets)) => Ok(Self::Packets(packets)),
            Err(_) => Err(refused()),
        }
    }
}

/// The queue limit before the link. A packet that is being sent does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueLimit {
    /// The most bytes.
    Bytes(Bytes),
    /// The most packets.
    Packets(u64),
}

impl QueueLimit {
    /// The bytes that may wait where every packet has `mtu` bytes.
    pub fn in_full_packets(self, mtu: u32) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Packets(packets) => Bytes::new(packets.saturating_mul(u64::from(mtu))),
        }
    }
}

impl fmt::Display for QueueLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Packets(packets) => write!(f, "{packets} packets"),
        }
    }
}

impl FromStr for QueueLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("\"{text}\" is not {EXPECTED_LIMIT}");
        let packets = text.strip_suffix("packets").or_else(|| text.strip_suffix("packet"));
        match packets {
            Some(number) => number.trim().parse().map(Self::Packets).map_err(|_| refused()),
            None => text.parse().map(Self::Bytes).map_err(|_| refused()),
        }
    }
}

macro_rules! serde_as_text {
    ($type:ty, $expected:expr) => {
        crate::written::schema!($type, $expected);

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
serde_as_text!(QueueSpec, EXPECTED_SPEC);
serde_as_text!(QueueLimit, EXPECTED_LIMIT);

/// The most waiting packets that a search for a replacement examines.
const SEARCHED_MAX: usize = 1024;

/// A packet that waits.
#[derive(Debug, Clone)]
pub(crate) struct Waiting<P> {
    pub(crate) packet: P,
    pub(crate) size: Bytes,
    /// When it entered.
    pub(crate) since: Instant,
}

/// The waiting packets, in order.
#[derive(Debug, Clone)]
pub(crate) struct Fifo<P> {
    packets: VecDeque<Waiting<P>>,
    bytes: Bytes,
    largest_packet: Bytes,
}

impl<P> Fifo<P> {
    pub(crate) fn new() -> Self {
        Self { packets: VecDeque::new(), bytes: Bytes::ZERO, largest_packet: Bytes::ZERO }
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes
    }

    pub(crate) fn largest_packet(&self) -> Bytes {
        self.largest_packet
    }

    pub(crate) fn pop(&mut self) -> Option<Waiting<P>> {
        let head = self.packets.pop_front()?;
        self.bytes -= head.size;
        Some(head)
    }

    pub(crate) fn push(&mut self, waiting: Waiting<P>) {
        self.bytes += waiting.size;
        self.largest_packet = self.largest_packet.max(waiting.size);
        make_room(&mut self.packets);
        self.packets.push_back(waiting);
    }
}

/// Up to so many packets, a ring doubles its capacity.
const DOUBLES_TO: usize = 1024;

/// Reserves space for one more. A large ring grows by a quarter at a time: all of its memory is
/// used as it turns, so that doubling could take twice the memory of the waiting packets.
pub(crate) fn make_room<T>(ring: &mut VecDeque<T>) {
    let length = ring.len();
    if length == ring.capacity() {
        ring.reserve_exact(if length < DOUBLES_TO { length.max(4) } else { length / 4 });
    }
}

#[derive(Debug, Clone)]
enum Aqm {
    None,
    Codel(Codel),
    Pie(Pie),
}

/// The queue: drop-tail, with AQM before it.
#[derive(Debug, Clone)]
pub(crate) struct Queue<P> {
    limit: QueueLimit,
    aqm: Aqm,
    fifo: Fifo<P>,
}

impl<P> Queue<P> {
    pub(crate) fn new(limit: QueueLimit, aqm: &AqmPlan, start: Instant, seed: Seed) -> Self {
        let aqm = match aqm {
            AqmPlan::None | AqmPlan::Xcp => Aqm::None,
            AqmPlan::Codel(plan) => Aqm::Codel(Codel::new(*plan)),
            AqmPlan::Pie(plan) => Aqm::Pie(Pie::new(*plan, start, seed)),
        };
        Self { limit, aqm, fifo: Fifo::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.fifo.packets.len()
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.fifo.bytes
    }

    /// Lets a packet enter, or returns it with the cause. A packet that AQM would refuse is given
    /// to `mark`, and enters if it could be marked.
    pub(crate) fn enter(
        &mut self,
        mut waiting: Waiting<P>,
        mark: impl FnOnce(&mut P) -> bool,
    ) -> Result<(), (Waiting<P>, Cause)> {
        let fits = match self.limit {
            QueueLimit::Bytes(limit) => self.fifo.bytes.saturating_add(waiting.size) <= limit,
            QueueLimit::Packets(limit) => (self.fifo.packets.len() as u64) < limit,
        };
        if !fits {
            return Err((waiting, Cause::Queue));
        }
        if let Aqm::Pie(pie) = &mut self.aqm {
            pie.catch_up(waiting.since, self.fifo.packets.front().map(|head| head.since));
            if pie.refuses(self.fifo.bytes) && !(pie.may_mark() && mark(&mut waiting.packet)) {
                return Err((waiting, Cause::Aqm));
            }
        }
        self.fifo.push(waiting);
        Ok(())
    }

    /// Replaces a waiting packet by another, and returns the replaced one. `choose` examines the
    /// waiting packets from the youngest on. For each it returns `Some(true)` to replace it,
    /// `Some(false)` to replace none, or `None` to go on with the one before it.
    ///
    /// The new packet counts as having waited as long as the replaced one, so that AQM sees no
    /// shorter wait.
    ///
    /// # Errors
    /// Returns the packet when none is replaced, or when the queue has no room for the difference.
    pub(crate) fn replace(
        &mut self,
        packet: P,
        size: Bytes,
        mut choose: impl FnMut(&P) -> Option<bool>,
    ) -> Result<Waiting<P>, P> {
        let chosen = self
            .fifo
            .packets
            .iter_mut()
            .rev()
            .take(SEARCHED_MAX)
            .find_map(|waiting| choose(&waiting.packet).map(|goes| goes.then_some(waiting)));
        let Some(place) = chosen.flatten() else { return Err(packet) };
        let bytes = self.fifo.bytes - place.size + size;
        if matches!(self.limit, QueueLimit::Bytes(limit) if bytes > limit) {
            return Err(packet);
        }
        let newcomer = Waiting { packet, size, since: place.since };
        self.fifo.bytes = bytes;
        self.fifo.largest_packet = self.fifo.largest_packet.max(size);
        Ok(std::mem::replace(place, newcomer))
    }

    /// Takes the next packet to send. A packet that AQM would drop is given to `mark`, and to
    /// `drop` if it could not be marked.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        mark: impl FnMut(&mut P) -> bool,
        drop: impl FnMut(Waiting<P>),
    ) -> Option<Waiting<P>> {
        match &mut self.aqm {
            Aqm::None => self.fifo.pop(),
            Aqm::Codel(codel) => codel.take(now, &mut self.fifo, mark, drop),
            Aqm::Pie(pie) => {
                pie.catch_up(now, self.fifo.packets.front().map(|head| head.since));
                self.fifo.pop()
            }
        }
    }

    /// # Panics
    /// When counts do not add up, or the limit is exceeded.
    pub(crate) fn check_invariants(&self) {
        let bytes: Bytes = self.fifo.packets.iter().map(|waiting| waiting.size).sum();
        assert_eq!(bytes, self.fifo.bytes, "bytes waiting");
        match self.limit {
            QueueLimit::Bytes(limit) => assert!(bytes <= limit, "{bytes} wait, limit {limit}"),
            QueueLimit::Packets(limit) => assert!(self.len() as u64 <= limit, "{}", self.len()),
        }
    }
}
