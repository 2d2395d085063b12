//! What a measurement of a link found. Each number's unit ends its key.

use super::end::Pong;
use super::estimate::{Arrived, loss_interval, percentile};
use super::search::Found;
use serde::{Deserialize, Serialize};

/// A rate whose 10th percentile is below this part of its median varies.
const VARIES: f64 = 0.8;
/// Above this loss, `hybla-plus` halves its window too.
const LOSS_MUCH: f64 = 0.02;

/// What was found of a link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkReport {
    /// The far host, as it was given.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// How long all took.
    pub took_s: f64,
    /// The smallest round trip of the link at rest.
    pub rtt_min_s: f64,
    /// The median of the round trips.
    pub rtt_median_s: f64,
    /// Their 95th percentile.
    pub rtt_p95_s: f64,
    /// Pings sent.
    pub pings: u64,
    /// Pings without an answer.
    pub pings_lost: u64,
    /// Towards this host.
    pub down: LinkDirection,
    /// Away from this host.
    pub up: LinkDirection,
    /// What the numbers do not show, in sentences.
    pub warnings: Vec<String>,
}

/// What was found of one direction.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkDirection {
    /// What the link carries, headers of IP and UDP included, packets that it loses behind its bottleneck too.
    pub rate_bit_per_s: f64,
    /// Why the link may be faster than that; none where it was the bottleneck.
    pub rate_at_least_because: Option<String>,
    /// The 10th percentile of the rate that arrived over windows of 0.2 s; none where packets were too few.
    pub rate_p10_bit_per_s: Option<f64>,
    /// The median of it.
    pub rate_p50_bit_per_s: Option<f64>,
    /// The 90th percentile of it.
    pub rate_p90_bit_per_s: Option<f64>,
    /// How much longer than the fastest a ping took this way: the median.
    pub delay_variation_median_s: f64,
    /// The 95th percentile of it.
    pub delay_variation_p95_s: f64,
    /// The rate at which losses were counted; none where there was no time to.
    pub loss_at_bit_per_s: Option<f64>,
    /// Packets sent at that rate.
    pub packets_sent: u64,
    /// Those that never arrived.
    pub packets_lost: u64,
    /// Lost of sent.
    pub loss_ratio: f64,
    /// The lower end of its 95 % interval.
    pub loss_low_ratio: f64,
    /// The upper end of it.
    pub loss_high_ratio: f64,
    /// Mean length of a run of lost packets; none where none was lost.
    pub loss_burst_mean_packets: Option<f64>,
    /// Packets that arrived behind one that was sent later, of those that arrived.
    pub reordered_ratio: f64,
    /// Packets that arrived again, of those that arrived.
    pub duplicate_ratio: f64,
    /// Packets that the receiving host had no room for, in all trains that count.
    pub overflowed_packets: u64,
    /// Payload of one TCP flow; none where it was not tried or failed.
    pub tcp_goodput_bit_per_s: Option<f64>,
    /// Its congestion control.
    pub tcp_congestion: Option<String>,
}

impl LinkDirection {
    /// Takes in the rate that was found.
    pub(super) fn set_rate(&mut self, found: &Found) {
        let windows = found.tail.windows_bit_per_s;
        self.rate_bit_per_s = found.tail.rate_bit_per_s;
        self.rate_at_least_because = found.at_least.map(str::to_owned);
        self.rate_p10_bit_per_s = windows.map(|windows| windows[0]);
        self.rate_p50_bit_per_s = windows.map(|windows| windows[1]);
        self.rate_p90_bit_per_s = windows.map(|windows| windows[2]);
    }

    /// Takes in what came of the train below the link's rate. What is lost there is lost behind the bottleneck: the
    /// link has sent it, so that it counts to its rate.
    pub(super) fn set_loss(&mut self, at_bit_per_s: f64, arrived: &Arrived) {
        let sent = arrived.packets + arrived.lost;
        let burst = arrived.loss_burst_mean();
        let part = |count: u64, of: u64| if of == 0 { 0.0 } else { count as f64 / of as f64 };
        self.loss_at_bit_per_s = Some(at_bit_per_s);
        (self.packets_sent, self.packets_lost) = (sent, arrived.lost);
        self.loss_ratio = part(arrived.lost, sent);
        [self.loss_low_ratio, self.loss_high_ratio] = loss_interval(arrived.lost, sent, burst);
        self.loss_burst_mean_packets = burst;
        self.reordered_ratio = part(arrived.reordered, arrived.packets);
        self.duplicate_ratio = part(arrived.duplicates, arrived.packets);
        self.overflowed_packets += arrived.overflowed;
        if self.loss_ratio < 0.5 {
            self.rate_bit_per_s /= 1.0 - self.loss_ratio;
        }
    }

