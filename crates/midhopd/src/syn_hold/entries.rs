//! The flows between SYN and acceptance, of all workers: the kernel may deliver a client to another
//! worker than the one that saw its SYN.
//!
//! Invariants: no table exceeds its bound, whatever SYNs arrive. One source or one target never
//! takes all places. A quarter of the places is reserved for sources that have completed a
//! handshake before.

use super::Known;
use super::living::{Life, Living};
use super::proven::Proven;
use crate::ends::Ends;
use midhop_pep::answered::Answered;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// Time for a client that was let in to complete its handshake. Longer than a listener retransmits
/// its SYN-ACK.
const PATIENCE: Duration = Duration::from_secs(20);
/// Minimum time that a client that was let in keeps its place: until its listener gives the
/// handshake up. So the listeners' SYN queues are bounded. Beyond a full queue the kernel would
/// send SYN cookies, which do not work for addresses that are not this host's.
const SETTLED: Duration = Duration::from_secs(8);
/// Maximum of servers' classes of service that are kept for their flows. When it is reached, all
/// are forgotten.
const CLASSES: usize = 4096;
/// Maximum of SYNs that are remembered as passed by. When it is reached, all are forgotten.
const PASSED: usize = 1 << 14;
/// Maximum of absent clients that are forgotten in one go: each closes a socket.
const SWEPT: usize = 256;
/// As long as a client retransmits its SYN.
const REMEMBERED: Duration = Duration::from_secs(130);
/// A held SYN whose far side has not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Its sequence number.
    pub sequence: u32,
    /// The number of its queue: only the worker of that queue may decide on it.
    pub queue: u16,
    /// Its number in the queue.
    pub packet: u32,
    /// Its firewall mark.
    pub mark: u32,
    /// The SYN to inject for it.
    pub syn: Vec<u8>,
    /// The addresses and ports of the attempt to open its far side.
    pub leaving: Ends,
}

#[derive(Debug)]
enum Entry {
    Asking {
        waiting: Waiting,
        /// Number of the client's retransmissions.
        repeats: u32,
        attempt: Option<AbortHandle>,
    },
    /// The client may be accepted.
    Ready(Box<Known>),
}

/// What a SYN finds for its flow.
#[derive(Debug, PartialEq, Eq)]
pub enum Met {
    /// No flow: it is the first SYN.
    Nothing,
    /// The same SYN, which waits; with the number of its retransmissions.
    Itself(u32),
    /// An older SYN of the same addresses and ports, with another sequence number. The new one has
    /// taken its place.
    Older(Waiting),
    /// The same flow in another queue: NAT has given this SYN another port.
    Elsewhere,
    /// A flow whose client may be accepted.
    Ready,
    /// A flow whose client was accepted.
    Living,
}

/// There is no place for a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// All flows between SYN and acceptance.
#[derive(Debug, Default)]
pub struct Entries {
    state: Mutex<State>,
    classes: Mutex<HashMap<Ends, u8>>,
    passed: Mutex<HashMap<Ends, (u32, Instant)>>,
    answered: Mutex<Answered<SocketAddr, Instant>>,
    proven: Proven,
    living: Arc<Living>,
}

#[derive(Debug, Default)]
struct State {
    flows: HashMap<Ends, Placed>,
    /// Flows of sources that have never completed a handshake.
    unknown: Class,
    /// Flows of sources that have completed one.
    proven: Class,
    sources: HashMap<IpAddr, usize>,
    targets: HashMap<IpAddr, usize>,
}

#[derive(Debug)]
struct Placed {
    entry: Entry,
    /// Whether its source had completed a handshake before.
    is_proven: bool,
}

/// The flows of one kind of source.
#[derive(Debug, Default)]
struct Class {
    asking: usize,
    ready: usize,
    /// The ready flows in the order in which they became ready. Some of them may be gone.
    order: VecDeque<(Ends, Instant)>,
}

