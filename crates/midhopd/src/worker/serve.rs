//! Runs one worker's thread: its runtime, its listeners and queues, and its permanent tasks.

use super::Worker;
use crate::accept::accept;
use crate::assist::{AssistDoor, assist};
use crate::handover::{self, HandedFlow};
use crate::intercept::Queue;
use crate::relocation::order::FlowRequests;
use crate::relocation::{mover, waiting};
use crate::survival::adopt::{adopt_all, serve_accepted};
use crate::survival::holder::Succession;
use crate::survival::register::Region;
use crate::syn_hold::hold;
use crate::tunnel;
use midhop_pep::config::LegPlan;
use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio::task::LocalSet;

/// Lets `worker` serve on the calling thread until `stop` turns true.
///
/// # Errors
/// When the thread cannot have a runtime.
pub fn serve(worker: Worker, doors: Doors, mut stop: watch::Receiver<bool>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    let region = doors.succession.as_ref().map(|it| Region::of(&it.register, worker.number()));
    let (region, left) = region.unzip();
    let store = doors.succession.as_ref().map(|it| it.store.clone()).unwrap_or_default();
    let open_moves = doors.succession.as_ref().map(|it| it.moves.clone()).unwrap_or_default();
    let worker = Rc::new(worker.remember(region, store, open_moves));
    local.block_on(&runtime, async {
        if let Some((Succession { inherited, .. }, left)) = doors.succession.zip(left) {
            adopt_all(&worker, left, &inherited).await;
        }
        if worker.number() == 0 {
            serve_accepted(&worker);
        }
        if let Some(mut may_open) = doors.may_open {
            // Live flows are continued. New ones wait until they can be delivered.
            let _ = may_open.wait_for(|open| *open).await;
        }
        let health = worker.health.clone();
        health.keep("the beat of a worker", health.clone().beat(worker.number()));
        for (door, listener) in doors.listeners {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            health.keep("accepting", accept(worker.clone(), door, listener));
        }
        match doors.queue {
            Some(queue) => {
                health.keep("holding SYNs", hold(worker.clone(), queue, doors.waiting));
            }
            None => drop(doors.waiting),
        }
        if let Some(door) = doors.assist {
            health.keep("assisting flows", assist(worker.clone(), door));
        }
        if let Some(queue) = doors.moving {
            health.keep(
                "keeping packets of flows that move here",
                waiting::keep(worker.tunnels.waiting.clone(), queue),
            );
        }
        let sampling = worker.clone();
        let looking = async move { sampling.sampler.look(&sampling.ledger).await };
        health.keep("looking at live flows", looking);
        let ending = worker.clone();
        let looking = async move { ending.coarse_timer.go_on().await };
        health.keep("looking at flows that end", looking);
        doors.tunnels.serve(&worker);
        if worker.number() == 0 {
            health.keep("asking modems", tunnel::modem::ask(worker.clone()));
        }
        if let Some(halts) = doors.halts {
            health.keep("having flows stand still", mover::halt(worker.clone(), halts));
        }
        if let Some(handed) = doors.handed {
            health.keep("taking flows over", handover::receive(worker.clone(), handed));
        }
        // A closed channel means that the daemon is gone, which is an end as well.
        let _ = stop.wait_for(|stop| *stop).await;
        worker.stop();
        tunnel::close(&worker.endpoints.take(), &worker.fallbacks.take()).await;
        Ok(())
    })
}

/// The listeners, queues and channels of one worker.
#[derive(Debug, Default)]
pub struct Doors {
    /// One listener per leg and address family, with the leg as it was when the listener was
    /// opened.
    pub listeners: Vec<(Arc<LegPlan>, TcpListener)>,
    /// The queue of SYNs that wait for the far side.
    pub queue: Option<Queue>,
    /// The queue of packets of assisted flows.
    pub assist: Option<AssistDoor>,
    /// The queue of packets of flows that move here.
    pub moving: Option<Queue>,
    /// Dropped once the packets that wait in the queue go on even if this process ends.
    pub waiting: Option<Sender<Infallible>>,
    /// Receives flows that clients requested.
    pub handed: Option<UnboundedReceiver<HandedFlow>>,
    /// Where flows are asked to stand still, to move.
    pub halts: Option<UnboundedReceiver<FlowRequests>>,
    /// What a killed data plane has left, and the register for flows.
    pub succession: Option<Succession>,
    /// Turns true when new flows can be delivered.
    pub may_open: Option<watch::Receiver<bool>>,
    /// The tunnels that are this worker's own.
    pub tunnels: tunnel::TunnelDoors,
}