    /// What the numbers of this direction do not show.
    pub(super) fn warnings(&self, way: &str) -> Vec<String> {
        let mut warnings = Vec::new();
        let mbit = |rate: f64| format!("{:.3} Mbit/s", rate / 1e6);
        if let Some(why) = &self.rate_at_least_because {
            let rate = mbit(self.rate_bit_per_s);
            warnings.push(format!("{way}: the link carries at least {rate}: {why}"));
        }
        if let (Some(low), Some(median), Some(high)) =
            (self.rate_p10_bit_per_s, self.rate_p50_bit_per_s, self.rate_p90_bit_per_s)
            && low < VARIES * median
        {
            warnings.push(format!(
                "{way}: the rate varies from {} to {}; a leg whose `rate` is above what there is builds a queue, \
                 one below it wastes the rest",
                mbit(low),
                mbit(high)
            ));
        }
        if self.overflowed_packets > 0 {
            warnings.push(format!(
                "{way}: the receiving host had no room for {} packets; they count as lost",
                self.overflowed_packets
            ));
        }
        if self.loss_at_bit_per_s.is_none() {
            warnings.push(format!("{way}: losses were not counted: there was no time left"));
        } else if self.loss_ratio > LOSS_MUCH {
            warnings.push(format!(
                "{way}: so many losses slow TCP of every kind; a tunnel between two midhopd repairs them"
            ));
        }
        warnings
    }
}

/// Round trips and their variation each way, of a link at rest.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Trips {
    /// Smallest, median, 95th percentile.
    pub(super) rtt_ms: [f64; 3],
    /// Median and 95th percentile towards the client, above the smallest.
    pub(super) down_ms: [f64; 2],
    /// The same away from it.
    pub(super) up_ms: [f64; 2],
    pub(super) answered: u64,
}

impl Trips {
    /// What answers to pings show; none where there are none. The clocks of both ends need not agree.
    pub(super) fn of(pongs: &[Pong]) -> Option<Self> {
        let ms = |later: u64, earlier: u64| (i128::from(later) - i128::from(earlier)) as f64 / 1e6;
        let sorted = |time: &dyn Fn(&Pong) -> f64| {
            let mut times: Vec<f64> = pongs.iter().map(time).collect();
            times.sort_by(f64::total_cmp);
            times
        };
        let there = sorted(&|pong| ms(pong.ping_received_ns, pong.ping_sent_ns));
        let back = sorted(&|pong| ms(pong.at_ns, pong.sent_ns));
        let around = sorted(&|pong| {
            ms(pong.at_ns, pong.ping_sent_ns) - ms(pong.sent_ns, pong.ping_received_ns)
        });
        let least = *around.first()?;
        let above = |times: &[f64]| {
            let least = percentile(times, 0.0);
            [percentile(times, 0.5) - least, percentile(times, 0.95) - least]
        };
        Some(Self {
            rtt_ms: [least, percentile(&around, 0.5), percentile(&around, 0.95)],
            down_ms: above(&back),
            up_ms: above(&there),
            answered: pongs.len() as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_disagree_do_not_matter() {
        let pongs = [0, 4, 1].map(|late: u64| Pong {
            number: 0,
            ping_sent_ns: 100_000_000_000,
            // The far clock is an hour behind; the way there took 250 ms and more.
            ping_received_ns: 40_250_000_000 + late * 1_000_000,
            sent_ns: 40_260_000_000 + late * 1_000_000,
            at_ns: 100_560_000_000 + late * 3_000_000,
        });
        let trips = Trips::of(&pongs).expect("answered");
        assert_eq!(trips.rtt_ms, [550.0, 553.0, 562.0]);
        assert_eq!((trips.up_ms, trips.down_ms), ([1.0, 4.0], [2.0, 8.0]));
        assert_eq!((trips.answered, Trips::of(&[])), (3, None));
    }

    #[test]
    fn what_is_lost_behind_the_bottleneck_counts_to_its_rate() {
        let mut way = LinkDirection { rate_bit_per_s: 9.9e6, ..LinkDirection::default() };
        let arrived = Arrived { packets: 990, lost: 10, loss_bursts: 5, ..Arrived::default() };
        way.set_loss(8e6, &arrived);
        assert_eq!((way.loss_ratio, way.loss_burst_mean_packets), (0.01, Some(2.0)));
        assert!((way.rate_bit_per_s - 10e6).abs() < 1.0, "{way:?}");
        assert!(way.loss_low_ratio < 0.01 && way.loss_high_ratio > 0.01, "{way:?}");
        assert_eq!(way.warnings("down"), Vec::<String>::new());
    }

    #[test]
    fn what_was_not_measured_is_noted() {
        let way = LinkDirection {
            rate_bit_per_s: 5e6,
            rate_at_least_because: Some("because".to_owned()),
            rate_p10_bit_per_s: Some(2e6),
            rate_p50_bit_per_s: Some(5e6),
            rate_p90_bit_per_s: Some(6e6),
            overflowed_packets: 3,
            ..LinkDirection::default()
        };
        let text = way.warnings("down").join("\n");
        for part in [
            "at least 5.000 Mbit/s: because",
            "from 2.000 Mbit/s to 6.000",
            "no room for 3",
            "not counted",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
    }
}
