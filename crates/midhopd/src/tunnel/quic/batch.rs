//! Datagrams that leave by one call.

use midhop_tunnel::quic::{Datagram, Label};
use quinn_udp::Transmit;
use std::io;

/// The most that one call may send with segmentation offload: an IPv4 packet without its headers.
const BATCH_BYTES: usize = 65_507;

/// Datagrams of one size, but for the last one, to one peer.
#[derive(Debug, Default)]
pub struct DatagramBatch {
    bytes: Vec<u8>,
    label: Option<Label>,
    segment: usize,
    count: usize,
}

impl DatagramBatch {
    /// Whether nothing waits to be sent.
    pub fn is_empty(&self) -> bool {
        self.label.is_none()
    }

    /// Whether a datagram may leave with those that wait, where one call sends up to `segments_max`.
    pub fn takes(&self, (bytes, label): &Datagram, segments_max: usize) -> bool {
        let Some(own) = &self.label else { return true };
        own == label
            && self.count < segments_max
            && bytes.len() <= self.segment
            // The last one was not shorter.
            && self.bytes.len() == self.count * self.segment
            && self.bytes.len() + bytes.len() <= BATCH_BYTES
    }

    /// Adds one that it [takes](Self::takes).
    pub fn put(&mut self, (bytes, label): &Datagram) {
        if self.label.is_none() {
            self.label = Some(*label);
            self.segment = bytes.len();
        }
        self.bytes.extend_from_slice(bytes);
        self.count += 1;
    }

    /// Sends it.
    ///
    /// # Errors
    /// That the kernel has no room: all of it stays. Whatever else goes wrong, QUIC sends again.
    pub fn send(&mut self, send: impl FnOnce(&Transmit<'_>) -> io::Result<()>) -> io::Result<()> {
        let Some(label) = self.label else { return Ok(()) };
        let sent = send(&Transmit {
            destination: label.peer,
            ecn: label.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
            contents: &self.bytes,
            segment_size: (self.count > 1).then_some(self.segment),
            src_ip: label.own,
        });
        if sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            return sent;
        }
        self.bytes.clear();
        (self.label, self.count) = (None, 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn datagram(port: u16, len: usize) -> Datagram {
        (Bytes::from(vec![7; len]), Label::of(([192, 0, 2, 1], port).into()))
    }

    /// Sends all of them; the calls, as port, bytes and segment.
    fn calls(datagrams: &[Datagram], segments_max: usize) -> Vec<(u16, usize, Option<usize>)> {
        let (mut batch, mut calls) = (DatagramBatch::default(), Vec::new());
        let mut send = |batch: &mut DatagramBatch| {
            batch.send(|it| {
                calls.push((it.destination.port(), it.contents.len(), it.segment_size));
                Ok(())
            })
        };
        for datagram in datagrams {
            if !batch.takes(datagram, segments_max) {
                send(&mut batch).expect("sent");
            }
            batch.put(datagram);
        }
        send(&mut batch).expect("sent");
        assert!(batch.is_empty());
        calls
    }

    #[test]
    fn what_is_alike_leaves_together() {
        let all = [1000, 1000, 500, 700, 700].map(|len| datagram(1, len));
        assert_eq!(calls(&all, 64), [(1, 2500, Some(1000)), (1, 1400, Some(700))]);
        assert_eq!(calls(&all[..2], 1), [(1, 1000, None), (1, 1000, None)]);
        let others = [datagram(1, 1000), datagram(2, 1000)];
        assert_eq!(calls(&others, 64), [(1, 1000, None), (2, 1000, None)]);
        let many: Vec<_> = (0..60).map(|_| datagram(1, 1472)).collect();
        let sizes: Vec<_> = calls(&many, 64).iter().map(|call| call.1 / 1472).collect();
        assert_eq!(sizes, [44, 16]);
    }

    #[test]
    fn what_the_kernel_has_no_room_for_stays() {
        let mut batch = DatagramBatch::default();
        batch.put(&datagram(1, 1000));
        batch.send(|_| Err(io::ErrorKind::WouldBlock.into())).expect_err("no room");
        assert!(!batch.is_empty());
        batch.send(|_| Err(io::ErrorKind::NetworkUnreachable.into())).expect("lost");
        assert!(batch.is_empty());
    }
}
