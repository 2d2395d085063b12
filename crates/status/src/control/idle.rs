//! Answers of a daemon whose configuration accepts no flows.

use super::answer::{
    DaemonStatus, ErrorAnswer, FlowOutcome, Flows, FlowsQuery, MoveQuery, RateReport, Step,
    VERSION, Why, WhyQuery,
};
use super::render;
use super::serve::{Answers, MoveAnswer, ReloadRequest};
use crate::reloads::Reloads;
use crate::snapshot::Snapshot;
use midhop_pep::config::Plan;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::{mpsc, oneshot};

/// Why flows bypass the daemon.
const NOTHING: &str = "nothing is configured: set `interfaces` in [intercept], an explicit listener or `tunnel.listen`, \
     then `midhopd reload`";

/// The sources of the answers.
#[derive(Debug, Clone)]
pub struct IdleAnswers {
    /// The configuration as it was read last.
    pub plan: Arc<Mutex<Plan>>,
    /// The reloads so far.
    pub booked_reloads: Arc<Reloads>,
    /// Sends requests to reload.
    pub reloads: mpsc::Sender<ReloadRequest>,
    /// When the daemon started.
    pub started: Instant,
}

impl Answers for IdleAnswers {
    fn status(&self) -> DaemonStatus {
        let plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        let limits = &plan.limits;
        let snapshot = Snapshot {
            flows_max: limits.flows.into(),
            buffered_max: limits.memory,
            ..Snapshot::default()
        };
        DaemonStatus {
            uptime_s: self.started.elapsed().as_secs_f64(),
            passing: Some(NOTHING.to_owned()),
            reload: self.booked_reloads.last(),
            reloads_total: self.booked_reloads.counts(),
            ..render::status(snapshot, &plan)
        }
    }

    fn flows(&self, _query: &FlowsQuery) -> Flows {
        Flows { format: VERSION, matching: 0, flows: Vec::new() }
    }

    fn why(&self, _query: &WhyQuery) -> io::Result<Why> {
        let decided =
            Step { subject: "state".to_owned(), finding: NOTHING.to_owned(), decides: true };
        Ok(Why {
            format: VERSION,
            outcome: FlowOutcome::NotIntercepted,
            live: None,
            steps: vec![decided],
            client_leg: None,
            server_leg: None,
            accept: None,
        })
    }

    fn take_rate(&self, _report: &RateReport) -> Result<(), ErrorAnswer> {
        Err(ErrorAnswer { error: NOTHING.to_owned(), hint: None })
    }

    fn relocate(&self, _query: MoveQuery) -> MoveAnswer {
        let (outcome, answer) = oneshot::channel();
        let _ = outcome.send(Err(ErrorAnswer { error: NOTHING.to_owned(), hint: None }));
        answer
    }

    fn reloads(&self) -> &mpsc::Sender<ReloadRequest> {
        &self.reloads
    }
}
