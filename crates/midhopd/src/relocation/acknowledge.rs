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

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_linux::tcp_repair::{
        Buffer, Buffers, Keepalive, LocalEnd, Negotiated, PathState, ReceiveQueue, SendQueue,
        SocketOptions, Timestamps as Clock, Window, WindowScales,
    };

    /// It has sent two bytes, and has not read five.
    fn connection(local: &str, remote: &str, timestamps: Option<Clock>) -> TcpSnapshot {
        let buffer = Buffer { bytes: 1 << 16, locked: false };
        TcpSnapshot {
            local: local.parse().expect("an address"),
            remote: remote.parse().expect("an address"),
            local_end: LocalEnd::Open,
            remote_ended: false,
            send: SendQueue { unacknowledged: 100, sent: vec![1, 2], unsent: vec![3] },
            receive: ReceiveQueue { next: u32::MAX, unread: vec![0; 5] },
            negotiated: Negotiated {
                mss: 1460,
                selective_acks: true,
                window_scales: Some(WindowScales { send: 2, receive: 7 }),
                timestamps,
                ecn: false,
            },
            window: Window {
                send_updated_at: 4,
                send: 1 << 15,
                send_max: 1 << 15,
                receive: 1_285,
                receive_updated_at: u32::MAX - 5,
            },
            buffers: Buffers { receive: buffer, send: buffer },
            options: SocketOptions {
                no_delay: false,
                cork: false,
                keepalive: Keepalive { on: false, idle_s: 7200, interval_s: 75, probes: 9 },
                user_timeout_ms: 0,
                traffic_class: 0,
                unsent_low_water: 0,
                window_clamp: 1 << 16,
                pacing_rate_max: u64::MAX,
                congestion_control: "cubic".to_owned(),
            },
            path: PathState::default(),
        }
    }

    #[test]
    fn the_packet_acknowledges_what_has_arrived() {
        let clock = Clock { value: 77, microseconds: false };
        for (local, remote, clock) in [
            ("192.0.2.1:80", "192.0.2.9:40000", Some(clock)),
            ("[2001:db8::1]:80", "[2001:db8::9]:40000", None),
        ] {
            let state = connection(local, remote, clock);
            let owed = OwedAcknowledgement::of(&state, Side::Client).expect("five are unread");
            assert_eq!((owed.to, owed.address), (Side::Client, state.remote.ip()));
            // With the checksums that the end's kernel requires.
            let packet = wire::read(&owed.packet).expect("a packet");
            let addresses = Addresses { source: state.local, destination: state.remote };
            assert_eq!((packet.addresses, packet.payload.len()), (addresses, 0));
            let Segment { sequence, acknowledgment, window, .. } = packet.segment;
            assert!(packet.segment.is_pure_ack());
            // Of the 1,280 bytes that are left of the window, units of 128.
            assert_eq!((sequence, acknowledgment, window), (102, u32::MAX, 10));
            let echoed = packet.segment.timestamps.map(|times| (times.value, times.echo));
            assert_eq!(echoed, clock.map(|clock| (clock.value, 0)));
        }
    }

    #[test]
    fn who_has_acknowledged_everything_owes_no_packet() {
        let mut state = connection("192.0.2.1:80", "192.0.2.9:40000", None);
        state.receive.unread.clear();
        state.window.receive_updated_at = state.receive.next;
        assert!(OwedAcknowledgement::of(&state, Side::Server).is_none());
    }
}
