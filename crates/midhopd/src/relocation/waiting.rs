//! The new place: packets of flows that move here wait until they go on.
//!
//! The old place forwards what arrives there once a flow stands still, and its state is on its way for half a round trip or
//! more. What is dropped meanwhile is sent again by its far end, after a fifth of a second at the earliest.
//!
//! One task reads the queue of all such packets, and keeps their numbers by flow. The packets themselves stay in the kernel.
//!
//! Decision 0072.

use crate::ends::Ends;
use crate::intercept::{Queue, Segment};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// The most packets that wait; more are dropped.
pub const QUEUED: u32 = 4096;
/// The most packets of a direction of a flow that wait: a far end sends no more than its window before it must know more.
const WAITING_MAX: usize = 256;

/// The packets that wait, for the threads that have flows move here.
#[derive(Debug, Clone, Default)]
pub struct WaitingPackets(Arc<OnceLock<UnboundedSender<Change>>>);

/// What happens to the packets of a flow.
#[derive(Debug)]
enum Change {
    Wait(Ends),
    Pass(Ends),
    Drop(Ends),
}

/// A flow whose packets wait from now on. Once this is dropped, those that have not [passed](Self::pass) are dropped.
#[derive(Debug)]
pub struct WaitingFlow {
    changes: UnboundedSender<Change>,
    ends: Ends,
}

impl WaitingPackets {
    /// Has the packets of a flow wait that come into the queue. None: there is no queue here.
    pub fn wait(&self, ends: Ends) -> Option<WaitingFlow> {
        let changes = self.0.get()?.clone();
        changes.send(Change::Wait(ends)).ok()?;
        Some(WaitingFlow { changes, ends })
    }
}

impl WaitingFlow {
    /// Has those that wait pass, and those that come into the queue until this is dropped.
    pub fn pass(&self) {
        let _ = self.changes.send(Change::Pass(self.ends));
    }
}

impl Drop for WaitingFlow {
    fn drop(&mut self) {
        let _ = self.changes.send(Change::Drop(self.ends));
    }
}

/// Keeps the packets of the queue.
///
/// # Errors
/// When the queue cannot be watched, or the keeper does not take it.
pub async fn keep(all: WaitingPackets, queue: Queue) -> io::Result<()> {
    queue.hand_over_shut()?;
    let queue = queue.watch()?;
    let (sender, mut changes) = unbounded_channel();
    let _ = all.0.set(sender);
    let (mut flows, mut arrived) = (Directions::default(), Vec::new());
    loop {
        let change = tokio::select! {
            change = changes.recv() => match change {
                None => return Ok(()),
                change => change,
            },
            ready = queue.readable() => {
                match ready?.try_io(|queue| queue.get_ref().receive()) {
                    Ok(Ok(packets)) => arrived.extend(packets),
                    Ok(Err(error)) => tracing::warn!(%error, "packets of flows that move could not be read from the netfilter queue"),
                    Err(_would_block) => {}
                }
                None
            }
        };
        // A flow waits before its first packet comes.
        let further = std::iter::from_fn(|| changes.try_recv().ok());
        for change in change.into_iter().chain(further) {
            flows.change(&change, queue.get_ref());
        }
        // Its last packet comes before it has passed.
        if !flows.passed.is_empty() {
            while let Ok(packets) = queue.get_ref().receive() {
                arrived.extend(packets);
            }
        }
        for packet in arrived.drain(..) {
            flows.take(&packet.bytes, packet.id, queue.get_ref());
        }
        flows.forget();
        if let Err(error) = queue.get_ref().give() {
            tracing::warn!(%error, "verdicts could not be sent to the netfilter queue");
        }
    }
}

/// Gives verdicts on packets by their numbers.
trait Judge {
    fn judge(&self, packet: u32, passes: bool);
}

impl Judge for Queue {
    fn judge(&self, packet: u32, passes: bool) {
        let given = if passes { self.pass(packet, None) } else { self.drop(packet) };
        if let Err(error) = given {
            tracing::debug!(%error, "a verdict could not be given");
        }
    }
}

/// The source and the destination of a direction.
type Key = (SocketAddr, SocketAddr);

/// The directions of flows.
#[derive(Debug, Default)]
struct Directions {
    all: HashMap<Key, Direction>,
    /// Those that have passed: packets that have come before are still to pass.
    passed: Vec<Key>,
}

#[derive(Debug)]
enum Direction {
    /// The numbers of the packets that wait.
    Waits(Vec<u32>),
    Passes,
}

