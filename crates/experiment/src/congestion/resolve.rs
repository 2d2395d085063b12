//! From what is written to a tuning: checked, and with every default filled in.

use super::{CongestionSpec, OpeningPlan, Own, Thresholds, Tuning};
use crate::plan::{Crossing, Direction, Plan};
use midhop_config::{ConfigError, Document, KeyPath, suggest};
use midhop_congestion::{
    Algorithm, BuildError, Settings, SlowStart, build, hybla, known_rate, vegas,
};
use midhop_path::aqm::AqmPlan;
use midhop_units::{Bytes, Rate};

const OPENINGS: [&str; 4] = ["burst", "initial-spreading", "careful-resume", "jump"];
const WINDOW_INITIAL_MAX: u32 = 10_000;
/// The largest jump where none is given: more than any path in use carries.
const WINDOW_MAX: Bytes = Bytes::new(64 << 20);

/// Where congestion control stands in a scenario, and whose data it governs.
pub(crate) struct Leg<'r> {
    /// The key that it is written under.
    pub path: KeyPath,
    /// The way of the data.
    pub route: &'r [Crossing],
}

/// Resolves what is `written` for data that goes over `leg` of `plan`, whose links are resolved. None
/// for a name that we do not know, which some kernel may.
///
/// # Errors
/// When a key or value is not for this algorithm, or the way lacks what the algorithm needs.
pub(crate) fn resolve(
    written: &CongestionSpec,
    leg: &Leg<'_>,
    plan: &Plan,
    document: &Document,
) -> Result<Option<Tuning>, ConfigError> {
    // A proxy on the way is where the sender's connection ends.
    let ends = leg.route.iter().position(|crossing| plan.splits_after(crossing));
    let leg =
        &Leg { path: leg.path.clone(), route: ends.map_or(leg.route, |last| &leg.route[..=last]) };
    let reader = Reader { written, leg, plan, document };
    let Some(algorithm) = Algorithm::from_name(&written.algorithm) else {
        if written.is_name() {
            return Ok(None);
        }
        let names = Algorithm::ALL.map(Algorithm::name);
        let hint = suggest::hint(&written.algorithm, "algorithms", names.iter());
        let message = format!("no algorithm of ours is called `{}`", written.algorithm);
        return Err(reader.fault("algorithm", message, hint));
    };
    reader.only_its_own_keys(algorithm)?;
    let initial_window = reader.initial_window()?;
    let own = reader.own(algorithm)?;
    let mut tuning = Tuning::plain(algorithm, own, initial_window);
    tuning.opening = reader.opening()?;
    if let Some(slow_start) = reader.slow_start()? {
        tuning.slow_start = Some(slow_start.name().to_owned());
    }
    tuning.pacing = written.pacing.unwrap_or(tuning.pacing || tuning.opening != OpeningPlan::Burst);
    match build(algorithm, &tuning.settings()) {
        Ok(_) => Ok(Some(tuning)),
        Err(error) => {
            let key = match error {
                BuildError::Unpaced => "pacing",
                BuildError::Opening { .. } => "opening",
                BuildError::SlowStart { .. } => "slow_start",
                _ => "algorithm",
            };
            Err(reader.fault(key, error.to_string(), None))
        }
    }
}

struct Reader<'r> {
    written: &'r CongestionSpec,
    leg: &'r Leg<'r>,
    plan: &'r Plan,
    document: &'r Document,
}

