//! How long data waits in the queue before a link.
//!
//! A record has the bytes of each queue over time. Its plan and its seed give what the link could
//! send from then on: the wait ends when it has sent as much as was in the queue. So it is exact
//! also where the rate changes meanwhile.

use crate::sender::Span;
use midhop_experiment::plan::{Crossing, Plan};
use midhop_experiment::record::Series;
use midhop_path::Drawn;
use midhop_units::{Duration, Instant};

/// Longer waits count as this long.
const PATIENCE: Duration = Duration::from_s(60);

/// The quantile `share` of the waits at the link of `crossing`, over the samples of `queue` within
/// `span`. Range of the share: 0 to 1. Unit: ms. None without a sample, and for a link without a
/// limit.
pub(crate) fn quantile(
    plan: &Plan,
    crossing: &Crossing,
    queue: &Series,
    span: Span,
    share: f64,
) -> Option<f64> {
    let drawn = plan.drawn(plan.link(&crossing.link)?, crossing.direction);
    let samples: Vec<(f64, f64)> = span.samples(queue).collect();
    let last = samples.last()?.0;
    let sent = Sent::of(drawn, Duration::from_s_f64(last).saturating_add(PATIENCE))?;
    let mut waits: Vec<f64> = samples.iter().map(|&(at, bytes)| sent.wait(at, bytes)).collect();
    waits.sort_by(f64::total_cmp);
    let rank = (share * waits.len() as f64).ceil() as usize;
    Some(waits[rank.clamp(1, waits.len()) - 1] * 1e3)
}

/// What a link could have sent since its start: at ascending moments, linear in between.
struct Sent {
    /// Moments and bytes. Unit of moments: seconds.
    points: Vec<(f64, f64)>,
}

impl Sent {
    fn of(mut drawn: Drawn, until: Duration) -> Option<Self> {
        let until = Instant::START + until;
        let (mut points, mut bytes) = (vec![(0.0, 0.0)], 0.0);
        loop {
            let stretch = drawn.advance();
            let end = stretch.end.min(until);
            let length = end.saturating_since(stretch.begin).as_s_f64();
            bytes += stretch.rate?.bits_per_s() as f64 / 8.0 * length;
            points.push((end.saturating_since(Instant::START).as_s_f64(), bytes));
            if end >= until {
                return Some(Self { points });
            }
        }
    }

    /// How long after `at` the link takes to send `bytes` more. Both in seconds.
    fn wait(&self, at: f64, bytes: f64) -> f64 {
        if bytes <= 0.0 {
            return 0.0;
        }
        let next = self.points.partition_point(|point| point.0 <= at);
        let wanted = self.between(next, |point| point.0, |point| point.1, at) + bytes;
        let next = self.points.partition_point(|point| point.1 < wanted);
        self.between(next, |point| point.1, |point| point.0, wanted) - at
    }

    /// Interpolates `of` where `along` has `value`, which is between the point before `next` and
    /// `next`.
    fn between(
        &self,
        next: usize,
        along: impl Fn(&(f64, f64)) -> f64,
        of: impl Fn(&(f64, f64)) -> f64,
        value: f64,
    ) -> f64 {
        let last = self.points.len() - 1;
        if next > last {
            return of(&self.points[last]);
        }
        let (before, after) = (&self.points[next.max(1) - 1], &self.points[next]);
        let whole = along(after) - along(before);
        let part = if whole > 0.0 { (value - along(before)) / whole } else { 1.0 };
        of(before) + part * (of(after) - of(before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_experiment::Scenario;
    use midhop_experiment::plan::Direction;

    /// A plan whose link has this rate.
    fn plan(rate: &str) -> Plan {
        let text = format!(
            "title = \"t\"\nduration = \"9 s\"\n[nodes]\na = {{}}\nb = {{}}\n\
             [links.l]\nbetween = [\"a\", \"b\"]\nrate = {rate}\n"
        );
        let plans = Scenario::parse("s.toml", &text).and_then(|it| it.plans());
        plans.unwrap_or_else(|error| panic!("{error}")).remove(0)
    }

    fn read(rate: &str, samples: &[(f64, f64)], share: f64) -> Option<f64> {
        let queue = Series {
            quantity: "queue".to_owned(),
            place: "l.down".to_owned(),
            flow: None,
            unit: "bytes".to_owned(),
            time_s: samples.iter().map(|it| it.0).collect(),
            value: samples.iter().map(|it| it.1).collect(),
        };
        let crossing = Crossing { link: "l".to_owned(), direction: Direction::Down };
        let span = Span { from: Duration::ZERO, until: Some(Duration::from_s(8)) };
        quantile(&plan(rate), &crossing, &queue, span, share)
    }

    fn near(got: Option<f64>, wanted: f64) {
        let got = got.expect("a wait");
        assert!((got - wanted).abs() < 1e-3, "{got}, not {wanted}");
    }

    #[test]
    fn what_stands_there_waits_until_as_much_was_sent() {
        near(read("\"10 Mbit/s\"", &[(1.0, 12_500.0)], 0.5), 10.0);
        near(read("\"10 Mbit/s\"", &[(1.0, 0.0)], 0.95), 0.0);
        let falling = "{ trace = [[\"0 s\", \"8 Mbit/s\"], [\"2 s\", \"4 Mbit/s\"]] }";
        // 500 kB in the remaining half second, and the rest at half the rate.
        near(read(falling, &[(1.5, 1_000_000.0)], 0.5), 1500.0);
        // An outage of a second, and 100 ms for what was in the queue before it.
        let broken = "{ trace = [[\"0 s\", \"8 Mbit/s\"], [\"2 s\", \"0 Mbit/s\"], [\"3 s\", \"8 Mbit/s\"]] }";
        near(read(broken, &[(2.0, 100_000.0)], 0.5), 1100.0);
        near(read(broken, &[(1.9, 100_000.0)], 0.5), 100.0);
        assert_eq!(read("\"unlimited\"", &[(1.0, 12_500.0)], 0.5), None);
    }

    #[test]
    fn a_share_of_the_samples_waits_no_longer() {
        let samples: Vec<(f64, f64)> =
            (0..100).map(|it| (f64::from(it) / 20.0, f64::from(it + 1) * 1_250.0)).collect();
        for (share, wanted) in [(0.0, 1.0), (0.5, 50.0), (0.95, 95.0), (1.0, 100.0)] {
            near(read("\"10 Mbit/s\"", &samples, share), wanted);
        }
        assert_eq!(read("\"10 Mbit/s\"", &[(8.5, 1.0)], 0.5), None, "after the span");
        assert_eq!(read("\"10 Mbit/s\"", &[], 0.5), None);
    }
}
