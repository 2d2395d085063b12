//! What a tuning is for the crate that computes: its settings.

use super::{OpeningPlan, Own, Thresholds, Tuning};
use midhop_congestion::{
    Algorithm, Opening, Settings, SlowStart, dvegas, hybla, known_rate,
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
                let told = format!("{},rtt0={rtt0}", self.algorithm).replace(' ', "");
                (plain == *self).then_some(told)
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
        let mut told = self.clone();
        match (&mut told.own, &plain.own) {
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
        (told == plain).then_some(leg)
    }

    /// What the algorithm is told, but for the seed and the size of a segment. A leg of known rate is
    /// a new one, of the sender's rate; so is the record of a careful resume, which all connections with
    /// clones of these settings share.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings {
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
            ..Settings::default()
        };
        match &self.own {
            Own::Nothing => {}
            Own::HyblaPlus { rtt0, growth_max_q10, loss_tolerance_q16, rate, start_at_rate } => {
                settings.hybla = hybla::HyblaSettings {
                    rtt0: *rtt0,
                    growth_max_q10: *growth_max_q10,
                    loss_tolerance_q16: *loss_tolerance_q16,
                    rate: *rate,
                    start_at_rate: *start_at_rate,
                    ..settings.hybla
                };
            }
            Own::Hybla { rtt0 } | Own::HyblaLinux { rtt0 } => settings.hybla.rtt0 = *rtt0,
            Own::Vegas(thresholds) => settings.vegas = thresholds.vegas(),
            Own::DVegas { thresholds, limit, .. } => {
                settings.dvegas =
                    dvegas::DVegasThresholds { vegas: thresholds.vegas(), limit: *limit };
            }
            Own::Xcp { rate, keep_on_loss } => {
                settings.xcp =
                    Some(xcp::XcpSettings { demand: *rate, keep_on_loss: *keep_on_loss });
            }
            Own::KnownRate {
                rate, window_percent, queue_max, loss_percent_max, open_loop, ..
            } => {
                let leg = known_rate::Leg::new(*rate);
                settings.known_rate = Some(known_rate::KnownRateSettings {
                    window_percent: *window_percent,
                    queue_max: *queue_max,
                    loss_percent_max: *loss_percent_max,
                    open_loop: *open_loop,
                    ..known_rate::KnownRateSettings::new(leg)
                });
            }
        }
        settings
    }

    /// What an algorithm is told that is asked for by its name alone; none for one that needs to be
    /// told of its leg.
    fn of(algorithm: Algorithm) -> Option<Self> {
        let settings = Settings::default();
        let hybla = settings.hybla;
        let own = match algorithm {
            Algorithm::Hybla => Own::Hybla { rtt0: hybla.rtt0 },
            Algorithm::HyblaPlus => Own::HyblaPlus {
                rtt0: hybla.rtt0,
                growth_max_q10: hybla.growth_max_q10,
                loss_tolerance_q16: hybla.loss_tolerance_q16,
                rate: hybla.rate,
                start_at_rate: hybla.start_at_rate,
            },
            Algorithm::HyblaLinux => Own::HyblaLinux { rtt0: hybla.rtt0 },
            Algorithm::Vegas => Own::Vegas(Thresholds::of(settings.vegas)),
            Algorithm::DVegas => Own::DVegas {
                thresholds: Thresholds::of(settings.dvegas.vegas),
                limit: settings.dvegas.limit,
                queue_feedback: false,
            },
            Algorithm::Xcp => Own::Xcp { rate: None, keep_on_loss: false },
            Algorithm::KnownRate => return None,
            Algorithm::Reno
            | Algorithm::Cubic
            | Algorithm::Westwood
            | Algorithm::Bbr
            | Algorithm::BbrV3
            | Algorithm::Vivace => Own::Nothing,
        };
        Some(Self::plain(algorithm, own, settings.initial_window))
    }

    /// An algorithm with nothing chosen.
    pub(super) fn plain(algorithm: Algorithm, own: Own, initial_window: u32) -> Self {
        Self {
            algorithm: algorithm.name().to_owned(),
            slow_start: own_slow_start(algorithm),
            opening: OpeningPlan::Burst,
            initial_window,
            pacing: algorithm.paces(),
            own,
        }
    }
}

/// The slow start of an algorithm that could have another and is not asked to.
fn own_slow_start(algorithm: Algorithm) -> Option<String> {
    let slow_start = match algorithm {
        Algorithm::Cubic => SlowStart::HyStart,
        Algorithm::Reno | Algorithm::Westwood | Algorithm::Hybla => SlowStart::Classic,
        _ => return None,
    };
    Some(slow_start.name().to_owned())
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
