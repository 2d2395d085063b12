//! The received bytes of a flow, and which of them were confirmed.

/// One direction of a flow, at the end that receives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedBytes {
    /// Unit: bytes.
    bytes: u64,
    ended: bool,
    /// The offset up to which it was confirmed that the flow was passed on.
    confirmed: u64,
    /// Unit: bytes. After so many more it is confirmed.
    each: u64,
}

impl ReceivedBytes {
    /// A flow of which so many bytes have been received. It is confirmed after `each` bytes more. Unit: bytes.
    pub fn of(bytes: u64, each: u64) -> Self {
        Self { bytes, ended: false, confirmed: 0, each }
    }

    /// What another process has received and passed on, and perhaps the end; nothing of it is confirmed. It is confirmed
    /// after `each` bytes. Unit: bytes.
    pub fn left(bytes: u64, ended: bool, each: u64) -> Self {
        Self { bytes, ended, confirmed: 0, each }
    }

    /// So many bytes have been received.
    pub fn count(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// The end has been received.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// The offset up to which the flow has been received.
    pub fn offset(&self) -> u64 {
        self.bytes + u64::from(self.ended)
    }

    /// Whether it was not confirmed yet that the flow was passed on up to `offset`.
    pub fn is_unconfirmed(&self, offset: u64) -> bool {
        offset > self.confirmed
    }

    /// Whether a confirmation must be sent soon: much is unconfirmed, or the end is, and the other direction has ended
    /// `too`, so that no bytes follow with which it could be sent.
    pub fn is_due(&self, offset: u64, too: bool) -> bool {
        let unconfirmed = offset.saturating_sub(self.confirmed);
        let is_end = self.ended && offset == self.offset();
        unconfirmed >= self.each || (unconfirmed > 0 && is_end && too)
    }

    /// It is confirmed that the flow was passed on up to `offset`.
    pub fn confirm(&mut self, offset: u64) {
        self.confirmed = self.confirmed.max(offset);
    }

    /// Whether it was confirmed that the end was passed on.
    pub fn is_end_confirmed(&self) -> bool {
        self.ended && self.confirmed == self.offset()
    }

    /// Confirmations may not have arrived: their carrier is gone.
    pub fn confirm_again(&mut self) {
        self.confirmed = 0;
    }
}
