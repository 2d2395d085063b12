//! Costs and traffic of flows: counters, one ledger per worker, summed by the reader.
//!
//! Invariant: a reader holds a lock that a worker needs for at most `SLICE` flows at a time, however many there are.

mod direction;
mod flow;
mod leg;
mod limit;

pub use direction::{Books, DirectionBook, Wait};
pub use flow::{FlowBook, FlowOrigin, Party, SourceBook};
pub use leg::{LegBook, Segments, SideBook, Speed};
pub use limit::{Limit, LimitsReached};

use crate::ends::RelayOutcome;
use crate::ends::Side;
use crate::leg::{Failure, Refusal, Sample};
use crate::prefixes::Prefixes;
use midhop_pki::trouble::PeerTrouble;
use midhop_status::snapshot::Carrier;
use midhop_tunnel::fec::Stats;
use midhop_units::{Bytes, Rate};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;

/// Number of live flows that are read under one lock.
const SLICE: usize = 256;

/// A number that only its own worker changes and any thread may read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to it.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Relaxed);
    }

    /// Subtracts from it; for the present number of something.
    pub fn sub(&self, amount: u64) {
        self.0.fetch_sub(amount, Relaxed);
    }

    /// Sets it; for measurements.
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// Sets it and returns the previous value.
    pub fn replace(&self, value: u64) -> u64 {
        self.0.swap(value, Relaxed)
    }

    /// Its value.
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// State and actions of the agents for assisted flows.
#[derive(Debug, Default)]
pub struct AssistBook {
    /// Directions of flows that the agents keep state for.
    pub flows: Counter,
    /// Unit: bytes. Size of its cache.
    pub cached: Counter,
    counts: Mutex<BTreeMap<&'static str, u64>>,
}

impl AssistBook {
    /// Records the agents' actions, under their own names.
    pub fn count(&self, counts: impl IntoIterator<Item = (&'static str, u64)>) {
        let mut own = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        own.extend(counts);
    }

    /// The agents' actions.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// One worker's counters.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Flows taken from the wire or requested.
    pub flows: Counter,
    /// Flows of a data plane that was killed, which go on.
    pub adopted: Counter,
    /// Flows of a data plane that was killed, which did not go on.
    pub lost: Counter,
    /// Flows that have moved to another machine.
    pub moved_away: Counter,
    /// Flows that have moved here.
    pub moved_here: Counter,
    /// Flows that were reset because they could not move, and not stay.
    pub lost_in_moving: Counter,
    /// Flows whose two ends both ended their streams.
    pub ended: Counter,
    /// Flows that the client reset.
    pub reset_by_client: Counter,
    /// Flows that the server reset.
    pub reset_by_server: Counter,
    /// Flows with an end that did not respond any more.
    pub dead: Counter,
    /// Flows that the far side refused.
    pub refused: Counter,
    /// Flows whose far side could not be reached.
    pub unreachable: Counter,
    /// Flows whose far side never responded.
    pub timed_out: Counter,
    /// Flows whose far side was not opened because of a fault of this host, or because the client left.
    pub local_failures: Counter,
    /// Flows that a rule let pass by.
    pub bypassed_by_rule: Counter,
    /// Flows that passed by because a limit was reached, or descriptors or ports were missing.
    pub bypassed_by_limit: Counter,
    /// Which limit that was.
    pub limits: LimitsReached,
    /// Flows that passed by because handshakes failed in general, or because this one's far side
    /// did not respond.
    pub bypassed_by_watchdog: Counter,
    /// Flows that pass by and are assisted.
    pub assisted: Counter,
    /// How they are assisted.
    pub assist: AssistBook,
    /// Flows that a rule rejected.
    pub rejected: Counter,
    /// Flows that peers requested to targets that are not permitted.
    pub forbidden: Counter,
    /// Flows that peers requested in the name of clients that are not theirs.
    pub disbelieved: Counter,
    /// Flows and connections that peers requested beyond their limits.
    pub excessive: Counter,
    /// Handshakes of unknown clients that had to prove their address, because there were many.
    pub retried_handshakes: Counter,
    /// Handshakes that got no response, because there were too many.
    pub dropped_handshakes: Counter,
    /// Flows through tunnels that have gone on with another carrier.
    pub resumed: Counter,
    /// Flows that could have been resumed, but were not in time, or were not known any more.
    pub not_resumed: Counter,
    /// Requests of peers to resume flows that were refused.
    pub resumptions_refused: Counter,
    /// Flows that wait for another carrier now.
    pub waiting_flows: Counter,
    /// Requests of peers for anything but a flow, malformed requests, and incomplete ones.
    pub unserved: Counter,
    /// Unit: bytes. From clients to servers.
    pub bytes_up: Counter,
    /// Unit: bytes. From servers to clients.
    pub bytes_down: Counter,
    /// Clients whose SYN waits for the far side now.
    pub held: Counter,
    /// SYNs that were retransmitted while the first one waited.
    pub repeated_syns: Counter,
    /// How often a direction had to wait because all flows together held the limit.
    pub memory_waits: Counter,
    /// Number of times a receive buffer was set because memory was short.
    pub windows_bounded: Counter,
    /// Datagrams received on this worker's sockets of tunnels.
    pub datagrams: Counter,
    /// Datagrams that belonged to other workers' connections and were handed to them.
    pub handed_datagrams: Counter,
    /// The counters of clients' prefixes.
    prefixes: Arc<Prefixes>,
    legs: Mutex<BTreeMap<String, LegBook>>,
    peers: Mutex<BTreeMap<String, PeerBook>>,
    /// Handshakes that this end refused: how many by reason, and the last one.
    refusals: Mutex<Refusals>,
    live: Mutex<BTreeMap<usize, Arc<FlowBook>>>,
}

impl Ledger {
    /// A ledger that shares the counters of clients' prefixes.
    pub fn with_prefixes(prefixes: Arc<Prefixes>) -> Self {
        Self { prefixes, ..Self::default() }
    }

