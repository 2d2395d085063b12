//! Assists flows that pass by whole: segments lost beyond some interfaces are retransmitted from here, and their
//! acknowledgements are thinned or spaced.
//!
//! The kernel hands over every packet of such a flow, in both directions, after the administrator's rules have
//! decided and translated. Agents process it: those of the crate `assist`, which the simulator and the laboratory
//! also use. A packet goes on unchanged, or it is dropped. Its replacement, delayed packets and retransmissions leave
//! by a raw socket.
//!
//! Invariants: every packet taken from the queue gets exactly one verdict. Payload is forwarded unchanged. No end
//! receives an acknowledgement for what has not arrived. `[assist]` bounds what the agents keep, for any sender. On
//! any failure here packets pass: the flow is not assisted, but it works.
//!
//! Decision 0036.

mod met;
mod peer;
pub mod translated;

use midhop_linux::nfqueue::Packet;
pub use peer::{AssistPeerError, Peer, secret};
use translated::Translated;

use crate::intercept::{self, Injector, Queue};
use crate::leg::InterfaceNames;
use crate::worker::Worker;
use met::MetPacket;
use midhop_assist::{
    AckDecimation, AckSpacing, Action, Actions, Agent, DProxy, DProxySettings, Heading, Row, Snoop,
    SnoopSettings,
};
use midhop_pep::config::{Assist, Repairer};
use midhop_units::Instant;
use nix::libc;
use peer::WatchedPeer;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{self, Duration};
use tokio::time::{MissedTickBehavior, interval, sleep_until};

/// Interval at which it checks whether sent packets leave this host.
const LOOK: Duration = Duration::from_secs(1);
/// Looks in a row without a leaving packet, after which flows pass without assistance.
const SILENT_LOOKS: u32 = 2;
/// Number of looks until the next attempt.
const REST_LOOKS: u32 = 60;

/// The entrance of packets of assisted flows.
#[derive(Debug)]
pub struct AssistDoor {
    /// The queue in which they wait.
    pub queue: Queue,
    /// For reports to and from the daemon at the far end of the link.
    pub peer: Option<Peer>,
}

/// Limit of packets that wait to be sent. Unit: bytes.
const UNSENT_MAX: usize = 32 << 20;
/// Time until the next attempt to send them.
const AGAIN: midhop_units::Duration = midhop_units::Duration::from_ms(1);
/// Number of attempts at the end, and how long each waits for room. Unit: ms.
const LAST_TRIES: u32 = 50;
const LAST_WAIT: u8 = 20;

/// Serves the queue of assisted flows until the worker stops.
///
/// # Errors
/// When the runtime cannot watch the queue, the keeper does not take it, or the kernel gives no channel.
pub async fn assist(worker: Rc<Worker>, door: AssistDoor) -> io::Result<()> {
    let plan = worker.plan();
    let Some(injector) = worker.hold.raw().cloned() else { return Ok(()) };
    door.queue.hand_over()?;
    let queue = door.queue.watch()?;
    let peer = door.peer.map(Peer::watch).transpose()?;
    let table = intercept::open_table(&plan.intercept.instance)?;
    let mut helper = Helper::new(plan.assist.clone(), injector, peer);
    let begin = time::Instant::now();
    let now = || Instant::START + begin.elapsed().into();
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let due = helper.poll_timeout(now());
        let due = due.map(|due| begin + Duration::from(due.saturating_since(Instant::START)));
        let timer = async {
            match due {
                Some(due) => sleep_until(tokio::time::Instant::from_std(due)).await,
                None => std::future::pending().await,
            }
        };
        let reported = async {
            match &helper.peer {
                Some(peer) => peer.readable().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ready = queue.readable() => {
                match ready?.try_io(|queue| queue.get_ref().receive()) {
                    Ok(Ok(packets)) => {
                        for packet in packets {
                            helper.consider(now(), packet, &worker.hold.translated, queue.get_ref());
                        }
                        give(queue.get_ref());
                    }
                    Ok(Err(error)) => tracing::warn!(%error, "packets of assisted flows could not be read from the netfilter queue"),
                    Err(_would_block) => {}
                }
            }
            ready = reported => {
                ready?;
                helper.take_reports(now());
            }
            () = timer => helper.wake(now()),
            _ = looks.tick() => {
                helper.look(|| intercept::handshakes(&table).map(|counted| counted.mended));
                helper.book(&worker);
            }
        }
    }
}

/// Gives the kernel the verdicts that are due.
fn give(queue: &Queue) {
    if let Err(error) = queue.give() {
        tracing::warn!(%error, "verdicts could not be sent to the netfilter queue");
    }
}

