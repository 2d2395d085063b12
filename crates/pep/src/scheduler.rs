//! How the flows of one tunnel share what they may have written and the peer has not acknowledged.
//!
//! A connection has one window for that, the [`SendPool`]. QUIC gives its room to whichever stream writes first; of
//! the streams that wait for room, it wakes the last one first. So flows write in turns here ([`FairQueue`]), each
//! in proportion to the weight of its class, and all together no faster than the [`IngressShaper`] allows. What
//! enters the pool in these proportions leaves it in the same proportions, whatever is lost in transit.
//! Two kinds of flows are exceptions:
//!
//! - A flow that may go ahead ([`PriorityAllowance`]) is urgent: it waits for no turn, may exceed a full pool, and its
//!   bytes leave before those of the others.
//! - A flow that has no credit from its peer gives up its turn until it has some.
//!
//! `W` is what wakes a flow: a waker, or its number.
//!
//! Invariant: the first flow in the queue is about to write: it has been [woken](Scheduler::poll_woken), or waits
//! for the shaper's time, or for room in the pool. A flow that writes no more [leaves](Scheduler::leave).

use crate::fair_queue::{Account, FairQueue, WEIGHT};
use crate::ingress_shaper::IngressShaper;
use crate::priority::{Priority, PriorityAllowance};
use midhop_units::{Duration, Instant, Rate};

/// A flow has rested once it had nothing to send for so long.
const REST: Duration = Duration::from_ms(250);

/// The window of a connection, which a flow shares with others.
pub trait SendPool {
    /// Why nothing can be written any more.
    type Error;

    /// Writes as much as there is room for. None: there is no room, or the peer has given no credit. Unit: bytes.
    ///
    /// # Errors
    /// When the stream is broken.
    fn write(&mut self) -> Result<Option<usize>, Self::Error>;

    /// The same, but may exceed a full pool. None: the peer has given no credit.
    ///
    /// # Errors
    /// When the stream is broken.
    fn write_beside(&mut self) -> Result<Option<usize>, Self::Error>;

    /// Whether the flow has credit, so that only room in the pool is missing.
    fn has_credit(&mut self) -> bool;

    /// Sets whether what is written next leaves before the bytes of other flows.
    fn set_urgent(&mut self, urgent: bool);
}

/// The result of an attempt to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// Something was written.
    Written,
    /// It is not this flow's turn. It is [woken](Scheduler::poll_woken) when it is.
    Queued,
    /// The shaper accepts nothing more for so long.
    Shaped(Duration),
    /// There is no room, or no credit. The transport reports when there is.
    Blocked,
}

/// The turns of one tunnel's flows.
#[derive(Debug)]
pub struct Scheduler<W> {
    queue: FairQueue<W>,
    allowance: PriorityAllowance,
    /// None: writes are not shaped.
    shaper: Option<IngressShaper>,
    /// Whether the last flow that wrote found no room.
    full: bool,
    /// Flows whose turn it is and that are not woken yet.
    woken: Vec<W>,
}

impl<W> Default for Scheduler<W> {
    fn default() -> Self {
        Self {
            queue: FairQueue::default(),
            allowance: PriorityAllowance::default(),
            shaper: None,
            full: false,
            woken: Vec::new(),
        }
    }
}

/// One flow's state in the scheduler.
#[derive(Debug)]
pub struct FlowSchedule {
    account: Account,
    /// The condition under which it goes ahead.
    priority: Priority,
    /// Unit: bytes. Written ahead since it last rested; none: it is not urgent.
    urgent: Option<u64>,
    /// Since when it has had nothing to send.
    idle: Instant,
}

impl FlowSchedule {
    /// A new flow, which is urgent.
    pub fn new(now: Instant) -> Self {
        Self {
            account: Account::new(WEIGHT),
            priority: Priority::default(),
            urgent: Some(0),
            idle: now,
        }
    }

    /// Makes it a flow of a class with this weight.
    pub fn join(&mut self, weight: u32, priority: Priority) {
        self.account.weigh(weight);
        self.priority = priority;
    }

    /// Whether it goes ahead of those that wait for their turns.
    pub fn is_urgent(&self) -> bool {
        self.urgent.is_some()
    }

    /// It has sent all that it had, and may have more immediately.
    pub fn finish(&mut self, now: Instant) {
        self.idle = now;
    }
}

impl<W: Clone> Scheduler<W> {
    /// A scheduler for a tunnel whose datagrams leave at `rate` now.
    pub fn shaped(rate: Option<Rate>, now: Instant) -> Self {
        Self { shaper: Some(IngressShaper::new(rate, now)), ..Self::default() }
    }

