//! What a tuning is for the crate that computes: its settings.

use super::{OpeningPlan, Own, Thresholds, Tuning};
use midhop_congestion::{
    Algorithm, Law, Opening, Settings, SlowStart, dvegas, hybla, known_rate,
    opening::{Jump, Record, Saved},
    vegas, xcp,
};
use midhop_units::{Duration, Rate};

/// What a proxy on a kernel has to register for a leg.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelLeg {
    /// The algorithm's name.
    pub algorithm: String,
    /// The round-trip time of the flow that Hybla imitates; none: the usual.
    pub rtt0: Option<Duration>,
    /// What the leg carries, where `hybla-plus` is told.
    pub rate: Option<Rate>,
    /// Whether a flow starts at that rate.
    pub start_at_rate: bool,
}

impl Tuning {
    /// The algorithm; none in a plan that another release has written.
    pub fn algorithm(&self) -> Option<Algorithm> {
        Algorithm::from_name(&self.algorithm)
    }

    /// What a kernel is asked for that is to do all this: the algorithm's name, and behind a comma the one
    /// thing that it may be told, `hybla,rtt0=50ms`; none where no kernel can.
    pub fn of_kernel(&self) -> Option<String> {
        let algorithm = self.algorithm().filter(|it| it.runs_in_kernel())?;
        let mut plain = Self::of(algorithm)?;
        if plain == *self {
            return Some(self.algorithm.clone());
        }
        match (&self.own, &mut plain.own) {
            (Own::Hybla { rtt0 }, Own::Hybla { rtt0: usual })
            | (Own::HyblaPlus { rtt0, .. }, Own::HyblaPlus { rtt0: usual, .. })
            | (Own::HyblaLinux { rtt0 }, Own::HyblaLinux { rtt0: usual }) => {
                *usual = *rtt0;
                let name = format!("{},rtt0={rtt0}", self.algorithm).replace(' ', "");
                (plain == *self).then_some(name)
            }
            _ => None,
        }
    }

    /// What a proxy on a kernel has to register that is to do all this; none where no kernel can.
    pub fn of_kernel_leg(&self) -> Option<KernelLeg> {
        let algorithm = self.algorithm().filter(|it| it.runs_in_kernel())?;
        let plain = Self::of(algorithm)?;
        let mut leg = KernelLeg {
            algorithm: self.algorithm.clone(),
            rtt0: None,
            rate: None,
            start_at_rate: false,
        };
        let mut rest = self.clone();
        match (&mut rest.own, &plain.own) {
            (
                Own::HyblaPlus { rtt0, rate, start_at_rate, .. },
                Own::HyblaPlus { rtt0: usual, rate: none, start_at_rate: no, .. },
            ) => {
                leg.rtt0 = Some(std::mem::replace(rtt0, *usual));
                leg.rate = std::mem::replace(rate, *none);
                leg.start_at_rate = std::mem::replace(start_at_rate, *no);
            }
            (Own::Hybla { rtt0 }, Own::Hybla { rtt0: usual })
            | (Own::HyblaLinux { rtt0 }, Own::HyblaLinux { rtt0: usual }) => {
                leg.rtt0 = Some(std::mem::replace(rtt0, *usual));
            }
            _ => {}
        }
        (rest == plain).then_some(leg)
    }

