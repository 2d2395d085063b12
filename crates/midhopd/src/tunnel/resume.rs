//! Moves a flow that outlives its carrier to another one (decision 0054).
//!
//! The near end requests the flow again, over whatever carrier there is, and the far end
//! [finds](super::resumable_flows) it. Each end continues from what the other one has received.
//!
//! Invariants: a flow lives in one task, which reads from one carrier. So it knows exactly at any
//! time what it has received. A flow that the other end does not know any more breaks, and does not
//! end in order.
//! A far end that has nothing more to send than its end waits for no other carrier. It remembers
//! that the flow is complete, and reports that to a near end that requests the flow again.

use super::link::OpenTunnel;
use super::resumable_flows::{Call, FinishedFlow, ResumableEntry, ResumableFlows, Successor};
use super::stream::kept::Offer;
use super::stream::{Stream, StreamError};
use crate::ends::{Broken, Side};
use crate::survival::register::FlowEntry;
use crate::worker::Worker;
use midhop_pep::budget::BudgetPart;
use midhop_tunnel::cause::Cause;
use midhop_tunnel::connect::{Request, Response};
use midhop_tunnel::http3::{Code, Field};
use midhop_tunnel::payload::Payload;
use midhop_tunnel::resumption::{self, Resumption};
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::task::spawn_local;
use tokio::time::{self, Instant};

/// Timeout of the response that a flow continues.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause between two attempts to resume: the first, and the maximum.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MOST: Duration = Duration::from_secs(2);
/// Interval at which a waiting flow checks whether its session was closed on purpose.
const LOOK: Duration = Duration::from_secs(1);

/// A flow that can be resumed, as its task knows it.
#[derive(Debug)]
pub struct ResumableFlow {
    entry: ResumableEntry,
    /// Its entry in the register, so that it outlives this process.
    noted: Option<FlowEntry>,
    offer: Box<Offer>,
}

/// The outcome for a flow whose carrier was gone, or was to be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResumeOutcome {
    /// It continues with another carrier.
    Resumed,
    /// It continues with the carrier that it had.
    Stayed,
    /// It is over.
    Over,
}

impl ResumableFlow {
    /// Enters a flow through a tunnel to or from `peer`. None: another one has this identity.
    pub fn enter(offer: Box<Offer>, flows: &Arc<ResumableFlows>, peer: &str) -> Option<Self> {
        Some(Self { entry: flows.enter(peer, offer.id)?, noted: None, offer })
    }

    /// Sets its entry in the register: it outlives this process as long as the entry exists.
    pub fn note(&mut self, noted: Option<FlowEntry>) {
        self.noted = noted;
    }

    /// Removes it, so that it cannot be resumed any more. Returns its entry in the register.
    pub fn leave(self) -> Option<FlowEntry> {
        self.noted
    }

    /// It is over here, in order. If this is the far end, the near end may not know that.
    pub fn finish(&self, stream: &Stream) {
        if self.is_far()
            && let Some(flow) = stream.finished()
        {
            self.entry.finish(flow);
        }
    }

    /// Whether the other end is the one that requests it again.
    pub fn is_far(&self) -> bool {
        self.offer.request.is_none()
    }

    /// How it is resumed.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Waits until it is called.
    pub fn poll_call(&self, cx: &mut Context<'_>) -> Poll<Call> {
        self.entry.poll_call(cx)
    }

    /// Continues with another carrier: at once if it was called, otherwise when there is one,
    /// within the time that flows are kept.
    pub async fn resume(
        &self,
        worker: &Worker,
        stream: &mut Stream,
        call: Option<Call>,
    ) -> ResumeOutcome {
        let plan = worker.plan();
        let peer = plan.peers.iter().find(|peer| *peer.name == *self.entry.peer);
        let Some(long) = peer.map(|peer| Duration::from(peer.resume)) else {
            return ResumeOutcome::Over;
        };
        drop(plan);
        let has_carrier = call.is_some();
        let mut held = BudgetPart::new(worker.relay_context.budget.clone());
        if !has_carrier {
            held.set(stream.kept());
            worker.ledger.waiting_flows.add(1);
        }
        let until = Instant::now() + long;
        let outcome = match (&self.offer.request, call) {
            // Whoever closed the session closed its flows as well.
            (_, Some(Call::GoOn(successor))) if stream.is_closed() => {
                refuse(worker, successor.stream);
                ResumeOutcome::Over
            }
            _ if stream.is_closed() => ResumeOutcome::Over,
            // The far end does not know it, or has not confirmed yet that it does.
            (_, Some(Call::Move)) if !stream.lasts() => ResumeOutcome::Stayed,
            (Some(request), call) => self.request(worker, stream, request, call, until).await,
            (None, Some(Call::Move)) => ResumeOutcome::Stayed,
            (None, Some(Call::GoOn(successor))) => {
                self.accept(worker, stream, successor, until).await
            }
            (None, None) => self.wait(worker, stream, until).await,
        };
        if !has_carrier {
            worker.ledger.waiting_flows.sub(1);
        }
        outcome
    }