    /// The counters for a flow's bytes: up and down.
    pub fn books<'a>(&'a self, book: &'a FlowBook) -> [Books<'a>; 2] {
        [
            Books { flow: &book.up, all: &self.bytes_up },
            Books { flow: &book.down, all: &self.bytes_down },
        ]
    }

    /// Books a flow that passes by because a limit was reached.
    pub fn book_limit(&self, limit: Limit) {
        self.bypassed_by_limit.add(1);
        self.limits.of(limit).add(1);
    }

    /// Books an attempt to open a far side that failed.
    pub fn book_failure(&self, failure: &Failure) {
        match failure.refusal {
            Some(Refusal::Reset) => self.refused.add(1),
            Some(Refusal::Unreachable(_)) => self.unreachable.add(1),
            Some(Refusal::Silence) => self.timed_out.add(1),
            None => self.local_failures.add(1),
        }
    }

    /// Books a flow whose two sides are open.
    pub fn open(&self, mut book: FlowBook) -> Arc<FlowBook> {
        book.prefix = self.prefixes.enter(book.ends.client.ip());
        let book = Arc::new(book);
        for party in [&book.client_leg, &book.server_leg] {
            self.with_leg(&party.name, |leg| leg.connections += 1);
        }
        lock(&self.live).insert(Arc::as_ptr(&book).addr(), book.clone());
        book
    }

    /// Books the kernel's statistics of a flow's socket on one side. Called at intervals, and at
    /// the flow's end.
    pub fn sample(&self, book: &FlowBook, side: Side, stream: &TcpStream) -> Option<Sample> {
        let sample = Sample::of(stream)?;
        if sample.is_measured() {
            let (resent, fresh) = book.measured(side).follow(&sample, book.since.elapsed());
            if book.party(side.other()).is_tunnel {
                book.source.follow(&sample, book.since.elapsed());
            }
            self.with_leg(&book.party(side).name, |leg| {
                leg.add(sample.rtt_us, sample.rtt_min_us, resent, fresh)
            });
        }
        Some(sample)
    }

    /// Books the present state of an open tunnel, the `number`th of the process. The packets that
    /// QUIC counts as lost are booked as retransmissions.
    pub fn measured(&self, peer: &str, number: u64, at: Tunnel) {
        let micros = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        let before = with(&self.peers, peer, |book| {
            let before = book.open.insert(number, at.clone());
            if before.is_none() {
                book.opened += 1;
                book.tcp_opened += u64::from(at.is_tcp);
            }
            before
        });
        let (sent, lost) = before.map_or((0, 0), |it| (it.sent_packets, it.lost_packets));
        let lost = at.lost_packets.saturating_sub(lost);
        let fresh = Segments { sent: at.sent_packets.saturating_sub(sent), ..Segments::default() };
        self.with_leg(peer, |leg| leg.add(micros(at.rtt), micros(at.rtt_min), lost, fresh));
    }

    /// Books the carrier of new flows to a peer, to which a tunnel is open.
    pub fn carried_by(&self, peer: &str, carrier: Carrier) {
        let is_quic = |carrier| carrier == Carrier::Quic;
        with(&self.peers, peer, |book| {
            let before = book.carrier.replace(carrier);
            let other = before.is_some_and(|before| is_quic(before) != is_quic(carrier));
            book.carrier_changes += u64::from(other);
            book.retry_pause = None;
        });
    }

