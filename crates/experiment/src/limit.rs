//! The physical limit of a transfer, with which every result is compared.
//!
//! In each packet, headers take their share: e = payload/packet. A hop of rate C carries at most
//! C·e·(1−p) of payload, where p is the loss at or after its queue that its own sender must repair.
//! Packets that are lost *before* a bottleneck use none of its capacity, and neither do packets
//! that are lost behind a proxy which repairs them from its own store. The path carries as much as
//! its narrowest hop. The round trips that no endpoint can avoid are added.
//!
//! Invariant: a higher rate never lowers a limit, a higher loss never raises one.

use midhop_units::{Bytes, Duration, Loss, Rate};
use serde::{Deserialize, Serialize};

/// The version of IP under a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IP version 4.
    #[default]
    Ipv4,
    /// IP version 6.
    Ipv6,
}

/// How a byte stream is cut into packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Framing {
    /// Largest IP packet. Unit: bytes.
    pub mtu: u32,
    /// The version of IP.
    pub family: Family,
    /// Whether each segment carries RFC 7323 timestamps, as Linux sends them.
    pub timestamps: bool,
}

impl Framing {
    /// Payload of a full segment. Unit: bytes.
    pub fn payload(self) -> u32 {
        const TCP: u32 = 20;
        let ip = match self.family {
            Family::Ipv4 => 20,
            Family::Ipv6 => 40,
        };
        self.mtu.saturating_sub(ip + TCP + if self.timestamps { 12 } else { 0 })
    }

    /// Payload over packet. Range: 0 to 1.
    pub fn efficiency(self) -> f64 {
        f64::from(self.payload()) / f64::from(self.mtu.max(1))
    }
}

/// One hop of a path, in the direction of the data.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Hop {
    /// Its rate. Headers from the network layer up count.
    pub rate: Rate,
    /// Packets lost after its queue.
    pub loss: Loss,
    /// Whether there is a proxy behind it that repairs later losses.
    pub split: bool,
}

/// The narrowest hop of a path.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bottleneck {
    /// Its number on the path, from the sender.
    pub hop: usize,
    /// Its rate.
    pub rate: Rate,
    /// Packets lost at or after it that its sender must repair.
    pub loss: Loss,
    /// Payload that it carries at most.
    pub goodput: Rate,
}

impl Bottleneck {
    /// The narrowest of `hops`; none on a path without hops.
    pub fn of(hops: &[Hop], framing: Framing) -> Option<Self> {
        let mut narrowest: Option<Self> = None;
        let mut loss = Loss::NONE;
        for (number, hop) in hops.iter().enumerate().rev() {
            loss = if hop.split { hop.loss } else { hop.loss.then(loss) };
            let share = framing.efficiency() * (1.0 - loss.probability());
            let goodput = Rate::from_bits_per_s((hop.rate.bits_per_s() as f64 * share) as u64);
            if narrowest.is_none_or(|known| goodput <= known.goodput) {
                narrowest = Some(Self { hop: number, rate: hop.rate, loss, goodput });
            }
        }
        narrowest
    }
}

/// What a transfer has to move, as far as time is concerned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Demand<'a> {
    /// So many bytes over all flows together.
    Bulk(Bytes),
    /// Objects that are requested one after another on each of `parallel` lanes.
    Page {
        /// Size of each.
        objects: &'a [Bytes],
        /// Lanes.
        parallel: u32,
        /// Whether each object has a connection of its own.
        new_connections: bool,
    },
}

/// Which end opens the connection. The other end can send only after it has received the SYN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Opener {
    /// The receiver of the data: the sender answers.
    #[default]
    To,
    /// The sender of the data.
    From,
}

/// Who waits for handshakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handshake {
    /// TCP end to end: one round trip before the first request.
    OverPath,
    /// A proxy near the client answers, or the request rides with the SYN: none over the long leg.
    Spared,
}

/// The limit of one transfer on its path.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Limit {
    /// Payload per time in the long run.
    pub goodput: Rate,
    /// Propagation delay in both directions.
    pub rtt: Duration,
    /// Which end opens.
    pub opens: Opener,
}

