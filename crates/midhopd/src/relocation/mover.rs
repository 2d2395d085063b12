//! The old place: moves flows to a peer, some at a time, on the thread that owns its tunnel.

mod pre_copy;

use super::copy::Positions;
use super::exchange::{Exchange, ExchangeError};
use super::halt::{HaltRequest, LeaveOrder, LeavingFlow, Stay};
use super::order::{FlowRequest, FlowRequests, MoveOrder, MovingWorker, STREAMS, refusal};
use crate::ends::Ends;
use crate::intercept::forward;
use crate::ledger::FlowBook;
use crate::tunnel::link::{Link, OpenTunnel};
use crate::tunnel::session::QuicSession;
use crate::tunnel::stream::StreamError;
use crate::worker::Worker;
use midhop_pep::config::Match;
use midhop_status::control::answer::{ErrorAnswer, MoveOutcome, VERSION};
use midhop_tunnel::cause::Cause;
use midhop_tunnel::relocation::{
    AnnouncedFlow, Arrival, Commit, FLOW_BYTES_MAX, FLOWS_MAX, FlowOffer, OFFER_BYTES_MAX,
    Readiness, encode_announced, encode_offer, encode_values,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::task::spawn_local;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep_until, timeout};

/// How long moving goes on: no more flows begin to move after that.
const TIME: Duration = Duration::from_secs(20);
/// How long the tunnel to the peer may take to open.
const TUNNEL: Duration = Duration::from_secs(3);
/// How long a flow may take to stand still, or to note that it goes.
const FLOW: Duration = Duration::from_secs(2);
/// How long the peer may take to restore flows that were offered, and to have them go on.
const PEER: Duration = Duration::from_secs(10);
/// How often it is asked for a sign of life meanwhile: flows stand still.
const SIGN: Duration = Duration::from_millis(250);
/// The most flows of a stream. They stand still together.
const BATCH: usize = 8;
const _: () = assert!(BATCH <= FLOWS_MAX);
/// Unit: bytes. After so many no more flows are added to a message: the first ones stand still all the while.
const BATCH_BYTES: usize = 4 << 20;

/// Asks the flows of a thread to stand still, and copies what they hold, as requests come.
pub async fn halt(worker: Rc<Worker>, mut requests: UnboundedReceiver<FlowRequests>) {
    while let Some(asked) = requests.recv().await {
        worker.sampler.ask(asked);
    }
}

/// Carries out an order.
pub async fn carry_out(worker: Rc<Worker>, link: Link, order: MoveOrder) {
    let MoveOrder { peer, wanted, still_at, workers, outcome } = order;
    let mover = Mover {
        worker: &worker,
        link: &link,
        peer: &peer,
        still_at: still_at.into(),
        tally: RefCell::default(),
        candidates: RefCell::new(candidates(&wanted, &workers)),
        halting: Mutex::default(),
        copying: Mutex::default(),
    };
    let _ = outcome.send(mover.run().await);
}

#[derive(Debug, Default)]
struct Tally {
    moved: u64,
    lost: u64,
    state_bytes: u64,
    state_frozen_bytes: u64,
    /// The longest time that flows of a stream stood still, until the peer had answered.
    still: Duration,
    stayed: BTreeMap<&'static str, u64>,
}

impl Tally {
    fn stays(&mut self, why: Stay) {
        *self.stayed.entry(why.name()).or_default() += 1;
    }

    fn sends_frozen(&mut self, bytes: u64) {
        self.state_bytes += bytes;
        self.state_frozen_bytes += bytes;
    }
}

struct Mover<'a> {
    worker: &'a Worker,
    link: &'a Link,
    peer: &'a str,
    /// Flows go on until then.
    still_at: Instant,
    tally: RefCell<Tally>,
    /// The flows that are left.
    candidates: RefCell<Vec<Candidate>>,
    /// Held while flows stand still for a message: those of several streams would wait for each other.
    halting: Mutex<()>,
    /// Held while copies are sent: those of several streams would share the link.
    copying: Mutex<()>,
}

