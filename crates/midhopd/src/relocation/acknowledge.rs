//! Acknowledgements that connections owed when they moved.
//!
//! A kernel delays the acknowledgement of a short segment until its owner has read it, or for 40 ms. If the connection moves
//! meanwhile, the new place's kernel does not know that it owes one. An end that waits for it (Nagle's algorithm) would wait
//! for its own retransmission timeout (decision 0072).

use crate::ends::Side;
use crate::worker::Worker;
use midhop_linux::tcp_repair::TcpSnapshot;
use midhop_tcp::segment::{Flags, Segment, Timestamps};
use midhop_tcp::wire::{self, Addresses};
use std::io;
use std::net::IpAddr;

/// The packet of an acknowledgement, and who waits for it.
#[derive(Debug)]
pub struct OwedAcknowledgement {
    packet: Vec<u8>,
    to: Side,
    address: IpAddr,
}

impl OwedAcknowledgement {
    /// What the connection to an end owes.
    pub fn of(state: &TcpSnapshot, to: Side) -> Option<Self> {
        let owed = state.owed_acknowledgement()?;
        let segment = Segment {
            sequence: owed.sequence,
            acknowledgment: owed.acknowledgement,
            window: owed.window,
            flags: Flags::ACK,
            // As the restored kernel does, which does not know the timestamp to echo either.
            timestamps: owed.timestamp.map(|value| Timestamps { value, echo: 0 }),
            ..Segment::default()
        };
        let addresses = Addresses { source: state.local, destination: state.remote };
        let mut packet = Vec::new();
        wire::write(&segment, addresses, &[], &mut packet).ok()?;
        Some(Self { packet, to, address: state.remote.ip() })
    }

    /// Sends it.
    ///
    /// # Errors
    /// When the kernel does not send it. Then the end waits.
    pub fn send(&self, worker: &Worker) -> io::Result<()> {
        let Some(injector) = worker.hold.raw() else { return Ok(()) };
        injector.acknowledge(&self.packet, self.to, self.address)
    }
}
