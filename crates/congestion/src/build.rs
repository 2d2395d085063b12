//! Any algorithm by its name: what a simulated transport is given.

use crate::{
    Algorithm, CongestionControl, SlowStart,
    bbr::{self, v1::BbrV1, v3::BbrV3},
    committed::{self, Committed},
    cubic::Cubic,
    dvegas::{self, DVegas},
    hybla::{self, Hybla},
    hybla_linux::HyblaLinux,
    known_rate::{self, KnownRate},
    opening::{Opening, Resume, Spread},
    reno::Reno,
    segments::{INITIAL_WINDOW, Segmented},
    vegas::{self, Vegas},
    vivace::Vivace,
    westwood::Westwood,
    xcp::{self, Xcp},
};
use midhop_units::{Bytes, Seed};

/// What the algorithms can be told. Each reads what concerns it.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Payload of a full segment. Default: 1448 bytes, Ethernet with timestamps.
    pub mss: Bytes,
    /// The window before anything is acknowledged. Unit: segments. Default: 10 (RFC 6928).
    ///
    /// `hybla` and `hybla-plus` start with ρ segments where that is more, `hybla-linux` with ρ, whatever is said
    /// here.
    pub initial_window: u32,
    /// Where the first slow start ends at the latest, as a host remembers it of an earlier connection over the same
    /// path (Linux' `tcp_metrics`). Unit: segments. Default: nothing is remembered. Laws without a slow start of this
    /// kind do not read it.
    pub threshold: Option<u32>,
    /// How the first slow start ends. Default: the algorithm's own: `hystart` for `cubic`, as in Linux;
    /// for `hybla-plus`, `vegas`, `dvegas`, `bbr`, `bbr3` and `xcp` what their sources say; `classic` for all others.
    pub slow_start: Option<SlowStart>,
    /// What is sent before anything is known of the path. Default: [`Opening::Burst`], the only one
    /// for algorithms that begin by a rule of their own: `hybla-linux`, `bbr`, `bbr3`, `xcp`.
    pub opening: Opening,
    /// Whether the transport paces by [`CongestionControl::pacing_rate`]. Default: no, as Linux without
    /// the `fq` queue. HyStart and HyStart++ expect other trains of acknowledgements where it does.
    pub paced: bool,
    /// That of `hybla-plus`; `hybla` and `hybla-linux` read [`rtt0`](hybla::HyblaSettings::rtt0) only. Default:
    /// [`hybla::HyblaSettings::default`]: RTT0 25 ms, fourfold growth per round, no known rate, two losses
    /// in a hundred tolerated.
    pub hybla: hybla::HyblaSettings,
    /// Vegas' own. Default: α 2, β 4, γ 1.
    pub vegas: vegas::VegasThresholds,
    /// DVegas' own, Vegas' included. Default: Vegas' α, β and γ, and 16 segments in the terminal's queue.
    pub dvegas: dvegas::DVegasThresholds,
    /// XCP's own, where the routers on the path answer it ([`xcp::Router`]). Default: none does, and
    /// `xcp` cannot be had: its window would stay as it began.
    pub xcp: Option<xcp::XcpSettings>,
    /// The leg of `known-rate`: controllers built with the same settings share it. Default: none, and
    /// `known-rate` is refused.
    pub known_rate: Option<known_rate::KnownRateSettings>,
    /// A rate that the sender may always have of a path it shares. It stands beneath laws of a window,
    /// and is an opening of its own. Default: none.
    pub committed: Option<committed::CommittedSettings>,
    /// Decides what an algorithm leaves to chance: when BBR probes, and in which order Vivace does.
    /// Default: 0.
    pub seed: Seed,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mss: Bytes::new(1448),
            initial_window: INITIAL_WINDOW,
            threshold: None,
            slow_start: None,
            opening: Opening::default(),
            paced: false,
            hybla: hybla::HyblaSettings::default(),
            vegas: vegas::VegasThresholds::default(),
            dvegas: dvegas::DVegasThresholds::default(),
            xcp: None,
            known_rate: None,
            committed: None,
            seed: Seed::default(),
        }
    }
}