impl Directions {
    fn change(&mut self, change: &Change, judge: &impl Judge) {
        let (Change::Wait(ends) | Change::Pass(ends) | Change::Drop(ends)) = change;
        for key in [(ends.client, ends.server), (ends.server, ends.client)] {
            let before = match change {
                Change::Wait(_) => self.all.insert(key, Direction::Waits(Vec::new())),
                Change::Pass(_) => self.all.insert(key, Direction::Passes),
                Change::Drop(_) if matches!(self.all.get(&key), Some(Direction::Passes)) => {
                    self.passed.push(key);
                    None
                }
                Change::Drop(_) => self.all.remove(&key),
            };
            if let Some(Direction::Waits(packets)) = before {
                let passes = matches!(change, Change::Pass(_));
                packets.into_iter().for_each(|packet| judge.judge(packet, passes));
            }
        }
    }

    /// Forgets those that have passed, unless they wait once more.
    fn forget(&mut self) {
        for key in self.passed.drain(..) {
            if matches!(self.all.get(&key), Some(Direction::Passes)) {
                self.all.remove(&key);
            }
        }
    }

    fn take(&mut self, bytes: &[u8], packet: u32, judge: &impl Judge) {
        let segment = Segment::parse(bytes);
        let key = segment.map(|segment| (segment.source, segment.destination));
        match key.and_then(|key| self.all.get_mut(&key)) {
            Some(Direction::Waits(packets)) if packets.len() < WAITING_MAX => packets.push(packet),
            Some(Direction::Passes) => judge.judge(packet, true),
            // As a router, this host would send it on, to an end that has another connection.
            Some(Direction::Waits(_)) | None => judge.judge(packet, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[derive(Debug, Default)]
    struct Given(RefCell<Vec<(u32, bool)>>);

    impl Judge for Given {
        fn judge(&self, packet: u32, passes: bool) {
            self.0.borrow_mut().push((packet, passes));
        }
    }

    fn packet(from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
        let mut bytes = vec![0; 40];
        (bytes[0], bytes[9]) = (0x45, 6);
        bytes[12..16].copy_from_slice(&from);
        bytes[16..20].copy_from_slice(&to);
        bytes[20..24].copy_from_slice(&[0, 7, 0, 9]);
        bytes[32] = 0x50;
        bytes
    }

    #[test]
    fn packets_wait_until_their_flow_goes_on_or_stays() {
        let (one, two, other) = ([10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 0, 3]);
        let flow = |server: [u8; 4]| Ends { client: (one, 7).into(), server: (server, 9).into() };
        let (given, mut flows) = (Given::default(), Directions::default());
        let take = |flows: &mut Directions, to, id| flows.take(&packet(one, to), id, &given);
        let judged = || given.0.take();
        take(&mut flows, two, 1);
        assert_eq!(judged(), [(1, false)], "nobody expects it");
        flows.change(&Change::Wait(flow(two)), &given);
        flows.change(&Change::Wait(flow(other)), &given);
        for (to, id) in [(two, 2), (other, 3), (two, 4)] {
            take(&mut flows, to, id);
        }
        flows.take(b"no packet", 5, &given);
        assert_eq!(judged(), [(5, false)]);
        flows.change(&Change::Pass(flow(two)), &given);
        take(&mut flows, two, 6);
        assert_eq!(judged(), [(2, true), (4, true), (6, true)]);
        flows.change(&Change::Drop(flow(other)), &given);
        flows.change(&Change::Drop(flow(two)), &given);
        take(&mut flows, two, 7);
        assert_eq!(judged(), [(3, false), (7, true)], "it had come before");
        flows.forget();
        take(&mut flows, two, 8);
        assert_eq!(judged(), [(8, false)]);
        assert!(flows.all.is_empty() && flows.passed.is_empty());
        // It comes back.
        flows.change(&Change::Wait(flow(two)), &given);
        flows.change(&Change::Pass(flow(two)), &given);
        flows.change(&Change::Drop(flow(two)), &given);
        flows.change(&Change::Wait(flow(two)), &given);
        flows.forget();
        take(&mut flows, two, 9);
        assert_eq!(judged(), []);
    }

    #[test]
    fn a_flow_has_room_for_so_many() {
        let ends = Ends { client: ([10, 0, 0, 1], 7).into(), server: ([10, 0, 0, 2], 9).into() };
        let (given, mut flows) = (Given::default(), Directions::default());
        flows.change(&Change::Wait(ends), &given);
        let bytes = packet([10, 0, 0, 1], [10, 0, 0, 2]);
        (0..300).for_each(|id| flows.take(&bytes, id, &given));
        assert_eq!(given.0.take().len(), 300 - WAITING_MAX);
    }
}