impl Limit {
    /// The shortest time from the first SYN to the last byte.
    pub fn time(&self, demand: Demand<'_>, handshake: Handshake) -> Duration {
        let per_connection = match handshake {
            Handshake::OverPath => self.rtt,
            Handshake::Spared => Duration::ZERO,
        };
        // A sender that opens the connection needs half a round trip to reach the other end; one
        // that responds, a whole one.
        let per_request = match self.opens {
            Opener::To => self.rtt,
            Opener::From => self.rtt / 2,
        };
        match demand {
            Demand::Bulk(bytes) => per_connection
                .saturating_add(per_request)
                .saturating_add(self.goodput.time_for(bytes)),
            Demand::Page { objects, parallel, new_connections } => {
                // Either all objects share the rate after one wait, or the connection with most
                // objects waits once for each of its own: it has at least this many, and no smaller
                // ones.
                let lanes = objects.len().min((parallel.max(1)) as usize).max(1);
                let longest = objects.len().div_ceil(lanes);
                let mut sorted = objects.to_vec();
                sorted.sort_unstable();
                let all = self.page_time(&sorted, 1, 1, per_connection, per_request);
                let connections = if new_connections { longest } else { 1 };
                let lane = self.page_time(
                    &sorted[..longest],
                    connections,
                    longest,
                    per_connection,
                    per_request,
                );
                all.max(lane)
            }
        }
    }

    /// The upper bound of an average over the first `span`.
    pub fn average(&self, span: Duration, handshake: Handshake) -> Rate {
        let wait = self.time(Demand::Bulk(Bytes::ZERO), handshake);
        Rate::of(self.goodput.bytes_in(span.saturating_sub(wait)), span)
    }

    fn page_time(
        &self,
        objects: &[Bytes],
        connections: usize,
        requests: usize,
        per_connection: Duration,
        per_request: Duration,
    ) -> Duration {
        let bytes = objects.iter().fold(Bytes::ZERO, |sum, &size| sum.saturating_add(size));
        per_connection
            .scale(connections as f64)
            .saturating_add(per_request.scale(requests as f64))
            .saturating_add(self.goodput.time_for(bytes))
    }
}