impl Reader<'_> {
    /// At a key of the table; at the name where there is no table.
    fn fault(&self, key: &str, message: impl Into<String>, hint: Option<String>) -> ConfigError {
        let within = self.leg.path.join(key);
        let there = self.document.get(&within).is_some();
        self.document.fault(if there { &within } else { &self.leg.path }, message, hint)
    }

    fn only_its_own_keys(&self, algorithm: Algorithm) -> Result<(), ConfigError> {
        use Algorithm::{
            Bbr, BbrV3, Cubic, DVegas, Hybla, HyblaLinux, KnownRate, Reno, Vegas, Vivace, Westwood,
            Xcp,
        };
        let written = self.written;
        let opening = written.opening.as_deref();
        let (resumes, jumps) = (opening == Some("careful-resume"), opening == Some("jump"));
        // A table that takes no part elsewhere: which keys, and whose they are.
        let all = [Reno, Cubic, Westwood, Hybla, Vegas, DVegas, Bbr, BbrV3, Vivace, KnownRate, Xcp];
        let of_rate: &[Algorithm] = if jumps { &all } else { &[Hybla, KnownRate, Xcp] };
        let keys: [(&str, bool, &[Algorithm]); 19] = [
            ("slow_start", written.slow_start.is_some(), &[Reno, Cubic, Westwood, Hybla]),
            ("opening", written.opening.is_some(), &[Reno, Cubic, Westwood, Hybla, Vegas, DVegas]),
            ("initial_window", written.initial_window.is_some(), &all),
            (
                "pacing",
                written.pacing.is_some(),
                &[Reno, Cubic, Westwood, Hybla, HyblaLinux, Vegas, DVegas, Xcp],
            ),
            ("saved_window", written.saved_window.is_some(), if resumes { &all } else { &[] }),
            ("saved_rtt", written.saved_rtt.is_some(), if resumes { &all } else { &[] }),
            ("rate", written.rate.is_some(), of_rate),
            ("window_max", written.window_max.is_some(), if jumps { &all } else { &[] }),
            ("rtt0", written.rtt0.is_some(), &[Hybla, HyblaLinux]),
            ("growth_max", written.growth_max.is_some(), &[Hybla]),
            ("loss_tolerance", written.loss_tolerance.is_some(), &[Hybla]),
            ("start_at_rate", written.start_at_rate.is_some(), &[Hybla]),
            ("alpha", written.alpha.is_some(), &[Vegas, DVegas]),
            ("beta", written.beta.is_some(), &[Vegas, DVegas]),
            ("gamma", written.gamma.is_some(), &[Vegas, DVegas]),
            ("limit", written.limit.is_some(), &[DVegas]),
            ("queue_feedback", written.queue_feedback.is_some(), &[DVegas]),
            ("keep_on_loss", written.keep_on_loss.is_some(), &[Xcp]),
            (
                "link",
                written.link.is_some()
                    || written.window.is_some()
                    || written.queue_max.is_some()
                    || written.loss_max.is_some(),
                &[KnownRate],
            ),
        ];
        let foreign = keys.iter().find(|(_, given, whose)| *given && !whose.contains(&algorithm));
        let Some((key, ..)) = foreign else { return Ok(()) };
        let key = match *key {
            "link" if written.window.is_some() => "window",
            "link" if written.queue_max.is_some() => "queue_max",
            "link" if written.loss_max.is_some() => "loss_max",
            key => key,
        };
        let own: Vec<&str> = keys
            .iter()
            .filter(|(.., whose)| whose.contains(&algorithm))
            .map(|(key, ..)| *key)
            .collect();
        let message = match key {
            "saved_window" | "saved_rtt" => format!("`{key}` is for opening = \"careful-resume\""),
            "window_max" => format!("`{key}` is for opening = \"jump\""),
            _ => format!("{algorithm} takes no `{key}`"),
        };
        let hint = if own.is_empty() {
            "it takes none but its name".to_owned()
        } else {
            format!("it takes {}", own.join(", "))
        };
        Err(self.fault(key, message, Some(hint)))
    }

    fn initial_window(&self) -> Result<u32, ConfigError> {
        let window =
            self.written.initial_window.unwrap_or_else(|| Settings::default().initial_window);
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
        let default = Settings::default();
        Ok(match algorithm {
            Algorithm::Hybla => Own::Hybla {
                rtt0: self.rtt0(default.hybla)?,
                growth_max_q10: self.growth_max(default.hybla)?,
                loss_tolerance_q16: match written.loss_tolerance {
                    Some(loss) => (loss.probability() * 65_536.0).round() as u32,
                    None => default.hybla.loss_tolerance_q16,
                },
                rate: written.rate,
                start_at_rate: self.start_at_rate()?,
            },
            Algorithm::HyblaLinux => Own::HyblaLinux { rtt0: self.rtt0(default.hybla)? },
            Algorithm::Vegas => Own::Vegas(self.thresholds(default.vegas)?),
            Algorithm::DVegas => Own::DVegas {
                thresholds: self.thresholds(default.dvegas.vegas)?,
                limit: self.limit(default.dvegas.limit)?,
                queue_feedback: written.queue_feedback.unwrap_or(false),
            },
            Algorithm::Xcp => self.xcp()?,
            Algorithm::KnownRate => self.known_rate()?,
            Algorithm::Reno
            | Algorithm::Cubic
            | Algorithm::Westwood
            | Algorithm::Bbr
            | Algorithm::BbrV3
            | Algorithm::Vivace => Own::Nothing,
        })
    }

    fn rtt0(&self, default: hybla::Settings) -> Result<midhop_units::Duration, ConfigError> {
        let rtt0 = self.written.rtt0.unwrap_or(default.rtt0);
        if rtt0.is_zero() {
            let hint = Some("25 ms is the paper's".to_owned());
            return Err(self.fault("rtt0", "it would be infinitely faster than that", hint));
        }
        Ok(rtt0)
    }

    fn growth_max(&self, default: hybla::Settings) -> Result<u32, ConfigError> {
        match self.written.growth_max {
            None => Ok(default.growth_max_q10),
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
        let starts = self.written.start_at_rate.unwrap_or(false);
        if starts && self.written.rate.is_none() {
            let hint = Some("such as rate = \"20 Mbit/s\"".to_owned());
            return Err(self.fault("start_at_rate", "no `rate` is given to start at", hint));
        }
        Ok(starts)
    }

    fn thresholds(&self, default: vegas::Thresholds) -> Result<Thresholds, ConfigError> {
        let Thresholds { alpha, beta, gamma } = Thresholds::of(default);
        let alpha = self.written.alpha.unwrap_or(alpha);
        let beta = self.written.beta.unwrap_or(beta.max(alpha));
        if alpha > beta {
            let message = format!("α = {alpha} is above β = {beta}");
            return Err(self.fault("alpha", message, Some("at most beta".to_owned())));
        }
        Ok(Thresholds { alpha, beta, gamma: self.written.gamma.unwrap_or(gamma) })
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
        let answered = self.leg.route.iter().any(|crossing| {
            let link = self.plan.link(&crossing.link);
            link.is_some_and(|link| link.direction(crossing.direction).aqm == AqmPlan::Xcp)
        });
        if !answered {
            let hint = "give the narrowest link on the way aqm = \"xcp\"".to_owned();
            let message = "no router on the way of the data knows XCP";
            return Err(self.fault("algorithm", message, Some(hint)));
        }
        let keep_on_loss = self.written.keep_on_loss.unwrap_or(false);
        Ok(Own::Xcp { rate: self.written.rate, keep_on_loss })
    }

    /// The rate of a direction of a link at its best.
    fn rate_of(&self, link: &str, direction: Direction) -> Option<Rate> {
        self.plan.link(link)?.direction(direction).rate_max()
    }

    fn known_rate(&self) -> Result<Own, ConfigError> {
        let written = self.written;
        let on_the_way = |name: &str| self.leg.route.iter().find(|it| it.link == name);
        let narrowest = || {
            let limited = self.leg.route.iter().filter_map(|crossing| {
                Some((self.rate_of(&crossing.link, crossing.direction)?, crossing))
            });
            // Of equal ones the first: it is where the others' queues would be.
            limited.min_by_key(|(rate, _)| *rate).map(|(_, crossing)| crossing)
        };
        let crossing = match &written.link {
            Some(name) => Some(on_the_way(name).ok_or_else(|| {
                let links: Vec<&str> = self.leg.route.iter().map(|it| it.link.as_str()).collect();
                let hint = suggest::hint(name, "links on the way", links.iter());
                self.fault("link", format!("no link on the way is called `{name}`"), hint)
            })?),
            None => narrowest().or(self.leg.route.first()),
        };
        let unknown = || {
            let hint = "such as rate = \"20 Mbit/s\"".to_owned();
            self.fault("link", "the link has no rate that could be known", Some(hint))
        };
        let crossing = crossing.ok_or_else(unknown)?;
        let way = crossing.direction;
        let back = match way {
            Direction::Down => Direction::Up,
            Direction::Up => Direction::Down,
        };
        let rate = written.rate.or(self.rate_of(&crossing.link, way)).ok_or_else(unknown)?;
        if rate == Rate::ZERO {
            return Err(self.fault("rate", "nothing would be sent", None));
        }
        let default = known_rate::Settings::new(known_rate::Leg::new(rate));
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
            link: crossing.link.clone(),
            rate,
            rate_back: self.rate_of(&crossing.link, back).unwrap_or(rate),
            window_percent,
            queue_max: written.queue_max.unwrap_or(default.queue_max),
            loss_percent_max: match written.loss_max {
                Some(loss) => (loss.probability() * 100.0).round() as u32,
                None => default.loss_percent_max,
            },
        })
    }
}