impl Entries {
    /// What a SYN of these `ends` finds. If it takes an older SYN's place, it waits from now on.
    pub fn meet(&self, ends: Ends, waiting: &Waiting) -> Met {
        match self.state().flows.get_mut(&ends).map(|placed| &mut placed.entry) {
            None if self.living.has(&ends) => Met::Living,
            None => Met::Nothing,
            Some(Entry::Asking { waiting: own, .. }) if own.queue != waiting.queue => {
                Met::Elsewhere
            }
            Some(Entry::Asking { waiting: own, repeats, .. })
                if own.sequence == waiting.sequence =>
            {
                *repeats += 1;
                Met::Itself(*repeats)
            }
            Some(Entry::Asking { waiting: own, .. }) => {
                let leaving = own.leaving;
                Met::Older(std::mem::replace(own, Waiting { leaving, ..waiting.clone() }))
            }
            Some(Entry::Ready(_)) => Met::Ready,
        }
    }

    /// Whether there is a place for a flow, before anything is opened for it. If there is none, the
    /// oldest client that was let in and was never accepted loses its place.
    pub fn has_place(&self, ends: &Ends, limit: usize, now: Instant) -> bool {
        let is_proven = self.proven.has(ends.client.ip(), now);
        let mut state = self.state();
        let evicted = state.make_room(is_proven, limit, now);
        let has_place = state.has_part(ends, limit) && state.has_room(is_proven, limit);
        // The sockets are closed without the lock.
        drop(state);
        drop(evicted);
        has_place
    }

    /// Makes a SYN wait for its flow's far side.
    ///
    /// # Errors
    /// When there is no place, or the source or the target has used up its share.
    pub fn wait(
        &self,
        ends: Ends,
        waiting: Waiting,
        limit: usize,
        now: Instant,
    ) -> Result<(), Full> {
        let is_proven = self.proven.has(ends.client.ip(), now);
        let mut state = self.state();
        state.count(ends, is_proven, limit)?;
        state.class(is_proven).asking += 1;
        let entry = Entry::Asking { waiting, repeats: 0, attempt: None };
        state.flows.insert(ends, Placed { entry, is_proven });
        Ok(())
    }

    /// Records the task that opens the far side of a waiting SYN.
    pub fn asked_by(&self, ends: &Ends, handle: AbortHandle) {
        let mut state = self.state();
        let placed = state.flows.get_mut(ends);
        if let Some(Placed { entry: Entry::Asking { attempt, .. }, .. }) = placed {
            *attempt = Some(handle);
        }
    }

    /// Aborts the attempt to open a far side. Returns the SYN that waited for it, and the task.
    pub fn let_go(&self, ends: &Ends) -> Option<(Waiting, Option<AbortHandle>)> {
        let (waiting, attempt) = self.take_asking(ends)?;
        if let Some(attempt) = &attempt {
            attempt.abort();
        }
        Some((waiting, attempt))
    }

    /// Records a SYN that passes by, under its addresses as it leaves.
    pub fn pass(&self, leaving: Ends, sequence: u32, now: Instant) {
        let mut passed = lock(&self.passed);
        if passed.len() >= PASSED {
            passed.clear();
        }
        passed.insert(leaving, (sequence, now));
    }

    /// Whether this SYN has passed by before.
    pub fn has_passed(&self, leaving: &Ends, sequence: u32, now: Instant) -> bool {
        let passed = lock(&self.passed);
        let own = passed.get(leaving).filter(|(own, _)| *own == sequence);
        own.is_some_and(|(_, at)| now.duration_since(*at) < REMEMBERED)
    }

    /// The far side has answered, and the SYN does not wait any longer. Returns that SYN.
    pub fn answered(&self, ends: &Ends) -> Option<Waiting> {
        self.take_asking(ends).map(|(waiting, _)| waiting)
    }

