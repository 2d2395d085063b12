//! Counts of the packets of one direction, by their fate.

use midhop_units::Bytes;
use serde::{Deserialize, Serialize};

/// Why a packet did not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The queue was full.
    Queue,
    /// Active queue management chose it.
    Aqm,
    /// The channel lost it.
    Loss,
    /// The channel inverted one of its bits.
    BitErrors,
    /// It was sent while the link was down.
    Outage,
    /// It was sent with a MODCOD for which the signal was too weak.
    Acm,
    /// A later packet replaced it in the queue, see [`crate::Link::supersede`].
    Superseded,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 7] = [
        Self::Queue,
        Self::Aqm,
        Self::Loss,
        Self::BitErrors,
        Self::Outage,
        Self::Acm,
        Self::Superseded,
    ];

    /// The name in records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Aqm => "aqm",
            Self::Loss => "loss",
            Self::BitErrors => "bit-errors",
            Self::Outage => "outage",
            Self::Acm => "acm",
            Self::Superseded => "superseded",
        }
    }
}

/// The counts of one direction since it began.
///
/// Invariant: packets in + duplicates = packets out + drops + packets inside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Packets handed to the link.
    pub packets_in: u64,
    /// Bytes handed to the link.
    pub bytes_in: Bytes,
    /// Packets that the sender has sent into the channel, lost there or not.
    pub packets_sent: u64,
    /// Bytes that the sender has sent into the channel, which used capacity.
    pub bytes_sent: Bytes,
    /// Packets that left the link, duplicates included.
    pub packets_out: u64,
    /// Bytes that left the link, those of duplicates included.
    pub bytes_out: Bytes,
    /// Copies that the channel made.
    pub duplicates: u64,
    /// Packets dropped, by [`Cause`] in the order of [`Cause::ALL`].
    drops: [u64; 7],
    /// Packets that AQM marked instead of dropping them.
    #[serde(default)]
    pub marks: u64,
    /// The largest queue so far.
    pub queue_bytes_max: Bytes,
    /// The largest queue so far, in packets.
    pub queue_packets_max: u64,
}

impl Counters {
    /// Packets dropped for this cause.
    pub fn dropped(&self, cause: Cause) -> u64 {
        self.drops[cause as usize]
    }

    /// Packets dropped for any cause.
    pub fn dropped_in_all(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Each cause's name and its drops.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Cause::ALL.into_iter().map(|cause| (cause.name(), self.dropped(cause)))
    }

    pub(crate) fn drop(&mut self, cause: Cause) {
        self.drops[cause as usize] += 1;
    }
}