/// Why an algorithm cannot be built as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// It has a slow start of its own that cannot be replaced.
    #[error("{algorithm} has a slow start of its own and takes no {slow_start}; leave it out")]
    SlowStart {
        /// The algorithm.
        algorithm: Algorithm,
        /// The slow start asked for.
        slow_start: SlowStart,
    },
    /// It begins by a rule of its own.
    #[error("{algorithm} begins by a rule of its own; leave the opening out")]
    Opening {
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// The opening spreads what it sends over time.
    #[error("this opening spreads segments over a round trip; let the transport pace")]
    Unpaced,
    /// It has no window that something could stand beneath.
    #[error("{algorithm} goes by a rate of its own and takes no committed one; take cubic")]
    Committed {
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// Two openings.
    #[error("a committed rate is an opening of its own; leave the other out")]
    CommittedOpening,
    /// There is no rate to know.
    #[error("known-rate needs the rate of its leg; say it, or take an algorithm that finds out")]
    NoLeg,
    /// Nobody on the path answers it.
    #[error("xcp needs routers that know it, and there are none; take another algorithm")]
    NoRouter,
    /// A segment of no bytes, or a window of no segments.
    #[error("{what} is 0; a window needs at least one segment of one byte")]
    Zero {
        /// The setting.
        what: &'static str,
    },
}

/// A controller for one new connection.
///
/// # Errors
/// When the algorithm does not go with the settings.
pub fn build(
    algorithm: Algorithm,
    settings: &Settings,
) -> Result<Box<dyn CongestionControl>, BuildError> {
    if settings.mss == Bytes::ZERO {
        return Err(BuildError::Zero { what: "mss" });
    }
    if settings.initial_window == 0 {
        return Err(BuildError::Zero { what: "initial_window" });
    }
    if settings.opening != Opening::Burst && !settings.paced {
        return Err(BuildError::Unpaced);
    }
    if settings.committed.is_some() {
        if !algorithm.takes_committed_rate() {
            return Err(BuildError::Committed { algorithm });
        }
        if settings.opening != Opening::Burst {
            return Err(BuildError::CommittedOpening);
        }
    }
    let mss = settings.mss;
    let paced = settings.paced;
    let slow_start = |own: SlowStart| settings.slow_start.unwrap_or(own);
    // Only where slow start is a part of its own.
    let own_slow_start = || match settings.slow_start {
        Some(slow_start) => Err(BuildError::SlowStart { algorithm, slow_start }),
        None => Ok(()),
    };
    let own_opening = || match &settings.opening {
        Opening::Burst => Ok(()),
        Opening::Spread | Opening::Jump(_) => Err(BuildError::Opening { algorithm }),
    };
    match algorithm {
        Algorithm::Reno => {
            Ok(opened(Reno::new(mss, slow_start(SlowStart::Classic), paced), settings))
        }
        Algorithm::Cubic => {
            Ok(opened(Cubic::new(mss, slow_start(SlowStart::HyStart), paced), settings))
        }
        Algorithm::Westwood => {
            Ok(opened(Westwood::new(mss, slow_start(SlowStart::Classic), paced), settings))
        }
        Algorithm::Hybla => {
            let hybla = Hybla::new(mss, hybla::HyblaSettings::published(settings.hybla.rtt0));
            Ok(opened(hybla.with_slow_start(slow_start(SlowStart::Classic), paced), settings))
        }
        Algorithm::HyblaPlus => {
            let hybla = Hybla::new(mss, settings.hybla);
            Ok(match settings.slow_start {
                Some(slow_start) => opened(hybla.with_slow_start(slow_start, paced), settings),
                None => opened(hybla, settings),
            })
        }
        Algorithm::HyblaLinux => {
            own_slow_start()?;
            own_opening()?;
            let hybla = HyblaLinux::before_the_first_rtt(mss, settings.hybla.rtt0);
            Ok(Box::new(match settings.threshold {
                Some(threshold) => hybla.with_threshold(threshold),
                None => hybla,
            }))
        }
        Algorithm::Vegas => {
            own_slow_start()?;
            Ok(opened(Vegas::new(mss, settings.vegas), settings))
        }
        Algorithm::DVegas => {
            own_slow_start()?;
            Ok(opened(DVegas::new(mss, settings.dvegas), settings))
        }
        Algorithm::Xcp => {
            own_slow_start()?;
            own_opening()?;
            let own = settings.xcp.ok_or(BuildError::NoRouter)?;
            Ok(Box::new(Xcp::new(mss, settings.initial_window, own)))
        }
        Algorithm::Bbr => {
            own_slow_start()?;
            own_opening()?;
            Ok(Box::new(BbrV1::new(mss, bbr_settings(settings))))
        }
        Algorithm::BbrV3 => {
            own_slow_start()?;
            own_opening()?;
            Ok(Box::new(BbrV3::new(mss, bbr_settings(settings))))
        }
        Algorithm::Vivace => {
            own_slow_start()?;
            own_opening()?;
            Ok(Box::new(Vivace::new(mss, settings.initial_window, settings.seed)))
        }
        Algorithm::KnownRate => {
            own_slow_start()?;
            own_opening()?;
            let own = settings.known_rate.clone().ok_or(BuildError::NoLeg)?;
            Ok(Box::new(KnownRate::new(mss, settings.initial_window, own)))
        }
    }
}

fn bbr_settings(settings: &Settings) -> bbr::BbrSettings {
    bbr::BbrSettings {
        initial_window: settings.initial_window,
        seed: settings.seed,
        ..bbr::BbrSettings::default()
    }
}

/// A controller with the window it begins with.
fn opened<C: Segmented + 'static>(
    mut controller: C,
    settings: &Settings,
) -> Box<dyn CongestionControl> {
    controller.segments().cwnd = settings.initial_window;
    if let Some(threshold) = settings.threshold {
        controller.segments().ssthresh = threshold;
    }
    if let Some(committed) = settings.committed {
        return Box::new(Committed::new(controller, committed));
    }
    match &settings.opening {
        Opening::Burst => Box::new(controller),
        Opening::Spread => Box::new(Spread::new(controller)),
        Opening::Jump(jump) => Box::new(Resume::new(controller, jump.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Established, Restart, known_rate::Leg, testing::ack};
    use midhop_units::{Duration, Instant, Rate};

    #[test]
    fn every_algorithm_starts_with_the_window_it_is_given_and_grows() {
        // These two begin with a rate.
        let begins_with_a_rate =
            |algorithm: &Algorithm| matches!(algorithm, Algorithm::Vivace | Algorithm::KnownRate);
        for algorithm in Algorithm::ALL.into_iter().filter(|a| !begins_with_a_rate(a)) {
            let settings = Settings {
                initial_window: 4,
                mss: Bytes::new(1000),
                xcp: Some(xcp::XcpSettings::default()),
                ..Settings::default()
            };
            let mut controller = build(algorithm, &settings).expect("a controller");
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
                xcp: Some(xcp::XcpSettings::default()),
                known_rate: Some(known_rate::KnownRateSettings::new(Leg::new(
                    Rate::from_mbit_per_s(15),
                ))),
                ..Settings::default()
            };
            let mut controller = build(algorithm, &settings).expect("a controller");
            let rtt = Some(Duration::from_ms(100));
            controller.on_established(&Established { now: Instant::START, rtt });
            if controller.slow_start_threshold().is_none() {
                let others = "bbr bbr3 vivace known-rate xcp";
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
        let own = known_rate::KnownRateSettings {
            overhead: Bytes::ZERO,
            ..known_rate::KnownRateSettings::new(leg)
        };
        let settings = Settings { known_rate: Some(own), ..Settings::default() };
        let now = Instant::START;
        let mut flows: Vec<_> =
            (0..3).map(|_| build(Algorithm::KnownRate, &settings).expect("a controller")).collect();
        for flow in &mut flows {
            flow.on_restart(&Restart { now, app_limited: false });
        }
        let rates: Vec<_> = flows.iter().map(|flow| flow.pacing_rate()).collect();
        assert_eq!(rates, [Some(Rate::from_mbit_per_s(5)); 3]);
    }

    #[test]
    fn what_cannot_be_built_says_why() {
        let refused = |algorithm, settings: Settings| {
            build(algorithm, &settings).expect_err("refused").to_string()
        };
        let zero = Settings { mss: Bytes::ZERO, ..Settings::default() };
        assert!(refused(Algorithm::Reno, zero).starts_with("mss is 0"));
        assert!(refused(Algorithm::KnownRate, Settings::default()).contains("the rate of its leg"));
        assert!(refused(Algorithm::Xcp, Settings::default()).contains("needs routers"));
        let none = Settings { initial_window: 0, ..Settings::default() };
        assert!(refused(Algorithm::Reno, none).starts_with("initial_window is 0"));
        let other =
            Settings { slow_start: Some(SlowStart::HyStartPlusPlus), ..Settings::default() };
        assert!(refused(Algorithm::Vegas, other).contains("takes no hystart++"));
        let committed = committed::CommittedSettings::new(Rate::from_mbit_per_s(2));
        let mut promised = Settings { committed: Some(committed), ..Settings::default() };
        assert!(refused(Algorithm::BbrV3, promised.clone()).contains("takes no committed one"));
        promised.opening = Opening::Spread;
        promised.paced = true;
        assert!(refused(Algorithm::Cubic, promised).contains("leave the other out"));
        let mut spread = Settings { opening: Opening::Spread, ..Settings::default() };
        assert!(refused(Algorithm::Reno, spread.clone()).contains("let the transport pace"));
        spread.paced = true;
        assert!(refused(Algorithm::HyblaLinux, spread).starts_with("hybla-linux begins"));
    }
}