    /// Books that TCP is tried because UDP may be throttled.
    pub fn tries_tcp(&self, peer: &str) {
        with(&self.peers, peer, |book| book.tcp_trials += 1);
    }

    /// Books that TCP was tried in vain: it carried no more than QUIC.
    pub fn tried_tcp_in_vain(&self, peer: &str) {
        with(&self.peers, peer, |book| book.vain_tcp_trials += 1);
    }

    /// Books the expiry of the certificates that a peer has presented. Unit: seconds since 1970.
    pub fn showed(&self, peer: &str, until: Option<i64>) {
        with(&self.peers, peer, |book| book.certificate_until = until);
    }

    /// Books that a tunnel to a peer could not be opened, and the pause before the next attempt.
    pub fn missed(&self, peer: &str, trouble: PeerTrouble, pause: Duration) {
        with(&self.peers, peer, |book| {
            book.trouble = Some(trouble);
            book.open_failures += 1;
            book.retry_pause = Some(pause);
        });
    }

    /// Books a handshake that this end refused; `peer` if the certificate has a known peer's name.
    pub fn book_refusal(&self, peer: Option<&str>, trouble: &PeerTrouble) {
        let mut refusals = lock(&self.refusals);
        *refusals.counts.entry(trouble.reason).or_default() += 1;
        refusals.last = Some(trouble.clone());
        drop(refusals);
        if let Some(peer) = peer {
            with(&self.peers, peer, |book| book.trouble = Some(trouble.clone()));
        }
    }

    /// The handshakes that this end refused.
    pub fn refusals(&self) -> Refusals {
        lock(&self.refusals).clone()
    }

    /// Books that a tunnel was ended because its peer violated the protocol.
    pub fn broke_rule(&self, peer: &str) {
        with(&self.peers, peer, |book| book.violations += 1);
    }

    /// Books that a tunnel has closed.
    pub fn gone(&self, peer: &str, number: u64) {
        with(&self.peers, peer, |book| {
            if let Some(last) = book.open.remove(&number) {
                book.sent_packets += last.sent_packets;
                book.lost_packets += last.lost_packets;
                book.repaired.add(&last.repaired);
            }
        });
    }

    /// Each peer that a tunnel was ever open to, by name.
    pub fn peers(&self) -> BTreeMap<String, PeerBook> {
        lock(&self.peers).clone()
    }

    /// Tunnels that are open.
    pub fn tunnels(&self) -> u64 {
        lock(&self.peers).values().map(|book| book.open.len() as u64).sum()
    }

    /// Books a flow that has ended.
    pub fn close(&self, book: &Arc<FlowBook>, carried: &RelayOutcome) {
        self.forget(book);
        let how = match &carried.outcome {
            Ok(_) => &self.ended,
            Err(broken) => match (broken.error.kind(), broken.side) {
                (ErrorKind::TimedOut | ErrorKind::HostUnreachable, _) => &self.dead,
                (_, Side::Client) => &self.reset_by_client,
                (_, Side::Server) => &self.reset_by_server,
            },
        };
        how.add(1);
    }

    /// Books that a flow has moved to another machine.
    pub fn leave(&self, book: &Arc<FlowBook>) {
        self.forget(book);
        self.moved_away.add(1);
    }

    fn forget(&self, book: &Arc<FlowBook>) {
        lock(&self.live).remove(&Arc::as_ptr(book).addr());
        let mut legs = lock(&self.legs);
        book.settle(&mut legs);
        for party in [&book.client_leg, &book.server_leg] {
            if let Some(leg) = legs.get_mut(&*party.name) {
                leg.connections -= 1;
            }
        }
        drop(legs);
        book.prefix.flows.sub(1);
    }

    /// The present flows. Those that begin or end meanwhile may be missing, or still included.
    pub fn live(&self) -> Vec<Arc<FlowBook>> {
        self.slices().flatten().collect()
    }

    /// Measures the speed of each live flow since the last call. Only one observer may call this.
    pub fn observe(&self) {
        for book in self.slices().flatten() {
            book.speed.observe(book.up.value(), book.down.value(), book.since.elapsed());
        }
    }

    /// Each leg that a flow has used, by name, with what live flows have carried so far.
    pub fn legs(&self) -> BTreeMap<String, LegBook> {
        for slice in self.slices() {
            let mut legs = lock(&self.legs);
            slice.iter().for_each(|book| book.settle(&mut legs));
        }
        lock(&self.legs).clone()
    }

