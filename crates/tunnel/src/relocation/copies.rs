//! What travels before a flow stands still: copies of what its receive queues hold (SPEC.md §5.8).
//!
//! A direction of a flow is one stream of bytes. In its order, they are in three queues: sent and unsent in the send queue
//! of the connection to which they go, and unread in the receive queue of the connection from which they come. Reading and
//! sending move bytes from one to another, and never change them. So a copy of what was unread before is exact for
//! whichever queue has those bytes when the flow stands still: there they are left out, and the new place puts them back.

use super::{FLOWS_MAX, MessageReader, OFFER_BYTES_MAX, RelocationError};
use std::ops::Range;

/// Unit: bytes. The most of one [`Advance::Copy`].
pub const COPY_BYTES_MAX: usize = 1 << 20;
/// The queues of a direction, in the order of its bytes: sent, unsent, unread.
pub const QUEUES: usize = 3;
/// Unit: bytes. What a [`LeftOut`] takes in a message.
const LEFT_OUT_BYTES: usize = 12;
/// Unit: bytes. What those of a flow take.
pub(super) const ALL_LEFT_OUT_BYTES: usize = 2 * QUEUES * LEFT_OUT_BYTES;
/// Unit: bytes. What is in front of a copy.
const HEAD: usize = 7;

/// What the old place sends before the states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Advance {
    /// No more copies: the states follow.
    States,
    /// Bytes of a direction of a flow. They follow those of the copy before.
    Copy {
        /// The number of the flow, from 0.
        flow: usize,
        /// 0: those of its client; 1: those of its server.
        direction: usize,
        /// The bytes: 1 to [`COPY_BYTES_MAX`].
        bytes: Vec<u8>,
    },
    /// The new place is to confirm all copies before this.
    Confirm,
}

impl Advance {
    /// Its octets, within the limits.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::States => vec![0],
            Self::Confirm => vec![2],
            Self::Copy { flow, direction, bytes } => {
                let mut out = Vec::with_capacity(HEAD + bytes.len());
                out.extend([1, *flow as u8, *direction as u8]);
                out.extend((bytes.len() as u32).to_be_bytes());
                out.extend(bytes);
                out
            }
        }
    }
}

impl MessageReader {
    /// What comes next before the states of `flows` flows, once it is complete. What was copied counts as held.
    ///
    /// # Errors
    /// When it is malformed or beyond a limit.
    pub fn advance(&mut self, flows: usize) -> Result<Option<Advance>, RelocationError> {
        let known = match self.bytes.first() {
            None => return Ok(None),
            Some(0) => Advance::States,
            Some(1) => return self.copy(flows),
            Some(2) => Advance::Confirm,
            Some(_) => return Err(RelocationError::Malformed),
        };
        self.bytes.drain(..1);
        Ok(Some(known))
    }

    fn copy(&mut self, flows: usize) -> Result<Option<Advance>, RelocationError> {
        let Some((&[_, flow, direction, ref length @ ..], rest)) =
            self.bytes.split_first_chunk::<HEAD>()
        else {
            return Ok(None);
        };
        let (flow, direction) = (usize::from(flow), usize::from(direction));
        let length = u32::from_be_bytes(*length) as usize;
        if flow >= flows.min(FLOWS_MAX) || direction > 1 || length == 0 {
            return Err(RelocationError::Malformed);
        }
        let total = self.taken.saturating_add(length);
        if length > COPY_BYTES_MAX || total > OFFER_BYTES_MAX {
            return Err(RelocationError::TooLong(length.max(total)));
        }
        let Some(bytes) = rest.get(..length) else { return Ok(None) };
        let bytes = bytes.to_vec();
        self.taken = total;
        self.bytes.drain(..HEAD + length);
        Ok(Some(Advance::Copy { flow, direction, bytes }))
    }
}

/// Bytes that are left out of a queue, because the new place has a copy of them. Unit: bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeftOut {
    /// How many bytes of the queue are in front of them.
    pub at: u32,
    /// Where they begin in the copy of their direction.
    pub from: u32,
    /// How many they are; 0: none is left out.
    pub length: u32,
}

/// What is left out of the queues of a direction.
pub type AllLeftOut = [LeftOut; QUEUES];

/// Takes those bytes out of the queues of a direction of which the new place has a copy. The first unread byte has the
/// position `read` in the stream, and the copy has the bytes of the positions `copied`. Positions may be negative: a connection
/// that was restored counts from there on.
pub fn leave_out(queues: [&mut Vec<u8>; QUEUES], read: i64, copied: &Range<i64>) -> AllLeftOut {
    let before: usize = queues[..QUEUES - 1].iter().map(|queue| queue.len()).sum();
    let mut begins = read - before as i64;
    queues.map(|queue| {
        let ends = begins + queue.len() as i64;
        let (first, behind) = (begins.max(copied.start), ends.min(copied.end));
        let mut left_out = LeftOut::default();
        if first < behind {
            let (at, length) = ((first - begins) as usize, (behind - first) as usize);
            queue.drain(at..at + length);
            let from = (first - copied.start) as u32;
            left_out = LeftOut { at: at as u32, from, length: length as u32 };
        }
        begins = ends;
        left_out
    })
}

/// Puts the bytes of a copy back into the queues of a direction from which they were left out. The queues grow by no more
/// than the copy has.
///
/// # Errors
/// When the copy has no such bytes, or a queue no such place.
pub fn put_back(
    queues: [&mut Vec<u8>; QUEUES],
    left_out: &AllLeftOut,
    copy: &[u8],
) -> Result<(), RelocationError> {
    let mut used = 0;
    for (queue, LeftOut { at, from, length }) in queues.into_iter().zip(left_out) {
        let [at, from, length] = [*at, *from, *length].map(|it| it as usize);
        if length == 0 {
            continue;
        }
        let bytes = from.checked_add(length).and_then(|end| copy.get(from..end));
        let bytes = bytes.filter(|_| from >= used && at <= queue.len());
        let bytes = bytes.ok_or(RelocationError::Malformed)?;
        let behind = queue.split_off(at);
        queue.reserve(length + behind.len());
        queue.extend_from_slice(bytes);
        queue.extend_from_slice(&behind);
        used = from + length;
    }
    Ok(())
}

/// What is left out of both directions, as a message has it.
pub(super) fn encode_left_out(all: &[AllLeftOut; 2]) -> impl Iterator<Item = u8> {
    let words = all.iter().flatten().flat_map(|it| [it.at, it.from, it.length]);
    words.flat_map(u32::to_be_bytes)
}

/// What [`encode_left_out`] has written; nothing at all if nothing is left out.
pub(super) fn decode_left_out(bytes: &[u8]) -> Result<Option<[AllLeftOut; 2]>, RelocationError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let bytes: &[u8; ALL_LEFT_OUT_BYTES] =
        bytes.try_into().map_err(|_| RelocationError::Malformed)?;
    let mut words = bytes.as_chunks().0.iter().map(|word| u32::from_be_bytes(*word));
    let mut word = || words.next().unwrap_or_default();
    let mut one = || LeftOut { at: word(), from: word(), length: word() };
    let mut direction = || [one(), one(), one()];
    Ok(Some([direction(), direction()]))
}

#[cfg(test)]
mod tests;