/// The goodput that a window, or a proxy's store, of size `window` allows over a round trip of
/// `rtt`.
pub fn by_window(window: Bytes, rtt: Duration) -> Rate {
    Rate::of(window, rtt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINUX: Framing = Framing { mtu: 1500, family: Family::Ipv4, timestamps: true };

    fn loss(probability: f64) -> Loss {
        Loss::new(probability).unwrap()
    }

    fn hop(rate: &str, probability: f64) -> Hop {
        Hop { rate: rate.parse().unwrap(), loss: loss(probability), split: false }
    }

    fn limit(hops: &[Hop], rtt_ms: u64) -> Limit {
        let goodput = Bottleneck::of(hops, LINUX).unwrap().goodput;
        Limit { goodput, rtt: Duration::from_ms(rtt_ms), opens: Opener::To }
    }

    #[track_caller]
    fn near(got: f64, wanted: f64, digit: f64) {
        assert!((got - wanted).abs() <= digit / 2.0, "{got}, not {wanted}");
    }

    #[test]
    fn headers_take_their_share() {
        let framing = |mtu, family, timestamps| Framing { mtu, family, timestamps };
        for (framing, payload, share) in [
            (framing(1500, Family::Ipv4, true), 1448, 0.9653),
            (framing(1500, Family::Ipv4, false), 1460, 0.9733),
            (framing(1500, Family::Ipv6, true), 1428, 0.9520),
            (framing(588, Family::Ipv4, true), 536, 0.9116),
            (framing(1024, Family::Ipv4, false), 984, 0.9609),
        ] {
            assert_eq!(framing.payload(), payload);
            near(framing.efficiency(), share, 1e-4);
        }
        assert_eq!(framing(20, Family::Ipv6, true).payload(), 0);
    }

    /// A LEO path to a phone: server, 100 Mb/s; feeder link, two inter-satellite links, user link.
    fn phone(satellite_loss: f64, terrestrial_loss: f64) -> [Hop; 5] {
        let half = 1.0 - (1.0 - satellite_loss).sqrt();
        [
            hop("100 Mbit/s", terrestrial_loss),
            hop("10 Gbit/s", half),
            hop("2 Gbit/s", 0.0),
            hop("2 Gbit/s", 0.0),
            hop("2 Mbit/s", half),
        ]
    }

    #[test]
    fn leo_phone_30_s_averages() {
        let steady = limit(&phone(0.0, 0.0), 254);
        near(steady.goodput.mbit_per_s(), 1.931, 1e-3);
        for (satellite, terrestrial, wanted) in
            [(0.0, 0.0, 1.906), (1e-3, 1e-6, 1.905), (1e-3, 1e-3, 1.905), (1e-2, 1e-3, 1.897)]
        {
            // The study's source opens the connection and sends: a handshake, then half a round
            // trip.
            let limit = Limit { opens: Opener::From, ..limit(&phone(satellite, terrestrial), 254) };
            let average = limit.average(Duration::from_s(30), Handshake::OverPath);
            near(average.mbit_per_s(), wanted, 1e-3);
        }
    }

    #[test]
    fn geo_140_mbit() {
        let limit = limit(&[hop("1 Gbit/s", 0.0), hop("140 Mbit/s", 0.0005)], 600);
        near(limit.goodput.mbit_per_s(), 135.1, 0.1);
        for (bytes, seconds) in [(1_000_000_000, 60.4), (1 << 30, 64.8)] {
            let time = limit.time(Demand::Bulk(Bytes::new(bytes)), Handshake::OverPath);
            near(time.as_s_f64(), seconds, 0.1);
        }
        let pushed = Limit { opens: Opener::From, ..limit };
        for (span, wanted) in [(5, 110.8), (10, 122.9), (15, 127.0), (20, 129.0), (30, 131.0)] {
            let average = pushed.average(Duration::from_s(span), Handshake::OverPath);
            near(average.mbit_per_s(), wanted, 0.1);
        }
    }

    #[test]
    fn effective_over_provisioned_bandwidth() {
        let limit = limit(&[hop("10 Mbit/s", 0.0)], 540);
        let share = |bytes: u64, time: Duration| {
            let goodput = Rate::of(Bytes::new(bytes), time);
            crate::metrics::epb_ratio(goodput, Rate::from_mbit_per_s(10)).unwrap() * 100.0
        };
        for (megabytes, wanted) in [(2, 58.4), (5, 76.6), (20, 90.6), (50, 94.1)] {
            let bytes = megabytes * 1_000_000;
            let time = limit.time(Demand::Bulk(Bytes::new(bytes)), Handshake::OverPath);
            near(share(bytes, time), wanted, 0.1);
        }
        // Small files in sequence: one idle round trip each, two with a connection for each.
        for (kilobytes, persistent, new) in [
            (100, 13.0, 7.0),
            (250, 27.0, 16.0),
            (500, 42.0, 27.0),
            (1000, 58.0, 42.0),
            (2000, 73.0, 58.0),
            (5000, 85.0, 77.0),
        ] {
            let objects = vec![Bytes::new(kilobytes * 1000); 10_000];
            for (new_connections, wanted) in [(false, persistent), (true, new)] {
                let page = Demand::Page { objects: &objects, parallel: 1, new_connections };
                let time = limit.time(page, Handshake::OverPath);
                near(share(kilobytes * 1000 * 10_000, time), wanted, 1.0);
            }
        }
        let window = by_window(Bytes::new(65_536), Duration::from_ms(540));
        near(window.mbit_per_s() * 10.0, 9.7, 0.1);
    }

    #[test]
    fn geo_page_and_files() {
        let limit = limit(&[hop("2 Mbit/s", 0.01)], 500);
        near(limit.goodput.bits_per_s() as f64 / 8000.0, 238.9, 0.1);
        let file = |megabytes: u64| {
            limit.time(Demand::Bulk(Bytes::new(megabytes * 1_000_000)), Handshake::OverPath)
        };
        near(file(2).as_s_f64(), 9.4, 0.1);
        near(file(5).as_s_f64(), 21.9, 0.1);
        let objects: Vec<Bytes> =
            [50, 817, 817, 817, 818, 818, 818].map(|kb| Bytes::new(kb * 1000)).to_vec();
        let page = |parallel, new_connections, handshake| {
            limit.time(Demand::Page { objects: &objects, parallel, new_connections }, handshake)
        };
        near(page(1, false, Handshake::OverPath).as_s_f64(), 24.7, 0.1);
        near(page(1, true, Handshake::OverPath).as_s_f64(), 27.7, 0.1);
        near(page(1, false, Handshake::Spared).as_s_f64(), 24.2, 0.1);
        near(page(7, true, Handshake::Spared).as_s_f64(), 20.74 + 0.5, 0.1);
    }

    #[test]
    fn loss_before_the_bottleneck_or_behind_a_proxy_costs_nothing() {
        let narrow = hop("2 Mbit/s", 0.0);
        let before = Bottleneck::of(&[hop("1 Gbit/s", 0.1), narrow], LINUX).unwrap();
        let after = Bottleneck::of(&[narrow, hop("1 Gbit/s", 0.1)], LINUX).unwrap();
        let split = Hop { split: true, ..narrow };
        let behind = Bottleneck::of(&[split, hop("1 Gbit/s", 0.1)], LINUX).unwrap();
        assert_eq!((before.hop, after.hop, behind.hop), (1, 0, 0));
        near(before.goodput.mbit_per_s(), 1.9307, 1e-4);
        near(after.goodput.mbit_per_s(), 1.7376, 1e-4);
        assert_eq!(behind.goodput, before.goodput);
        assert_eq!(Bottleneck::of(&[], LINUX), None);
    }

    fn hops() -> impl Strategy<Value = Vec<Hop>> {
        let hop = (1..1_000_000_000u64, 0.0..0.5f64, any::<bool>()).prop_map(|(rate, p, split)| {
            Hop { rate: Rate::from_bits_per_s(rate), loss: loss(p), split }
        });
        proptest::collection::vec(hop, 1..6)
    }

    proptest! {
        #[test]
        fn limits_grow_with_rate_and_fall_with_loss(hops in hops(), which: usize, more in 0.0..0.5f64) {
            let which = which % hops.len();
            let narrow = Bottleneck::of(&hops, LINUX).unwrap().goodput;
            let mut faster = hops.clone();
            faster[which].rate = Rate::from_bits_per_s(hops[which].rate.bits_per_s() * 2);
            prop_assert!(Bottleneck::of(&faster, LINUX).unwrap().goodput >= narrow);
            let mut worse = hops.clone();
            worse[which].loss = hops[which].loss.then(loss(more));
            prop_assert!(Bottleneck::of(&worse, LINUX).unwrap().goodput <= narrow);
        }

        #[test]
        fn more_lanes_and_fewer_handshakes_never_take_longer(
            sizes in proptest::collection::vec(1..5_000_000u64, 1..20),
            parallel in 1..10u32,
            rtt_ms in 0..1000u64,
        ) {
            let objects: Vec<Bytes> = sizes.into_iter().map(Bytes::new).collect();
            let limit = limit(&[hop("20 Mbit/s", 0.0)], rtt_ms);
            let page = |parallel, new_connections, handshake| {
                limit.time(Demand::Page { objects: &objects, parallel, new_connections }, handshake)
            };
            let one = page(parallel, true, Handshake::OverPath);
            prop_assert!(page(parallel + 1, true, Handshake::OverPath) <= one);
            prop_assert!(page(parallel, false, Handshake::OverPath) <= one);
            prop_assert!(page(parallel, true, Handshake::Spared) <= one);
        }
    }
}
