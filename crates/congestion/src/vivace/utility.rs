//! The utility of an interval: u(x) = x^0.9 − 900·x·max(0, dRTT/dt) − 11.35·x·L, x in Mbit/s.

use midhop_units::Rate;

/// A growth of the round-trip time that is noise. Unit: parts per billion: one hundredth.
const GRADIENT_NOISE_PPB: i64 = 10_000_000;
const LATENCY_COEFFICIENT: i128 = 900;
/// In hundredths.
const LOSS_COEFFICIENT_PERCENT: i128 = 1135;

/// 2^(2^−1), 2^(2^−2), … with 62 binary places.
const ROOTS_Q62: [u128; 32] = {
    let mut roots = [0; 32];
    let mut root: u128 = 2 << 62;
    let mut place = 0;
    while place < roots.len() {
        root = (root << 62).isqrt();
        roots[place] = root;
        place += 1;
    }
    roots
};

/// The binary logarithm with 32 binary places; zero for zero.
fn log2_q32(value: u64) -> i64 {
    if value == 0 {
        return 0;
    }
    let whole = 63 - i64::from(value.leading_zeros());
    // The mantissa, from one to two, with 62 binary places.
    let mut mantissa = (u128::from(value) << 62) >> whole;
    let mut log = whole;
    for _ in 0..32 {
        mantissa = (mantissa * mantissa) >> 62;
        let bit = mantissa >> 63;
        mantissa >>= bit;
        log = 2 * log + bit as i64;
    }
    log
}

/// Two to the power of `exponent_q32`, with 32 binary places, for exponents from −31 to 63.
fn power_of_two_q32(exponent_q32: i64) -> u128 {
    let whole = exponent_q32 >> 32;
    let mut power: u128 = 1 << 62;
    for (place, root) in ROOTS_Q62.iter().enumerate() {
        if exponent_q32 >> (31 - place) & 1 == 1 {
            power = (power * root) >> 62;
        }
    }
    let shift = 30 - whole;
    if shift >= 0 { power >> shift.min(127) } else { power << (-shift).min(64) }
}

/// x^0.9 for a rate of x Mbit/s. Unit: millionths.
pub(super) fn throughput_micros(rate: Rate) -> i64 {
    if rate == Rate::ZERO {
        return 0;
    }
    let log_mbit = log2_q32(rate.bits_per_s()) - log2_q32(1_000_000);
    let power = power_of_two_q32((i128::from(log_mbit) * 9 / 10) as i64);
    i64::try_from((power * 1_000_000) >> 32).unwrap_or(i64::MAX)
}

/// The utility of sending at `rate` while the round-trip time grows by `gradient_ppb` and `lost` of
/// `sent` are lost. Unit: millionths; the gradient's: parts per billion.
pub fn utility_micros(rate: Rate, gradient_ppb: i64, lost: u64, sent: u64) -> i64 {
    let bits = i128::from(rate.bits_per_s());
    let gradient = i128::from(if gradient_ppb < GRADIENT_NOISE_PPB { 0 } else { gradient_ppb });
    let latency = LATENCY_COEFFICIENT * bits * gradient / 1_000_000_000;
    let loss = LOSS_COEFFICIENT_PERCENT * bits * i128::from(lost) / 100 / i128::from(sent.max(1));
    let utility = i128::from(throughput_micros(rate)) - latency - loss;
    i64::try_from(utility).unwrap_or(i64::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utility(mbit: u64, gradient_ppb: i64, lost: u64, sent: u64) -> f64 {
        utility_micros(Rate::from_mbit_per_s(mbit), gradient_ppb, lost, sent) as f64 / 1e6
    }

    #[test]
    fn utilities_are_the_papers() {
        for (mbit, gradient_ppb, lost, expected) in [
            (10, 0, 0, 7.9433),
            (10, 0, 1, 6.8083),
            (10, 0, 5, 2.2683),
            (10, 10_000_000, 0, -82.0567),
            (9, 0, 0, 7.2247),
        ] {
            let got = utility(mbit, gradient_ppb, lost, 100);
            assert!((got - expected).abs() < 6e-5, "{mbit} Mbit/s, {lost} lost: {got}");
        }
        assert_eq!(utility(10, 9_999_999, 0, 100), utility(10, 0, 0, 100), "noise");
        assert_eq!(utility(10, -50_000_000, 0, 100), utility(10, 0, 0, 100), "a queue that drains");
    }

    #[test]
    fn powers_are_exact_to_a_millionth() {
        for mbit in [1_u64, 2, 10, 20, 140, 1000, 20_000] {
            let exact = (mbit as f64).powf(0.9);
            let got = throughput_micros(Rate::from_mbit_per_s(mbit)) as f64 / 1e6;
            assert!((got / exact - 1.0).abs() < 2e-6, "{mbit}: {got}, not {exact}");
        }
        let slow = throughput_micros(Rate::from_bits_per_s(10_000)) as f64 / 1e6;
        assert!((slow - 0.01_f64.powf(0.9)).abs() < 2e-6, "{slow}");
        assert_eq!(throughput_micros(Rate::ZERO), 0);
    }

    #[test]
    fn the_loss_a_flow_bears_is_the_models() {
        // Where nothing is gained by sending more: 0.9·x^−0.1/11.35.
        for (mbit, bearable) in
            [(1, 0.0793), (10, 0.0630), (20, 0.0588), (140, 0.0484), (1000, 0.0397)]
        {
            let gain = |loss: f64| {
                let at = |rate: u64| {
                    let rate = Rate::from_bits_per_s(rate);
                    utility_micros(rate, 0, (loss * 1e9) as u64, 1_000_000_000)
                };
                at(mbit * 1_010_000) - at(mbit * 990_000)
            };
            assert!(gain(bearable - 0.0005) > 0 && gain(bearable + 0.0005) < 0, "{mbit} Mbit/s");
        }
    }
}
