//! The bytes sent of a flow that are kept, in case they must be sent again.

use bytes::{Buf, Bytes};
use std::collections::VecDeque;

/// One direction of a flow, at the end that sends it.
///
/// Invariant: it keeps no more bytes than were allowed when the last one was sent. If more were sent, the first ones
/// are dropped. The flow continues, but then only an end that has received the dropped bytes can resume it.
#[derive(Debug, Default)]
pub struct SentBytes {
    /// The offset of the first byte that is kept.
    first: u64,
    /// Unit: bytes. What was sent in total.
    sent: u64,
    ended: bool,
    /// The offset up to which the other end has passed the flow on.
    confirmed: u64,
    pieces: VecDeque<Bytes>,
}

/// Why a flow cannot be resumed from an offset, or cannot be confirmed up to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotResumable {
    /// The other end has received more than was sent.
    #[error("the other end has received more than was sent")]
    NeverSent,
    /// The other end has not received bytes that are no longer kept.
    #[error("bytes that the other end lacks are no longer buffered")]
    Forgotten,
}

impl SentBytes {
    /// What another process has sent: `sent` bytes in total, of which `pieces` are the last ones, and perhaps the end.
    pub fn left(sent: u64, pieces: VecDeque<Bytes>, ended: bool) -> Self {
        let kept: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        Self { first: sent - kept.min(sent), sent, ended, confirmed: 0, pieces }
    }

    /// Replaces each piece by the copy that `hold` makes elsewhere; `hold` gets its offset. Returns whether all were
    /// replaced.
    pub fn move_to(&mut self, mut hold: impl FnMut(u64, &[u8]) -> Option<Bytes>) -> bool {
        let mut offset = self.first;
        for piece in &mut self.pieces {
            let Some(held) = hold(offset, piece) else { return false };
            offset += piece.len() as u64;
            *piece = held;
        }
        true
    }

    /// Unit: bytes. What was sent in total.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// These bytes are sent. From now on at most so many are kept.
    pub fn enqueue(&mut self, bytes: Bytes, most: u64) {
        self.sent += bytes.len() as u64;
        if !bytes.is_empty() {
            self.pieces.push_back(bytes);
        }
        self.forget_up_to(self.sent.saturating_sub(most));
    }

    /// The end is sent.
    pub fn enqueue_end(&mut self) {
        self.ended = true;
    }

    /// The other end has passed the flow on up to this offset.
    ///
    /// # Errors
    /// [`NotResumable::NeverSent`], if it cannot have.
    pub fn confirm(&mut self, offset: u64) -> Result<(), NotResumable> {
        if offset > self.end() {
            return Err(NotResumable::NeverSent);
        }
        self.confirmed = self.confirmed.max(offset);
        self.forget_up_to(self.confirmed.min(self.sent));
        Ok(())
    }

    /// Whether the other end has passed on all of the flow, and its end.
    pub fn is_confirmed(&self) -> bool {
        self.ended && self.confirmed == self.end()
    }

    /// Unit: bytes. What was sent, and not confirmed as passed on.
    pub fn unconfirmed(&self) -> u64 {
        self.sent.saturating_sub(self.confirmed)
    }

    /// Whether the end was sent.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Unit: bytes. What is kept.
    pub fn kept(&self) -> u64 {
        self.sent - self.first
    }

    /// The bytes to send again to an end that has received up to this offset, and whether to send the flow's end again.
    ///
    /// # Errors
    /// When the flow cannot continue from there.
    pub fn after(&self, offset: u64) -> Result<(VecDeque<Bytes>, bool), NotResumable> {
        if offset > self.end() {
            return Err(NotResumable::NeverSent);
        }
        if offset < self.first {
            return Err(NotResumable::Forgotten);
        }
        let mut pieces = self.pieces.clone();
        drop_front(&mut pieces, offset.min(self.sent) - self.first);
        Ok((pieces, self.ended && offset <= self.sent))
    }

    /// The offset behind all that was sent.
    fn end(&self) -> u64 {
        self.sent + u64::from(self.ended)
    }

    fn forget_up_to(&mut self, offset: u64) {
        let Some(bytes) = offset.checked_sub(self.first).filter(|bytes| *bytes > 0) else { return };
        self.first = offset;
        drop_front(&mut self.pieces, bytes);
        if self.pieces.is_empty() {
            // An idle flow holds no memory.
            self.pieces = VecDeque::new();
        }
    }
}

fn drop_front(pieces: &mut VecDeque<Bytes>, mut bytes: u64) {
    while bytes > 0
        && let Some(piece) = pieces.front_mut()
    {
        let length = piece.len() as u64;
        if bytes < length {
            // It is less than a piece.
            piece.advance(usize::try_from(bytes).unwrap_or_default());
            return;
        }
        bytes -= length;
        pieces.pop_front();
    }
}