    /// The algorithm with its own parameters; none in a plan whose parameters are not the algorithm's. A leg
    /// of known rate is a new one, of the sender's rate.
    pub fn law(&self) -> Option<Law> {
        let algorithm = self.algorithm()?;
        let law = match &self.own {
            Own::Nothing => Law::usual(algorithm, None)?,
            Own::Hybla { rtt0 } => Law::Hybla(hybla::ReferenceFlow { rtt0: *rtt0 }),
            Own::HyblaLinux { rtt0 } => Law::HyblaLinux(hybla::ReferenceFlow { rtt0: *rtt0 }),
            Own::HyblaPlus { rtt0, growth_max_q10, loss_tolerance_q16, rate, start_at_rate } => {
                Law::HyblaPlus(hybla::HyblaSettings {
                    rtt0: *rtt0,
                    growth_max_q10: *growth_max_q10,
                    loss_tolerance_q16: *loss_tolerance_q16,
                    rate: *rate,
                    start_at_rate: *start_at_rate,
                    ..hybla::HyblaSettings::default()
                })
            }
            Own::Vegas(thresholds) => Law::Vegas(thresholds.vegas()),
            Own::DVegas { thresholds, limit, .. } => {
                Law::DVegas(dvegas::DVegasThresholds { vegas: thresholds.vegas(), limit: *limit })
            }
            Own::Xcp { rate, keep_on_loss } => {
                Law::Xcp(xcp::XcpSettings { demand: *rate, keep_on_loss: *keep_on_loss })
            }
            Own::KnownRate {
                rate, window_percent, queue_max, loss_percent_max, open_loop, ..
            } => Law::KnownRate(known_rate::KnownRateSettings {
                window_percent: *window_percent,
                queue_max: *queue_max,
                loss_percent_max: *loss_percent_max,
                open_loop: *open_loop,
                ..known_rate::KnownRateSettings::new(known_rate::Leg::new(*rate))
            }),
        };
        (law.algorithm() == algorithm).then_some(law)
    }

    /// What a controller is built from, but for the seed and the size of a segment; none where there is no
    /// [`law`](Self::law). The record of a careful resume is a new one, which all connections with clones of
    /// these settings share.
    pub fn settings(&self) -> Option<Settings> {
        Some(Settings {
            initial_window: self.initial_window,
            slow_start: self.slow_start.as_deref().and_then(SlowStart::from_name),
            opening: match self.opening {
                OpeningPlan::Burst => Opening::Burst,
                OpeningPlan::InitialSpreading => Opening::Spread,
                OpeningPlan::CarefulResume { saved_window, saved_rtt, window_max } => {
                    let record = Record::new(Saved { window: saved_window, rtt: saved_rtt });
                    Opening::Jump(Jump::Saved { record, window_max })
                }
                OpeningPlan::Jump { rate, window_max } => {
                    Opening::Jump(Jump::Known { rate, window_max })
                }
            },
            paced: self.pacing,
            ..Settings::of(self.law()?)
        })
    }

    /// What an algorithm is told that is asked for by its name alone; none for one that needs to be
    /// told of its leg.
    fn of(algorithm: Algorithm) -> Option<Self> {
        let settings = Settings::of(Law::usual(algorithm, None)?);
        let own = match settings.law {
            Law::Hybla(imitated) => Own::Hybla { rtt0: imitated.rtt0 },
            Law::HyblaLinux(imitated) => Own::HyblaLinux { rtt0: imitated.rtt0 },
            Law::HyblaPlus(own) => Own::HyblaPlus {
                rtt0: own.rtt0,
                growth_max_q10: own.growth_max_q10,
                loss_tolerance_q16: own.loss_tolerance_q16,
                rate: own.rate,
                start_at_rate: own.start_at_rate,
            },
            Law::Vegas(thresholds) => Own::Vegas(Thresholds::of(thresholds)),
            Law::DVegas(own) => Own::DVegas {
                thresholds: Thresholds::of(own.vegas),
                limit: own.limit,
                queue_feedback: false,
            },
            Law::Xcp(own) => Own::Xcp { rate: own.demand, keep_on_loss: own.keep_on_loss },
            _ => Own::Nothing,
        };
        Some(Self::plain(algorithm, own, settings.initial_window))
    }

    /// An algorithm with nothing chosen.
    pub(super) fn plain(algorithm: Algorithm, own: Own, initial_window: u32) -> Self {
        let slow_start = algorithm.description().slow_start.usual();
        Self {
            algorithm: algorithm.name().to_owned(),
            slow_start: slow_start.map(|slow_start| slow_start.name().to_owned()),
            opening: OpeningPlan::Burst,
            initial_window,
            pacing: algorithm.paces(),
            own,
        }
    }
}

impl Thresholds {
    pub(super) fn of(thresholds: vegas::VegasThresholds) -> Self {
        let vegas::VegasThresholds { alpha, beta, gamma } = thresholds;
        Self { alpha, beta, gamma }
    }

    fn vegas(&self) -> vegas::VegasThresholds {
        vegas::VegasThresholds { alpha: self.alpha, beta: self.beta, gamma: self.gamma }
    }
}
