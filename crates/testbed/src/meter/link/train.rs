//! A train: datagrams of one size at one rate for some time, and the moments at which they are due.

use midhop_units::{Bytes, Duration, Rate};
use serde::{Deserialize, Serialize};

/// Size of a train's packets, headers of IP and UDP included: fits links with tunnels on them. Unit: bytes.
pub(super) const PACKET: u64 = 1250;
/// The fastest train. At a higher rate, a few seconds would need more packets than an end stores.
pub(super) const RATE_MAX: Rate = Rate::from_mbit_per_s(2000);
/// The longest train.
pub(super) const TIME_MAX: Duration = Duration::from_s(15);
/// The longest train, in packets: an end stores one entry for each.
pub(super) const PACKETS_MAX: u64 = 1_000_000;
/// Fewer packets of a train give no rate.
const PACKETS_MIN: u64 = 16;
/// How much lateness a sender makes up for: a longer burst might overflow a queue although the rate
/// would not.
const LATENESS_MAX_NS: u64 = 10_000_000;

/// A train that one end has to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::meter) struct Train {
    /// Numbers the trains of a session.
    pub(super) id: u32,
    /// The rate, headers included. Unit: bits per second.
    pub(super) rate_bit_per_s: u64,
    /// How many packets of [`PACKET`] bytes.
    pub(super) packets: u32,
}

impl Train {
    /// A train of as many packets as fit into `time` at `rate`, but no fewer than a minimum.
    pub(super) fn lasting(id: u32, rate: Rate, time: Duration) -> Self {
        let rate = rate.min(RATE_MAX).max(Rate::from_bits_per_s(1));
        let packets = rate.bytes_in(time).get() / PACKET;
        let packets = packets.clamp(PACKETS_MIN, PACKETS_MAX);
        Self {
            id,
            rate_bit_per_s: rate.bits_per_s(),
            packets: u32::try_from(packets).unwrap_or(u32::MAX),
        }
    }

    /// Why a server would not send or receive this; none where it would.
    pub(super) fn refusal(&self) -> Option<String> {
        let rate = Rate::from_bits_per_s(self.rate_bit_per_s);
        let packets = u64::from(self.packets);
        if self.rate_bit_per_s == 0 || rate > RATE_MAX {
            return Some(format!("a train of {rate} is more than the {RATE_MAX} given here"));
        }
        if packets == 0 || packets > PACKETS_MAX || self.time() > TIME_MAX {
            return Some(format!(
                "a train of {packets} packets in {} is more than is given here",
                self.time()
            ));
        }
        None
    }

    /// All its packets.
    pub(super) fn bytes(&self) -> Bytes {
        Bytes::new(u64::from(self.packets) * PACKET)
    }

    /// How long it takes to send.
    pub(super) fn time(&self) -> Duration {
        Duration::from_ns(self.due_ns(u64::from(self.packets)))
    }

    /// When packet `number` is due, from the beginning.
    fn due_ns(&self, number: u64) -> u64 {
        let bits = u128::from(number) * u128::from(PACKET) * 8;
        let ns = bits * 1_000_000_000 / u128::from(self.rate_bit_per_s.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// Decides when the next packet of a train leaves.
#[derive(Debug)]
pub(super) struct Pacer {
    train: Train,
    next: u64,
    begin_ns: u64,
}

/// What a sender does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Send the packet of this number.
    Send(u32),
    /// Wait so long. Unit: nanoseconds.
    Wait(u64),
    /// The train is over.
    Done,
}

impl Pacer {
    /// A pacer of `train`, which begins at `now_ns`.
    pub(super) fn new(train: Train, now_ns: u64) -> Self {
        Self { train, next: 0, begin_ns: now_ns }
    }

    /// The step at `now_ns`. A sender that is late catches up, but only a little: the rest of the
    /// train is late too.
    pub(super) fn step(&mut self, now_ns: u64) -> Step {
        let Some(number) = u32::try_from(self.next).ok().filter(|&next| next < self.train.packets)
        else {
            return Step::Done;
        };
        let due = self.begin_ns.saturating_add(self.train.due_ns(self.next));
        if due > now_ns {
            return Step::Wait(due - now_ns);
        }
        let late = now_ns - due;
        self.begin_ns += late.saturating_sub(LATENESS_MAX_NS);
        self.next += 1;
        Step::Send(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_train_has_the_packets_of_its_time() {
        let train = Train::lasting(1, Rate::from_mbit_per_s(10), Duration::from_s(2));
        assert_eq!((train.packets, train.time()), (2000, Duration::from_s(2)));
        let slow = Train::lasting(1, Rate::from_bits_per_s(64_000), Duration::from_ms(500));
        assert_eq!(u64::from(slow.packets), PACKETS_MIN);
        let fast = Train::lasting(1, Rate::from_mbit_per_s(100_000), Duration::from_s(1_000));
        assert_eq!((fast.rate_bit_per_s, fast.refusal()), (RATE_MAX.bits_per_s(), None));
    }

    #[test]
    fn what_a_server_gives_is_bounded() {
        let train = Train { id: 1, rate_bit_per_s: 1_000_000, packets: 100 };
        assert_eq!(train.refusal(), None);
        for refused in [
            Train { rate_bit_per_s: 0, ..train },
            Train { rate_bit_per_s: RATE_MAX.bits_per_s() + 1, ..train },
            Train { packets: 0, ..train },
            Train { packets: u32::MAX, ..train },
            Train { rate_bit_per_s: 1, ..train },
        ] {
            assert!(refused.refusal().is_some(), "{refused:?}");
        }
    }

    #[test]
    fn packets_leave_when_they_are_due() {
        let train = Train { id: 1, rate_bit_per_s: 10_000_000, packets: 3 };
        let mut pacer = Pacer::new(train, 500);
        assert_eq!(pacer.step(500), Step::Send(0));
        assert_eq!(pacer.step(500), Step::Wait(1_000_000));
        assert_eq!(pacer.step(1_000_500), Step::Send(1));
        assert_eq!(pacer.step(2_000_500), Step::Send(2));
        assert_eq!(pacer.step(2_000_500), Step::Done);
    }

    #[test]
    fn a_sender_that_was_held_up_sends_no_great_burst() {
        let train = Train { id: 1, rate_bit_per_s: 10_000_000, packets: 1_000 };
        let mut pacer = Pacer::new(train, 0);
        let now = 500_000_000;
        let mut burst = 0;
        while let Step::Send(_) = pacer.step(now) {
            burst += 1;
        }
        // One packet that is due in this millisecond, and ten of lateness.
        assert_eq!(burst, 11);
        assert_eq!(pacer.step(now + 1_000_000), Step::Send(11));
    }
}