/// The agents of a plan: first those that repair, then those that thin, then those that space acknowledgements.
fn row(plan: &Assist) -> Row<MetPacket> {
    let Assist { cache, threshold, timer_min, resends, flows, idle, .. } = *plan;
    // Snoop and D-Proxy get no report of drops in a queue beyond this host.
    let judges_queue = true;
    let repairer = match (plan.repair, &plan.peer) {
        (Repairer::Snoop, _) => Some(Agent::Snoop(Snoop::new(SnoopSettings {
            cache,
            threshold,
            timer_min,
            resends,
            judges_queue,
            flows,
            idle,
        }))),
        (Repairer::DProxy, Some(peer)) => Some(Agent::DProxy(DProxy::new(DProxySettings {
            cache,
            held: peer.held,
            hold: peer.hold,
            requests: peer.requests,
            judges_queue,
            flows,
            idle,
        }))),
        (Repairer::DProxy, None) | (Repairer::None, _) => None,
    };
    let thinner = plan.ack_decimation.as_ref().map(|it| AckDecimation::new(it.into()));
    let spacer = plan.ack_spacing.as_ref().map(|it| AckSpacing::new(it.into()));
    let acks = thinner.map(Agent::Decimation).into_iter().chain(spacer.map(Agent::Spacing));
    repairer.into_iter().chain(acks).collect()
}

/// Packets to be sent later, because the kernel has no room now.
#[derive(Default)]
struct Unsent {
    packets: VecDeque<MetPacket>,
    /// Unit: bytes.
    size: usize,
}

impl Unsent {
    /// Takes a packet, within the limit. Returns whether it did.
    fn push(&mut self, met: MetPacket) -> bool {
        if self.size + met.bytes.len() > UNSENT_MAX {
            return false;
        }
        self.size += met.bytes.len();
        self.packets.push_back(met);
        true
    }

    fn pop(&mut self) {
        if let Some(met) = self.packets.pop_front() {
            self.size -= met.bytes.len();
        }
    }
}

/// The agents and their state.
struct Helper {
    plan: Assist,
    row: Row<MetPacket>,
    actions: Actions<MetPacket>,
    injector: Arc<Injector>,
    peer: Option<WatchedPeer>,
    names: InterfaceNames,
    passage: Passage,
    unsent: Unsent,
    /// The packets that one turn sends: empty between turns, with room for the next.
    sent: Vec<MetPacket>,
}

/// The result of sending a packet.
enum Mended {
    Yes,
    /// The kernel refuses it.
    No,
    /// The kernel has no room for it now.
    NoRoom,
}

/// Sends a packet by the raw socket.
fn mend(injector: &Injector, met: &MetPacket, passage: &mut Passage) -> Mended {
    let outcome = injector.mend(&met.bytes, met.route.destination.ip(), met.egress);
    let Err(error) = outcome else {
        passage.sent += 1;
        return Mended::Yes;
    };
    if error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS) {
        return Mended::NoRoom;
    }
    tracing::debug!(%error, "a packet of an assisted flow could not be sent");
    passage.sent += 1;
    passage.failed += 1;
    Mended::No
}

/// Checks whether sent packets leave this host.
#[derive(Default)]
struct Passage {
    /// Packets that were given to the raw socket.
    sent: u64,
    /// Packets that the socket refused.
    failed: u64,
    /// Packets sent and gone at the last look, and the results of the looks in a row.
    before: (u64, u64),
    silent: u32,
    /// Looks for which flows pass without assistance, and how often that happened.
    rest: u32,
    rests: u64,
}

impl Helper {
    fn new(plan: Assist, injector: Arc<Injector>, peer: Option<WatchedPeer>) -> Self {
        Self {
            row: row(&plan),
            plan,
            actions: Actions::default(),
            injector,
            peer,
            names: InterfaceNames::default(),
            passage: Passage::default(),
            unsent: Unsent::default(),
            sent: Vec::new(),
        }
    }

    /// Gives a packet of the queue its verdict, and sends the resulting packets.
    fn consider(&mut self, now: Instant, packet: Packet, translated: &Translated, queue: &Queue) {
        self.send_rest();
        let queued = packet.id;
        let known = if self.passage.rest == 0 {
            let heading = self.heading(packet.egress);
            MetPacket::read(packet, heading, translated)
        } else {
            None
        };
        let passes = match known {
            Some(met) => {
                self.row.handle_packet(now, met, &mut self.actions);
                self.carry_out(Some((queued, queue)))
            }
            None => true,
        };
        let verdict = if passes { queue.pass(queued, None) } else { queue.drop(queued) };
        if let Err(error) = verdict {
            tracing::warn!(%error, "a verdict could not be sent to the netfilter queue");
        }
    }

    fn heading(&mut self, egress: u32) -> Heading {
        let name = self.names.of(egress);
        let leaves = name.is_some_and(|name| self.plan.interfaces.iter().any(|own| **own == *name));
        if leaves { Heading::Out } else { Heading::In }
    }

