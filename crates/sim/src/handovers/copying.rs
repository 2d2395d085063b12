//! Copies of flows before they move, while they still run: in rounds, each with the data that has
//! arrived since the round before.

use crate::packet::FlowId;
use crate::pep::Extent;
use midhop_units::{Bytes, Duration, Instant, Rate};
use std::collections::BTreeMap;

/// The shortest time from one round to the next.
const ROUND_MIN: Duration = Duration::from_ms(10);

/// The copies of flows at the other place.
#[derive(Debug, Default)]
pub(super) struct Copying {
    /// By flow: how much had arrived when its latest complete copy was begun.
    copied: BTreeMap<FlowId, u64>,
    /// The copies in transit.
    round: Vec<Piece>,
    /// The copied bytes that have arrived. Unit: bytes.
    pub sent: u64,
}

#[derive(Debug, Clone, Copy)]
struct Piece {
    flow: FlowId,
    arrived: u64,
    bytes: u64,
    until: Instant,
}

impl Copying {
    /// Begins a round over a path of this `rate`. The first copy of each flow takes `state` bytes
    /// in addition to its data. Returns when the next round may begin.
    pub fn begin(
        &mut self,
        now: Instant,
        flows: &[Extent],
        state: u64,
        rate: Option<Rate>,
    ) -> Instant {
        self.settle(now);
        let mut sum = 0;
        for extent in flows {
            let bytes = match self.copied.contains_key(&extent.flow) {
                true => self.missing(extent),
                false => extent.held + state,
            };
            if bytes > 0 {
                sum += bytes;
                let until = now + time_for(sum, rate);
                self.round.push(Piece { flow: extent.flow, arrived: extent.arrived, bytes, until });
            }
        }
        (now + ROUND_MIN).max(now + time_for(sum, rate))
    }

    /// Counts the copies that have arrived by now.
    pub fn settle(&mut self, now: Instant) {
        for piece in self.round.drain(..).filter(|piece| piece.until <= now) {
            self.copied.insert(piece.flow, piece.arrived);
            self.sent += piece.bytes;
        }
    }

    /// Bytes in the buffers of a flow that are not yet at the other node.
    pub fn missing(&self, extent: &Extent) -> u64 {
        let Some(copied) = self.copied.get(&extent.flow) else { return extent.held };
        extent.held.min(extent.arrived - copied + extent.out_of_order)
    }
}

/// The time to send so many bytes; zero over a path without a limit.
pub(super) fn time_for(bytes: u64, rate: Option<Rate>) -> Duration {
    rate.map_or(Duration::ZERO, |rate| rate.time_for(Bytes::new(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(flow: u32, held: u64, arrived: u64) -> Extent {
        Extent { flow: FlowId(flow), established: true, held, out_of_order: 0, arrived }
    }

    #[test]
    fn a_round_carries_what_came_since_the_last() {
        let at = |ms| Instant::START + Duration::from_ms(ms);
        // A byte in a millisecond.
        let rate = Some(Rate::from_bits_per_s(8000));
        let mut copying = Copying::default();
        let first = [extent(1, 100, 1000), extent(2, 50, 50)];
        assert_eq!(copying.begin(at(0), &first, 10, rate), at(170));
        copying.settle(at(120));
        // The copy of the second has not arrived; what was in transit of it is discarded.
        assert_eq!(copying.sent, 110);
        let later = [extent(1, 100, 1030), extent(2, 60, 60)];
        assert_eq!(later.map(|extent| copying.missing(&extent)), [30, 60]);
        assert_eq!(copying.begin(at(120), &later, 10, rate), at(220));
        copying.settle(at(220));
        assert_eq!(later.map(|extent| copying.missing(&extent)), [0, 0]);
        // Data that has left the buffers meanwhile need not be copied.
        assert_eq!(copying.missing(&extent(1, 7, 2000)), 7);
        assert_eq!(copying.begin(at(220), &later, 10, rate), at(220) + ROUND_MIN);
        assert_eq!(copying.begin(at(300), &[extent(3, 5, 5)], 0, None), at(310));
    }
}
