//! The old place: moves flows to a peer, some at a time, on the thread that owns its tunnel.

use super::exchange::{Exchange, ExchangeError};
use super::halt::{HaltRequest, LeaveOrder, LeavingFlow, Stay};
use super::order::{HaltRequests, MoveOrder, MovingWorker, refusal};
use crate::ledger::FlowBook;
use crate::tunnel::link::{Link, OpenTunnel};
use crate::tunnel::session::QuicSession;
use crate::tunnel::stream::StreamError;
use crate::worker::Worker;
use midhop_pep::config::Match;
use midhop_status::control::answer::{ErrorAnswer, MoveOutcome, VERSION};
use midhop_tunnel::cause::Cause;
use midhop_tunnel::relocation::{
    Arrival, Commit, FLOWS_MAX, FlowOffer, Readiness, encode_offers, encode_values,
};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::task::spawn_local;
use tokio::time::{Instant, timeout};

/// How long moving goes on: no more flows begin to move after that.
const TIME: Duration = Duration::from_secs(20);
/// How long the tunnel to the peer may take to open.
const TUNNEL: Duration = Duration::from_secs(3);
/// How long a flow may take to stand still, or to note that it goes.
const FLOW: Duration = Duration::from_secs(2);
/// How long the peer may take to restore flows that were offered, and to have them go on.
const PEER: Duration = Duration::from_secs(10);
/// Unit: bytes. After so many no more flows are added to a stream: the first ones stand still all the while.
const BATCH_BYTES: usize = 4 << 20;

/// Asks the flows of a thread to stand still, as requests come.
pub async fn halt(worker: Rc<Worker>, mut requests: UnboundedReceiver<HaltRequests>) {
    while let Some(asked) = requests.recv().await {
        worker.watch.halt(asked);
    }
}

/// Carries out an order.
pub async fn carry_out(worker: Rc<Worker>, link: Link, order: MoveOrder) {
    let MoveOrder { peer, wanted, workers, outcome } = order;
    let done = Mover { worker: &worker, link: &link, peer: &peer, tally: Tally::default() }
        .run(&wanted, &workers)
        .await;
    let _ = outcome.send(done);
}

#[derive(Debug, Default)]
struct Tally {
    moved: u64,
    lost: u64,
    state_bytes: u64,
    stayed: BTreeMap<&'static str, u64>,
}

impl Tally {
    fn stays(&mut self, why: Stay) {
        *self.stayed.entry(why.name()).or_default() += 1;
    }
}

struct Mover<'a> {
    worker: &'a Worker,
    link: &'a Link,
    peer: &'a str,
    tally: Tally,
}

/// A flow that may move, and its thread.
type Candidate = (Arc<FlowBook>, UnboundedSender<HaltRequests>);

