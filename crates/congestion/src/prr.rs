//! Proportional Rate Reduction: how a transport spreads a window reduction over a round trip.
//!
//! Source: RFC 9937 §6, counted in segments; differs: the reduction is in proportion to the window when
//! the loss was found, as in Linux, not to RecoverFS. `programs/laws/prr.h` in midhop-bpf computes the
//! same.

use crate::segments::saturated;

/// The progress of a recovery.
///
/// Unit: segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prr {
    /// The window when it began.
    pub from: u32,
    /// The window at its end.
    pub to: u32,
    /// Delivered since it began.
    pub delivered: u32,
    /// Sent since it began.
    pub sent: u32,
}

impl Prr {
    /// The window after an acknowledgement that delivered `acked` while `pipe` segments are in flight.
    ///
    /// `safe`: the cumulative acknowledgement has advanced and no further loss was found.
    pub fn window(&self, acked: u32, pipe: u32, safe: bool) -> u32 {
        let mut more = if pipe > self.to {
            let due = (u64::from(self.delivered) * u64::from(self.to))
                .div_ceil(u64::from(self.from.max(1)));
            saturated(due).saturating_sub(self.sent)
        } else {
            let owed = self.delivered.saturating_sub(self.sent).max(acked);
            owed.saturating_add(u32::from(safe)).min(self.to - pipe)
        };
        // The first retransmission always leaves.
        if self.sent == 0 {
            more = more.max(1);
        }
        pipe.saturating_add(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twenty in flight, the first lost, one selective acknowledgement each for the rest; recovery
    /// begins at the third. Returns what each acknowledgement releases, and the data in flight after it.
    fn recovery(to: u32) -> (Vec<u32>, u32) {
        // RecoverFS as RFC 9937 defines it: 20 less the two acknowledged before.
        let mut prr = Prr { from: 18, to, delivered: 0, sent: 0 };
        let mut pipe = 20 - 3 - 1;
        let mut sent = Vec::new();
        for nth in 3..20 {
            pipe -= u32::from(nth > 3);
            prr.delivered += 1;
            let more = prr.window(1, pipe, false) - pipe;
            prr.sent += more;
            pipe += more;
            sent.push(more);
        }
        (sent, pipe)
    }

    #[test]
    fn a_recovery_ends_with_the_window_it_was_given() {
        assert_eq!(recovery(10), (vec![1, 1, 0, 1, 0, 1, 0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 1], 10));
        assert_eq!(recovery(14), (vec![1, 1, 1, 1, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1], 14));
    }
}
