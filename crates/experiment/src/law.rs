//! The rate of a long flow by published formulas, with which a simulated TCP is compared.
//!
//! Each formula gives segments per second of a flow that always has data, over a path that is never
//! full and loses each segment with probability p, independently of the others. `b` is the number
//! of segments whose acknowledgement the window counts as one: 2 for a sender that counts delayed
//! acknowledgements, 1 for one that counts the segments that they acknowledge (RFC 3465), as Linux
//! and the simulator's sender do.
//!
//! All of them are derived for losses at equal distances, except Padhye's, whose losses come in
//! rounds. Where losses are independent, the mean window of Reno is 1.31/√p instead of √(3/2)/√p
//! (T. Ott, J. Kemperman, M. Mathis, "The stationary behavior of ideal TCP congestion avoidance",
//! 1996), 7 % more.

use crate::congestion::Own;
use crate::plan::{Plan, TransferPlan};
use crate::record::{Record, TransferResult};
use midhop_congestion::hybla::{HyblaSettings, ReferenceFlow};
use midhop_units::{Duration, Loss, Number};
use serde::{Serialize, Serializer};

/// From this loss on, windows are so small that timeouts matter.
const LOSS_FOR_TIMEOUTS: f64 = 0.01;
/// How much the first timeout exceeds the round trip: Linux' minimum of the variance term.
const TIMEOUT_BEYOND_RTT: Duration = Duration::from_ms(200);
/// The share of a transfer that its start may take: its rate at the start does not follow the law.
const START: f64 = 0.1;

/// A published formula.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Law {
    /// [`mathis`].
    Mathis,
    /// [`padhye`].
    Padhye,
    /// [`cubic`].
    Cubic,
    /// [`hybla`].
    Hybla,
}

impl Law {
    /// Its common name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mathis => "Mathis",
            Self::Padhye => "Padhye",
            Self::Cubic => "CUBIC",
            Self::Hybla => "Hybla",
        }
    }

    /// The allowed deviation of a simulation, as a share of the law's value.
    pub fn band(self) -> f64 {
        match self {
            Self::Mathis | Self::Padhye | Self::Hybla => 0.15,
            Self::Cubic => 0.20,
        }
    }
}

/// The prediction of a law for a flow.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Expected {
    /// The law.
    pub law: Law,
    /// Segments lost. Range: above 0 to 1.
    #[serde(rename = "loss_ratio")]
    pub loss: f64,
    /// Propagation there and back.
    #[serde(rename = "rtt_s", with = "Number::<Duration>")]
    pub rtt: Duration,
    /// Long-term goodput. Unit: Mbit/s.
    #[serde(rename = "goodput_bit_per_s", serialize_with = "in_bit_per_s")]
    pub goodput_mbit_per_s: f64,
    /// Whether a simulation is compared with it: not for a Hybla with a loss in each window. Its
    /// recoveries follow each other, no window grows during them, and the formula does not include
    /// them.
    pub is_judged: bool,
}

/// Serialises Mbit/s as bit/s.
fn in_bit_per_s<S: Serializer>(mbit_per_s: &f64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(mbit_per_s * 1e6)
}

impl Expected {
    /// The prediction for a transfer of one flow that only random losses limit; none where no law
    /// applies: other congestion control, several flows, no loss, a Hybla that tolerates losses.
    pub fn of(transfer: &TransferPlan) -> Option<Self> {
        let limit = transfer.limit.as_ref()?;
        let (loss, rtt) = (limit.loss, limit.rtt);
        if loss == Loss::NONE || transfer.work.flows() != 1 {
            return None;
        }
        let own = &transfer.tuning.as_ref()?.own;
        let (law, segments_per_s) = match (transfer.congestion.as_str(), own) {
            ("reno", _) if loss.probability() < LOSS_FOR_TIMEOUTS => {
                (Law::Mathis, mathis(loss, rtt, 1))
            }
            ("reno", _) => (Law::Padhye, padhye(loss, rtt, 1, rtt + TIMEOUT_BEYOND_RTT)),
            ("cubic", _) => (Law::Cubic, cubic(loss, rtt)),
            (_, Own::Hybla(ReferenceFlow { rtt0 }))
            | (_, Own::HyblaPlus(HyblaSettings { rtt0, loss_tolerance_q16: 0, .. })) => {
                (Law::Hybla, hybla(loss, rtt, *rtt0, 1))
            }
            _ => return None,
        };
        let lost_at_a_time = segments_per_s * rtt.as_ns() as f64 * 1e-9 * loss.probability();
        let is_judged = law != Law::Hybla || lost_at_a_time < 1.0;
        let bits = f64::from(limit.framing.payload()) * 8.0;
        let goodput_mbit_per_s = segments_per_s * bits / 1e6;
        Some(Self { law, loss: loss.probability(), rtt, goodput_mbit_per_s, is_judged })
    }
}

