//! Holds retransmitted SYNs to a server back, as long as an answer is awaited.

use super::{Holder, Verdict};
use crate::ends::Ends;
use std::rc::Rc;

/// An attempt to open a far side whose client is held. Retransmissions of its SYN wait until it ends.
pub(super) struct Attempt {
    holder: Rc<Holder>,
    leaving: Ends,
}

impl Attempt {
    pub(super) fn new(holder: Rc<Holder>, leaving: Ends) -> Self {
        holder.repeats.begin(leaving);
        Self { holder, leaving }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(packet) = self.holder.repeats.end(&self.leaving) {
            self.holder.answer_queue(packet, 0, Verdict::Drop);
        }
    }
}
