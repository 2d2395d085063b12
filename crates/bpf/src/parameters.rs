//! The parameters of an algorithm that are set when it is registered.

use crate::Algorithm;
use std::time::Duration;

/// The settings of an algorithm, fixed when it is registered.
///
/// Each algorithm reads its own part: `rtt0` all forms of Hybla, `hybla` that called `hybla-plus`, `vegas` Vegas;
/// Westwood+ has nothing to set. A part that the algorithm does not read does not change its name.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameters {
    /// The round-trip time of the flow that Hybla imitates.
    ///
    /// Range: 1 µs to 60 s. The paper's and the kernel's: 25 ms.
    pub rtt0: Duration,
    /// How far `hybla-plus` may go.
    pub hybla: HyblaBounds,
    /// How many segments Vegas wants in the queue.
    pub vegas: VegasThresholds,
}

/// Bounds of the window of `hybla-plus`.
#[derive(Debug, Clone, PartialEq)]
pub struct HyblaBounds {
    /// How many times the window may grow per round trip in slow start.
    ///
    /// Range: 2 (Reno's) to 64.
    pub growth_per_round_max: f64,
    /// The window of a new connection, where rho is not larger.
    ///
    /// Unit: segments. Range: 1 to 1000. The default is RFC 6928's 10.
    pub initial_window: u32,
    /// The window's upper bound.
    ///
    /// Unit: segments. Range: 2 to 2²⁴.
    pub window_max: u32,
    /// The rate of the leg, where it is known: slow start ends at its bandwidth-delay product and the
    /// window is bounded by `window_bdp_max`. A socket's own `SO_MAX_PACING_RATE` goes before it.
    ///
    /// Unit: bytes per second. 0: not known.
    pub rate: u64,
    /// With a known rate: the window's bound in bandwidth-delay products. The part above one is the
    /// queue a flow may build, and the room for a path that has become longer.
    ///
    /// Range: 1 to 64.
    pub window_bdp_max: f64,
    /// How long the smallest RTT counts before a larger one may replace it (at least half of this, at
    /// most the whole). Zero: for ever.
    ///
    /// It is rho's RTT: a short memory takes a standing queue for a longer path and grows faster for it.
    pub min_rtt_window: Duration,
    /// Whether slow start ends when RTTs show a queue (RFC 9406's thresholds).
    pub exit_on_delay: bool,
    /// The share of segments that may be lost without the window being halved. Up to it a loss cuts
    /// the window to what the path has been seen to carry, and growth continues through the recovery.
    ///
    /// Range: 0 (the paper's halving at every loss) to 0.1.
    pub loss_tolerance: f64,
    /// Whether a socket's own `SO_MAX_PACING_RATE` is its share of the leg. Its window is then that
    /// share's bandwidth-delay product from the first segment on, and follows it, until more is lost
    /// than the tolerance explains.
    pub start_at_rate: bool,
}

/// How many segments Vegas wants in the bottleneck's queue.
///
/// Unit: segments. Range: alpha ≤ beta ≤ 1000.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VegasThresholds {
    /// Below this the window grows.
    pub alpha: u32,
    /// Above this it shrinks.
    pub beta: u32,
    /// Above this slow start ends.
    pub gamma: u32,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            rtt0: Duration::from_millis(25),
            hybla: HyblaBounds::default(),
            vegas: VegasThresholds { alpha: 2, beta: 4, gamma: 1 },
        }
    }
}

impl Default for HyblaBounds {
    fn default() -> Self {
        Self {
            growth_per_round_max: 4.0,
            initial_window: 10,
            window_max: 65_535,
            rate: 0,
            window_bdp_max: 1.5,
            min_rtt_window: Duration::from_secs(60),
            exit_on_delay: true,
            loss_tolerance: 0.02,
            start_at_rate: false,
        }
    }
}

/// A parameter outside its range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{parameter} is {value}, but must be {range}")]
#[non_exhaustive]
pub struct ParameterError {
    /// The parameter.
    pub parameter: &'static str,
    /// Its value.
    pub value: String,
    /// The valid values.
    pub range: &'static str,
}