/// Payload over time after the first tenth of a transfer's bytes; none without its curve.
///
/// Unit: Mbit/s.
pub fn steady(record: &Record, transfer: &TransferResult) -> Option<f64> {
    let is_it = |quantity: &str, place: &str| quantity == "goodput" && place == transfer.name;
    let series = record
        .series
        .iter()
        .find(|series| is_it(&series.quantity, &series.place) && series.flow.is_none())?;
    let start = transfer.bytes.get() as f64 * 8e-6 * START;
    let (mut arrived, mut from, mut before) = (0.0, None, 0.0);
    for (&time, &rate) in series.time_s.iter().zip(&series.value) {
        arrived += rate * (time - before);
        before = time;
        if from.is_none() && arrived >= start {
            from = Some((time, arrived));
        }
    }
    let (time, already) = from?;
    (before > time).then(|| (arrived - already) / (before - time))
}

/// The prediction for a record's first transfer, and its result.
pub fn held(record: &Record) -> Option<(Expected, f64)> {
    let plan = Plan::from_json(&record.plan).ok()?;
    let transfer = record.transfers.first().filter(|transfer| transfer.complete)?;
    let expected = Expected::of(plan.transfer(&transfer.name)?)?;
    Some((expected, steady(record, transfer)?))
}

/// Reno: √(3/2bp) segments per round trip.
///
/// Unit: segments per second. Source: M. Mathis, J. Semke, J. Mahdavi, T. Ott, "The macroscopic behavior
/// of the TCP congestion avoidance algorithm", Computer Communication Review 27(3), 1997.
pub fn mathis(p: Loss, rtt: Duration, b: u32) -> f64 {
    reno_window(p, b) / rtt.as_s_f64()
}

/// Reno with timeouts: the full formula of "Modeling TCP Reno performance", where `timeout` is the first
/// retransmission timeout.
///
/// Unit: segments per second. Source: J. Padhye, V. Firoiu, D. Towsley, J. Kurose, IEEE/ACM Transactions
/// on Networking 8(2), 2000, equations 20 to 32, without a limit of the window.
pub fn padhye(p: Loss, rtt: Duration, b: u32, timeout: Duration) -> f64 {
    let (p, b) = (p.probability(), f64::from(b));
    let share = (2.0 + b) / (3.0 * b);
    let window = share + (8.0 * (1.0 - p) / (3.0 * b * p) + share * share).sqrt();
    let whole = |segments: f64| 1.0 - (1.0 - p).powf(segments);
    // The probability that a loss is detected by the timeout and not by duplicates.
    let by_timeout =
        (whole(3.0) * (1.0 + (1.0 - p).powi(3) * whole(window - 3.0)) / whole(window)).min(1.0);
    // Successive timeouts double up to the sixth.
    let doubling = 1.0 + (0..6).map(|step| 2f64.powi(step) * p.powi(step + 1)).sum::<f64>();
    let sent = (1.0 - p) / p + window + by_timeout / (1.0 - p);
    let took = rtt.as_s_f64() * (b * window / 2.0 + 1.0)
        + by_timeout * timeout.as_s_f64() * doubling / (1.0 - p);
    sent / took
}

/// CUBIC: its own response or Reno's, whichever is higher.
///
/// Unit: segments per second. Source: RFC 9438 §5.1, with C = 0.4 and β = 0.7.
pub fn cubic(p: Loss, rtt: Duration) -> f64 {
    const C: f64 = 0.4;
    const BETA: f64 = 0.7;
    let rounds = rtt.as_s_f64() / p.probability();
    let window = (C * (3.0 + BETA) / (4.0 * (1.0 - BETA))).powf(0.25) * rounds.powf(0.75);
    window.max(reno_window(p, 1)) / rtt.as_s_f64()
}

/// Hybla: the rate of a Reno flow with the round trip `rtt0`, unless its own is shorter.
///
/// Unit: segments per second. Source: C. Caini, R. Firrincieli, "TCP Hybla: a TCP enhancement for
/// heterogeneous networks", International Journal of Satellite Communications and Networking 22, 2004.
pub fn hybla(p: Loss, rtt: Duration, rtt0: Duration, b: u32) -> f64 {
    mathis(p, rtt.min(rtt0), b)
}

