//! Resolves a written congestion control to a tuning: checked, and with every default filled in.

use super::{CongestionSpec, OpeningPlan, Own, ProxyLeg, Tuning};
use crate::own_keys;
use crate::plan::{Crossing, Direction, Plan};
use midhop_config::{ConfigError, Document, KeyPath, suggest};
use midhop_congestion::{
    Algorithm, BuildError, FirstSlowStart, Law, Pacing, Settings, SlowStart, build,
    dvegas::DVegasThresholds,
    hybla::{HyblaSettings, ReferenceFlow},
    known_rate::KnownRateBounds,
    vegas::VegasThresholds,
    xcp::XcpSettings,
};
use midhop_path::aqm::AqmPlan;
use midhop_units::{Bytes, Duration, Rate};

const OPENINGS: [&str; 4] = ["burst", "initial-spreading", "careful-resume", "jump"];
const WINDOW_INITIAL_MAX: u32 = 10_000;
/// The largest jump where none is given: more than any path in use carries.
const WINDOW_MAX: Bytes = Bytes::new(64 << 20);

/// The place of a congestion control in a scenario, and the data that it governs.
pub(crate) struct Leg<'r> {
    /// Its key.
    pub path: KeyPath,
    /// The path of the data.
    pub route: &'r [Crossing],
}

/// Resolves `written` for data that goes over `leg` of `plan`, whose links are resolved. None for
/// an unknown name, which some kernel may have.
///
/// # Errors
/// When a key or value does not fit this algorithm, or the path lacks what the algorithm needs.
pub(crate) fn resolve(
    written: &CongestionSpec,
    leg: &Leg<'_>,
    plan: &Plan,
    document: &Document,
) -> Result<Option<Tuning>, ConfigError> {
    // The sender's connection ends at the first proxy on the path.
    let ends = leg.route.iter().position(|crossing| plan.splits_after(crossing));
    let route = ends.map_or(leg.route, |last| &leg.route[..=last]);
    Reader { written, path: &leg.path, way: Way::Route(route, plan), document }.tuning()
}

/// Resolves `written` at `path` for the connections of a proxy's `leg`. None as in [`resolve`].
///
/// # Errors
/// As [`resolve`].
pub(crate) fn resolve_for_proxy(
    written: &CongestionSpec,
    path: &KeyPath,
    leg: &ProxyLeg,
    document: &Document,
) -> Result<Option<Tuning>, ConfigError> {
    Reader { written, path, way: Way::Proxy(leg), document }.tuning()
}

/// The path of the data.
#[derive(Clone, Copy)]
enum Way<'r> {
    Route(&'r [Crossing], &'r Plan),
    Proxy(&'r ProxyLeg),
}

struct Reader<'r> {
    written: &'r CongestionSpec,
    path: &'r KeyPath,
    way: Way<'r>,
    document: &'r Document,
}

