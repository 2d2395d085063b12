//! The new place: serves a stream by which a peer moves flows here.

use super::arrive::{self, RestoredFlow};
use super::exchange::{Exchange, ExchangeError};
use crate::tunnel::stream::Stream;
use crate::worker::Worker;
use midhop_pep::budget::BudgetPart;
use midhop_pep::config::{Moves, PeerPlan};
use midhop_tunnel::cause::Cause;
use midhop_tunnel::connect::Response;
use midhop_tunnel::payload::Payload;
use midhop_tunnel::relocation::copies::Advance;
use midhop_tunnel::relocation::{Arrival, Commit, Readiness, encode_values};
use std::rc::Rc;
use std::time::Duration;
use tokio::task::yield_now;
use tokio::time::timeout;

/// How long each message about the flows may take to arrive, once the stream is open: the old place gives up earlier.
const OFFERS: Duration = Duration::from_secs(15);
/// How long restored flows wait for the commit: the old place does not send it later than this.
const COMMIT: Duration = Duration::from_secs(15);
/// How long the last answer may take to arrive.
const ANSWER: Duration = Duration::from_secs(10);

/// Serves such a stream.
pub async fn serve(worker: Rc<Worker>, peer: Rc<PeerPlan>, mut stream: Stream) {
    // As the configuration has it now: the connection may be older.
    let plan = worker.plan();
    let may = plan.peers.iter().any(|it| it.name == peer.name && it.moves == Moves::Accept);
    let denial = if !may {
        tracing::warn!(
            peer = peer.name,
            "a peer requested to move flows here: peers.NAME.moves does not permit it"
        );
        worker.ledger.unserved.add(1);
        Some(Cause::NotAllowed)
    } else if worker.tunnels.are_left() || !worker.relay_context.budget.has_room() {
        Some(Cause::Full)
    } else {
        None
    };
    // A few at a time, so that what they hold is bounded, and none if an upgrade would cut it off.
    let places = worker.tunnels.relocations.take().zip(worker.open_moves.begin());
    let place = match (denial, places) {
        (None, Some(place)) => place,
        (denial, _) => {
            let response = Response::from(denial.unwrap_or(Cause::Full));
            return stream.deny(&response.fields(Payload::Raw)).await;
        }
    };
    stream.carry_in(Payload::Raw);
    let granted = Response::Granted.fields(Payload::Raw);
    if !matches!(timeout(ANSWER, stream.output.send_fields(&granted)).await, Ok(Ok(()))) {
        return;
    }
    let mut exchange = Exchange::of(stream);
    match take_in(&worker, &mut exchange).await {
        Ok(came) => {
            tracing::info!(peer = peer.name, came, "flows have moved here");
            let _ = timeout(ANSWER, exchange.finish()).await;
        }
        Err(error) => {
            // Whatever was restored was discarded, which sends nothing.
            tracing::warn!(peer = peer.name, %error, "flows that a peer offered were not taken over");
            worker.ledger.unserved.add(1);
            exchange.cancel();
        }
    }
    drop(place);
}

/// Returns how many flows go on here.
async fn take_in(worker: &Rc<Worker>, exchange: &mut Exchange) -> Result<usize, ExchangeError> {
    let late = |_| ExchangeError::Ended;
    let budget = &worker.relay_context.budget;
    let mut held = BudgetPart::new(budget.clone());
    let mut hold = |bytes: usize| {
        held.set(bytes as u64);
        budget.held() <= budget.limit()
    };
    let announced = timeout(OFFERS, exchange.announced()).await.map_err(late)??;
    let expected = arrive::expect(worker, &announced).await;
    let readiness = encode_values(&readiness_of(&expected));
    timeout(COMMIT, exchange.send(readiness)).await.map_err(late)??;
    let copies = copies(exchange, expected.len(), &mut hold).await?;
    let mut restored = Vec::with_capacity(expected.len());
    for (flow, copies) in expected.into_iter().zip(copies) {
        let offer = timeout(OFFERS, exchange.offer(&mut hold)).await.map_err(late)??;
        // At once: packets that arrive for it meanwhile are dropped.
        restored.push(match (flow, offer) {
            (Ok(flow), Some(offer)) => flow.restore(&offer, &copies),
            (Err(why), _) => Err(why),
            (Ok(flow), None) => {
                flow.forget();
                // The old place does not ask why.
                Err(Readiness::Malformed)
            }
        });
        yield_now().await;
    }
    let readiness = encode_values(&readiness_of(&restored));
    timeout(COMMIT, exchange.send(readiness)).await.map_err(late)??;
    let commits: Vec<Commit> =
        timeout(COMMIT, exchange.values(restored.len())).await.map_err(late)??;
    let arrivals = conclude(worker, restored.into_iter().zip(commits).collect());
    drop(held);
    timeout(ANSWER, exchange.send(encode_values(&arrivals))).await.map_err(late)??;
    Ok(arrivals.iter().filter(|it| **it == Arrival::GoesOn).count())
}

/// Receives what comes before the states: what was copied of each direction of each flow.
async fn copies(
    exchange: &mut Exchange,
    flows: usize,
    hold: &mut impl FnMut(usize) -> bool,
) -> Result<Vec<[Vec<u8>; 2]>, ExchangeError> {
    let late = |_| ExchangeError::Ended;
    let mut copies: Vec<[Vec<u8>; 2]> = Vec::new();
    copies.resize_with(flows, Default::default);
    loop {
        match timeout(OFFERS, exchange.advance(flows, hold)).await.map_err(late)?? {
            Advance::States => return Ok(copies),
            // The reader has checked both numbers.
            Advance::Copy { flow, direction, bytes } => copies[flow][direction].extend(bytes),
            Advance::Confirm => {
                let confirmed = exchange.send(encode_values(&[Readiness::Ready]));
                timeout(COMMIT, confirmed).await.map_err(late)??;
            }
        }
    }
}

fn readiness_of<T>(flows: &[Result<T, Readiness>]) -> Vec<Readiness> {
    flows.iter().map(|flow| flow.as_ref().err().copied().unwrap_or(Readiness::Ready)).collect()
}

/// Has those go on that are committed. Dropping the others sends nothing.
fn conclude(
    worker: &Worker,
    flows: Vec<(Result<RestoredFlow, Readiness>, Commit)>,
) -> Vec<Arrival> {
    let flows: Vec<Option<RestoredFlow>> = flows
        .into_iter()
        .map(|(flow, commit)| flow.ok().filter(|_| commit == Commit::Go))
        .collect();
    let going: Vec<&RestoredFlow> = flows.iter().flatten().collect();
    if let Err(error) = arrive::lift(worker, &going) {
        tracing::warn!(%error, "restored flows could not be continued");
        let _ = arrive::drop_packets(worker, &going);
        return vec![Arrival::Discarded; flows.len()];
    }
    flows.into_iter().map(|flow| flow.map_or(Arrival::Discarded, RestoredFlow::go_on)).collect()
}
