//! How long repeats of a SYN to a server wait: as long as somebody waits for its answer.

use super::{Holder, Verdict};
use crate::ends::Ends;
use std::rc::Rc;

/// An attempt to open a far side whose client is held: while it lasts, repeats of its SYN wait.
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