impl Reader<'_> {
    fn tuning(&self) -> Result<Option<Tuning>, ConfigError> {
        let written = self.written;
        let Some(algorithm) = Algorithm::from_name(&written.algorithm) else {
            if written.is_name() {
                return Ok(None);
            }
            let hint = suggest::hint(&written.algorithm, "algorithms", Algorithm::names());
            let message = format!("no algorithm of ours is called `{}`", written.algorithm);
            return Err(self.fault("algorithm", message, hint));
        };
        self.only_its_own_keys(algorithm)?;
        let initial_window = self.initial_window()?;
        let own = self.own(algorithm)?;
        let mut tuning = Tuning::plain(algorithm, own, initial_window);
        tuning.opening = self.opening()?;
        if let Some(slow_start) = self.slow_start()? {
            tuning.slow_start = Some(slow_start.name().to_owned());
        }
        tuning.pacing =
            written.pacing.unwrap_or(tuning.pacing || tuning.opening != OpeningPlan::Burst);
        let settings = tuning.settings().expect("the parameters are the algorithm's");
        match build(&settings) {
            Ok(_) => Ok(Some(tuning)),
            Err(error) => {
                let key = match error {
                    BuildError::Unpaced => "pacing",
                    BuildError::Opening { .. } => "opening",
                    BuildError::SlowStart { .. } => "slow_start",
                    _ => "algorithm",
                };
                Err(self.fault(key, error.to_string(), None))
            }
        }
    }

    /// A fault at a key of the table; at the name where there is no table.
    fn fault(&self, key: &str, message: impl Into<String>, hint: Option<String>) -> ConfigError {
        let within = self.path.join(key);
        let there = self.document.get(&within).is_some();
        self.document.fault(if there { &within } else { self.path }, message, hint)
    }

    fn only_its_own_keys(&self, algorithm: Algorithm) -> Result<(), ConfigError> {
        if self.proxy().is_some() {
            self.none_of_the_leg(algorithm)?;
        }
        let own = self.own_keys(algorithm);
        let Some(key) = self.written.keys().into_iter().find(|key| !own.contains(&key.as_str()))
        else {
            return Ok(());
        };
        let message = match key.as_str() {
            "saved_window" | "saved_rtt" => format!("`{key}` is for opening = \"careful-resume\""),
            "window_max" => format!("`{key}` is for opening = \"jump\" or \"careful-resume\""),
            _ => format!("{algorithm} has no `{key}`"),
        };
        Err(self.fault(&key, message, Some(own_keys::hint(&own))))
    }

    /// The keys of an algorithm, with the written opening.
    fn own_keys(&self, algorithm: Algorithm) -> Vec<&'static str> {
        let description = algorithm.description();
        let of_opening: &[&str] = match self.written.opening.as_deref() {
            Some("careful-resume") => &["saved_window", "saved_rtt", "window_max"],
            Some("jump") => &["rate", "window_max"],
            _ => &[],
        };
        let takes = [
            ("slow_start", description.slow_start != FirstSlowStart::Own),
            ("opening", description.opens),
            ("initial_window", description.initial_window),
            ("pacing", description.pacing != Pacing::Always),
        ];
        let common = takes.into_iter().filter_map(|(key, takes)| takes.then_some(key));
        let mut keys: Vec<&str> = common.chain(of_opening.iter().copied()).collect();
        keys.extend(description.keys.iter().filter(|key| !of_opening.contains(key)));
        keys
    }

    /// Refuses keys that a proxy's leg has itself.
    fn none_of_the_leg(&self, algorithm: Algorithm) -> Result<(), ConfigError> {
        let written = self.written;
        if written.link.is_some() {
            let hint = Some("leave it out".to_owned());
            return Err(self.fault("link", "a leg's connections use the leg's link", hint));
        }
        if written.rate.is_some() && algorithm == Algorithm::KnownRate {
            let hint = Some("write it into the leg, beside `congestion`".to_owned());
            return Err(self.fault("rate", "known-rate takes the rate of the leg", hint));
        }
        Ok(())
    }

    fn initial_window(&self) -> Result<u32, ConfigError> {
        let window = self.written.initial_window.unwrap_or(Settings::of(Law::Reno).initial_window);
        if (1..=WINDOW_INITIAL_MAX).contains(&window) {
            return Ok(window);
        }
        let message = format!("a window of {window} segments is impossible");
        Err(self.fault("initial_window", message, Some(format!("1 to {WINDOW_INITIAL_MAX}"))))
    }

    fn slow_start(&self) -> Result<Option<SlowStart>, ConfigError> {
        let Some(name) = &self.written.slow_start else { return Ok(None) };
        let found = SlowStart::from_name(name);
        found.map(Some).ok_or_else(|| {
            let hint = suggest::hint(name, "slow starts", &SlowStart::ALL.map(SlowStart::name));
            self.fault("slow_start", format!("no slow start is called `{name}`"), hint)
        })
    }

    fn opening(&self) -> Result<OpeningPlan, ConfigError> {
        let written = self.written;
        let missing = |key: &str, example: &str| {
            let hint = Some(format!("such as {key} = {example}"));
            self.fault("opening", format!("`{key}` is missing"), hint)
        };
        Ok(match written.opening.as_deref() {
            None | Some("burst") => OpeningPlan::Burst,
            Some("initial-spreading") => OpeningPlan::InitialSpreading,
            Some("careful-resume") => OpeningPlan::CarefulResume {
                saved_window: written
                    .saved_window
                    .ok_or_else(|| missing("saved_window", "\"1 MB\""))?,
                saved_rtt: written.saved_rtt.ok_or_else(|| missing("saved_rtt", "\"600 ms\""))?,
                window_max: written.window_max.unwrap_or(WINDOW_MAX),
            },
            Some("jump") => OpeningPlan::Jump {
                rate: written.rate.ok_or_else(|| missing("rate", "\"20 Mbit/s\""))?,
                window_max: written.window_max.unwrap_or(WINDOW_MAX),
            },
            Some(name) => {
                let hint = suggest::hint(name, "openings", &OPENINGS);
                return Err(self.fault("opening", format!("no opening is called `{name}`"), hint));
            }
        })
    }

    fn own(&self, algorithm: Algorithm) -> Result<Own, ConfigError> {
        let written = self.written;
        if algorithm == Algorithm::KnownRate {
            return self.known_rate();
        }
        let usual =
            Law::usual(algorithm, None).expect("all others are defined by their name alone");
        Ok(match usual {
            Law::Hybla(usual) => Own::Hybla(self.imitated(usual)?),
            Law::HyblaLinux(usual) => Own::HyblaLinux(self.imitated(usual)?),
            Law::HyblaPlus(usual) => Own::HyblaPlus(HyblaSettings {
                rtt0: self.rtt0(usual.rtt0)?,
                growth_max_q10: self.growth_max(usual.growth_max_q10)?,
                loss_tolerance_q16: match written.loss_tolerance {
                    Some(loss) => (loss.probability() * 65_536.0).round() as u32,
                    None => usual.loss_tolerance_q16,
                },
                rate: written.rate.or(self.proxy().and_then(|leg| leg.rate)),
                start_at_rate: self.start_at_rate()?,
                ..usual
            }),
            Law::Vegas(usual) => Own::Vegas(self.thresholds(usual)?),
            Law::DVegas(usual) => Own::DVegas {
                own: DVegasThresholds {
                    vegas: self.thresholds(usual.vegas)?,
                    limit: self.limit(usual.limit)?,
                },
                queue_feedback: written.queue_feedback.unwrap_or(false),
            },
            Law::Xcp(_) => self.xcp()?,
            _ => Own::Nothing,
        })
    }

    fn proxy(&self) -> Option<&ProxyLeg> {
        match self.way {
            Way::Route(..) => None,
            Way::Proxy(leg) => Some(leg),
        }
    }

    fn imitated(&self, usual: ReferenceFlow) -> Result<ReferenceFlow, ConfigError> {
        Ok(ReferenceFlow { rtt0: self.rtt0(usual.rtt0)? })
    }

    fn rtt0(&self, usual: Duration) -> Result<Duration, ConfigError> {
        let configured = self.proxy().and_then(|leg| leg.rtt0);
        let rtt0 = self.written.rtt0.or(configured).unwrap_or(usual);
        if rtt0.is_zero() {
            let hint = Some("25 ms is the paper's".to_owned());
            return Err(self.fault("rtt0", "it would be infinitely faster than that", hint));
        }
        Ok(rtt0)
    }

    fn growth_max(&self, usual_q10: u32) -> Result<u32, ConfigError> {
        match self.written.growth_max {
            None => Ok(usual_q10),
            Some(growth) if growth > 1.0 && growth <= 1000.0 => {
                Ok((growth * 1024.0).round() as u32)
            }
            Some(growth) => {
                let message = format!("a window cannot grow {growth} times");
                Err(self.fault("growth_max", message, Some("more than 1, at most 1000".into())))
            }
        }
    }

    fn start_at_rate(&self) -> Result<bool, ConfigError> {
        let configured = self.proxy().is_some_and(|leg| leg.start_at_rate);
        let starts = self.written.start_at_rate.unwrap_or(configured);
        if starts && self.written.rate.or(self.proxy().and_then(|leg| leg.rate)).is_none() {
            let hint = Some("such as rate = \"20 Mbit/s\"".to_owned());
            return Err(self.fault("start_at_rate", "no `rate` is given to start at", hint));
        }
        Ok(starts)
    }

    fn thresholds(&self, usual: VegasThresholds) -> Result<VegasThresholds, ConfigError> {
        let VegasThresholds { alpha, beta, gamma } = usual;
        let alpha = self.written.alpha.unwrap_or(alpha);
        let beta = self.written.beta.unwrap_or(beta.max(alpha));
        if alpha > beta {
            let message = format!("α = {alpha} is above β = {beta}");
            return Err(self.fault("alpha", message, Some("at most beta".to_owned())));
        }
        Ok(VegasThresholds { alpha, beta, gamma: self.written.gamma.unwrap_or(gamma) })
    }

    fn limit(&self, default: u32) -> Result<u32, ConfigError> {
        let limit = self.written.limit.unwrap_or(default);
        let beta = self.written.beta.unwrap_or(0);
        if limit < beta {
            let message = format!("a queue of {limit} is below β = {beta}");
            return Err(self.fault("limit", message, Some("at least beta".to_owned())));
        }
        Ok(limit)
    }

    fn xcp(&self) -> Result<Own, ConfigError> {
        let (answered, hint) = match self.way {
            Way::Route(route, plan) => {
                let answered = route.iter().any(|crossing| {
                    let link = plan.link(&crossing.link);
                    link.is_some_and(|link| link.direction(crossing.direction).aqm == AqmPlan::Xcp)
                });
                (answered, "give the narrowest link on the way aqm = \"xcp\"")
            }
            Way::Proxy(leg) => (leg.answers_xcp, "give the leg's link aqm = \"xcp\""),
        };
        if !answered {
            let message = "no router on the path of the data supports XCP";
            return Err(self.fault("algorithm", message, Some(hint.to_owned())));
        }
        let keep_on_loss = self.written.keep_on_loss.unwrap_or(false);
        Ok(Own::Xcp(XcpSettings { demand: self.written.rate, keep_on_loss }))
    }

    fn known_rate(&self) -> Result<Own, ConfigError> {
        let written = self.written;
        let unknown = || {
            let hint = "such as rate = \"20 Mbit/s\"".to_owned();
            self.fault("link", "the link has no rate that could be known", Some(hint))
        };
        let (link, rate, rate_back) = match self.way {
            Way::Route(route, plan) => self.rate_on(route, plan)?.ok_or_else(unknown)?,
            Way::Proxy(leg) => {
                let rate = leg.rate.ok_or_else(|| {
                    let hint = "give the leg its rate, such as rate = \"20 Mbit/s\"".to_owned();
                    self.fault("algorithm", "the leg has no rate that could be known", Some(hint))
                })?;
                (leg.name.clone(), rate, leg.rate_in.unwrap_or(rate))
            }
        };
        if rate == Rate::ZERO {
            return Err(self.fault("rate", "nothing would be sent", None));
        }
        let open_loop = written.open_loop.unwrap_or(false);
        if open_loop && written.strict == Some(false) {
            let message = "an open loop always sends at the rate";
            let hint = Some("leave one of them out".to_owned());
            return Err(self.fault("strict", message, hint));
        }
        let bounds = [
            ("window", written.window.is_some()),
            ("queue_max", written.queue_max.is_some()),
            ("loss_max", written.loss_max.is_some()),
        ];
        if let Some((key, _)) = bounds.into_iter().find(|(_, given)| open_loop && *given) {
            let message = format!("`{key}` has no effect in an open loop");
            return Err(self.fault(key, message, Some("leave one of them out".to_owned())));
        }
        let default = KnownRateBounds::default();
        let window_percent = match written.window {
            None => default.window_percent,
            Some(window) if (0.5..=100.0).contains(&window) => (window * 100.0).round() as u32,
            Some(window) => {
                let message = format!("a window of {window} products is impossible");
                let hint = Some("0.5 to 100 times rate × RTT".to_owned());
                return Err(self.fault("window", message, hint));
            }
        };
        Ok(Own::KnownRate {
            link,
            rate,
            rate_back,
            bounds: KnownRateBounds {
                window_percent,
                queue_max: written.queue_max.unwrap_or(default.queue_max),
                loss_percent_max: match written.loss_max {
                    Some(loss) => (loss.probability() * 100.0).round() as u32,
                    None => default.loss_percent_max,
                },
                open_loop,
                hint: written.strict == Some(false),
            },
        })
    }

    /// The link on a route whose rate must be known, with its rates along the route and back; none
    /// where it has no rate.
    fn rate_on(
        &self,
        route: &[Crossing],
        plan: &Plan,
    ) -> Result<Option<(String, Rate, Rate)>, ConfigError> {
        // Its highest rate.
        let rate_of = |link: &str, way| plan.link(link)?.direction(way).rate_max();
        let narrowest = || {
            let limited = route.iter().filter_map(|crossing| {
                Some((rate_of(&crossing.link, crossing.direction)?, crossing))
            });
            // Of equal ones the first: the queue builds up there.
            limited.min_by_key(|(rate, _)| *rate).map(|(_, crossing)| crossing)
        };
        let crossing = match &self.written.link {
            Some(name) => {
                let found = route.iter().find(|crossing| crossing.link == *name);
                Some(found.ok_or_else(|| {
                    let links: Vec<&str> = route.iter().map(|it| it.link.as_str()).collect();
                    let hint = suggest::hint(name, "links on the way", links.iter());
                    self.fault("link", format!("no link on the way is called `{name}`"), hint)
                })?)
            }
            None => narrowest().or(route.first()),
        };
        let Some(crossing) = crossing else { return Ok(None) };
        let back = match crossing.direction {
            Direction::Down => Direction::Up,
            Direction::Up => Direction::Down,
        };
        let rate = self.written.rate.or(rate_of(&crossing.link, crossing.direction));
        Ok(rate.map(|rate| {
            (crossing.link.clone(), rate, rate_of(&crossing.link, back).unwrap_or(rate))
        }))
    }
}