    /// Requests it again until the request is granted.
    async fn request(
        &self,
        worker: &Worker,
        stream: &mut Stream,
        request: &Request,
        call: Option<Call>,
        until: Instant,
    ) -> ResumeOutcome {
        let again = Resumption::Requested { id: self.entry.id, received: stream.received() };
        let mut pause = PAUSE_FIRST;
        loop {
            let asked = time::timeout_at(until, async {
                let link = worker.links.borrow().get(&*self.entry.peer).cloned()?;
                let way = link.open().await?;
                if call.is_some() && way.carries(stream.connection()) {
                    return Some(Ok(None));
                }
                Some(self.ask(&way, request, again).await.map(Some))
            });
            match asked.await {
                Ok(Some(Ok(None))) => return ResumeOutcome::Stayed,
                Ok(Some(Ok(Some((by, offset))))) => {
                    return match stream.succeed(by, offset) {
                        Ok(()) => ResumeOutcome::Resumed,
                        Err(why) => {
                            tracing::debug!(flow = ?self.entry.id, %why, "a flow cannot be resumed");
                            ResumeOutcome::Over
                        }
                    };
                }
                // The far end does not know it, resumes no flows, or has opened another flow. If
                // its carrier is not gone, it continues there.
                Ok(Some(Err(why))) if is_final(&why) => {
                    tracing::debug!(flow = ?self.entry.id, %why, "a request to resume a flow was refused");
                    return if call.is_some() {
                        ResumeOutcome::Stayed
                    } else {
                        ResumeOutcome::Over
                    };
                }
                // The tunnel that was found is gone.
                Ok(Some(Err(why))) => {
                    tracing::debug!(%why, "a request to resume a flow failed, and is repeated");
                }
                Ok(None) => {}
                Err(_late) => return ResumeOutcome::Over,
            }
            if Instant::now() >= until || !self.may_wait(worker, stream) {
                return ResumeOutcome::Over;
            }
            time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MOST);
        }
    }

    /// Requests it over this tunnel.
    async fn ask(
        &self,
        way: &OpenTunnel,
        request: &Request,
        again: Resumption,
    ) -> Result<(Stream, u64), StreamError> {
        let asked = async {
            let mut by = way.ask_again(request, &self.offer.class, again).await?;
            let offset = by.resumed().await?;
            Ok((by, offset))
        };
        let late = |_| Err(StreamError::Lost(io::ErrorKind::TimedOut.into()));
        time::timeout(PATIENCE, asked).await.unwrap_or_else(late)
    }

    /// Whether the other end may still continue it.
    fn may_wait(&self, worker: &Worker, stream: &Stream) -> bool {
        let is_known = worker.plan().peers.iter().any(|peer| *peer.name == *self.entry.peer);
        is_known && !stream.is_closed()
    }

    /// Waits until the near end continues it.
    async fn wait(&self, worker: &Worker, stream: &mut Stream, until: Instant) -> ResumeOutcome {
        loop {
            let call = time::timeout(LOOK, poll_fn(|cx| self.poll_call(cx))).await;
            match call {
                Ok(Call::GoOn(successor)) => {
                    return Box::pin(self.accept(worker, stream, successor, until)).await;
                }
                Ok(Call::Move) => {}
                Err(_) if Instant::now() >= until || !self.may_wait(worker, stream) => {
                    return ResumeOutcome::Over;
                }
                Err(_) => {}
            }
        }
    }

    /// Responds to the near end that the flow continues. If that fails, the near end requests it
    /// again.
    async fn accept(
        &self,
        worker: &Worker,
        stream: &mut Stream,
        successor: Box<Successor>,
        until: Instant,
    ) -> ResumeOutcome {
        let mut successor = successor;
        loop {
            let Successor { stream: mut by, received } = *successor;
            if let Err(why) = stream.can_go_on_after(received) {
                tracing::debug!(flow = ?self.entry.id, %why, "a flow cannot be resumed");
                refuse(worker, by);
                return ResumeOutcome::Over;
            }
            by.output.join(&self.offer.class);
            let mut answer = Response::Granted.fields(Payload::Capsules);
            answer.push(resumption::resumed(stream.received()));
            let granted = time::timeout(PATIENCE, by.output.send_fields(&answer)).await;
            if matches!(granted, Ok(Ok(()))) {
                return match stream.succeed(by, received) {
                    Ok(()) => ResumeOutcome::Resumed,
                    Err(_checked) => ResumeOutcome::Over,
                };
            }
            drop(by);
            successor = loop {
                match time::timeout(LOOK, poll_fn(|cx| self.poll_call(cx))).await {
                    Ok(Call::GoOn(next)) => break next,
                    Err(_) if Instant::now() >= until || !self.may_wait(worker, stream) => {
                        return ResumeOutcome::Over;
                    }
                    Ok(Call::Move) | Err(_) => {}
                }
            };
        }
    }
}

