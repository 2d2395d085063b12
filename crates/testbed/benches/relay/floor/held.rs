//! The minimal cost of asking the administrator's rules about a flow before it is intercepted.
//!
//! A SYN waits in a queue behind source NAT, is dropped, and is injected again over the loopback to
//! the listener. midhopd intercepts flows in the same way, with this queue and these raw sockets.
//! The rest of midhopd is left out: no inspection of the flow, no repeats, no connection tracking,
//! no limit, no second process that holds the privileges.
//!
//! Decision 0031.

use super::THREADS;
use crate::Result;
use crate::path::GATEWAY_INSIDE;
use crate::relays::{RELAY_PORT, lead_here};
use midhop_linux::nfqueue::Packet;
use midhop_linux::nft::Unbound;
use midhop_testbed::namespace::Namespace;
use midhopd::ends::Ends;
use midhopd::intercept::{Injector, Marks, NetlinkRule, Queue, Ruleset, Segment, syn};
use std::os::fd::{AsFd, BorrowedFd};

/// Bits of the firewall mark. One of them is needed.
const MASK: u32 = 0xff;
/// The conntrack zone of clients' legs, where connections are tracked.
pub const ZONE: u16 = 2;
/// The name of its nftables table.
const NAME: &str = "floor";
/// Queue limit: more than ever wait here.
const LIMIT: u32 = 4096;

/// One thread's queue, and the socket that injects its SYNs again.
pub struct Held {
    queue: Queue,
    injector: Injector,
}

impl Held {
    /// Binds the queue of a thread.
    pub fn open(thread: u16) -> Result<Self> {
        let injector = Injector::open(Marks::new(MASK))?;
        Ok(Self { queue: Queue::bind(thread, LIMIT)?, injector })
    }

    /// Takes all SYNs that wait.
    pub fn take_all(&self) -> Result<()> {
        while let Ok(packets) = self.queue.receive() {
            packets.iter().try_for_each(|packet| self.take(packet))?;
        }
        Ok(())
    }

    fn take(&self, packet: &Packet) -> Result<()> {
        self.queue.drop(packet.id)?;
        let segment = Segment::parse(&packet.bytes).ok_or("what waits is no segment")?;
        let ends = Ends { client: segment.source, server: segment.destination };
        let again = syn::rewrite(&packet.bytes, &segment, ends, 0).ok_or("what waits is cut")?;
        Ok(self.injector.open_client(&again, ends.server.ip())?)
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

/// The firewall mark of injected SYNs.
pub fn mark() -> u32 {
    Marks::new(MASK).injected
}

/// The rules that hold SYNs, and that deliver injected SYNs and the packets of the floor's sockets
/// to it.
pub fn intercept(place: &Namespace) -> Result<()> {
    let mark = mark();
    // The source port selects the thread: by addresses, all flows of one client would get the same
    // thread.
    let threads = 0..THREADS;
    let chains = threads.clone().map(|thread| format!("chain waiting{thread} {{ }}; "));
    let parts = threads.map(|thread| format!("{} : goto waiting{thread}", thread << 1));
    let table = format!(
        "table inet midhop_{NAME} {{ \
         chain late {{ type filter hook prerouting priority 0; \
         meta mark {mark} iifname \"lo\" meta l4proto tcp tproxy ip to 127.0.0.1:{RELAY_PORT} accept; \
         meta l4proto tcp socket transparent 1 meta mark set {mark} accept; }}; \
         {chains} chain hold {{ type filter hook postrouting priority 101; \
         iifname {GATEWAY_INSIDE} tcp flags & (fin|syn|rst|ack) == syn \
         tcp sport & {mask} vmap {{ {parts} }}; }}; }}",
        chains = chains.collect::<String>(),
        mask = (THREADS - 1) << 1,
        parts = parts.collect::<Vec<_>>().join(", "),
    );
    lead_here(place, &table, mark)?;
    let queues = || {
        let ruleset = Ruleset::open(NAME)?;
        (0..THREADS).try_for_each(|queue| {
            ruleset.add(&NetlinkRule::Queue {
                chain: format!("waiting{queue}"),
                queue,
                unbound: Unbound::Passes,
            })
        })
    };
    Ok(place.run(queues)??)
}
