//! Queries what the links to peers carry: by DLEP from modems, and from files that scripts write.
//! These reports have the same effect as `midhopd rate`.

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
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Validity of a report, so that a rate that is not reported any more is not used.
const VALID: Duration = Duration::from_secs(2);

/// The destination that represents each peer's link, by modem and peer.
type Modems = BTreeMap<SocketAddr, BTreeMap<String, (Option<Mac>, ModemPlan)>>;
/// By peer: a file, and the validity of its content.
type Files = BTreeMap<String, (PathBuf, Duration, ModemPlan)>;

/// Queries the modems of the plan, and of each later plan.
pub async fn ask(worker: Rc<Worker>) {
    follow(worker.plans(), modems, |modems, tasks| {
        for (address, links) in modems.clone() {
            tasks.spawn_local(dlep::keep(address, links, worker.tunnels.clone()));
        }
    })
    .await;
}

/// Reads the files of the plan, and of each later plan. To be called on the process's first thread,
/// which may read files.
pub async fn read(plans: watch::Receiver<Arc<Plan>>, tunnels: Arc<Tunnels>) {
    follow(plans, files, |files, tasks| {
        for (peer, (path, valid, plan)) in files.clone() {
            tasks.spawn(file::follow(peer, (path, valid), plan, tunnels.clone()));
        }
    })
    .await;
}

/// Runs tasks for what `of` finds in a plan. Replaces them when it finds something else in a later
/// plan.
async fn follow<S: Default + PartialEq>(
    mut plans: watch::Receiver<Arc<Plan>>,
    of: impl Fn(&Plan) -> S,
    start: impl Fn(&S, &mut JoinSet<()>),
) {
    let mut sources = S::default();
    let mut tasks = JoinSet::new();
    loop {
        let found = of(&plans.borrow_and_update());
        if found != sources {
            tasks.shutdown().await;
            start(&found, &mut tasks);
            sources = found;
        }
        if plans.changed().await.is_err() {
            return;
        }
    }
}

fn modems(plan: &Plan) -> Modems {
    let mut modems = Modems::new();
    for (peer, modem) in with_modems(plan) {
        if let ReportSource::Dlep { address, destination } = &modem.source {
            let links = modems.entry(*address).or_default();
            links.insert(peer.to_owned(), (*destination, modem.clone()));
        }
    }
    modems
}

fn files(plan: &Plan) -> Files {
    let file = |(peer, modem): (&str, &ModemPlan)| match &modem.source {
        ReportSource::File { path, valid } => {
            Some((peer.to_owned(), (path.clone(), (*valid).into(), modem.clone())))
        }
        ReportSource::Dlep { .. } => None,
    };
    with_modems(plan).filter_map(file).collect()
}

fn with_modems(plan: &Plan) -> impl Iterator<Item = (&str, &ModemPlan)> {
    plan.peers.iter().filter_map(|peer| Some((peer.name.as_str(), peer.modem.as_ref()?)))
}

/// The reports on the link to one peer.
struct Reported<'a> {
    peer: &'a str,
    relied: ReliedRate,
    tunnels: &'a Tunnels,
}

impl<'a> Reported<'a> {
    fn new(peer: &'a str, plan: &ModemPlan, tunnels: &'a Tunnels) -> Self {
        Self { peer, relied: ReliedRate::new(plan.clone()), tunnels }
    }

    /// Applies a report to the tunnel, as far as the tunnel may rely on it.
    fn put(&mut self, now: Instant, rate: Rate) {
        self.tunnels.reported.put(self.peer, self.relied.take(now, rate), VALID);
    }
}
