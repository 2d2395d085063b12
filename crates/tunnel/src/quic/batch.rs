//! Datagrams that are sent with one system call (generic segmentation offload).

use super::carrier::Label;

/// The most that one call may send: the largest UDP payload over IPv4.
const BATCH_BYTES: usize = 65_507;

/// Datagrams to one peer, all of one size; the last one may be shorter.
#[derive(Debug)]
pub struct DatagramBatch {
    bytes: Vec<u8>,
    label: Option<Label>,
    segment: usize,
    count: usize,
    count_max: usize,
}

impl DatagramBatch {
    /// An empty batch for calls that send up to `count_max` datagrams.
    pub fn new(count_max: usize) -> Self {
        Self { bytes: Vec::new(), label: None, segment: 0, count: 0, count_max: count_max.max(1) }
    }

    /// Whether nothing waits to be sent.
    pub fn is_empty(&self) -> bool {
        self.label.is_none()
    }

    /// Its destination; none: it is empty.
    pub fn label(&self) -> Option<Label> {
        self.label
    }

    /// The datagrams, one after another.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Unit: bytes. The length of each but the last; none: there is one at most.
    pub fn segment(&self) -> Option<usize> {
        (self.count > 1).then_some(self.segment)
    }

    /// The datagrams.
    pub fn datagrams(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.bytes.chunks(self.segment.max(1))
    }

    /// The datagrams were sent, or are lost.
    pub fn clear(&mut self) {
        self.bytes.clear();
        (self.label, self.segment, self.count) = (None, 0, 0);
    }

    /// How many datagrams of up to `size` bytes fit into an empty batch.
    pub(super) fn room(&self, size: usize) -> usize {
        self.count_max.min(BATCH_BYTES / size.max(1)).max(1)
    }

    /// Lets `write` fill an empty batch. `write` returns the destination and the length of each datagram, if it
    /// wrote any. Returns the destination.
    pub(super) fn write(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>) -> Option<(Label, usize)>,
    ) -> Option<Label> {
        self.clear();
        let (label, segment) = write(&mut self.bytes)?;
        (self.label, self.segment) = (Some(label), segment.max(1));
        self.count = self.bytes.len().div_ceil(self.segment);
        self.label
    }

    /// Whether a datagram may be sent together with those in the batch.
    pub fn takes(&self, bytes: &[u8], label: &Label) -> bool {
        let Some(own) = &self.label else { return true };
        own == label
            && self.count < self.count_max
            && bytes.len() <= self.segment
            // So far no datagram was shorter.
            && self.bytes.len() == self.count * self.segment
            && self.bytes.len() + bytes.len() <= BATCH_BYTES
    }

    /// Adds a datagram that it [takes](Self::takes).
    pub fn put(&mut self, bytes: &[u8], label: Label) {
        if self.label.is_none() {
            self.label = Some(label);
            self.segment = bytes.len();
        }
        self.bytes.extend_from_slice(bytes);
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::Datagram;
    use bytes::Bytes;

    fn datagram(port: u16, len: usize) -> Datagram {
        (Bytes::from(vec![7; len]), Label::of(([192, 0, 2, 1], port).into()))
    }

    /// Sends all of them. Returns the calls, as port, bytes and segment.
    fn calls(datagrams: &[Datagram], count_max: usize) -> Vec<(u16, usize, Option<usize>)> {
        let (mut batch, mut calls) = (DatagramBatch::new(count_max), Vec::new());
        let mut send = |batch: &mut DatagramBatch| {
            let port = batch.label().expect("a batch").peer.port();
            calls.push((port, batch.bytes().len(), batch.segment()));
            batch.clear();
        };
        for (bytes, label) in datagrams {
            if !batch.takes(bytes, label) {
                send(&mut batch);
            }
            batch.put(bytes, *label);
        }
        send(&mut batch);
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
    fn what_is_written_at_once_takes_more_of_its_kind() {
        let mut batch = DatagramBatch::new(64);
        assert_eq!((batch.room(1472), batch.room(100), batch.room(0)), (44, 64, 64));
        assert!(batch.write(|_| None).is_none() && batch.is_empty());
        let label = Label::of(([192, 0, 2, 1], 1).into());
        let written = batch.write(|bytes| {
            bytes.resize(2400, 7);
            Some((label, 1200))
        });
        assert_eq!(written, Some(label));
        assert_eq!((batch.segment(), batch.datagrams().count()), (Some(1200), 2));
        let takes = |batch: &DatagramBatch, len| batch.takes(&vec![7; len], &label);
        assert!(takes(&batch, 900) && !takes(&batch, 1201));
        batch.put(&[7; 900], label);
        assert!(!takes(&batch, 900), "the last one was shorter");
        assert_eq!(batch.datagrams().map(<[u8]>::len).collect::<Vec<_>>(), [1200, 1200, 900]);
    }
}