/// The mean window of Reno. Unit: segments.
fn reno_window(p: Loss, b: u32) -> f64 {
    (3.0 / (2.0 * f64::from(b) * p.probability())).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(probability: f64) -> Loss {
        Loss::new(probability).expect("a probability")
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_ms(ms)
    }

    fn near(value: f64, expected: f64, within: f64) {
        assert!((value / expected - 1.0).abs() < within, "{value}, not {expected}");
    }

    #[test]
    fn mathis_is_the_square_root_law() {
        near(mathis(loss(1e-4), ms(100), 1), 1224.7, 1e-4);
        near(mathis(loss(1e-2), ms(100), 2), 86.60, 1e-4);
    }

    #[test]
    fn padhye_counts_timeouts() {
        // Segments of 1448 bytes, delayed acknowledgements, a timeout of max(1 s, 2 RTT).
        let mbit = |p, rtt, timeout| padhye(loss(p), ms(rtt), 2, ms(timeout)) * 1448.0 * 8e-6;
        near(mbit(0.010_001, 254, 1000), 0.355, 2e-3);
        near(mbit(5e-4, 600, 1200), 0.741, 2e-3);
        near(mbit(0.01, 500, 1000), 0.188, 3e-3);
        // Rare losses: the square root.
        near(padhye(loss(1e-6), ms(100), 1, ms(300)), mathis(loss(1e-6), ms(100), 1), 0.01);
    }

    #[test]
    fn cubic_is_the_larger_of_two_windows() {
        let window = |p, rtt| cubic(loss(p), ms(rtt)) * ms(rtt).as_s_f64();
        near(window(1e-4, 100), 187.4, 1e-3);
        near(window(1e-3, 600), 127.8, 1e-3);
        near(window(5e-4, 600), 214.9, 1e-3);
        near(window(1e-2, 50), 12.247, 1e-3);
    }

    /// RFC 9438's own rules as real numbers, one round trip at a time, without a TCP: what they
    /// send per second with `losses`, each after so many segments.
    fn cubic_rules(rtt: Duration, losses: impl Iterator<Item = f64>) -> f64 {
        const ALPHA: f64 = 3.0 * 0.3 / 1.7;
        let rtt = rtt.as_s_f64();
        let (mut window, mut maximum, mut sent, mut took) = (100.0_f64, 100.0_f64, 0.0, 0.0);
        for distance in losses {
            let prior = window;
            maximum = if window < maximum { window * 0.85 } else { window };
            window = (0.7 * window).max(2.0);
            let origin = maximum.max(window);
            let (period, mut friendly) = (((origin - window) / 0.4).cbrt(), window);
            let (mut elapsed, mut left) = (0.0, distance);
            while left > 1e-9 {
                let share = (left / window).min(1.0);
                sent += window * share;
                left -= window * share;
                elapsed += rtt * share;
                friendly += share * if friendly < prior { ALPHA } else { 1.0 };
                let target = 0.4 * (elapsed - period).powi(3) + origin;
                window = target.clamp(window, 1.5 * window).max(friendly);
            }
            took += elapsed;
        }
        sent / took
    }

    #[test]
    fn cubic_is_for_losses_at_equal_distances() {
        // SplitMix64.
        let mut state = 1_u64;
        let mut exponential = |p: f64| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let uniform = ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64;
            -(1.0 - uniform).ln() / p
        };
        for p in [1e-4, 1e-3, 1e-2] {
            for rtt in [ms(50), ms(250), ms(600)] {
                let formula = cubic(loss(p), rtt);
                let equal = cubic_rules(rtt, (0..500).map(|_| 1.0 / p)) / formula;
                assert!((0.9..1.1).contains(&equal), "{p} {rtt:?}: {equal}");
                let independent = cubic_rules(rtt, (0..3000).map(|_| exponential(p))) / formula;
                assert!((1.08..1.30).contains(&independent), "{p} {rtt:?}: {independent}");
            }
        }
    }

    #[test]
    fn hybla_forgets_the_round_trip() {
        let rate = |rtt| hybla(loss(1e-3), ms(rtt), ms(25), 1);
        near(rate(600), rate(50), 1e-9);
        near(rate(600), mathis(loss(1e-3), ms(25), 1), 1e-9);
        near(rate(10), mathis(loss(1e-3), ms(10), 1), 1e-9);
    }
}