/// A flow that may move, and its thread.
type Candidate = (Arc<FlowBook>, UnboundedSender<FlowRequests>);
/// A flow, whether the peer would take it (none: it is put off already), and what the peer has a copy of.
type Offered = ((Candidate, Option<Readiness>), [Positions; 2]);

impl Mover<'_> {
    async fn run(self) -> Result<MoveOutcome, ErrorAnswer> {
        let matching = self.candidates.borrow().len() as u64;
        tracing::info!(peer = self.peer, matching, "moving flows to a peer");
        let until = self.still_at.max(Instant::now()) + TIME;
        let lane = || self.move_some_after_others(until);
        let lanes: [_; STREAMS] = [lane(), lane(), lane(), lane()];
        let [one, two, three, four] = lanes;
        // None is given up because another fails: its flows may be on their way.
        let ended = tokio::join!(one, two, three, four);
        for ended in [ended.0, ended.1, ended.2, ended.3] {
            ended?;
        }
        let left = self.candidates.take();
        left.iter().for_each(|_| self.stays(Stay::Time));
        let Tally { moved, lost, state_bytes, state_frozen_bytes, still, stayed } =
            self.tally.take();
        let stayed = stayed.into_iter().map(|(why, count)| (why.to_owned(), count)).collect();
        let peer = self.peer;
        tracing::info!(
            peer,
            matching,
            moved,
            lost,
            ?stayed,
            state_bytes,
            state_frozen_bytes,
            ?still,
            "flows were moved to a peer"
        );
        Ok(MoveOutcome {
            format: VERSION,
            matching,
            moved,
            lost,
            state_bytes,
            state_frozen_bytes,
            stayed,
        })
    }

    /// Moves some flows by a stream, then others by the next, until none is left or the time is over.
    async fn move_some_after_others(&self, until: Instant) -> Result<(), ErrorAnswer> {
        while Instant::now() < until {
            let some: Vec<Candidate> = {
                let mut left = self.candidates.borrow_mut();
                let kept = left.len().saturating_sub(BATCH);
                left.split_off(kept)
            };
            if some.is_empty() {
                break;
            }
            let mut put_off = Vec::new();
            let done = self.exchange(some, &mut put_off).await;
            if done.is_ok() && !put_off.is_empty() {
                // What the peer refused early, it may take then.
                sleep_until(self.still_at).await;
            }
            // Not before the peer has forgotten that they were announced.
            self.candidates.borrow_mut().append(&mut put_off);
            done?;
        }
        Ok(())
    }

    fn stays(&self, why: Stay) {
        self.tally.borrow_mut().stays(why);
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

    /// Moves these flows, but for those that are put off.
    ///
    /// # Errors
    /// When the peer takes no flows at all, or there is no way to it. They go on here then.
    async fn exchange(
        &self,
        some: Vec<Candidate>,
        put_off: &mut Vec<Candidate>,
    ) -> Result<(), ErrorAnswer> {
        let session = self.session().await?;
        let address = session.connection().remote_address().ip();
        let neighbour = forward::is_neighbour(address).then_some(address);
        let announced = timeout(PEER, self.announce(&session, &some)).await;
        let (mut exchange, readiness) = match announced {
            Ok(Ok(ready)) => ready,
            Ok(Err(ExchangeError::Stream(StreamError::Denied(cause)))) => {
                return Err(self.denied(cause));
            }
            failed => {
                self.is_silent(failed.ok().and_then(Result::err));
                some.iter().for_each(|_| self.stays(Stay::Peer));
                return Ok(());
            }
        };
        let is_early = Instant::now() < self.still_at;
        let mut commits = Vec::with_capacity(some.len());
        let mut still_since = None;
        let offered = async {
            let copied = self.pre_copy(&mut exchange, &some, &readiness, &session).await;
            let copied = match copied {
                Ok(copied) => copied,
                Err(why) => {
                    some.iter().for_each(|_| self.stays(Stay::Peer));
                    return Err(why);
                }
            };
            sleep_until(self.still_at).await;
            let is_put_off = |ready: &Readiness| is_early && *ready != Readiness::Ready;
            let refused = some.iter().zip(&readiness).filter(|(_, ready)| is_put_off(ready));
            put_off.extend(refused.map(|(candidate, _)| candidate.clone()));
            let readiness =
                readiness.into_iter().map(|ready| Some(ready).filter(|it| !is_put_off(it)));
            let offers = some.into_iter().zip(readiness).zip(copied).collect();
            let since = &mut still_since;
            self.offer(&mut exchange, offers, neighbour, put_off, (&mut commits, since)).await?;
            let count = commits.len();
            let readiness = answered(&session, exchange.values::<Readiness>(count)).await;
            readiness.map_err(|_| None)?.map_err(Some)
        };
        let readiness = match offered.await {
            Ok(readiness) => readiness,
            Err(why) => {
                self.is_silent(why);
                commits.iter().flatten().for_each(|_| self.stays(Stay::Peer));
                return Ok(());
            }
        };
        let count = commits.len();
        // From the first commit on that is sent, a flow does not go on here unless the peer gives it back.
        let (mut sent, mut arrivals) = (Vec::new(), Vec::new());
        for (commit, ready) in commits.into_iter().zip(readiness) {
            // None: why it stays is known already.
            let departs = match (commit, ready) {
                (None, _) => None,
                (Some(commit), Readiness::Ready) => Some(depart(commit).await.ok_or(Stay::Busy)),
                (Some(_), why) => Some(Err(Stay::There(why))),
            };
            sent.push(if matches!(departs, Some(Ok(_))) { Commit::Go } else { Commit::Stay });
            arrivals.push(departs);
        }
        let concluded = answered(&session, async {
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
                Some(Ok(arrival)) => arrival,
                Some(Err(why)) => {
                    self.stays(why);
                    continue;
                }
                None => continue,
            };
            match come {
                Some(Arrival::GoesOn) => self.tally.borrow_mut().moved += 1,
                Some(Arrival::Discarded) => self.stays(Stay::There(Readiness::Ready)),
                Some(Arrival::Lost) | None => self.tally.borrow_mut().lost += 1,
            }
            if let Some(come) = come {
                // The flow waits longer than this takes.
                let _ = arrival.send(come);
            }
        }
        if let Some(since) = still_since {
            let mut tally = self.tally.borrow_mut();
            tally.still = tally.still.max(since.elapsed());
        }
        // The peer need not be waited for.
        spawn_local(async move { drop(timeout(PEER, exchange.finish()).await) });
        Ok(())
    }

    async fn announce(
        &self,
        session: &QuicSession,
        some: &[Candidate],
    ) -> Result<(Exchange, Vec<Readiness>), ExchangeError> {
        let plan = self.worker.plan();
        let stream = session.ask_to_relocate(plan.class_named(None)).await?;
        let mut exchange = Exchange::of(stream);
        let flows: Vec<AnnouncedFlow> = some
            .iter()
            .map(|(book, _)| {
                let Ends { client, server } = book.ends;
                AnnouncedFlow { client, server, dscp: book.origin.dscp }
            })
            .collect();
        // The response to the request need not be waited for: this is no secret, and small.
        exchange.send(encode_announced(&flows)).await?;
        exchange.answer().await?;
        let readiness = exchange.values(flows.len()).await?;
        Ok((exchange, readiness))
    }

    /// Has flows stand still that the peer would take (none: they are put off already), and sends the state of each at once, without what was copied.
    /// `commits` gets where each waits for the commit, none if it stays, and `since` when the first one stood still.
    ///
    /// # Errors
    /// When the peer receives no more of them; none: it was silent.
    async fn offer(
        &self,
        exchange: &mut Exchange,
        offers: Vec<Offered>,
        neighbour: Option<IpAddr>,
        put_off: &mut Vec<Candidate>,
        (commits, since): (&mut Vec<Option<oneshot::Sender<LeaveOrder>>>, &mut Option<Instant>),
    ) -> Result<(), Option<ExchangeError>> {
        let _halting = self.halting.lock().await;
        let (begun, mut bytes) = (Instant::now(), 0);
        let pre_copied: i64 =
            offers.iter().flat_map(|(_, all)| all).map(|it| it.end - it.start).sum();
        let room = OFFER_BYTES_MAX.saturating_sub(usize::try_from(pre_copied).unwrap_or(0));
        let (mut failed, mut offers) = (None, offers.into_iter());
        for ((candidate, ready), copied) in offers.by_ref() {
            let halted = if let Some(why) = ready.filter(|it| *it != Readiness::Ready) {
                Err(Stay::There(why))
            } else if ready.is_none() {
                Ok(None)
            } else if bytes >= BATCH_BYTES || begun.elapsed() >= FLOW {
                put_off.push(candidate);
                Ok(None)
            } else {
                since.get_or_insert_with(Instant::now);
                let bytes_max = room.saturating_sub(bytes).min(FLOW_BYTES_MAX);
                match self.halt(candidate.clone(), neighbour, copied, bytes_max).await {
                    // The next message has room for it.
                    Err(Stay::Queues) if bytes_max < FLOW_BYTES_MAX => {
                        put_off.push(candidate);
                        Ok(None)
                    }
                    halted => halted.map(Some),
                }
            };
            let flow = halted.unwrap_or_else(|why| {
                self.stays(why);
                None
            });
            let (offer, commit) = flow.map(|flow| (flow.offer, flow.commit)).unzip();
            let length = offer.as_ref().map_or(0, FlowOffer::bytes);
            bytes += length;
            self.tally.borrow_mut().sends_frozen(length as u64);
            commits.push(commit);
            let sent = timeout(PEER, exchange.send(encode_offer(offer.as_ref()))).await;
            match sent {
                Ok(Ok(())) => {}
                Ok(Err(error)) => failed = Some(Some(error.into())),
                Err(_) => failed = Some(None),
            }
            if failed.is_some() {
                break;
            }
        }
        let Some(failed) = failed else { return Ok(()) };
        offers.for_each(|_| self.stays(Stay::Peer));
        Err(failed)
    }

    /// Has a flow stand still.
    async fn halt(
        &self,
        candidate: Candidate,
        neighbour: Option<IpAddr>,
        copied: [Positions; 2],
        bytes_max: usize,
    ) -> Result<LeavingFlow, Stay> {
        let (answer, answered) = oneshot::channel();
        let request = HaltRequest { answer, neighbour, copied, bytes_max };
        ask(&candidate, FlowRequest::Halt(request));
        match timeout(FLOW, answered).await {
            Ok(Ok(halted)) => halted,
            Ok(Err(_)) => Err(Stay::Ended),
            Err(_) => Err(Stay::Busy),
        }
    }

    fn is_silent(&self, why: Option<ExchangeError>) {
        let why =
            why.map_or_else(|| "it did not respond in time".to_owned(), |why| why.to_string());
        tracing::warn!(peer = self.peer, why, "a peer did not accept flows");
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
                "it ends, is being upgraded, has no memory left, or another host moves flows there: try again",
            ),
            _ => refusal(
                format!("{peer} does not take flows over: {}", cause.error()),
                "both ends need a version that does",
            ),
        }
    }
}

/// What the peer answers, if it does within [`PEER`]. If it is gone, another process there says so in response to a ping.
async fn answered<T>(session: &QuicSession, answer: impl Future<Output = T>) -> Result<T, Elapsed> {
    let asking = async {
        tokio::pin!(answer);
        loop {
            match timeout(SIGN, &mut answer).await {
                Ok(answer) => return answer,
                Err(_) => session.connection().ping(),
            }
        }
    };
    timeout(PEER, asking).await
}

/// Asks a flow. If it or its thread has ended, the answer's sender is gone.
fn ask((book, halts): &Candidate, request: FlowRequest) {
    let _ = halts.send(FlowRequests::from([(Arc::as_ptr(book).addr(), request)]));
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