/// Whether another attempt would have the same outcome.
fn is_final(fault: &StreamError) -> bool {
    match fault {
        StreamError::Denied(cause) => *cause != Cause::Full,
        StreamError::Wrong(_) | StreamError::Unable => true,
        _ => false,
    }
}

/// The response that there is no such flow, or that it cannot be continued.
pub fn gone() -> Vec<Field> {
    Response::Denied { status: 410, cause: Cause::Refused }.fields(Payload::Raw)
}

/// Responds to a near end that has received all of a flow up to the offset `received`, and does not know that the flow is
/// complete.
///
/// # Errors
/// When the stream breaks: the near end requests the flow again.
pub async fn conclude(mut stream: Stream, flow: FinishedFlow, received: u64) -> io::Result<()> {
    let mut answer = Response::Granted.fields(Payload::Capsules);
    answer.push(resumption::resumed(flow.received));
    let concluded = async {
        stream.output.send_fields(&answer).await?;
        stream.conclude(flow.received, received == flow.sent).await
    };
    let late = |_| Err(StreamError::Lost(io::ErrorKind::TimedOut.into()));
    time::timeout(PATIENCE, concluded).await.unwrap_or_else(late).map_err(io::Error::from)
}

/// Refuses with this response. Nothing of the flow waits until the peer has taken it.
fn refuse(worker: &Worker, by: Stream) {
    worker.ledger.resumptions_refused.add(1);
    spawn_local(async move { by.deny(&gone()).await });
}

/// Why relaying a flow stops, at all or with this stream.
#[derive(Debug)]
pub enum Stop {
    /// One side broke.
    Broken(Broken),
    /// The flow was called.
    Called(Call),
}

/// Continues a flow if it outlives what stopped it. `both_ended`: all bytes of both directions have
/// been passed on, and only the confirmation of an end is missing.
///
/// # Errors
/// The side that broke, if the flow does not outlive that.
pub async fn go_on(
    stop: Stop,
    (side, both_ended): (Side, bool),
    stream: &mut Stream,
    resumable: Option<&ResumableFlow>,
    worker: &Worker,
) -> Result<GoesOn, Broken> {
    let (broken, call) = match stop {
        Stop::Called(call) => (None, Some(call)),
        Stop::Broken(broken) if broken.side == side || !stream.outlives(&broken.error) => {
            return Err(broken);
        }
        // The near end requests it again where it lacks anything, or does not know that the far end lacks nothing.
        Stop::Broken(_)
            if (both_ended || stream.is_complete())
                && resumable.is_some_and(ResumableFlow::is_far) =>
        {
            return Ok(GoesOn::Complete);
        }
        Stop::Broken(broken) => (Some(broken), None),
    };
    let outcome = match resumable {
        Some(resumable) => resumable.resume(worker, stream, call).await,
        None => ResumeOutcome::Over,
    };
    match outcome {
        ResumeOutcome::Resumed => worker.ledger.resumed.add(1),
        ResumeOutcome::Over if resumable.is_some() && !both_ended => {
            worker.ledger.not_resumed.add(1)
        }
        ResumeOutcome::Over | ResumeOutcome::Stayed => {}
    }
    match (outcome, broken) {
        (ResumeOutcome::Resumed, _) => Ok(GoesOn::Resumed),
        (ResumeOutcome::Stayed, None) => Ok(GoesOn::Stayed),
        // The other end has forgotten the flow as complete before it could confirm the end.
        (ResumeOutcome::Over, Some(_)) if both_ended => Ok(GoesOn::Complete),
        (ResumeOutcome::Over | ResumeOutcome::Stayed, Some(broken)) => Err(broken),
        // The stream itself may still be intact.
        (ResumeOutcome::Over, None) => {
            let error = StreamError::Wrong(Code::CONNECT_ERROR).into();
            Err(Broken { side: side.other(), error })
        }
    }
}

/// How a flow continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoesOn {
    /// With another stream.
    Resumed,
    /// With the stream that it had.
    Stayed,
    /// It is over in order: nothing is left to be sent.
    Complete,
}
