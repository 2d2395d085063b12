//! Limits the number of flows, and the bytes that they hold together.

use crate::ledger::Limit;
use ipnet::IpNet;
use midhop_pep::config::Sources;
use midhop_pep::places::Places;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The limits on all flows together, and their present use.
#[derive(Debug)]
pub struct Admission {
    flows: AtomicU64,
    flows_max: AtomicU64,
    gate_shut: AtomicBool,
    /// Whether sources have a limit of their own; without one nothing is counted by source, and no lock is taken.
    has_sources: AtomicBool,
    sources: Mutex<BySource>,
    /// Notified whenever the number of flows reaches the limit or falls below it again.
    pub edge: Notify,
    /// Notified whenever a flow leaves.
    pub departed: Notify,
}

/// The flows of each source, where these are limited.
#[derive(Debug, Default)]
struct BySource {
    law: Sources,
    most: Option<u32>,
    places: Places,
}

impl Admission {
    /// Room for `flows_max` flows.
    pub fn new(flows_max: u64) -> Arc<Self> {
        Arc::new(Self {
            flows: AtomicU64::new(0),
            flows_max: AtomicU64::new(flows_max),
            gate_shut: AtomicBool::new(false),
            has_sources: AtomicBool::new(false),
            sources: Mutex::default(),
            edge: Notify::new(),
            departed: Notify::new(),
        })
    }

    /// Present number of flows.
    pub fn flows(&self) -> u64 {
        self.flows.load(Relaxed)
    }

    /// Changes the limit. Present flows stay.
    pub fn set_limit(&self, flows_max: u64) {
        self.flows_max.store(flows_max, Relaxed);
        self.edge.notify_one();
    }

    /// Changes what each source may have. Present flows stay; those that began while there was no such limit are not
    /// counted.
    pub fn limit_sources(&self, law: &Sources, most: Option<u32>) {
        let mut sources = self.sources();
        (sources.law, sources.most) = (law.clone(), most);
        self.has_sources.store(most.is_some(), Relaxed);
    }

    fn sources(&self) -> MutexGuard<'_, BySource> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the next flow should pass by.
    pub fn is_full(&self) -> bool {
        self.flows() >= self.flows_max.load(Relaxed)
    }

    /// Maximum number of flows.
    pub fn limit(&self) -> u64 {
        self.flows_max.load(Relaxed)
    }

    /// Whether the firewall lets new flows pass by because the limit is reached.
    pub fn is_gate_shut(&self) -> bool {
        self.gate_shut.load(Relaxed)
    }

    pub(crate) fn gate_moved(&self, shut: bool) {
        self.gate_shut.store(shut, Relaxed);
    }

    /// Enters a flow that the kernel has accepted already. A refusal would reset it, so it is
    /// admitted even if it exceeds the limit by one.
    pub fn enter(self: &Arc<Self>) -> Ticket {
        self.enter_as(None)
    }

    fn enter_as(self: &Arc<Self>, source: Option<IpNet>) -> Ticket {
        if self.flows.fetch_add(1, Relaxed) + 1 == self.flows_max.load(Relaxed) {
            self.edge.notify_one();
        }
        Ticket { admission: self.clone(), source: source.map(Box::new) }
    }

    /// The same, counted by its client's source.
    pub fn enter_from(self: &Arc<Self>, client: IpAddr) -> Ticket {
        let source = self.has_sources.load(Relaxed).then(|| {
            let mut sources = self.sources();
            let source = sources.law.of(client);
            sources.places.enter(source);
            source
        });
        self.enter_as(source)
    }

    /// Enters a flow that may still pass by.
    ///
    /// # Errors
    /// The limit that is reached.
    pub fn try_enter_from(self: &Arc<Self>, client: IpAddr) -> Result<Ticket, Limit> {
        if self.is_full() {
            return Err(Limit::Flows);
        }
        if !self.has_sources.load(Relaxed) {
            return Ok(self.enter());
        }
        let mut sources = self.sources();
        let source = sources.law.of(client);
        if sources.most.is_some_and(|most| !sources.places.has_room(source, most)) {
            return Err(Limit::Source);
        }
        sources.places.enter(source);
        drop(sources);
        Ok(self.enter_as(Some(source)))
    }

    /// Enters a flow that may still pass by.
    pub fn try_enter(self: &Arc<Self>) -> Option<Ticket> {
        (!self.is_full()).then(|| self.enter())
    }
}

/// A flow's place among the flows. Dropping it frees the place.
#[derive(Debug)]
pub struct Ticket {
    admission: Arc<Admission>,
    /// The client's source, where flows are counted by source. Boxed, because most flows have none
    /// and an idle flow is to be small.
    source: Option<Box<IpNet>>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let admission = &self.admission;
        if let Some(source) = self.source.as_deref() {
            admission.sources().places.leave(*source);
        }
        if admission.flows.fetch_sub(1, Relaxed) == admission.flows_max.load(Relaxed) {
            admission.edge.notify_one();
        }
        admission.departed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_given_back() {
        let admission = Admission::new(1);
        let first = admission.try_enter().expect("the first has a place");
        assert!(admission.try_enter().is_none());
        // A flow that cannot pass by any more is admitted beyond the limit.
        let second = admission.enter();
        drop(first);
        assert!(admission.is_full());
        drop(second);
        assert!(admission.try_enter().is_some());
    }

    #[test]
    fn a_source_at_its_limit_leaves_room_for_others() {
        let admission = Admission::new(10);
        let client = |text: &str| text.parse::<IpAddr>().expect("an address");
        let (near, beside, other) = (client("10.0.1.1"), client("10.0.1.9"), client("10.0.2.1"));
        let uncounted = admission.try_enter_from(near).expect("no limit yet");
        admission.limit_sources(&Sources::default(), Some(2));
        let first = admission.try_enter_from(near).expect("a place");
        // A flow that was accepted already is admitted, and counts.
        let _second = admission.enter_from(beside);
        assert_eq!(admission.try_enter_from(near).err(), Some(Limit::Source));
        let _third = admission.try_enter_from(other).expect("another source");
        drop(uncounted);
        assert_eq!(admission.try_enter_from(beside).err(), Some(Limit::Source));
        drop(first);
        let _fourth = admission.try_enter_from(near).expect("a place that was given back");
        admission.set_limit(3);
        assert_eq!(admission.try_enter_from(other).err(), Some(Limit::Flows));
        admission.set_limit(10);
        admission.limit_sources(&Sources::default(), None);
        assert!(admission.try_enter_from(near).is_ok(), "no limit any more");
    }
}
