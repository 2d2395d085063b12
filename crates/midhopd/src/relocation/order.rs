//! An order to move flows, as it goes to the thread that owns the tunnel.

use super::copy::CopyRequest;
use super::halt::HaltRequest;
use crate::ledger::Ledger;
use midhop_pep::config::Match;
use midhop_status::control::answer::{ErrorAnswer, MoveOutcome};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

/// How many streams move flows at the same time: while the flows of one wait for the peer, those of another are taken.
pub const STREAMS: usize = 4;

/// The longest time for which flows go on that are about to move: the peer waits for their states.
pub const AHEAD_MAX: Duration = Duration::from_secs(5);

/// What a flow is asked for.
#[derive(Debug)]
pub enum FlowRequest {
    /// Copies of what it holds, while it goes on.
    Copy(CopyRequest),
    /// To stand still.
    Halt(HaltRequest),
}

/// Requests by the addresses of their flows' books.
pub type FlowRequests = HashMap<usize, FlowRequest>;

/// A thread whose flows may move.
#[derive(Debug, Clone)]
pub struct MovingWorker {
    /// Its flows.
    pub ledger: Arc<Ledger>,
    /// Where they are asked to stand still, and for copies.
    pub halts: UnboundedSender<FlowRequests>,
}

/// An order to move flows to the peer of a tunnel.
#[derive(Debug)]
pub struct MoveOrder {
    /// The peer.
    pub peer: String,
    /// Which flows.
    pub wanted: Match,
    /// They stand still no earlier.
    pub still_at: Instant,
    /// Where flows are.
    pub workers: Vec<MovingWorker>,
    /// Where the outcome goes.
    pub outcome: oneshot::Sender<Result<MoveOutcome, ErrorAnswer>>,
}

/// Why nothing is moved.
pub fn refusal(error: String, hint: &str) -> ErrorAnswer {
    ErrorAnswer { error, hint: Some(hint.to_owned()) }
}