impl Mover<'_> {
    async fn run(
        mut self,
        wanted: &Match,
        workers: &[MovingWorker],
    ) -> Result<MoveOutcome, ErrorAnswer> {
        let begun = Instant::now();
        let mut candidates = candidates(wanted, workers);
        let matching = candidates.len() as u64;
        tracing::info!(peer = self.peer, matching, "moving flows to a peer");
        while !candidates.is_empty() {
            if begun.elapsed() >= TIME {
                candidates.iter().for_each(|_| self.tally.stays(Stay::Time));
                break;
            }
            let session = self.session().await?;
            let batch = self.batch(&mut candidates).await;
            if !batch.is_empty() {
                self.exchange(&session, batch).await?;
            }
        }
        let Tally { moved, lost, state_bytes, stayed } = self.tally;
        let stayed = stayed.into_iter().map(|(why, count)| (why.to_owned(), count)).collect();
        let peer = self.peer;
        tracing::info!(peer, matching, moved, lost, ?stayed, "flows were moved to a peer");
        Ok(MoveOutcome { format: VERSION, matching, moved, lost, state_bytes, stayed })
    }

    async fn session(&self) -> Result<Rc<QuicSession>, ErrorAnswer> {
        match timeout(TUNNEL, self.link.open()).await {
            Ok(Some(OpenTunnel::Quic(session))) => Ok(session),
            Ok(Some(OpenTunnel::Tcp(_))) => Err(refusal(
                format!("the tunnel to {} goes over TCP", self.peer),
                "flows move by QUIC: let UDP pass between the two",
            )),
            Ok(None) | Err(_) => Err(refusal(
                format!("there is no tunnel to {}", self.peer),
                "`midhopd peers` shows why",
            )),
        }
    }

    /// Has some flows stand still, one after the other: how much each has in its queues is not known before.
    async fn batch(&mut self, candidates: &mut Vec<Candidate>) -> Vec<LeavingFlow> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < FLOWS_MAX && bytes < BATCH_BYTES {
            let Some((book, halts)) = candidates.pop() else { break };
            let (answer, answered) = oneshot::channel();
            let asked = HaltRequests::from([(Arc::as_ptr(&book).addr(), HaltRequest { answer })]);
            // If the thread has ended, the answer is gone.
            let _ = halts.send(asked);
            match timeout(FLOW, answered).await {
                Ok(Ok(Ok(flow))) => {
                    bytes += flow.offer.bytes();
                    batch.push(flow);
                }
                Ok(Ok(Err(why))) => self.tally.stays(why),
                Ok(Err(_)) => self.tally.stays(Stay::Ended),
                Err(_) => self.tally.stays(Stay::Busy),
            }
        }
        batch
    }

    /// Moves flows that stand still.
    ///
    /// # Errors
    /// When the peer takes no flows at all. They go on here then.
    async fn exchange(
        &mut self,
        session: &QuicSession,
        batch: Vec<LeavingFlow>,
    ) -> Result<(), ErrorAnswer> {
        let (offers, commits): (Vec<FlowOffer>, Vec<_>) =
            batch.into_iter().map(|flow| (flow.offer, flow.commit)).unzip();
        let count = offers.len();
        self.tally.state_bytes += offers.iter().map(|offer| offer.bytes() as u64).sum::<u64>();
        let offered = timeout(PEER, self.offer(session, offers)).await;
        let (mut exchange, readiness) = match offered {
            Ok(Ok(ready)) => ready,
            Ok(Err(ExchangeError::Stream(StreamError::Denied(cause)))) => {
                return Err(self.denied(cause));
            }
            failed => {
                let why = failed.ok().and_then(Result::err);
                let why = why
                    .map_or_else(|| "it did not respond in time".to_owned(), |why| why.to_string());
                tracing::warn!(peer = self.peer, why, "a peer did not accept flows");
                (0..count).for_each(|_| self.tally.stays(Stay::Peer));
                return Ok(());
            }
        };
        // From the first commit on that is sent, a flow does not go on here unless the peer gives it back.
        let (mut sent, mut arrivals) = (Vec::new(), Vec::new());
        for (commit, ready) in commits.into_iter().zip(readiness) {
            let departs = match ready {
                Readiness::Ready => depart(commit).await.ok_or(Stay::Busy),
                why => Err(Stay::There(why)),
            };
            sent.push(if departs.is_ok() { Commit::Go } else { Commit::Stay });
            arrivals.push(departs);
        }
        let concluded = timeout(PEER, async {
            exchange.send(encode_values(&sent)).await?;
            exchange.values::<Arrival>(count).await
        });
        let come: Vec<Option<Arrival>> = match concluded.await {
            Ok(Ok(come)) => come.into_iter().map(Some).collect(),
            failed => {
                let why = failed.ok().and_then(Result::err).map(tracing::field::display);
                tracing::warn!(peer = self.peer, why, "whether flows have moved is unknown");
                vec![None; count]
            }
        };
        for (departs, come) in arrivals.into_iter().zip(come) {
            let arrival = match departs {
                Ok(arrival) => arrival,
                Err(why) => {
                    self.tally.stays(why);
                    continue;
                }
            };
            match come {
                Some(Arrival::GoesOn) => self.tally.moved += 1,
                Some(Arrival::Discarded) => self.tally.stays(Stay::There(Readiness::Ready)),
                Some(Arrival::Lost) | None => self.tally.lost += 1,
            }
            if let Some(come) = come {
                // The flow waits longer than this takes.
                let _ = arrival.send(come);
            }
        }
        // The peer need not be waited for.
        spawn_local(async move { drop(timeout(PEER, exchange.finish()).await) });
        Ok(())
    }

    async fn offer(
        &self,
        session: &QuicSession,
        offers: Vec<FlowOffer>,
    ) -> Result<(Exchange, Vec<Readiness>), ExchangeError> {
        let plan = self.worker.plan();
        let stream = session.ask_to_relocate(plan.class_named(None)).await?;
        let mut exchange = Exchange::of(stream);
        // Before the states, which may be large: a peer that may not take them should not get them.
        exchange.answer().await?;
        let count = offers.len();
        let message = encode_offers(&offers);
        drop(offers);
        exchange.send(message).await?;
        let readiness = exchange.values(count).await?;
        Ok((exchange, readiness))
    }

    fn denied(&self, cause: Cause) -> ErrorAnswer {
        let peer = self.peer;
        match cause {
            Cause::NotAllowed => refusal(
                format!("{peer} does not let this host move flows there"),
                "set `moves = \"accept\"` in its table of this host",
            ),
            Cause::Full => refusal(
                format!("{peer} accepts no flows at this moment"),
                "it ends, has no memory left, or another host moves flows there: try again",
            ),
            _ => refusal(
                format!("{peer} does not take flows over: {}", cause.error()),
                "both ends need a version that does",
            ),
        }
    }
}

/// Has a flow leave. Returns where it waits for what has become of it; none: it goes on here.
async fn depart(commit: oneshot::Sender<LeaveOrder>) -> Option<oneshot::Sender<Arrival>> {
    let (noted, is_noted) = oneshot::channel();
    let (come, arrival) = oneshot::channel();
    commit.send(LeaveOrder { noted, arrival }).ok()?;
    match timeout(FLOW, is_noted).await {
        Ok(Ok(())) => Some(come),
        // It may note it yet, and finds that nobody waits. If it has noted it at this moment, it learns that it stays.
        Ok(Err(_)) | Err(_) => {
            let _ = come.send(Arrival::Discarded);
            None
        }
    }
}

/// The live flows that are wanted and have two sockets here.
fn candidates(wanted: &Match, workers: &[MovingWorker]) -> Vec<Candidate> {
    let mut found = Vec::new();
    for MovingWorker { ledger, halts } in workers {
        let live = ledger.live().into_iter();
        let split = live.filter(|book| book.peer().is_none() && wanted.covers(&book.key()));
        found.extend(split.map(|book| (book, halts.clone())));
    }
    found
}
