//! Decides whether a sent packet can be decoded at the other end.
//!
//! The channel is behind the sender: a packet that it loses has used capacity, as on a real
//! satellite link.

use crate::acm::Acm;
use crate::counters::Cause;
use crate::loss::LossProcess;
use crate::outage::Outages;
use crate::plan::DirectionPlan;
use crate::reconfiguration::Reconfiguration;
use crate::stream::Stream;
use midhop_units::{Bytes, Instant, Loss, Seed};

/// The channel of one direction.
#[derive(Debug, Clone)]
pub(crate) struct Channel {
    /// It has no losses of any kind.
    clear: bool,
    losses: Vec<LossProcess>,
    bit_error_rate: f64,
    bit_errors: Stream,
    /// The loss by bit errors for the last packet size: sizes repeat.
    size_loss: (Bytes, Loss),
    outages: Outages,
    reconfiguration: Option<Reconfiguration>,
    acm: Option<Acm>,
}

impl Channel {
    pub(crate) fn new(
        plan: &DirectionPlan,
        start: Instant,
        acm: Option<Acm>,
        reconfiguration: Option<Reconfiguration>,
        seed: Seed,
    ) -> Self {
        let losses = LossProcess::all(&plan.loss, start, seed);
        let outages = Outages::new(&plan.outages, false, start);
        let errs = plan.bit_error_rate > 0.0 || !losses.is_empty();
        let changes = reconfiguration.is_some() || acm.is_some() || !outages.is_empty();
        Self {
            clear: !errs && !changes,
            losses,
            bit_error_rate: plan.bit_error_rate,
            bit_errors: Stream::new(seed, "bit-errors"),
            size_loss: (Bytes::ZERO, Loss::NONE),
            outages,
            reconfiguration,
            acm,
        }
    }

    /// Why a packet sent from `began` to `finished` is lost, if it is. Times must not go backwards.
    ///
    /// Every stage draws for every packet; the first cause counts.
    pub(crate) fn loses(
        &mut self,
        began: Instant,
        finished: Instant,
        size: Bytes,
    ) -> Option<Cause> {
        if self.clear {
            return None;
        }
        let mut lost = false;
        for process in &mut self.losses {
            lost |= process.loses(finished);
        }
        let corrupted = self.bit_error_rate > 0.0 && {
            if self.size_loss.0 != size {
                self.size_loss = (size, Loss::from_bit_errors(self.bit_error_rate, size.get()));
            }
            self.bit_errors.strikes(self.size_loss.1)
        };
        let interrupted = self.reconfiguration.as_mut().is_some_and(|reconfiguration| {
            let slot = reconfiguration.at(finished);
            let begun_before_its_end = began < slot.interrupted_until;
            slot.lossy && begun_before_its_end && finished > slot.begin
        });
        if interrupted || self.outages.overlap(began, finished) {
            Some(Cause::Outage)
        } else if self.acm.as_mut().is_some_and(|acm| !acm.decodable(finished)) {
            Some(Cause::Acm)
        } else if lost {
            Some(Cause::Loss)
        } else if corrupted {
            Some(Cause::BitErrors)
        } else {
            None
        }
    }
}
