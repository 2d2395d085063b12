//! Simulated links, for the tests of the evaluation.

use super::estimate::TrainArrival;
use super::train::{PACKET, Train};
use midhop_units::{Duration, Rate};

/// A link with a queue, a token bucket and losses.
#[derive(Debug, Clone)]
pub(super) struct Synthetic {
    /// Its rate. Unit: bits per second, at a time in seconds.
    pub(super) rate: fn(f64) -> f64,
    /// The size of the token bucket: the burst that passes after silence. Unit: bits.
    pub(super) bucket: f64,
    /// The size of the queue. Unit: bits.
    pub(super) queue: f64,
    /// Probability that a packet begins a burst of losses, and mean length of one.
    pub(super) loss: (f64, f64),
    /// The fastest that the sender can send. Unit: bits per second.
    pub(super) sender_max: f64,
    /// The part of the time for which the sender has a processor.
    pub(super) sender_part: f64,
    pub(super) seed: u64,
}

impl Synthetic {
    pub(super) fn new(rate: fn(f64) -> f64) -> Self {
        let (bucket, queue, loss) = (0.0, 5e6, (0.0, 1.0));
        let (sender_max, sender_part) = (f64::INFINITY, 1.0);
        Self { rate, bucket, queue, loss, sender_max, sender_part, seed: 1 }
    }

    fn uniform(&mut self) -> f64 {
        // SplitMix64.
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.seed;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A train and its arrivals, over a link whose queue is empty and whose bucket is full.
    pub(super) fn carry(&mut self, rate: Rate, time: Duration) -> (Train, Vec<TrainArrival>) {
        let train = Train::lasting(1, rate, time);
        let bits = PACKET as f64 * 8.0;
        let sending = (train.rate_bit_per_s as f64 * self.sender_part).min(self.sender_max);
        let (mut tokens, mut free_at, mut clock) = (self.bucket, 0.0f64, 0.0);
        let mut losing = false;
        let mut arrivals = Vec::new();
        for number in 0..train.packets {
            let sent = f64::from(number) * bits / sending;
            let speed = (self.rate)(sent);
            tokens = (tokens + (sent - clock) * speed).min(self.bucket);
            clock = sent;
            let at = if tokens >= bits && free_at <= sent {
                tokens -= bits;
                sent
            } else {
                if (free_at - sent) * speed > self.queue {
                    continue;
                }
                tokens = 0.0;
                free_at = free_at.max(sent) + bits / speed;
                free_at
            };
            let chance = if losing { 1.0 - 1.0 / self.loss.1 } else { self.loss.0 };
            losing = self.uniform() < chance;
            if !losing {
                arrivals.push(TrainArrival {
                    number,
                    sent_ns: 5_000_000_000 + (sent * 1e9) as u64,
                    at_ns: 9_000_000_000 + (at * 1e9) as u64,
                });
            }
        }
        (train, arrivals)
    }
}
