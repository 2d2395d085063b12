//! Flows that pass by whole and are repaired: what of them is lost beyond some interfaces is sent again from here.
//!
//! The kernel hands over every packet of such a flow, in both directions, behind all that the administrator's rules
//! have decided and translated. A [`Snoop`] caches the segments that leave towards the lossy side, and reads from the
//! acknowledgements that come back what is lost. A packet goes on as it is, or it is dropped; what replaces
//! it, and what is sent again, leaves by a raw socket.
//!
//! Invariants: every packet taken from the queue gets exactly one verdict; payload is passed on as it came; no end
//! reads as acknowledged what has not arrived. What the agent keeps is bounded by `[assist]`, whoever sends.
//! Whatever goes wrong here lets packets pass: the flow is then not repaired, but it lives.

mod translated;

pub use translated::Translated;

use crate::flow::Ends;
use crate::intercept::{self, Injector, Packet, Queue};
use crate::leg::Names;
use crate::netlink::Channel;
use crate::worker::Worker;
use bytes::Bytes;
use midhop_assist::wire::{self, Route};
use midhop_assist::{Action, Actions, Carried, Snoop, SnoopSettings};
use midhop_pep::config::Assist;
use midhop_tcp::Segment;
use midhop_units::Instant;
use nix::sys::socket::SockProtocol;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{self, Duration};
use tokio::time::{Instant as Moment, MissedTickBehavior, interval, sleep_until};

/// Between two looks at whether what is sent leaves this host.
const LOOK: Duration = Duration::from_secs(1);
/// Looks in a row in which nothing of it left, until flows are let pass as they are.
const SILENT_LOOKS: u32 = 2;
/// How many looks later it is tried again.
const REST_LOOKS: u32 = 60;

