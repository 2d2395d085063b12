//! Settings of a controller, and how it is built from them for a transport.

use crate::committed::CommittedSettings;
use crate::common::Common;
use crate::description::FirstSlowStart;
use crate::segments::INITIAL_WINDOW;
use crate::{Algorithm, Controller, Law, Opening, SlowStart};
use midhop_units::{Bytes, Seed};

/// Everything that a controller is built from.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The algorithm with its own parameters.
    pub law: Law,
    /// Payload of a full segment. Default: 1448 bytes, Ethernet with timestamps.
    pub mss: Bytes,
    /// The window before the first acknowledgement. Unit: segments. Default: 10 (RFC 6928).
    ///
    /// `hybla` and `hybla-plus` start with ρ segments where that is more, `hybla-linux` always with ρ,
    /// independent of this value.
    pub initial_window: u32,
    /// The upper limit for the end of the first slow start, as a host remembers it from an earlier connection over
    /// the same path (Linux' `tcp_metrics`). Unit: segments. Default: nothing is remembered. Laws without a slow start
    /// of this kind ignore it.
    pub threshold: Option<u32>,
    /// How the first slow start ends. Default: the algorithm's own: `hystart` for `cubic`, as in Linux;
    /// for `hybla-plus`, `vegas`, `dvegas`, `bbr`, `bbr3` and `xcp` the rule of their source; `classic` for all others.
    pub slow_start: Option<SlowStart>,
    /// How much is sent before the path is measured. Default: [`Opening::Burst`], the only one
    /// for algorithms with a rule of their own for the beginning: `hybla-linux`, `bbr`, `bbr3`, `pulse`, `xcp`.
    pub opening: Opening,
    /// Whether the transport paces by [`Controller::pacing_rate`]. Default: no, as Linux without
    /// the `fq` queue. HyStart and HyStart++ expect other trains of acknowledgements where it does.
    pub paced: bool,
    /// A committed rate: the sender may always use it on a shared path. It is a floor for laws with a window,
    /// and also an opening. Default: none.
    pub committed: Option<CommittedSettings>,
    /// The seed of an algorithm's random choices: when BBR probes, and in which order Vivace does.
    /// Default: 0.
    pub seed: Seed,
}

impl Settings {
    /// The defaults for `law`.
    pub const fn of(law: Law) -> Self {
        Self {
            law,
            mss: Bytes::new(1448),
            initial_window: INITIAL_WINDOW,
            threshold: None,
            slow_start: None,
            opening: Opening::Burst,
            paced: false,
            committed: None,
            seed: Seed(0),
        }
    }
}

