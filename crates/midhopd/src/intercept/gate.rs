//! Opens and shuts the gate of the table according to the number of flows.
//!
//! A client that is accepted at once can no longer pass by. So beyond the limit, SYNs must not
//! reach the daemon at all. SYNs that were on their way when the gate was shut are still served.

use super::ruleset::Ruleset;
use crate::admission::Admission;
use crate::keeper::{Keeper, Request};
use midhop_status::health::Health;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::watch;

/// Follows the admission on a thread of its own until `stop` turns true. If that thread is lost,
/// the daemon ends.
///
/// # Errors
/// When there can be no thread or no channel to the table.
pub fn follow(
    instance: &str,
    keeper: Option<Arc<Keeper>>,
    admission: Arc<Admission>,
    health: Arc<Health>,
    mut stop: watch::Receiver<bool>,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let gate = match keeper {
        Some(keeper) => Gate::Kept(keeper),
        None => Gate::Own(Ruleset::open(instance)?),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let follow = async move {
        let mut shut = false;
        loop {
            let full = admission.is_full();
            // A reload installs a new table, whose gate is open: a shut gate is shut again.
            if full || full != shut {
                match gate.set(full) {
                    Ok(()) if full == shut => {}
                    Ok(()) if full => {
                        tracing::info!(
                            flows = admission.flows(),
                            "the maximum number of flows is reached: new flows pass by"
                        );
                    }
                    Ok(()) => tracing::info!(
                        flows = admission.flows(),
                        "fewer flows than the maximum: new flows are intercepted again"
                    ),
                    Err(error) => {
                        tracing::warn!(%error, "the firewall's rule for new flows could not be switched");
                    }
                }
                shut = full;
                admission.gate_moved(shut);
            }
            tokio::select! {
                () = admission.edge.notified() => {}
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
            }
        }
    };
    std::thread::Builder::new()
        .name("gate".to_owned())
        .spawn(move || health.run("the gate", || runtime.block_on(follow)))
}

/// How the gate is moved.
enum Gate {
    Own(Ruleset),
    Kept(Arc<Keeper>),
}

impl Gate {
    fn set(&self, shut: bool) -> io::Result<()> {
        match self {
            Self::Own(ruleset) => ruleset.set_gate(shut),
            Self::Kept(keeper) => {
                keeper.ask(&Request::Gate { shut }).map(drop).map_err(io::Error::other)
            }
        }
    }
}