    /// When [`Helper::wake`] is to be called.
    fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let again = (!self.unsent.packets.is_empty()).then(|| now + AGAIN);
        self.row.poll_timeout().into_iter().chain(again).min()
    }

    /// A timer of an agent has expired, or it is time to send what there was no room for.
    fn wake(&mut self, now: Instant) {
        self.send_rest();
        self.row.handle_timeout(now, &mut self.actions);
        self.carry_out(None);
    }

    /// Handles the peer's reports.
    fn take_reports(&mut self, now: Instant) {
        let reports = self.peer.as_mut().map(WatchedPeer::receive).unwrap_or_default();
        for (way, report) in reports {
            if self.passage.rest == 0 {
                self.row.handle_report(now, way, report, &mut self.actions);
                self.carry_out(None);
            }
        }
    }

    /// Sends what there was no room for, as far as there is room now.
    fn send_rest(&mut self) {
        while let Some(met) = self.unsent.packets.front() {
            match mend(&self.injector, met, &mut self.passage) {
                Mended::NoRoom => return,
                Mended::Yes | Mended::No => self.unsent.pop(),
            }
        }
    }

    /// Executes the agents' actions. Returns whether the waiting packet goes on unchanged. It does if it is the last
    /// to be sent, and nothing before it waits: no packet of a flow overtakes another.
    fn carry_out(&mut self, waiting: Option<(u32, &Queue)>) -> bool {
        let Self { actions, injector, passage, peer, unsent, sent, .. } = self;
        for action in actions.drain() {
            match action {
                Action::Send(met) => sent.push(met),
                Action::Drop(..) => {}
                Action::Report(way, report) => {
                    if let Some(peer) = peer {
                        peer.send(way, report);
                    }
                }
            }
        }
        let waits = |met: &MetPacket| waiting.is_some_and(|(queued, _)| met.queued == queued);
        let last = sent.pop_if(|met| waits(met) && !met.changed);
        let mut passes = false;
        if let Some((_, queue)) = waiting.filter(|_| !sent.is_empty())
            && let Err(error) = queue.settle()
        {
            tracing::warn!(%error, "verdicts could not be sent to the netfilter queue");
        }
        for met in sent.drain(..) {
            let is_waiting = waits(&met);
            let outcome = if unsent.packets.is_empty() {
                mend(injector, &met, passage)
            } else {
                Mended::NoRoom
            };
            let is_gone = match outcome {
                Mended::Yes => true,
                Mended::No => false,
                Mended::NoRoom => unsent.push(met),
            };
            // The packet itself goes on if its replacement is not sent.
            passes |= is_waiting && !is_gone;
        }
        if let Some(met) = last {
            passes |= unsent.packets.is_empty() || !unsent.push(met);
        }
        passes
    }

    /// Checks whether the sent packets have left, by the firewall's count `counted`. Where none leaves, flows are
    /// better off without assistance.
    fn look(&mut self, counted: impl FnOnce() -> io::Result<u64>) {
        let passage = &mut self.passage;
        if passage.rest > 0 {
            passage.rest -= 1;
            return;
        }
        let (sent, gone) = passage.before;
        if passage.sent == sent {
            return;
        }
        let counted = match counted() {
            Ok(counted) => counted,
            Err(error) => {
                tracing::debug!(%error, "the firewall's counters cannot be read");
                return;
            }
        };
        passage.silent = if counted == gone { passage.silent + 1 } else { 0 };
        passage.before = (passage.sent, counted);
        if passage.silent >= SILENT_LOOKS {
            tracing::warn!(
                "flows are not assisted for a minute: packets sent for them do not leave this host; accept \
                 untracked TCP packets (nft: `ct state untracked accept` in the output chain)"
            );
            (passage.silent, passage.rest) = (0, REST_LOOKS);
            passage.rests += 1;
            self.row = row(&self.plan);
        }
    }

    /// Records its actions and its state.
    fn book(&self, worker: &Worker) {
        let book = &worker.ledger.assist;
        book.flows.set(self.row.flows() as u64);
        book.cached.set(self.row.cached().get());
        self.row.agents().iter().for_each(|agent| book.count(agent.counts()));
        book.count(self.peer.iter().flat_map(WatchedPeer::counts));
        book.count([("packets-unsent", self.passage.failed), ("rests", self.passage.rests)]);
    }
}

/// Held packets go on when the daemon stops.
impl Drop for Helper {
    fn drop(&mut self) {
        self.row.let_go(&mut self.actions);
        self.carry_out(None);
        for _ in 0..LAST_TRIES {
            self.send_rest();
            let Some(next) = self.unsent.packets.front() else { return };
            if !self.injector.wait_for_room(next.route.destination.ip(), LAST_WAIT.into()) {
                return;
            }
        }
    }
}