    fn take_asking(&self, ends: &Ends) -> Option<(Waiting, Option<AbortHandle>)> {
        let mut state = self.state();
        let placed = state.flows.get(ends)?;
        if !matches!(placed.entry, Entry::Asking { .. }) {
            return None;
        }
        match state.remove(ends)? {
            Entry::Asking { waiting, attempt, .. } => Some((waiting, attempt)),
            Entry::Ready(_) => None,
        }
    }

    /// Keeps what is known of a flow until its client is accepted.
    ///
    /// # Errors
    /// When there is no place, or the source or the target has used up its share.
    pub fn ready(&self, ends: Ends, known: Known, limit: usize) -> Result<(), Full> {
        let is_proven = self.proven.has(ends.client.ip(), known.since);
        let mut state = self.state();
        state.count(ends, is_proven, limit)?;
        state.enter_ready(ends, known, is_proven);
        Ok(())
    }

    /// A far side has accepted: what is known of the flow takes the place of its SYN, which is
    /// returned. None: the SYN has gone before.
    pub fn accepted(&self, ends: Ends, known: Known) -> Option<Waiting> {
        let mut state = self.state();
        let Some(Placed { entry: Entry::Asking { .. }, is_proven }) = state.flows.get(&ends) else {
            return None;
        };
        let is_proven = *is_proven;
        let Placed { entry, .. } = state.flows.remove(&ends)?;
        state.class(is_proven).asking -= 1;
        state.enter_ready(ends, known, is_proven);
        match entry {
            Entry::Asking { waiting, .. } => Some(waiting),
            Entry::Ready(_) => None,
        }
    }

    /// Hands over what is known of a flow whose client has been accepted.
    pub fn take(&self, ends: &Ends, now: Instant) -> Option<Known> {
        let mut state = self.state();
        if !matches!(state.flows.get(ends)?.entry, Entry::Ready(_)) {
            // This client was not let in for this entry, which stays.
            return None;
        }
        let Entry::Ready(mut known) = state.remove(ends)? else { return None };
        // This happens under the lock, so the flow is always found in one of the two.
        known.life = Some(self.living.begin(*ends));
        drop(state);
        self.proven.note(ends.client.ip(), now);
        Some(*known)
    }

    /// Records a live flow that another process has opened.
    pub fn revive(&self, ends: Ends) -> Life {
        self.living.begin(ends)
    }

    /// The life of a flow that comes from another machine. None: there is a flow between these ends.
    pub fn begin_elsewhere(&self, ends: Ends) -> Option<Life> {
        (!self.living.has(&ends)).then(|| self.living.begin(ends))
    }

    /// Forgets a flow whose client was not accepted yet.
    pub fn forget(&self, ends: &Ends) {
        let mut state = self.state();
        let is_ready = |placed: &Placed| matches!(placed.entry, Entry::Ready(_));
        let gone = state.flows.get(ends).is_some_and(is_ready).then(|| state.remove(ends));
        // The sockets are closed without the lock.
        drop(state);
        drop(gone);
    }

    /// Forgets clients that were let in and not accepted in time.
    pub fn sweep(&self, now: Instant) {
        let mut state = self.state();
        let mut gone = Vec::new();
        for is_proven in [false, true] {
            while gone.len() < SWEPT {
                let Some(&(ends, since)) = state.class(is_proven).order.front() else { break };
                if state.is_current(&ends, since) {
                    if now.duration_since(since) < PATIENCE {
                        break;
                    }
                    gone.extend(state.remove(&ends));
                }
                // `remove` may have cleaned `order` already.
                let order = &mut state.class(is_proven).order;
                if order.front() == Some(&(ends, since)) {
                    order.pop_front();
                }
            }
        }
        drop(state);
        drop(gone);
    }

