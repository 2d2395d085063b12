//! Bounds receive windows by the memory that is left.
//!
//! An open window is a promise: the bytes that it allows may arrive at once, whether the flow is read or not. A buffer
//! that the kernel sizes promises more: while its flow moves, the kernel may open it to its maximum between two reads.
//!
//! Each buffer may have [`Budget::window_least`], and beyond that half of what is neither held nor promised to others.
//! The kernel sizes a buffer only while the buffer's maximum is within that bound. Otherwise the buffer is kept at the
//! size that its flow was measured to need, and grows only with that need. So a single window can take half of the
//! memory. N windows that grow without end get an equal part each, 1/(N + 1), and one part is left for the next
//! window.
//!
//! Source: A. K. Choudhury, E. L. Hahne: Dynamic queue length thresholds for shared-memory packet switches, 1998, with
//! α = 1.
//!
//! Invariant: what is held and promised beyond the least of each window is at most the limit, once each window was judged.
//!
//! Decision 0052.

use crate::budget::Budget;
use midhop_units::Bytes;
use std::sync::Arc;

/// The receive window of one socket.
#[derive(Debug)]
pub struct ReceiveWindow {
    budget: Arc<Budget>,
    /// The largest buffer that it is ever given, by the kernel or by its leg.
    most: Bytes,
    /// Unit: bytes. What may arrive beyond the least and beyond what is held.
    promised: u64,
    /// The size at which its buffer is kept; none: it may grow to the most.
    bound: Option<Bytes>,
    rests: bool,
}

/// How a socket's receive buffer is to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferChange {
    /// It has this size from now on, and does not grow.
    Bound(Bytes),
    /// It has this size, and may grow.
    Release(Bytes),
}

impl ReceiveWindow {
    /// The window of a connection that has moved nothing, and that is given a buffer of at most `most`.
    pub fn new(budget: Arc<Budget>, most: Bytes) -> Self {
        Self { budget, most, promised: 0, bound: None, rests: true }
    }

    /// The window of a connection whose buffer is kept at a size.
    pub fn bounded(budget: Arc<Budget>, most: Bytes, size: Bytes) -> Self {
        Self { budget, most, promised: 0, bound: Some(size), rests: true }
    }

    /// Whether its flow rested when it was judged last. If so, judge it before more than a little is read.
    pub fn rests(&self) -> bool {
        self.rests
    }

    /// Whether it may have to change although its flow rests.
    pub fn matters(&self) -> bool {
        self.promised > 0 || self.bound.is_some()
    }

    /// Judges the socket of a flow that moves. `unread` bytes of its buffer are in use, and counted as held. `needed`
    /// measures how large a buffer the flow needs at its speed; it is called only where the result matters.
    pub fn judge_moving(
        &mut self,
        unread: Bytes,
        needed: impl FnOnce() -> Bytes,
    ) -> Option<BufferChange> {
        self.rests = false;
        self.judge(self.most, unread, needed)
    }

    /// Judges the socket of a flow that rests. Its buffer is `buffer`, and does not grow before the flow moves.
    pub fn judge_resting(&mut self, buffer: Bytes, unread: Bytes) -> Option<BufferChange> {
        self.rests = true;
        self.judge(buffer.min(self.most), unread, || buffer)
    }

    /// `wanted` is the most that it can grow to without a bound.
    fn judge(
        &mut self,
        wanted: Bytes,
        unread: Bytes,
        needed: impl FnOnce() -> Bytes,
    ) -> Option<BufferChange> {
        let allowed = self.allowed(unread);
        let least = Bytes::new(self.budget.window_least());
        let change = match self.bound {
            None if wanted > allowed => Some(BufferChange::Bound(allowed.min(needed().max(least)))),
            None => None,
            // An eighth of reserve, so that it is not bounded again at once.
            Some(size) if allowed >= self.most + eighth(self.most) => {
                // Twice the size: a kernel that remembers what was read while the buffer could not grow continues only
                // beyond that.
                Some(BufferChange::Release((size + size).min(self.most)))
            }
            Some(size) => {
                let most = allowed.min(self.most);
                let target = if most > size { most.min(size.max(needed())) } else { most };
                let differs = target + eighth(target) < size || size + eighth(size) < target;
                differs.then_some(BufferChange::Bound(target))
            }
        };
        match change {
            Some(BufferChange::Bound(size)) => self.bound = Some(size),
            Some(BufferChange::Release(_)) => self.bound = None,
            None => {}
        }
        let size = self.bound.unwrap_or(if change.is_some() { self.most } else { wanted });
        self.promise(size.get().saturating_sub(self.budget.window_least().max(unread.get())));
        change
    }

    /// The largest buffer that it may have.
    fn allowed(&self, unread: Bytes) -> Bytes {
        let own = self.promised + unread.get();
        let others = (self.budget.held() + self.budget.promised()).saturating_sub(own);
        let left = self.budget.limit().saturating_sub(others);
        Bytes::new(self.budget.window_least() + left / 2)
    }

    fn promise(&mut self, bytes: u64) {
        self.budget.promise_anew(self.promised, bytes);
        self.promised = bytes;
    }
}

impl Drop for ReceiveWindow {
    fn drop(&mut self) {
        self.promise(0);
    }
}

fn eighth(bytes: Bytes) -> Bytes {
    Bytes::new(bytes.get() / 8)
}

#[cfg(test)]
mod tests;
