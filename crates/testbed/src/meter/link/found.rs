//! Converts the results of trains and pings into the numbers of a report.

use super::estimate::{Arrived, loss_interval, percentile};
use super::inbox::Pong;
use super::search::Found;
use midhop_experiment::measured::LinkDirection;

/// Enters the rate that was found.
pub(super) fn set_rate(way: &mut LinkDirection, found: &Found) {
    let windows = found.tail.windows_bit_per_s;
    way.rate_bit_per_s = found.tail.rate_bit_per_s;
    way.rate_packets = found.packets;
    way.rate_at_least_because = found.at_least.map(str::to_owned);
    way.rate_p10_bit_per_s = windows.map(|windows| windows[0]);
    way.rate_p50_bit_per_s = windows.map(|windows| windows[1]);
    way.rate_p90_bit_per_s = windows.map(|windows| windows[2]);
}

/// Enters the result of the train below the link's rate. Its losses happen behind the bottleneck:
/// the link has sent these packets, so they count to its rate.
pub(super) fn set_loss(way: &mut LinkDirection, at_bit_per_s: f64, arrived: &Arrived) {
    let sent = arrived.packets + arrived.lost;
    let burst = arrived.loss_burst_mean();
    let part = |count: u64, of: u64| if of == 0 { 0.0 } else { count as f64 / of as f64 };
    way.loss_at_bit_per_s = Some(at_bit_per_s);
    (way.packets_sent, way.packets_lost) = (sent, arrived.lost);
    way.loss_ratio = part(arrived.lost, sent);
    [way.loss_low_ratio, way.loss_high_ratio] = loss_interval(arrived.lost, sent, burst);
    way.loss_burst_mean_packets = burst;
    way.reordered_ratio = part(arrived.reordered, arrived.packets);
    way.duplicate_ratio = part(arrived.duplicates, arrived.packets);
    way.overflowed_packets += arrived.overflowed;
    if way.loss_ratio < 0.5 {
        way.rate_bit_per_s /= 1.0 - way.loss_ratio;
    }
}

/// Round trips of an idle link, and the delay variation each way.
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
    /// Evaluates answers to pings; none where there are none. The clocks of both ends need not
    /// agree.
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
        set_loss(&mut way, 8e6, &arrived);
        assert_eq!((way.loss_ratio, way.loss_burst_mean_packets), (0.01, Some(2.0)));
        assert!((way.rate_bit_per_s - 10e6).abs() < 1.0, "{way:?}");
        assert!(way.loss_low_ratio < 0.01 && way.loss_high_ratio > 0.01, "{way:?}");
        assert_eq!(way.warnings("down"), Vec::<String>::new());
    }
}