    /// Number of flows whose far side has not answered, and of those whose client is not accepted
    /// yet.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.state();
        (state.asking(), state.ready())
    }

    /// Records the class of service of a server's SYN-ACK, under the flow's addresses as it leaves
    /// this host.
    pub fn note_class(&self, leaving: Ends, class: u8) {
        let mut classes = lock(&self.classes);
        if classes.len() >= CLASSES {
            classes.clear();
        }
        classes.insert(leaving, class);
    }

    /// The class of service of the server's SYN-ACK; 0 if none is recorded.
    pub fn take_class(&self, leaving: &Ends) -> u8 {
        lock(&self.classes).remove(leaving).unwrap_or(0)
    }

    /// Records whether a target accepts connections.
    pub fn learn(&self, target: SocketAddr, accepts: bool, now: Instant) {
        lock(&self.answered).learn(target, accepts, now);
    }

    /// Whether a target has accepted a connection within this time.
    pub fn accepts(&self, target: &SocketAddr, within: Duration, now: Instant) -> bool {
        lock(&self.answered).accepts(target, |at| now.duration_since(at) < within)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn class(&mut self, is_proven: bool) -> &mut Class {
        if is_proven { &mut self.proven } else { &mut self.unknown }
    }

    fn asking(&self) -> usize {
        self.unknown.asking + self.proven.asking
    }

    fn ready(&self) -> usize {
        self.unknown.ready + self.proven.ready
    }

    fn has_room(&self, is_proven: bool, limit: usize) -> bool {
        let has_unknown = self.unknown.asking + self.unknown.ready;
        self.asking() + self.ready() < limit && (is_proven || has_unknown < for_unknown(limit))
    }

    /// If there is no room, removes the oldest client that was let in, of unknown sources first.
    fn make_room(&mut self, is_proven: bool, limit: usize, now: Instant) -> Option<Entry> {
        if self.has_room(is_proven, limit) {
            return None;
        }
        for of_proven in [false, true] {
            while let Some(&(ends, since)) = self.class(of_proven).order.front() {
                let is_current = self.is_current(&ends, since);
                if is_current && now.duration_since(since) < SETTLED {
                    break;
                }
                self.class(of_proven).order.pop_front();
                if is_current {
                    return self.remove(&ends);
                }
            }
        }
        None
    }

    fn enter_ready(&mut self, ends: Ends, known: Known, is_proven: bool) {
        let class = self.class(is_proven);
        class.order.push_back((ends, known.since));
        class.ready += 1;
        self.flows.insert(ends, Placed { entry: Entry::Ready(Box::new(known)), is_proven });
    }

    /// Whether the shares of a flow's source and target have places left.
    fn has_part(&self, ends: &Ends, limit: usize) -> bool {
        let has =
            |counts: &HashMap<IpAddr, usize>, address| counts.get(&address).copied().unwrap_or(0);
        has(&self.sources, source(ends.client.ip())) < part(limit, 8)
            && has(&self.targets, ends.server.ip()) < part(limit, 4)
    }

    /// Counts a flow for its source and its target.
    fn count(&mut self, ends: Ends, is_proven: bool, limit: usize) -> Result<(), Full> {
        if !self.has_part(&ends, limit) || !self.has_room(is_proven, limit) {
            return Err(Full);
        }
        *self.sources.entry(source(ends.client.ip())).or_default() += 1;
        *self.targets.entry(ends.server.ip()).or_default() += 1;
        Ok(())
    }

    fn remove(&mut self, ends: &Ends) -> Option<Entry> {
        let Placed { entry, is_proven } = self.flows.remove(ends)?;
        let class = if is_proven { &mut self.proven } else { &mut self.unknown };
        match entry {
            Entry::Asking { .. } => class.asking -= 1,
            Entry::Ready(_) => class.ready -= 1,
        }
        uncount(&mut self.sources, source(ends.client.ip()));
        uncount(&mut self.targets, ends.server.ip());
        if class.order.len() > 2 * class.ready + 64 {
            let flows = &self.flows;
            class.order.retain(|(ends, since)| is_ready_since(flows, ends, *since));
        }
        Some(entry)
    }

    fn is_current(&self, ends: &Ends, since: Instant) -> bool {
        is_ready_since(&self.flows, ends, since)
    }
}

