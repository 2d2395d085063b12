//! Monitor intervals: the data sent in one, and its results.

use super::utility::utility_micros;
use midhop_units::{Duration, Instant, Rate};

/// Why an interval was sent at its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Doubling.
    Starting,
    /// The nth of four, above the rate or below it.
    Probing { nth: usize, up: bool },
    /// A step in a direction.
    Moving,
    /// Waiting for the results of others.
    Waiting,
}

/// One monitor interval.
#[derive(Debug, Clone, Copy)]
pub(super) struct Interval {
    pub role: Role,
    pub rate: Rate,
    pub start: Instant,
    /// `None` during the interval.
    pub end: Option<Instant>,
    /// Whether it proves nothing: for lack of data, or because the path changed within it.
    pub spoilt: bool,
    acked: u64,
    lost: u64,
    round_trips: Regression,
}

impl Interval {
    pub fn new(role: Role, rate: Rate, start: Instant) -> Self {
        Self {
            role,
            rate,
            start,
            end: None,
            spoilt: false,
            acked: 0,
            lost: 0,
            round_trips: Regression::default(),
        }
    }

    /// Whether data sent at `sent` belongs to it.
    pub fn holds(&self, sent: Instant) -> bool {
        sent >= self.start && self.end.is_none_or(|end| sent < end)
    }

    pub fn acknowledge(&mut self, acked: u64) {
        self.acked = self.acked.saturating_add(acked);
    }

    pub fn lose(&mut self, lost: u64) {
        self.lost = self.lost.saturating_add(lost);
    }

    pub fn measure(&mut self, sent: Instant, rtt: Duration) {
        self.round_trips.add(us(sent.saturating_since(self.start)), us(rtt));
    }

    /// Its utility; `None` where it proves nothing. Unit: millionths.
    pub fn utility(&self) -> Option<i64> {
        let sent = self.acked.saturating_add(self.lost);
        let lasted = self.end?.saturating_since(self.start);
        // The window limited the sender: the real rate was lower.
        let held_back = sent < self.rate.bytes_in(lasted).get() / 2;
        if self.spoilt || held_back || sent == 0 {
            return None;
        }
        let gradient = self.round_trips.slope_ppb();
        Some(utility_micros(self.rate, gradient, self.lost, sent))
    }
}

fn us(span: Duration) -> i128 {
    i128::from(span.as_ns() / 1000)
}

/// A line through points in time, by least squares.
#[derive(Debug, Clone, Copy, Default)]
struct Regression {
    count: i128,
    x: i128,
    y: i128,
    xx: i128,
    xy: i128,
    yy: i128,
}

/// Three standard errors, squared: a slope below them is noise.
const SIGNIFICANT_SQUARED: i128 = 9;

impl Regression {
    fn add(&mut self, x: i128, y: i128) {
        self.count += 1;
        self.x += x;
        self.y += y;
        self.xx += x * x;
        self.xy += x * y;
        self.yy += y * y;
    }

    /// Its slope. Unit: parts per billion; zero where there are too few points, or where they
    /// scatter so widely that the line may be level.
    fn slope_ppb(&self) -> i64 {
        let width = self.count * self.xx - self.x * self.x;
        let height = self.count * self.yy - self.y * self.y;
        let both = self.count * self.xy - self.x * self.y;
        if width <= 0 || self.is_noise(width, height, both) {
            return 0;
        }
        let slope = both * 1_000_000_000 / width;
        i64::try_from(slope).unwrap_or(if slope > 0 { i64::MAX } else { i64::MIN })
    }

    /// Whether the slope is less than three of its standard errors: with t² = r²·(n − 2) ∕ (1 − r²) and
    /// r² = both² ∕ (width·height). Two points always lie on a line.
    fn is_noise(&self, width: i128, height: i128, both: i128) -> bool {
        // So many places that the products do not overflow.
        let excess = (128 - width.max(height).leading_zeros()).saturating_sub(50);
        let (width, height, both) = (width >> excess, height >> excess, both >> excess);
        let explained = both * both;
        self.count > 2
            && explained * (self.count - 2) < SIGNIFICANT_SQUARED * (width * height - explained)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate::from_mbit_per_s(8);

    /// 100 segments of 1000 bytes in 100 ms, each as late as `rtt_us` gives.
    fn interval(lost: u64, rtt_us: impl Fn(u64) -> u64) -> Interval {
        let start = Instant::from_ns(5_000_000);
        let mut interval = Interval::new(Role::Waiting, RATE, start);
        for nth in 0..100 - lost {
            let sent = start + Duration::from_ms(nth);
            interval.acknowledge(1000);
            interval.measure(sent, Duration::from_us(rtt_us(nth)));
        }
        interval.lose(lost * 1000);
        interval.end = Some(start + Duration::from_ms(100));
        interval
    }

    #[test]
    fn an_interval_is_worth_what_its_rate_its_losses_and_its_delays_make_it() {
        let utility = |gradient, lost| Some(utility_micros(RATE, gradient, lost, 100));
        assert_eq!(interval(0, |_| 50_000).utility(), utility(0, 0));
        assert_eq!(interval(3, |_| 50_000).utility(), utility(0, 3));
        assert_eq!(interval(0, |nth| 50_000 + 20 * nth).utility(), utility(20_000_000, 0));
        // Noise without a trend.
        assert_eq!(interval(0, |nth| 50_000 + 500 * (nth % 2)).utility(), utility(0, 0));
    }

    #[test]
    fn acknowledgements_that_were_held_back_are_no_queue() {
        let utility = |gradient| Some(utility_micros(RATE, gradient, 0, 100));
        // The last two of a hundred come 40 ms later: a receiver began to delay its acknowledgements.
        assert_eq!(interval(0, |nth| 50_000 + 40_000 * (nth / 98)).utility(), utility(0));
        // A growing queue is visible through noise of a twentieth of a second.
        let noisy = interval(0, |nth| 50_000 + 500 * nth + 5_000 * (nth % 2)).utility();
        assert!(noisy < utility(400_000_000), "{noisy:?}");
        assert_eq!(interval(98, |nth| 50_000 + 30 * nth).utility().map(|it| it < 0), Some(true));
        // As many points and as high numbers as possible.
        let mut line = Regression::default();
        (0..1_000_000).for_each(|nth| line.add(nth * 1_000, 10_000_000 + nth * 20));
        assert_eq!(line.slope_ppb(), 20_000_000);
    }

    #[test]
    fn an_interval_that_shows_nothing_has_no_utility() {
        let mut spoilt = interval(0, |_| 50_000);
        spoilt.spoilt = true;
        assert_eq!(spoilt.utility(), None);
        let mut running = interval(0, |_| 50_000);
        running.end = None;
        assert_eq!(running.utility(), None);
        let mut faster = interval(0, |_| 50_000);
        faster.rate = Rate::from_mbit_per_s(17);
        assert_eq!(faster.utility(), None, "less than half of its rate was sent");
    }

    #[test]
    fn what_is_sent_belongs_to_one_interval() {
        let interval = interval(0, |_| 50_000);
        assert!(interval.holds(Instant::from_ns(5_000_000)));
        assert!(interval.holds(Instant::from_ns(104_999_999)));
        assert!(!interval.holds(Instant::from_ns(105_000_000)));
        assert!(!interval.holds(Instant::from_ns(4_999_999)));
    }
}