/// Serves the queue of assisted flows until the worker stops.
///
/// # Errors
/// When the runtime cannot watch the queue, the keeper does not take it, or the kernel gives no channel.
pub async fn assist(worker: Rc<Worker>, queue: Queue) -> io::Result<()> {
    let plan = worker.plan();
    let Some(injector) = worker.hold.raw().cloned() else { return Ok(()) };
    queue.hand_over()?;
    let queue = queue.watch()?;
    let counters = Channel::open(SockProtocol::NetlinkNetFilter)?;
    let mut agent = Agent::new(&plan.assist, injector);
    let begin = time::Instant::now();
    let now = || Instant::START + begin.elapsed().into();
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let due = agent.snoop.poll_timeout();
        let due = due.map(|due| begin + Duration::from(due.saturating_since(Instant::START)));
        let timer = async {
            match due {
                Some(due) => sleep_until(Moment::from_std(due)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ready = queue.readable() => {
                match ready?.try_io(|queue| queue.get_ref().receive()) {
                    Ok(Ok(packets)) => {
                        for packet in packets {
                            agent.consider(now(), packet, &worker.hold.translated, queue.get_ref());
                        }
                        if let Err(error) = queue.get_ref().give() {
                            tracing::warn!(%error, "verdicts were not taken");
                        }
                    }
                    Ok(Err(error)) => tracing::warn!(%error, "packets of assisted flows were not seen"),
                    Err(_would_block) => {}
                }
            }
            () = timer => agent.wake(now()),
            _ = looks.tick() => {
                agent.look(|| {
                    let instance = &plan.intercept.instance;
                    intercept::handshakes(&counters, instance).map(|counted| counted.mended)
                });
                agent.book(&worker);
            }
        }
    }
}

/// A packet of an assisted flow.
#[derive(Debug, Clone)]
struct Met {
    /// Which packet of the queue it was.
    queued: u32,
    /// Whether its header is another one by now.
    changed: bool,
    /// From the network header on.
    bytes: Bytes,
    segment: Segment,
    /// From whom to whom, as in the packet.
    route: Route,
    /// From whom to whom, as the client sees the flow.
    way: Route,
    /// Index of the interface by which it leaves.
    egress: u32,
}

impl Met {
    fn read(packet: Packet, translated: &Translated) -> Option<Self> {
        let (route, segment) = wire::read(&packet.bytes)?;
        // Behind all translation an answer is the reverse of what the client sent; what goes the other way may have
        // other addresses by now.
        let ends = Ends { client: route.source, server: route.destination };
        let way = translated
            .of(&ends, time::Instant::now())
            .map_or(route, |Ends { client, server }| Route { source: client, destination: server });
        let (queued, egress, bytes) = (packet.id, packet.egress, packet.bytes.into());
        Some(Self { queued, changed: false, bytes, segment, route, way, egress })
    }
}

impl Carried for Met {
    type Way = Route;

    fn way(&self) -> Route {
        self.way
    }

    fn segment(&self) -> &Segment {
        &self.segment
    }

    fn with(self, segment: Segment) -> Self {
        match wire::write(&self.bytes, &segment) {
            Some(bytes) => Self { changed: true, bytes: bytes.into(), segment, ..self },
            None => self,
        }
    }

    fn size(&self) -> u32 {
        u32::try_from(self.bytes.len()).unwrap_or(u32::MAX)
    }
}

/// The agent and what it acts by.
struct Agent {
    settings: SnoopSettings,
    snoop: Snoop<Met>,
    actions: Actions<Met>,
    injector: Arc<Injector>,
    /// Beyond which segments get lost.
    lossy: Vec<String>,
    names: Names,
    passage: Passage,
}

/// Whether what is sent leaves this host.
#[derive(Default)]
struct Passage {
    /// Packets that were given to the raw socket.
    sent: u64,
    /// Those of them that it refused.
    failed: u64,
    /// Those sent and gone at the last look, and what looks in a row have seen of it.
    before: (u64, u64),
    silent: u32,
    /// Looks for which flows are let pass as they are, and how often that came to be.
    rest: u32,
    rests: u64,
}

impl Agent {
    fn new(plan: &Assist, injector: Arc<Injector>) -> Self {
        let Assist { interfaces, cache, threshold, timer_min, resends, flows, idle } = plan.clone();
        let judges_queue = true;
        let settings =
            SnoopSettings { cache, threshold, timer_min, resends, judges_queue, flows, idle };
        Self {
            snoop: Snoop::new(settings.clone()),
            settings,
            actions: Actions::default(),
            injector,
            lossy: interfaces.iter().cloned().collect(),
            names: Names::default(),
            passage: Passage::default(),
        }
    }

    /// Gives a packet of the queue its verdict, and sends what it causes.
    fn consider(&mut self, now: Instant, packet: Packet, translated: &Translated, queue: &Queue) {
        let (queued, egress) = (packet.id, packet.egress);
        let known = if self.passage.rest == 0 { Met::read(packet, translated) } else { None };
        let passes = match known {
            Some(met) => {
                let egress = self.names.of(egress);
                let leaves = egress.is_some_and(|name| self.lossy.iter().any(|own| **own == *name));
                self.snoop.handle_packet(now, met, leaves, &mut self.actions);
                self.carry_out(Some(queued))
            }
            None => true,
        };
        let verdict = if passes { queue.pass(queued, None) } else { queue.drop(queued) };
        if let Err(error) = verdict {
            tracing::warn!(%error, "a verdict was not taken");
        }
    }

    /// The time that the agent asked for has come.
    fn wake(&mut self, now: Instant) {
        self.snoop.handle_timeout(now, &mut self.actions);
        self.carry_out(None);
    }

    /// Does what the agent wants; whether the packet that waits goes on as it is.
    fn carry_out(&mut self, waiting: Option<u32>) -> bool {
        let Self { actions, injector, passage, .. } = self;
        let mut passes = false;
        for action in actions.drain() {
            let Action::Send(met) = action else { continue };
            let waits = Some(met.queued) == waiting;
            if waits && !met.changed {
                passes = true;
                continue;
            }
            passage.sent += 1;
            let to = met.route.destination.ip();
            if let Err(error) = injector.mend(&met.bytes, to, met.egress) {
                tracing::debug!(%error, "a packet of an assisted flow is not sent");
                passage.failed += 1;
                // What was to go in its place does not.
                passes |= waits;
            }
        }
        passes
    }

    /// Looks whether what was sent has left, which the firewall has `counted`: where nothing does, flows are better off
    /// without.
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
                tracing::debug!(%error, "the firewall's counters are not to be had");
                return;
            }
        };
        passage.silent = if counted == gone { passage.silent + 1 } else { 0 };
        passage.before = (passage.sent, counted);
        if passage.silent >= SILENT_LOOKS {
            tracing::warn!(
                "flows are not assisted for a minute: what is sent for them does not leave this host; let \
                 untracked packets of TCP out (nft: `ct state untracked accept` in the output chain)"
            );
            (passage.silent, passage.rest) = (0, REST_LOOKS);
            passage.rests += 1;
            self.snoop = Snoop::new(self.settings.clone());
        }
    }

    /// Writes down what it does and has.
    fn book(&self, worker: &Worker) {
        let book = &worker.ledger.assist;
        book.flows.set(self.snoop.flows() as u64);
        book.cached.set(self.snoop.cached().get());
        book.count(self.snoop.counts());
        book.count([("packets-unsent", self.passage.failed), ("rests", self.passage.rests)]);
    }
}
