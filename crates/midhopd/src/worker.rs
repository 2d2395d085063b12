//! One thread with its own runtime, listeners, pipes and ledger; flows never leave it.

use crate::accept::accept;
use crate::admission::Admission;
use crate::ledger::Ledger;
use crate::relay::Desk;
use midhop_pep::config::Plan;
use std::io;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::LocalSet;

/// Pipes that one worker lends at a time. Each may pin a megabyte of kernel memory.
const PIPES: usize = 64;

/// What the flows of one thread share.
#[derive(Debug)]
pub struct Worker {
    plan: watch::Receiver<Arc<Plan>>,
    /// Places for flows.
    pub admission: Arc<Admission>,
    /// Where flows are booked.
    pub ledger: Arc<Ledger>,
    /// What they share while they relay.
    pub desk: Desk,
}

impl Worker {
    /// A worker that follows `plan`.
    pub fn new(
        plan: watch::Receiver<Arc<Plan>>,
        admission: Arc<Admission>,
        ledger: Arc<Ledger>,
    ) -> Self {
        Self { plan, admission, ledger, desk: Desk::new(PIPES) }
    }

    /// The plan as it is now. A flow keeps the one it began with.
    pub fn plan(&self) -> Arc<Plan> {
        self.plan.borrow().clone()
    }

    /// Serves on the calling thread until `stop` turns true.
    ///
    /// # Errors
    /// When the thread can have no runtime.
    pub fn run(
        self,
        listeners: Vec<TcpListener>,
        mut stop: watch::Receiver<bool>,
    ) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let local = LocalSet::new();
        let worker = Rc::new(self);
        local.block_on(&runtime, async {
            for listener in listeners {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                tokio::task::spawn_local(accept(worker.clone(), listener));
            }
            // A closed channel means that the daemon is gone: an end as well.
            let _ = stop.wait_for(|stop| *stop).await;
            Ok(())
        })
    }
}