impl Parameters {
    /// The name under which `algorithm` with these parameters is registered.
    ///
    /// # Errors
    /// When a parameter that the algorithm reads is outside its range.
    pub fn kernel_name(&self, algorithm: Algorithm) -> Result<String, ParameterError> {
        let settings = self.settings(algorithm)?;
        if settings == Self::default().settings(algorithm)? {
            return Ok(algorithm.kernel_name().to_owned());
        }
        // FNV-1a: the same parameters give the same name in every release.
        let hash = settings.iter().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        });
        Ok(format!("{}_{hash:08x}", algorithm.prefix()))
    }

    /// The program's `settings`, byte for byte.
    pub(crate) fn settings(&self, algorithm: Algorithm) -> Result<Vec<u8>, ParameterError> {
        match algorithm {
            Algorithm::Hybla => self.hybla_settings(&HyblaBounds::published(), u32::MAX, false),
            Algorithm::HyblaPlus => {
                let growth = self.hybla.growth_per_round_max;
                let growth = q10("growth_per_round_max", growth, 2.0, "2 to 64")?;
                self.hybla_settings(&self.hybla, growth, true)
            }
            Algorithm::HyblaLinux => Ok(Layout::default().u32(self.rtt0_us()?).finish()),
            Algorithm::Westwood => Ok(Vec::new()),
            Algorithm::Vegas => {
                let VegasThresholds { alpha, beta, gamma } = self.vegas;
                within("vegas alpha", alpha, 0..=beta, "at most beta")?;
                within("vegas beta", beta, 1..=1000, "1 to 1000")?;
                within("vegas gamma", gamma, 0..=1000, "at most 1000")?;
                Ok(Layout::default().u32(alpha).u32(beta).u32(gamma).finish())
            }
        }
    }

    /// The settings of the program of both, whose slow start multiplies a window by at most `growth_max_q10` in a
    /// round.
    fn hybla_settings(
        &self,
        bounds: &HyblaBounds,
        growth_max_q10: u32,
        paces: bool,
    ) -> Result<Vec<u8>, ParameterError> {
        Ok(Layout::default()
            .u64(bounds.rate)
            .u32(self.rtt0_us()?)
            .u32(growth_max_q10)
            .u32(within("initial_window", bounds.initial_window, 1..=1000, "1 to 1000")?)
            .u32(within("window_max", bounds.window_max, 2..=1 << 24, "2 to 16777216")?)
            .u32(q10("window_bdp_max", bounds.window_bdp_max, 1.0, "1 to 64")?)
            .u32(bounds.min_rtt_window_ms()?)
            .u32(u32::from(bounds.exit_on_delay))
            .u32(bounds.loss_tolerance_q16()?)
            .u32(u32::from(bounds.start_at_rate))
            .u32(u32::from(paces))
            .finish())
    }

    fn rtt0_us(&self) -> Result<u32, ParameterError> {
        u32::try_from(self.rtt0.as_micros()).ok().filter(|us| (1..=60_000_000).contains(us)).ok_or(
            ParameterError {
                parameter: "rtt0",
                value: format!("{:?}", self.rtt0),
                range: "1 µs to 60 s",
            },
        )
    }
}

impl HyblaBounds {
    /// The bounds of the published law, except for the growth in slow start, which it does not bound.
    fn published() -> Self {
        Self { exit_on_delay: false, loss_tolerance: 0.0, ..Self::default() }
    }

    fn loss_tolerance_q16(&self) -> Result<u32, ParameterError> {
        let tolerance = self.loss_tolerance;
        if (0.0..=0.1).contains(&tolerance) {
            return Ok((tolerance * 65_536.0).round() as u32);
        }
        Err(ParameterError {
            parameter: "loss_tolerance",
            value: tolerance.to_string(),
            range: "0 to 0.1",
        })
    }

    fn min_rtt_window_ms(&self) -> Result<u32, ParameterError> {
        let window = self.min_rtt_window;
        u32::try_from(window.as_millis()).ok().filter(|ms| *ms <= 86_400_000).ok_or(
            ParameterError {
                parameter: "min_rtt_window",
                value: format!("{window:?}"),
                range: "at most a day",
            },
        )
    }
}