    /// The live flows, in slices.
    fn slices(&self) -> impl Iterator<Item = Vec<Arc<FlowBook>>> {
        let mut last = None;
        std::iter::from_fn(move || {
            let after = last.map_or(Unbounded, Excluded);
            let live = lock(&self.live);
            let slice: Vec<_> =
                live.range((after, Unbounded)).take(SLICE).map(|(_, book)| book.clone()).collect();
            drop(live);
            last = Some(Arc::as_ptr(slice.last()?).addr());
            Some(slice)
        })
    }

    fn with_leg(&self, name: &str, book: impl FnOnce(&mut LegBook)) {
        with(&self.legs, name, book);
    }
}

/// Handshakes that this end refused.
#[derive(Debug, Clone, Default)]
pub struct Refusals {
    /// How many, by reason.
    pub counts: BTreeMap<&'static str, u64>,
    /// The last one.
    pub last: Option<PeerTrouble>,
}

/// The tunnels to one peer.
#[derive(Debug, Clone, Default)]
pub struct PeerBook {
    /// The open tunnels, with the last known state of each.
    pub open: BTreeMap<u64, Tunnel>,
    /// Tunnels that were opened.
    pub opened: u64,
    /// Tunnels over TCP, of these.
    pub tcp_opened: u64,
    /// Failed attempts to open one.
    pub open_failures: u64,
    /// The pause before the next attempt, after a failed one.
    pub retry_pause: Option<Duration>,
    /// Packets sent into closed tunnels.
    pub sent_packets: u64,
    /// Packets of these that were lost.
    pub lost_packets: u64,
    /// Repairs in closed tunnels.
    pub repaired: Repaired,
    /// The carrier of new flows, at the end that opens tunnels.
    pub carrier: Option<Carrier>,
    /// Number of changes from QUIC to TCP, or back.
    pub carrier_changes: u64,
    /// Trials of TCP because UDP may be throttled.
    pub tcp_trials: u64,
    /// Trials in which TCP carried no more.
    pub vain_tcp_trials: u64,
    /// Tunnels that this end has closed because the peer violated the protocol.
    pub violations: u64,
    /// Unit: seconds since 1970. The expiry of the certificates that it presented last: the
    /// earliest of them.
    pub certificate_until: Option<i64>,
    /// The last failure between it and this end.
    pub trouble: Option<PeerTrouble>,
}

/// The state of an open tunnel.
#[derive(Debug, Clone, Default)]
pub struct Tunnel {
    /// Smoothed.
    pub rtt: Duration,
    /// The shortest seen.
    pub rtt_min: Duration,
    /// What may be in flight.
    pub window: Bytes,
    /// Its send rate, headers included; none: only the window limits it.
    pub rate: Option<Rate>,
    /// The rate that the link was found to carry instead of the configured one, headers included;
    /// none: the configured one is used.
    pub carried: Option<Rate>,
    /// The rate that its modem reports now.
    pub reported: Option<Rate>,
    /// What is in flight.
    pub in_flight: Bytes,
    /// Flows.
    pub streams: u64,
    /// Packets sent so far.
    pub sent_packets: u64,
    /// Packets lost so far.
    pub lost_packets: u64,
    /// Repairs so far.
    pub repaired: Repaired,
    /// Whether it is over TCP.
    pub is_tcp: bool,
    /// Whether it accepts no new flows.
    pub is_closing: bool,
}

/// Costs and gains of repairs below QUIC.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Repaired {
    /// Repairs sent.
    pub sent: u64,
    /// Datagrams of the peer that its repairs have recovered.
    pub given_back: u64,
    /// Sent bytes that repairs may cover.
    pub protected: Bytes,
    /// Bytes that repairs and loss reports added.
    pub added: Bytes,
    /// The part of sent datagrams that the peer has lately not received, before repairs.
    pub missed: f64,
}

impl From<(Stats, f64)> for Repaired {
    fn from((stats, missed): (Stats, f64)) -> Self {
        Self {
            sent: stats.repairs_sent,
            given_back: stats.repaired,
            protected: Bytes::new(stats.source_bytes_sent),
            added: Bytes::new(stats.extra_bytes_sent),
            missed,
        }
    }
}

impl Repaired {
    /// Adds another tunnel's. The loss is taken from the last one added, which is the newest.
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.given_back += other.given_back;
        self.protected += other.protected;
        self.added += other.added;
        self.missed = other.missed;
    }
}

/// Opens the book of one name.
fn with<B: Default, R>(
    books: &Mutex<BTreeMap<String, B>>,
    name: &str,
    book: impl FnOnce(&mut B) -> R,
) -> R {
    let mut books = lock(books);
    match books.get_mut(name) {
        Some(own) => book(own),
        None => book(books.entry(name.to_owned()).or_default()),
    }
}

/// Counters stay valid after a panic elsewhere.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