    /// Whether the pool has no room, as far as any flow has found.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// A flow has something to send again. Returns whether it becomes urgent.
    pub fn begin(&mut self, now: Instant, flow: &mut FlowSchedule) -> bool {
        let again = flow.urgent.is_none() && self.allowance.lets_again(flow.priority);
        let may = now.saturating_since(flow.idle) >= REST || again;
        let begins = may && flow.urgent.replace(0).is_none();
        if begins {
            self.leave(flow);
        }
        begins
    }

    /// Writes as much as is allowed now, while datagrams leave at `rate`.
    ///
    /// # Errors
    /// Those of the pool.
    pub fn write<P: SendPool>(
        &mut self,
        (now, rate): (Instant, Option<Rate>),
        flow: &mut FlowSchedule,
        waker: &W,
        pool: &mut P,
    ) -> Result<Attempt, P::Error> {
        if let Some(sent) = flow.urgent
            && !self.allowance.lets(flow.priority, sent)
        {
            flow.urgent = None;
            pool.set_urgent(false);
        }
        if flow.urgent.is_none() {
            if !self.queue.wait(&mut flow.account, waker) {
                return Ok(Attempt::Queued);
            }
            if let Some(wait) = self.shaper.as_mut().and_then(|shaper| shaper.wait(now, rate)) {
                return Ok(Attempt::Shaped(wait));
            }
        }
        let mut written = pool.write()?;
        if written.is_some() {
            self.full = false;
        } else if flow.urgent.is_some() {
            written = pool.write_beside()?;
        } else if pool.has_credit() {
            self.full = true;
        } else {
            self.leave(flow);
        }
        let Some(bytes) = written else { return Ok(Attempt::Blocked) };
        self.spend(flow, bytes);
        Ok(Attempt::Written)
    }

    /// A flow leaves the queue: it does not write any more for now.
    pub fn leave(&mut self, flow: &mut FlowSchedule) {
        self.woken.extend(self.queue.leave(&mut flow.account));
    }

    /// The next flow to wake, whose turn it is.
    pub fn poll_woken(&mut self) -> Option<W> {
        self.woken.pop()
    }

    fn spend(&mut self, flow: &mut FlowSchedule, bytes: usize) {
        if let Some(sent) = &mut flow.urgent {
            *sent += bytes as u64;
            return self.allowance.spend(flow.priority, bytes as u64);
        }
        self.allowance.earn(bytes as u64);
        if let Some(shaper) = &mut self.shaper {
            shaper.spend(bytes);
        }
        self.woken.extend(self.queue.spend(&mut flow.account, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_units::Bytes;
    use proptest::prelude::*;

    /// The peer's window, and what a flow has to write into it.
    struct Window<'a> {
        room: &'a mut usize,
        credit: bool,
        wants: usize,
        urgent: bool,
    }

    impl SendPool for Window<'_> {
        type Error = ();

        fn write(&mut self) -> Result<Option<usize>, ()> {
            let bytes = self.wants.min(*self.room);
            *self.room -= if self.credit { bytes } else { 0 };
            Ok((self.credit && bytes > 0).then_some(bytes))
        }

        fn write_beside(&mut self) -> Result<Option<usize>, ()> {
            Ok(self.credit.then_some(self.wants))
        }

        fn has_credit(&mut self) -> bool {
            self.credit
        }

        fn set_urgent(&mut self, urgent: bool) {
            self.urgent = urgent;
        }
    }

    const NOW: (Instant, Option<Rate>) = (Instant::START, None);

    fn window(room: &mut usize, wants: usize) -> Window<'_> {
        Window { room, credit: true, wants, urgent: true }
    }

    #[test]
    fn a_full_pool_holds_up_bulk_and_nothing_that_is_urgent() {
        let mut scheduler = Scheduler::default();
        let [mut bulk, mut fresh] = [(); 2].map(|()| FlowSchedule::new(Instant::START));
        let mut room = 1 << 20;
        // First what goes ahead, then the rest of the room.
        while scheduler.write(NOW, &mut bulk, &0, &mut window(&mut room, 16 << 10))
            == Ok(Attempt::Written)
        {}
        assert!(scheduler.is_full() && room == 0 && bulk.urgent.is_none());
        let written = scheduler.write(NOW, &mut fresh, &1, &mut window(&mut room, 1000));
        assert_eq!(written, Ok(Attempt::Written), "beside the pool");
        room = 16 << 10;
        let written = scheduler.write(NOW, &mut bulk, &0, &mut window(&mut room, 16 << 10));
        assert_eq!((written, scheduler.is_full()), (Ok(Attempt::Written), false));
    }

