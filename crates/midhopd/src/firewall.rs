//! Interception for the data plane: done by this process, or by its keeper.

use crate::intercept::{
    Entrance, Follower, InterceptError, Interception, OnTracked, passed::PassedCounters,
};
use crate::keeper::{Keeper, Request};
use midhop_pep::config::{LegPlan, Plan};
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Installed interception. It is removed when this is dropped.
#[derive(Debug)]
pub enum Firewall {
    /// By this process.
    Own(Own),
    /// By its keeper.
    Kept(Kept),
}

/// Interception that this process does itself.
#[derive(Debug)]
pub struct Own {
    // The order matters: the follower, which watches other programs' changes to the rules, is
    // dropped first.
    _follower: Follower,
    interception: Arc<Interception>,
}

/// Interception that the keeper does.
#[derive(Debug)]
pub struct Kept(Arc<Keeper>);

impl Drop for Kept {
    fn drop(&mut self) {
        if let Err(error) = self.0.ask(&Request::Remove) {
            tracing::warn!(%error, "interception may not have been removed; the next start replaces it");
        }
    }
}

impl Own {
    /// Installs it for this many workers, and follows other programs' changes to the rules. `left`: a program before
    /// this one has left its table.
    ///
    /// # Errors
    /// When the kernel or `nft` refuses; nothing is left behind then.
    pub fn install(
        plan: &Arc<Plan>,
        queues: u16,
        tracked: OnTracked,
        left: bool,
    ) -> Result<Self, InterceptError> {
        let interception = Interception::install(plan, entrances(plan), queues, tracked, left)?;
        let interception = Arc::new(interception);
        let thread = |error: io::Error| InterceptError::Keeper(format!("no thread: {error}"));
        let follower = Follower::start(interception.clone()).map_err(thread)?;
        Ok(Self { _follower: follower, interception })
    }

    /// Leaves what is installed to another process. A change that is under way is finished before.
    pub fn leave(self) {
        let Self { _follower: follower, interception } = self;
        drop(follower);
        std::mem::forget(interception);
    }

    /// What is installed in the system.
    pub fn interception(&self) -> &Interception {
        &self.interception
    }
}

impl Firewall {
    /// Installs interception for this many workers. `tracked` follows whether connections are entered into connection
    /// tracking.
    ///
    /// # Errors
    /// When the kernel or `nft` refuses; nothing is left behind then.
    pub fn install(
        plan: &Arc<Plan>,
        queues: u16,
        tracked: Arc<AtomicBool>,
        keeper: Option<&Arc<Keeper>>,
    ) -> Result<Self, InterceptError> {
        match keeper {
            None => Own::install(plan, queues, OnTracked::in_flag(tracked), false).map(Self::Own),
            Some(keeper) => {
                keeper.install(queues, &tracked).map_err(refused)?;
                Ok(Self::Kept(Kept(keeper.clone())))
            }
        }
    }

    /// Applies another plan, or goes back to the previous one.
    ///
    /// # Errors
    /// When the kernel or `nft` refuses.
    pub fn follow(&self, plan: &Arc<Plan>) -> Result<(), InterceptError> {
        match self {
            Self::Own(own) => own.interception.follow(plan),
            Self::Kept(Kept(keeper)) => keeper.reload().map_err(refused),
        }
    }

    /// Takes no new flows from now on. Live flows go on.
    ///
    /// # Errors
    /// When `nft` refuses; then new flows are still taken.
    pub fn close(&self) -> Result<(), InterceptError> {
        match self {
            Self::Own(own) => own.interception.close(),
            Self::Kept(Kept(keeper)) => keeper.ask(&Request::Close).map(drop).map_err(refused),
        }
    }

    /// The counters of SYNs that the firewall lets pass without the daemon.
    pub fn passed(&self) -> Passed {
        match self {
            Self::Own(own) => Passed::Own(own.interception.passed().clone()),
            Self::Kept(Kept(keeper)) => Passed::Kept(keeper.clone()),
        }
    }
}

/// The counters of SYNs that the firewall lets pass without the daemon, in either process.
#[derive(Debug, Clone)]
pub enum Passed {
    /// Here.
    Own(Arc<PassedCounters>),
    /// By the keeper.
    Kept(Arc<Keeper>),
}

impl Passed {
    /// SYNs let pass since the start, by reason.
    pub fn total(&self) -> BTreeMap<String, u64> {
        match self {
            Self::Own(counted) => counted.total(),
            Self::Kept(keeper) => keeper.passed(),
        }
    }
}

fn refused(failed: crate::keeper::RequestFailed) -> InterceptError {
    InterceptError::Keeper(failed.message)
}

/// Loopback addresses of the legs' listeners, by the legs' names. Each leg has a port of its own, counted from the
/// configured one, so that an accepted socket identifies its client's leg.
pub fn doors(plan: &Plan) -> Vec<(String, [SocketAddr; 2])> {
    let ports = plan.intercept.port..=u16::MAX;
    let door = |(leg, port): (&LegPlan, u16)| {
        let both = [(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()];
        (leg.name.clone(), both)
    };
    plan.legs.iter().zip(ports).map(door).collect()
}

/// The delivery of injected SYNs; empty where nothing is intercepted.
fn entrances(plan: &Plan) -> Vec<Entrance> {
    let intercepts = !plan.intercept.interfaces.is_empty();
    let doors = doors(plan).into_iter().filter(|_| intercepts).zip(1..);
    doors.map(|((_, listeners), tag)| Entrance { tag, listeners }).collect()
}
