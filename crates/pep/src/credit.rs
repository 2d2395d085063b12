//! How many bytes of a flow may be held, and where.
//!
//! Bytes in transit from one leg to the other are held in three places: the receive queue of the leg that they come
//! from, a stage between the two sockets, and the send queue of the leg that they go to. A leg's `buffer` bounds its
//! receive queue for one direction and, for the other, its stage and send queue together.
//!
//! Invariant: [`Shares::of`] never hands out more than the buffer it divides.
//!
//! Decision 0010.

use midhop_units::{Bytes, Duration, Rate};

/// The largest stage: what one pipe holds.
const STAGE_MAX: Bytes = Bytes::new(1 << 20);
/// Once a send queue has any room, the kernel takes one more segment, as large as segments get.
const OVERSHOOT: Bytes = Bytes::new(64 << 10);
/// What a sender needs at hand to continue while more is read.
const UNSENT_LEAST: Bytes = Bytes::new(64 << 10);
/// The stage of a leg whose buffer the kernel sizes.
const STAGE_UNMEASURED: Bytes = STAGE_MAX;

/// How a leg's buffer is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// How much may wait between the sockets for the leg.
    pub stage: Bytes,
    /// How much the leg's socket may hold that its far end has not acknowledged; none: the kernel decides by
    /// measurement.
    pub send: Option<Bytes>,
    /// How much of that may wait unsent. The rest is room for what waits behind a lost segment. None: all.
    pub unsent: Option<Bytes>,
    /// The largest window that the leg's socket may offer; none: the kernel decides by measurement.
    pub receive: Option<Bytes>,
}

impl Shares {
    /// Divides a leg's buffer; none: the kernel sizes it by measuring rate and round-trip time.
    pub fn of(buffer: Option<Bytes>) -> Self {
        let Some(buffer) = buffer else {
            return Self { stage: STAGE_UNMEASURED, send: None, unsent: None, receive: None };
        };
        let stage = Bytes::new(buffer.get() / 8).min(STAGE_MAX);
        let overshoot = Bytes::new(buffer.get() / 8).min(OVERSHOOT);
        let send = buffer.saturating_sub(stage).saturating_sub(overshoot);
        let unsent = Bytes::new(send.get() / 8).max(UNSENT_LEAST).min(send);
        Self { stage, send: Some(send), unsent: Some(unsent), receive: Some(buffer) }
    }

    /// The same, with this limit on the window that the leg's socket may offer.
    #[must_use]
    pub fn offering(self, window: Option<Bytes>) -> Self {
        Self { receive: window, ..self }
    }
}

/// The buffer that keeps a leg of this rate and round-trip time full. It has three parts of one product each: what
/// is in flight, what waits behind a lost segment until that has arrived, and the stage with the kernel's own
/// bookkeeping.
///
/// Unit: bytes. Range: ≥ `least`.
pub fn buffer_for(rate: Rate, rtt: Duration, least: Bytes) -> Bytes {
    rate.bytes_in(rtt).scale(3.0).max(least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_more_is_handed_out_than_there_is(bytes in 0u64..=1 << 40) {
            let shares = Shares::of(Some(Bytes::new(bytes)));
            let send = shares.send.expect("a bound");
            prop_assert!(shares.stage + send <= Bytes::new(bytes));
            prop_assert!(send.get() >= bytes / 8 * 6);
            prop_assert!(shares.unsent <= shares.send && shares.unsent >= Some(send.min(UNSENT_LEAST)));
            prop_assert!(shares.receive <= Some(Bytes::new(bytes)));
        }

        #[test]
        fn a_leg_is_kept_full(mbit in 1u64..10_000, ms in 1u64..2_000) {
            let (rate, rtt) = (Rate::from_mbit_per_s(mbit), Duration::from_ms(ms));
            let shares = Shares::of(Some(buffer_for(rate, rtt, Bytes::new(256 << 10))));
            prop_assert!(shares.send.expect("a bound") >= rate.bytes_in(rtt).scale(1.8));
        }
    }
}
