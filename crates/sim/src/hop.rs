//! One direction of a link, between the node that sends and the node that receives.
//!
//! [`midhop_path::Link`], the same code that the testbed puts between real kernels, decides the fate of packets.
//! It is woken when a packet may arrive, not when one has been sent.

use crate::engine::{Engine, Timer};
use crate::packet::{Handle, NodeId, Packets};
use midhop_congestion::xcp::Router;
use midhop_path::{Counters, Direction, Dropped, Link};
use midhop_units::{Bytes, Instant, Rate};

/// A direction of a link, by its number: twice the link's in the plan, plus one for up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HopId(pub u16);

impl HopId {
    /// Its number.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A direction of a link in a run.
#[derive(Debug)]
pub struct Hop {
    /// The link's name.
    pub name: String,
    /// Its direction.
    pub way: Direction,
    /// The node where packets arrive.
    pub to: NodeId,
    link: Link<Handle>,
    timer: Timer,
    /// The XCP router, if there is one.
    router: Option<Box<Router>>,
}

impl Hop {
    /// A hop to `to` over `link`, which wakes `timer`.
    pub fn new(name: String, way: Direction, to: NodeId, link: Link<Handle>, timer: Timer) -> Self {
        Self {
            name,
            way,
            to,
            link: link.keeping_dropped().marking(Handle::mark),
            timer,
            router: None,
        }
    }

    /// The same hop, with an XCP router before its queue.
    #[must_use]
    pub fn with_router(mut self) -> Self {
        self.router = Some(Box::new(Router::new(self.link.carrier_rate().unwrap_or(Rate::ZERO))));
        self
    }

    /// Passes a packet that is about to be sent to the router. Its allowance is decided here, where the
    /// packet joins the queue, and not where it leaves it: the queue that XCP aims at is empty.
    pub fn answer(&mut self, now: Instant, packets: &mut Packets, handle: &Handle) {
        let Some(router) = &mut self.router else { return };
        let packet = packets.look(handle);
        self.link.handle_timeout(now);
        router.set_capacity(self.link.carrier_rate().unwrap_or(Rate::ZERO));
        let size = Bytes::new(packet.size.into());
        let header = packet.xcp.header();
        router.on_arrival(now, size, &header.unwrap_or_default(), self.link.queue_bytes());
        if let Some(mut header) = header {
            router.on_departure(now, size, &mut header);
            packets.write_xcp(handle, packet.xcp.asking(&header));
        }
    }

    /// Its current rate; `None` without a limit.
    pub fn carrier_rate(&mut self) -> Option<Rate> {
        self.link.carrier_rate()
    }

    /// Gives a packet of `size` bytes to the link.
    pub fn send(&mut self, engine: &mut Engine, size: u32, packet: Handle) {
        self.link.handle_input(engine.now(), Bytes::new(size.into()), packet);
        self.expect_output(engine);
    }

    /// Gives a packet to the link in the place of a waiting one, see [`Link::supersede`].
    ///
    /// # Errors
    /// Returns the packet when no waiting one may go.
    pub fn supersede(
        &mut self,
        now: Instant,
        size: u32,
        packet: Handle,
        choose: impl FnMut(&Handle) -> Option<bool>,
    ) -> Result<(), Handle> {
        self.link.supersede(now, Bytes::new(size.into()), packet, choose)
    }

    /// Lets the link do everything due by now.
    pub fn catch_up(&mut self, now: Instant) {
        self.link.handle_timeout(now);
    }

    /// The next packet that has arrived, and its size.
    pub fn poll_output(&mut self, now: Instant) -> Option<(Handle, u32)> {
        // The size given at entry, which has 32 bits.
        self.link.poll_output(now).map(|arrival| (arrival.packet, arrival.size.get() as u32))
    }

    /// Whether there are packets that will never arrive, for [`Hop::poll_dropped`].
    pub fn has_dropped(&self) -> bool {
        self.link.has_dropped()
    }

    /// The next packet that will never arrive.
    pub fn poll_dropped(&mut self) -> Option<Dropped<Handle>> {
        self.link.poll_dropped()
    }

    /// Sets the timer to the time when the next packet may arrive.
    pub fn expect_output(&self, engine: &mut Engine) {
        engine.set(self.timer, self.link.poll_output_time().unwrap_or(Instant::NEVER));
    }

    /// The counts of packets so far.
    pub fn counters(&self) -> &Counters {
        self.link.counters()
    }

    /// The current queue.
    pub fn queue_bytes(&self) -> Bytes {
        self.link.queue_bytes()
    }

    /// For tests: checks the link's counts.
    ///
    /// # Panics
    /// When they do not add up.
    pub fn check_invariants(&self, packets: &Packets) {
        self.link.check_invariants();
        assert!(self.link.packets_inside() <= packets.len() as u64 + self.counters().duplicates);
    }
}
