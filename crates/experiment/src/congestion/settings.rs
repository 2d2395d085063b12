//! Converts a tuning to the settings of the crate that computes congestion control.

use super::{OpeningPlan, Own, Tuning};
use midhop_congestion::{
    Algorithm, Law, Opening, Settings, SlowStart, known_rate,
    opening::{Jump, Record, Saved},
};
use midhop_units::{Duration, Rate};

/// What a proxy on a kernel has to register for a leg.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelLeg {
    /// The algorithm's name.
    pub algorithm: String,
    /// The round-trip time of the flow that Hybla imitates; none: the default.
    pub rtt0: Option<Duration>,
    /// The leg's rate, where `hybla-plus` uses it.
    pub rate: Option<Rate>,
    /// Whether a flow starts at that rate.
    pub start_at_rate: bool,
}

impl Tuning {
    /// The algorithm; none in a plan of another release.
    pub fn algorithm(&self) -> Option<Algorithm> {
        Algorithm::from_name(&self.algorithm)
    }

    /// The kernel's name for this tuning: the algorithm's name, with the single parameter that a
    /// kernel accepts behind a comma, such as `hybla,rtt0=50ms`; none where no kernel can do it.
    pub fn of_kernel(&self) -> Option<String> {
        let algorithm = self.algorithm().filter(|it| it.runs_in_kernel())?;
        let mut plain = Self::of(algorithm)?;
        if plain == *self {
            return Some(self.algorithm.clone());
        }
        match (&self.own, &mut plain.own) {
            (Own::Hybla(own), Own::Hybla(usual))
            | (Own::HyblaLinux(own), Own::HyblaLinux(usual)) => usual.rtt0 = own.rtt0,
            (Own::HyblaPlus(own), Own::HyblaPlus(usual)) => usual.rtt0 = own.rtt0,
            _ => return None,
        }
        let rtt0 = plain.own.rtt0()?;
        let name = format!("{},rtt0={rtt0}", self.algorithm).replace(' ', "");
        (plain == *self).then_some(name)
    }

    /// What a proxy on a kernel has to register for this tuning; none where no kernel can do it.
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
            (Own::HyblaPlus(own), Own::HyblaPlus(usual)) => {
                leg.rtt0 = Some(std::mem::replace(&mut own.rtt0, usual.rtt0));
                leg.rate = std::mem::replace(&mut own.rate, usual.rate);
                leg.start_at_rate = std::mem::replace(&mut own.start_at_rate, usual.start_at_rate);
            }
            (Own::Hybla(own), Own::Hybla(usual))
            | (Own::HyblaLinux(own), Own::HyblaLinux(usual)) => {
                leg.rtt0 = Some(std::mem::replace(&mut own.rtt0, usual.rtt0));
            }
            _ => {}
        }
        (rest == plain).then_some(leg)
    }

    /// The algorithm with its own parameters; none in a plan whose parameters do not fit the
    /// algorithm. A leg of known rate is a new one, with the sender's rate.
    pub fn law(&self) -> Option<Law> {
        let algorithm = self.algorithm()?;
        let law = match &self.own {
            Own::Nothing => Law::usual(algorithm, None)?,
            Own::Hybla(own) => Law::Hybla(*own),
            Own::HyblaLinux(own) => Law::HyblaLinux(*own),
            Own::HyblaPlus(own) => Law::HyblaPlus(*own),
            Own::Vegas(own) => Law::Vegas(*own),
            Own::DVegas { own, .. } => Law::DVegas(*own),
            Own::Xcp(own) => Law::Xcp(*own),
            Own::KnownRate { rate, bounds, .. } => Law::KnownRate(known_rate::KnownRateSettings {
                bounds: *bounds,
                ..known_rate::KnownRateSettings::new(known_rate::Leg::new(*rate))
            }),
        };
        (law.algorithm() == algorithm).then_some(law)
    }

    /// The settings of a controller, without the seed and the size of a segment; none where there
    /// is no [`law`](Self::law). The record of a careful resume is a new one, which all connections
    /// with clones of these settings share.
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

    /// The parameters of an algorithm that is requested by its name alone; none for one that needs
    /// parameters of its leg.
    fn of(algorithm: Algorithm) -> Option<Self> {
        let settings = Settings::of(Law::usual(algorithm, None)?);
        let own = match settings.law {
            Law::Hybla(own) => Own::Hybla(own),
            Law::HyblaLinux(own) => Own::HyblaLinux(own),
            Law::HyblaPlus(own) => Own::HyblaPlus(own),
            Law::Vegas(own) => Own::Vegas(own),
            Law::DVegas(own) => Own::DVegas { own, queue_feedback: false },
            Law::Xcp(own) => Own::Xcp(own),
            _ => Own::Nothing,
        };
        Some(Self::plain(algorithm, own, settings.initial_window))
    }

    /// An algorithm with its defaults.
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
