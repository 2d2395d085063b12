//! A law with a window in segments, between its opening and its floor.
//!
//! Each event reaches the opening first, which may withhold it from the law or change it, then the law,
//! and last the floor, which raises the resulting window.

use crate::committed::Floor;
use crate::opening::ActiveOpening;
use crate::segments::Segmented;
use crate::{Ack, Established, Handover, Loss, LostSegment, Rto, Spurious};
use midhop_units::Rate;

#[derive(Debug)]
pub(crate) struct Windowed {
    pub law: Box<dyn Segmented>,
    pub opening: ActiveOpening,
    /// Boxed: few have one.
    pub floor: Option<Box<Floor>>,
}

impl Windowed {
    pub fn on_established(&mut self, established: &Established) {
        self.law.on_established(established);
        self.opening.on_established(&mut *self.law, established);
        if let Some(floor) = &mut self.floor {
            floor.on_established(established);
            floor.raise(&mut *self.law);
        }
    }

    pub fn on_ack(&mut self, ack: &Ack) {
        if self.opening.on_ack(&mut *self.law, ack) {
            self.law.on_ack(ack);
        } else {
            self.law.on_ack(&Ack { app_limited: true, ..*ack });
        }
        if let Some(floor) = &mut self.floor {
            floor.on_ack(ack);
            floor.raise(&mut *self.law);
        }
    }

    pub fn on_loss(&mut self, loss: &Loss) {
        if self.opening.on_loss(&mut *self.law, loss) {
            self.law.on_loss(loss);
        }
        if let Some(floor) = &mut self.floor {
            floor.raise(&mut *self.law);
        }
    }

    pub fn on_rto(&mut self, rto: &Rto) {
        self.opening.on_rto(&mut *self.law);
        self.law.on_rto(rto);
        if let Some(floor) = &mut self.floor {
            floor.on_rto();
        }
    }

    pub fn on_spurious(&mut self, spurious: &Spurious) {
        self.opening.on_spurious(&mut *self.law);
        self.law.on_spurious(spurious);
        if let Some(floor) = &mut self.floor {
            floor.on_spurious();
            floor.raise(&mut *self.law);
        }
    }

    pub fn on_handover(&mut self, handover: &Handover) {
        self.law.on_handover(handover);
        self.opening.on_handover(&mut *self.law, handover);
        if let Some(floor) = &mut self.floor {
            floor.on_handover(handover);
        }
    }

    pub fn on_lost_segment(&mut self, segment: &LostSegment) {
        self.opening.on_lost_segment(segment);
        if let Some(floor) = &mut self.floor {
            floor.on_lost_segment(segment);
        }
        self.law.on_lost_segment(segment);
    }

    /// A transport that spreads a reduction over a round trip would go below the committed rate.
    pub fn governs_recovery(&self) -> bool {
        self.floor.is_some() || self.opening.governs_recovery() || self.law.governs_recovery()
    }

    /// Memory on the heap besides the law. Unit: bytes.
    pub fn memory(&self) -> usize {
        let floor = self.floor.as_ref().map_or(0, |floor| size_of_val(&**floor));
        floor + self.opening.memory()
    }

    pub fn pacing_rate(&self) -> Option<Rate> {
        self.opening.pacing_rate(self.law.window()).or_else(|| self.law.pacing_rate())
    }
}