fn within(
    parameter: &'static str,
    value: u32,
    allowed: std::ops::RangeInclusive<u32>,
    range: &'static str,
) -> Result<u32, ParameterError> {
    if allowed.contains(&value) {
        return Ok(value);
    }
    Err(ParameterError { parameter, value: value.to_string(), range })
}

/// `value` with ten binary places.
fn q10(
    parameter: &'static str,
    value: f64,
    least: f64,
    range: &'static str,
) -> Result<u32, ParameterError> {
    if (least..=64.0).contains(&value) {
        return Ok((value * 1024.0).round() as u32);
    }
    Err(ParameterError { parameter, value: value.to_string(), range })
}

/// The bytes of a C structure of integers in this machine's order.
#[derive(Default)]
struct Layout(Vec<u8>);

impl Layout {
    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    /// Padded to the alignment of the largest member any of the structures has.
    fn finish(mut self) -> Vec<u8> {
        let align = if self.0.len() > 16 { 8 } else { 4 };
        self.0.resize(self.0.len().next_multiple_of(align), 0);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_identifies_the_parameters() {
        let default = Parameters::default();
        for algorithm in Algorithm::ALL {
            assert_eq!(
                default.kernel_name(algorithm).as_deref(),
                Ok(algorithm.kernel_name()),
                "{algorithm}"
            );
        }
        let slower = Parameters { rtt0: Duration::from_millis(50), ..Parameters::default() };
        let name = slower.kernel_name(Algorithm::HyblaPlus).expect("in range");
        assert_eq!(name.len(), 15);
        assert!(name.starts_with("mhypls_"));
        assert_eq!(slower.kernel_name(Algorithm::HyblaPlus), Ok(name.clone()));
        assert_ne!(slower.kernel_name(Algorithm::Hybla), Ok(name.clone()));
        // The paper's has no bounds.
        let bounded = Parameters {
            hybla: HyblaBounds { loss_tolerance: 0.05, ..HyblaBounds::default() },
            ..Parameters::default()
        };
        assert_eq!(bounded.kernel_name(Algorithm::Hybla).as_deref(), Ok("midhop_hybla04"));
        assert_ne!(slower.kernel_name(Algorithm::HyblaLinux), Ok(name));
        // Vegas does not read rtt0, so it stays what it was.
        assert_eq!(slower.kernel_name(Algorithm::Vegas).as_deref(), Ok("midhop_vegas"));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let refused = |change: fn(&mut Parameters), algorithm, named: &str| {
            let mut parameters = Parameters::default();
            change(&mut parameters);
            let error = parameters.kernel_name(algorithm).expect_err(named);
            assert!(error.to_string().starts_with(named), "{error}");
        };
        refused(|p| p.rtt0 = Duration::ZERO, Algorithm::Hybla, "rtt0");
        refused(|p| p.rtt0 = Duration::from_secs(61), Algorithm::HyblaLinux, "rtt0");
        refused(
            |p| p.hybla.growth_per_round_max = 1.0,
            Algorithm::HyblaPlus,
            "growth_per_round_max is 1,",
        );
        refused(
            |p| p.hybla.growth_per_round_max = f64::NAN,
            Algorithm::HyblaPlus,
            "growth_per_round_max",
        );
        refused(|p| p.hybla.window_max = 0, Algorithm::HyblaPlus, "window_max");
        refused(|p| p.hybla.window_bdp_max = 0.5, Algorithm::HyblaPlus, "window_bdp_max");
        refused(|p| p.hybla.initial_window = 0, Algorithm::HyblaPlus, "initial_window");
        refused(|p| p.hybla.loss_tolerance = 0.2, Algorithm::HyblaPlus, "loss_tolerance is 0.2,");
        refused(|p| p.hybla.min_rtt_window = Duration::MAX, Algorithm::HyblaPlus, "min_rtt_window");
        refused(|p| p.vegas.alpha = 9, Algorithm::Vegas, "vegas alpha");
    }
}
