//! Asks what the links to peers carry: modems by DLEP, and files that scripts write. What they report counts as
//! `midhopd rate` has it count.

mod dlep;
mod file;

use super::directory::Tunnels;
use crate::worker::Worker;
use midhop_dlep::Mac;
use midhop_pep::config::{ModemPlan, Plan, ReportSource};
use midhop_pep::modem::ReliedRate;
use midhop_units::{Instant, Rate};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::JoinSet;

/// For how long a report counts, so that nobody keeps to what is not reported any more.
const VALID: Duration = Duration::from_secs(2);

/// Where reports come from, with the peers whose links they are of.
#[derive(Debug, Default, PartialEq)]
struct Sources {
    modems: BTreeMap<SocketAddr, BTreeMap<String, (Option<Mac>, ModemPlan)>>,
    /// By peer.
    files: BTreeMap<String, (PathBuf, Duration, ModemPlan)>,
}

impl Sources {
    fn of(plan: &Plan) -> Self {
        let mut sources = Self::default();
        for peer in &plan.peers {
            let Some(modem) = &peer.modem else { continue };
            let name = peer.name.clone();
            match &modem.source {
                ReportSource::Dlep { address, destination } => {
                    let links = sources.modems.entry(*address).or_default();
                    links.insert(name, (*destination, modem.clone()));
                }
                ReportSource::File { path, valid } => {
                    let file = (path.clone(), (*valid).into(), modem.clone());
                    sources.files.insert(name, file);
                }
            }
        }
        sources
    }
}

/// Asks the modems of the plan, and those of each plan that follows.
pub async fn ask(worker: Rc<Worker>) {
    let mut plans = worker.plans();
    let mut asked = Sources::default();
    let mut tasks = JoinSet::new();
    loop {
        let sources = Sources::of(&plans.borrow_and_update());
        if sources != asked {
            tasks.shutdown().await;
            for (address, links) in sources.modems.clone() {
                tasks.spawn_local(dlep::keep(address, links, worker.tunnels.clone()));
            }
            for (peer, (path, valid, plan)) in sources.files.clone() {
                let tunnels = worker.tunnels.clone();
                tasks.spawn_local(file::follow(peer, (path, valid), plan, tunnels));
            }
            asked = sources;
        }
        if plans.changed().await.is_err() {
            return;
        }
    }
}

/// What is reported of the link to one peer.
struct Reported<'a> {
    peer: &'a str,
    relied: ReliedRate,
    tunnels: &'a Tunnels,
}

impl<'a> Reported<'a> {
    fn new(peer: &'a str, plan: &ModemPlan, tunnels: &'a Tunnels) -> Self {
        Self { peer, relied: ReliedRate::new(plan.clone()), tunnels }
    }

    /// Has the tunnel go by a report, as far as it may rely on it.
    fn put(&mut self, now: Instant, rate: Rate) {
        self.tunnels.reported.put(self.peer, self.relied.take(now, rate), VALID);
    }
}
