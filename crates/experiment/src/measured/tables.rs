//! The results of a measurement, as configuration for midhopd and for a scenario.

use super::{LinkDirection, LinkReport};
use midhop_units::{Duration, Rate};
use std::fmt::Write;

/// From this round trip on, the kernel's own congestion control is slow to reach a rate.
const RTT_LONG_MS: f64 = 100.0;
/// From this loss on, it does not reach the rate at all.
const LOSS_LITTLE: f64 = 0.0005;
/// Losses are bursts if their mean run is longer than this.
const BURST_MIN: f64 = 1.2;
/// A delay that varies by less counts as constant.
const JITTER_MS_MIN: f64 = 1.0;

impl LinkReport {
    /// The leg for midhopd on this host, and the link for a scenario.
    pub fn tables(&self) -> String {
        format!("{}\n{}", self.leg(), self.link())
    }

    fn leg(&self) -> String {
        let mut text = format!(
            "# For midhopd on this host, measured against {}. Its device: `interface = \"…\"`.\n\
             [legs.satellite]\n",
            self.host
        );
        for (key, way) in [("rate", &self.up), ("rate_in", &self.down)] {
            if !way.is_known() {
                let _ = writeln!(text, "# {key}: there was no time to measure it");
                continue;
            }
            let _ = writeln!(text, "{key} = \"{}\"{}", rounded_rate(way), remark(way));
        }
        let _ = writeln!(text, "rtt = \"{}\"", rounded_ms(self.rtt_median_s * 1e3));
        let loss = self.up.loss_ratio.max(self.down.loss_ratio);
        if self.rtt_median_s * 1e3 >= RTT_LONG_MS || loss >= LOSS_LITTLE {
            text += "congestion = \"hybla-plus\"\nfallback = \"cubic\"\n";
        }
        text
    }

    fn link(&self) -> String {
        let mut text = format!(
            "# For a scenario in which this host is the terminal, and {} the gateway.\n\
             [links.satellite]\nbetween = [\"terminal\", \"gateway\"]\ndelay = \"{}\"\n",
            self.host,
            rounded_ms(self.rtt_min_s * 1e3 / 2.0)
        );
        for (key, way) in [("down", &self.down), ("up", &self.up)] {
            if !way.is_known() {
                let _ = writeln!(text, "# {key}: there was no time to measure it");
                continue;
            }
            let _ = writeln!(text, "{key} = {{ {} }}", effects(way));
        }
        text
    }
}

fn effects(way: &LinkDirection) -> String {
    let mut text = format!("rate = \"{}\"", rounded_rate(way));
    if way.packets_lost > 0 {
        let loss = significant(way.loss_ratio * 100.0);
        let _ = match way.loss_burst_mean_packets.filter(|&burst| burst >= BURST_MIN) {
            Some(burst) => {
                write!(text, ", loss = {{ mean = \"{loss} %\", burst = \"{burst:.1} packets\" }}")
            }
            None => write!(text, ", loss = \"{loss} %\""),
        };
    }
    // The median of an exponential distribution is 0.69 of its mean.
    let mean = way.delay_variation_median_s * 1e3 / std::f64::consts::LN_2;
    if mean >= JITTER_MS_MIN {
        let mean = rounded_ms(mean);
        let _ = write!(text, ", jitter = {{ kind = \"exponential\", mean = \"{mean}\" }}");
    }
    if way.reordered_ratio > 0.0 {
        let _ = write!(text, ", reorder = \"{} %\"", significant(way.reordered_ratio * 100.0));
    }
    text
}

fn remark(way: &LinkDirection) -> String {
    let mbit = |rate: f64| format!("{:.3}", rate / 1e6);
    let mut remarks = Vec::new();
    if way.rate_at_least_because.is_some() {
        remarks.push("at least".to_owned());
    }
    if let (Some(low), Some(median), Some(high)) =
        (way.rate_p10_bit_per_s, way.rate_p50_bit_per_s, way.rate_p90_bit_per_s)
    {
        let [low, median, high] = [low, median, high].map(mbit);
        remarks.push(format!("p10 {low}, p50 {median}, p90 {high} Mbit/s arrived"));
    }
    if remarks.is_empty() { String::new() } else { format!("  # {}", remarks.join("; ")) }
}

/// Rounds down to three digits: a rate that is too high builds a queue.
fn rounded_rate(way: &LinkDirection) -> Rate {
    let bits = way.rate_bit_per_s as u64;
    let step = 10u64.pow(bits.max(1).ilog10().saturating_sub(2));
    Rate::from_bits_per_s(bits / step * step)
}

/// Rounds to three digits.
fn rounded_ms(ms: f64) -> Duration {
    let us = (ms.max(0.0) * 1e3).round() as u64;
    let step = 10u64.pow(us.max(1).ilog10().saturating_sub(2));
    Duration::from_us((us + step / 2) / step * step)
}

/// Rounds to three digits, as a plain decimal number.
fn significant(value: f64) -> String {
    let decimals = (2 - value.abs().max(1e-9).log10().floor() as i32).max(0) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        for (bits, shown) in [(20_129_999.0, "20.1 Mbit/s"), (999.9, "999 bit/s"), (0.0, "0 bit/s")]
        {
            let way = LinkDirection { rate_bit_per_s: bits, ..LinkDirection::default() };
            assert_eq!(rounded_rate(&way).to_string(), shown);
        }
        for (ms, shown) in [(600.49, "600 ms"), (0.0214, "21 us"), (12.345, "12.3 ms")] {
            assert_eq!(rounded_ms(ms).to_string(), shown);
        }
        for (value, shown) in [(1.0, "1"), (0.01234, "0.0123"), (12.349, "12.3"), (100.0, "100")] {
            assert_eq!(significant(value), shown);
        }
    }
}