fn is_ready_since(flows: &HashMap<Ends, Placed>, ends: &Ends, since: Instant) -> bool {
    let placed = flows.get(ends);
    matches!(placed, Some(Placed { entry: Entry::Ready(known), .. }) if known.since == since)
}

fn uncount(counts: &mut HashMap<IpAddr, usize>, address: IpAddr) {
    if let Some(count) = counts.get_mut(&address) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&address);
        }
    }
}

/// The source that an address is counted for. For IPv6 it is the /64 prefix, in which one host may
/// have any number of addresses.
pub(super) fn source(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) >> 64 << 64).into(),
    }
}

/// The places that sources without a completed handshake may take together.
fn for_unknown(limit: usize) -> usize {
    limit - limit / 4
}

/// The share of one source or target. Very few places are not divided.
fn part(limit: usize, parts: usize) -> usize {
    (limit / parts).max(4).min(limit)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_pep::config::Plan;

    fn ends(client: [u8; 4], server: [u8; 4]) -> Ends {
        Ends { client: (client, 5).into(), server: (server, 80).into() }
    }

    fn waiting(sequence: u32) -> Waiting {
        let leaving = ends([10, 0, 0, 1], [10, 0, 0, 2]);
        Waiting { sequence, queue: 0, packet: 1, mark: 0, syn: Vec::new(), leaving }
    }

    fn known() -> Known {
        let plan = Plan::read("test.toml", "[intercept]\ninterfaces = \"lan0\"").expect("a plan");
        Known::for_test(&plan, ends([10, 0, 0, 1], [10, 0, 0, 2]))
    }

    #[test]
    fn a_repeated_syn_meets_itself_and_a_new_one_takes_its_place() {
        let entries = Entries::default();
        let ends = ends([10, 0, 0, 1], [10, 0, 0, 2]);
        assert_eq!(entries.meet(ends, &waiting(1)), Met::Nothing);
        entries.wait(ends, waiting(1), 16, Instant::now()).expect("a place");
        assert_eq!(entries.meet(ends, &waiting(1)), Met::Itself(1));
        assert_eq!(entries.meet(ends, &waiting(1)), Met::Itself(2));
        assert_eq!(entries.meet(ends, &Waiting { queue: 1, ..waiting(2) }), Met::Elsewhere);
        assert_eq!(entries.meet(ends, &waiting(2)), Met::Older(waiting(1)));
        assert_eq!(entries.answered(&ends), Some(waiting(2)));
        assert_eq!(entries.counts(), (0, 0));
    }

    #[test]
    fn a_syn_of_a_flow_that_lives_opens_no_other() {
        let entries = Entries::default();
        let ends = ends([10, 0, 0, 1], [10, 0, 0, 2]);
        entries.ready(ends, known(), 16).expect("a place");
        assert_eq!(entries.meet(ends, &waiting(1)), Met::Ready);
        let flow = entries.take(&ends, Instant::now()).expect("its client has come");
        assert_eq!(entries.meet(ends, &waiting(1)), Met::Living);
        entries.ready(ends, known(), 16).expect("a place");
        let next = entries.take(&ends, Instant::now()).expect("its client has come");
        drop(flow);
        assert_eq!(entries.meet(ends, &waiting(1)), Met::Living);
        drop(next);
        assert_eq!(entries.meet(ends, &waiting(1)), Met::Nothing);
    }

    #[test]
    fn no_source_and_no_target_has_all_places() {
        let entries = Entries::default();
        let taken = (0..255).filter(|port| {
            let mut ends = ends([10, 0, 0, 1], [10, 0, 1, *port]);
            ends.client.set_port(u16::from(*port));
            entries.wait(ends, waiting(1), 64, Instant::now()).is_ok()
        });
        assert_eq!(taken.count(), 8);
        let taken = (0..255).filter(|host| {
            entries
                .wait(ends([10, 0, 2, *host], [10, 0, 3, 1]), waiting(1), 64, Instant::now())
                .is_ok()
        });
        assert_eq!(taken.count(), 16);
        entries
            .wait(ends([10, 0, 4, 1], [10, 0, 4, 2]), waiting(1), 64, Instant::now())
            .expect("a place for others");
    }

    #[test]
    fn clients_that_never_come_make_room() {
        let (entries, now) = (Entries::default(), Instant::now());
        let flow = |host| ends([10, 0, host, 1], [10, 1, host, 1]);
        let taken = (0..=255).filter(|host| entries.ready(flow(*host), known(), 16).is_ok());
        assert_eq!(taken.count(), 12, "the others are for sources that came before");
        assert_eq!(entries.counts(), (0, 12));
        assert!(!entries.has_place(&flow(200), 16, now), "they may still come");
        assert!(entries.has_place(&flow(200), 16, now + SETTLED + PATIENCE / 10));
        entries.ready(flow(200), known(), 16).expect("the place of the oldest");
        assert!(
            entries.take(&flow(0), Instant::now()).is_none()
                && entries.take(&flow(11), Instant::now()).is_some()
        );
        entries.sweep(Instant::now() + PATIENCE);
        assert_eq!(entries.counts(), (0, 0));
        assert!(entries.state().sources.is_empty() && entries.state().targets.is_empty());
    }

    #[test]
    fn a_far_side_that_answers_keeps_its_place() {
        let entries = Entries::default();
        let flow = |host| ends([10, 0, host, 1], [10, 1, host, 1]);
        for host in 0..12 {
            entries.wait(flow(host), waiting(1), 16, Instant::now()).expect("a place");
        }
        assert_eq!(entries.accepted(flow(0), known()), Some(waiting(1)));
        assert_eq!(entries.accepted(flow(0), known()), None);
        assert_eq!(entries.counts(), (11, 1));
        assert_eq!(entries.wait(flow(20), waiting(1), 16, Instant::now()), Err(Full));
        assert!(entries.take(&flow(0), Instant::now()).is_some());
        entries.wait(flow(20), waiting(1), 16, Instant::now()).expect("a place");
    }

    #[test]
    fn strangers_cannot_have_the_places_of_those_who_came_before() {
        let entries = Entries::default();
        let customer = ends([10, 0, 0, 1], [10, 1, 0, 1]);
        entries.ready(customer, known(), 16).expect("a place");
        assert!(entries.take(&customer, Instant::now()).is_some(), "it completes its handshake");
        let stranger = |host| ends([10, 2, host, 1], [10, 3, host, 1]);
        let taken = (0..100)
            .filter(|host| entries.wait(stranger(*host), waiting(1), 16, Instant::now()).is_ok());
        assert_eq!(taken.count(), 12);
        let now = Instant::now();
        assert!(
            !entries.has_place(&stranger(200), 16, now) && entries.has_place(&customer, 16, now)
        );
        entries.wait(customer, waiting(1), 16, Instant::now()).expect("a place");
        assert!(entries.accepted(customer, known()).is_some());
        assert!(entries.ready(stranger(200), known(), 16).is_err());
        assert!(entries.take(&customer, Instant::now()).is_some());
    }

    #[test]
    fn what_was_learned_is_forgotten_in_time() {
        let entries = Entries::default();
        let target = "192.0.2.1:80".parse().expect("an address");
        entries.learn(target, true, Instant::now());
        assert!(entries.accepts(&target, Duration::from_secs(60), Instant::now()));
        assert!(!entries.accepts(&target, Duration::ZERO, Instant::now()));
        entries.learn(target, false, Instant::now());
        assert!(!entries.accepts(&target, Duration::from_secs(60), Instant::now()));
    }
}