    #[test]
    fn a_flow_without_credit_lets_the_next_one_write() {
        let mut scheduler = Scheduler::default();
        let mut flows =
            [(); 2].map(|()| FlowSchedule { urgent: None, ..FlowSchedule::new(Instant::START) });
        let mut room = 1 << 20;
        let [first, second] = &mut flows;
        let mut stuck = Window { credit: false, ..window(&mut room, 1000) };
        assert_eq!(scheduler.write(NOW, first, &1, &mut stuck), Ok(Attempt::Blocked));
        assert_eq!(
            scheduler.write(NOW, second, &2, &mut window(&mut room, 1000)),
            Ok(Attempt::Written)
        );
        assert_eq!(
            scheduler.write(NOW, first, &1, &mut window(&mut room, 1000)),
            Ok(Attempt::Queued)
        );
        scheduler.leave(second);
        assert_eq!(scheduler.poll_woken(), Some(1));
        assert_eq!(scheduler.poll_woken(), None);
    }

    #[test]
    fn a_rest_makes_a_flow_urgent_again_and_a_short_pause_does_not() {
        let mut scheduler = Scheduler::<u8>::default();
        let mut flow = FlowSchedule { urgent: None, ..FlowSchedule::new(Instant::START) };
        flow.finish(Instant::START);
        assert!(!scheduler.begin(Instant::START + Duration::from_ms(249), &mut flow));
        assert!(scheduler.begin(Instant::START + Duration::from_ms(250), &mut flow));
        assert!(!scheduler.begin(Instant::START + Duration::from_s(9), &mut flow), "it is already");
    }

    #[test]
    fn what_is_shaped_enters_a_quarter_faster_than_it_leaves() {
        let rate = Some(Rate::from_mbit_per_s(20));
        let mut scheduler = Scheduler::shaped(rate, Instant::START);
        let mut flow = FlowSchedule { urgent: None, ..FlowSchedule::new(Instant::START) };
        let (mut now, mut written) = (Instant::START, 0);
        while now < Instant::START + Duration::from_s(4) {
            let mut room = usize::MAX;
            match scheduler.write((now, rate), &mut flow, &0, &mut window(&mut room, 16 << 10)) {
                Ok(Attempt::Written) => written += 16 << 10,
                Ok(Attempt::Shaped(wait)) => now = now + wait,
                other => panic!("{other:?}"),
            }
        }
        let expected = Rate::from_mbit_per_s(25).bytes_in(Duration::from_s(4)).get() + (1 << 20);
        assert!(
            Bytes::new(written).get().abs_diff(expected) < 64 << 10,
            "{written} for {expected}"
        );
    }

    proptest! {
        /// Flows begin, write, run out of credit and end, in any order: every flow that waits is woken in the end.
        #[test]
        fn nobody_waits_for_ever(
            steps in proptest::collection::vec((0_usize..4, 0_u8..4, 1_usize..100_000), 1..200),
        ) {
            let mut scheduler = Scheduler::default();
            let mut flows: Vec<_> = (0..4).map(|_| FlowSchedule::new(Instant::START)).collect();
            let mut queued = [false; 4];
            let leaves = (0..4).map(|who| (who, 0, 1));
            for (who, what, bytes) in steps.into_iter().chain(leaves) {
                if what == 0 {
                    // A flow that waits for its turn stays until it has had it.
                    if !queued[who] {
                        scheduler.leave(&mut flows[who]);
                    }
                } else {
                    let mut room = usize::MAX;
                    let mut pool = Window { credit: what > 1, ..window(&mut room, bytes) };
                    let written = scheduler.write(NOW, &mut flows[who], &who, &mut pool);
                    queued[who] = written == Ok(Attempt::Queued);
                }
                while let Some(woken) = scheduler.poll_woken() {
                    let mut room = usize::MAX;
                    let mut pool = window(&mut room, 1);
                    let turn = scheduler.write(NOW, &mut flows[woken], &woken, &mut pool);
                    prop_assert_eq!(turn, Ok(Attempt::Written), "{} was woken for nothing", woken);
                    scheduler.leave(&mut flows[woken]);
                    queued[woken] = false;
                }
            }
            prop_assert_eq!(queued, [false; 4]);
        }
    }
}