/// Why an algorithm cannot be built with these settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// It has a slow start of its own that cannot be replaced.
    #[error("{algorithm} has its own slow start and does not support {slow_start}; leave it out")]
    SlowStart {
        /// The algorithm.
        algorithm: Algorithm,
        /// The requested slow start.
        slow_start: SlowStart,
    },
    /// It has a rule of its own for the beginning.
    #[error("{algorithm} begins by a rule of its own; leave the opening out")]
    Opening {
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// The opening spreads packets over time, so it needs pacing.
    #[error("this opening spreads segments over a round trip; let the transport pace")]
    Unpaced,
    /// It has no window that could have a floor.
    #[error("{algorithm} derives its own rate and does not support a committed one; use cubic")]
    Committed {
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// Two openings.
    #[error("a committed rate is an opening of its own; leave the other out")]
    CommittedOpening,
    /// A segment of no bytes, or a window of no segments.
    #[error("{what} is 0; a window needs at least one segment of one byte")]
    Zero {
        /// The setting.
        what: &'static str,
    },
}

/// A controller for one new connection.
/// # Errors
/// When the algorithm does not accept the other settings.
pub fn build(settings: &Settings) -> Result<Controller, BuildError> {
    let algorithm = settings.law.algorithm();
    let description = algorithm.description();
    if settings.mss == Bytes::ZERO {
        return Err(BuildError::Zero { what: "mss" });
    }
    if settings.initial_window == 0 {
        return Err(BuildError::Zero { what: "initial_window" });
    }
    let bursts = settings.opening == Opening::Burst;
    if !bursts && !settings.paced {
        return Err(BuildError::Unpaced);
    }
    if settings.committed.is_some() {
        if !description.committed {
            return Err(BuildError::Committed { algorithm });
        }
        if !bursts {
            return Err(BuildError::CommittedOpening);
        }
    }
    if let (Some(slow_start), FirstSlowStart::Own) = (settings.slow_start, description.slow_start) {
        return Err(BuildError::SlowStart { algorithm, slow_start });
    }
    if !bursts && !description.opens {
        return Err(BuildError::Opening { algorithm });
    }
    let Settings {
        law,
        mss,
        initial_window,
        threshold,
        slow_start,
        opening,
        paced,
        committed,
        seed,
    } = settings;
    Ok(law.controller(&Common {
        mss: *mss,
        initial_window: *initial_window,
        threshold: *threshold,
        slow_start: *slow_start,
        opening,
        paced: *paced,
        committed: *committed,
        seed: *seed,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known_rate::{KnownRateSettings, Leg};
    use crate::{Established, Restart, testing::ack, testing::usual};
    use midhop_units::{Duration, Instant, Rate};

    #[test]
    fn every_algorithm_starts_with_the_window_it_is_given_and_grows() {
        // These begin with a rate.
        let begins_with_a_rate = |algorithm: &Algorithm| {
            matches!(algorithm, Algorithm::Vivace | Algorithm::KnownRate | Algorithm::Pulse)
        };
        for algorithm in Algorithm::ALL.iter().filter(|it| !begins_with_a_rate(it)) {
            let settings = Settings {
                initial_window: 4,
                mss: Bytes::new(1000),
                ..Settings::of(usual(*algorithm))
            };
            let mut controller = build(&settings).expect("a controller");
            let now = Instant::START;
            assert_eq!(controller.pacing_rate(), None, "{algorithm}");
            controller.on_established(&Established { now, rtt: Some(Duration::from_ms(100)) });
            // ρ is 4 at 100 ms.
            assert_eq!(controller.window(), Bytes::new(4000), "{algorithm}");
            assert!(controller.pacing_rate().is_some(), "{algorithm}");
            for round in 0..3 {
                for _ in 0..4 {
                    let mut ack = ack(round, 1000);
                    ack.rtt = Some(Duration::from_ms(100));
                    controller.on_xcp_feedback(1000 << 16);
                    controller.on_ack(&ack);
                }
            }
            assert!(controller.window() >= Bytes::new(14_000), "{algorithm}");
        }
    }

    #[test]
    fn what_is_remembered_ends_slow_start() {
        for algorithm in Algorithm::ALL {
            let settings = Settings {
                threshold: Some(20),
                mss: Bytes::new(1000),
                ..Settings::of(usual(*algorithm))
            };
            let mut controller = build(&settings).expect("a controller");
            let rtt = Some(Duration::from_ms(100));
            controller.on_established(&Established { now: Instant::START, rtt });
            if controller.slow_start_threshold().is_none() {
                let others = "bbr bbr3 pulse vivace known-rate xcp";
                assert!(others.split(' ').any(|it| it == algorithm.name()), "{algorithm}");
                continue;
            }
            assert_eq!(controller.slow_start_threshold(), Some(Bytes::new(20_000)), "{algorithm}");
            assert!(controller.is_in_slow_start(), "{algorithm}");
            (0..40).for_each(|round| controller.on_ack(&crate::Ack { rtt, ..ack(round, 1000) }));
            assert!(!controller.is_in_slow_start(), "{algorithm}");
        }
    }

    #[test]
    fn flows_of_the_same_settings_share_a_leg() {
        let leg = Leg::new(Rate::from_mbit_per_s(15));
        let own = KnownRateSettings { overhead: Bytes::ZERO, ..KnownRateSettings::new(leg) };
        let settings = Settings::of(Law::KnownRate(own));
        let now = Instant::START;
        let mut flows: Vec<_> = (0..3).map(|_| build(&settings).expect("a controller")).collect();
        for flow in &mut flows {
            flow.on_restart(&Restart { now, app_limited: false });
        }
        let rates: Vec<_> = flows.iter().map(|flow| flow.pacing_rate()).collect();
        assert_eq!(rates, [Some(Rate::from_mbit_per_s(5)); 3]);
    }

    #[test]
    fn what_cannot_be_built_is_refused_with_the_reason() {
        let refused = |settings: &Settings| build(settings).expect_err("refused").to_string();
        let zero = Settings { mss: Bytes::ZERO, ..Settings::of(Law::Reno) };
        assert!(refused(&zero).starts_with("mss is 0"));
        let none = Settings { initial_window: 0, ..Settings::of(Law::Reno) };
        assert!(refused(&none).starts_with("initial_window is 0"));
        let mut other = Settings::of(usual(Algorithm::Vegas));
        other.slow_start = Some(SlowStart::HyStartPlusPlus);
        assert!(refused(&other).contains("does not support hystart++"));
        let mut promised = Settings::of(Law::BbrV3);
        promised.committed = Some(CommittedSettings::new(Rate::from_mbit_per_s(2)));
        assert!(refused(&promised).contains("does not support a committed one"));
        promised.law = Law::Cubic;
        promised.opening = Opening::Spread;
        promised.paced = true;
        assert!(refused(&promised).contains("leave the other out"));
        let mut spread = Settings { opening: Opening::Spread, ..Settings::of(Law::Reno) };
        assert!(refused(&spread).contains("let the transport pace"));
        spread.paced = true;
        spread.law = usual(Algorithm::HyblaLinux);
        assert!(refused(&spread).starts_with("hybla-linux begins"));
    }
}
