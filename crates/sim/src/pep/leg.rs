//! One side of a flow: its endpoint, made according to the leg's configuration.

use super::Place;
use crate::host::send_room;
use crate::stack;
use midhop_congestion::{Algorithm, Law, build, known_rate};
use midhop_experiment::congestion::{CongestionSpec, ProxyLeg, Tuning};
use midhop_experiment::limit::Family;
use midhop_experiment::naive::{Forwards, Holds, NaiveLeg, NaivePlan};
use midhop_experiment::tcp::TcpPlan;
use midhop_pep::config::{LegPlan, Start};
use midhop_pep::credit::Shares;
use midhop_pep::rate_share::Pool;
use midhop_tcp::{Endpoint, RtoRule, Settings};
use midhop_units::{Bytes, Duration, Rate, Seed};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The congestion control of a leg that names none: the kernel's default.
const DEFAULT: &str = Algorithm::Cubic.name();

/// Settings of a proxy's legs beyond those of midhopd.
#[derive(Debug)]
pub(super) struct LegContext {
    /// Congestion control settings of legs besides the name.
    tables: BTreeMap<String, CongestionSpec>,
    /// The legs of known rate, by name: all flows of one share it, under any rule.
    known: BTreeMap<String, known_rate::Leg>,
    /// The legs whose flows divide their rate, likewise.
    pools: BTreeMap<String, Arc<Pool>>,
    /// The links whose queues answer XCP.
    answering: BTreeSet<String>,
}

impl LegContext {
    /// For `legs` at a node that reaches others as in `places`.
    pub fn new(
        tables: BTreeMap<String, CongestionSpec>,
        legs: &[LegPlan],
        places: &[Place],
    ) -> Self {
        let known = |leg: &LegPlan| Some((leg.name.clone(), known_rate::Leg::new(leg.rate?)));
        let pool = |leg: &LegPlan| {
            let pool = Pool::default();
            pool.set_rate(leg.rate?, leg.rtt);
            Some((leg.name.clone(), Arc::new(pool)))
        };
        let answering = places.iter().filter(|place| place.answers_xcp);
        Self {
            tables,
            known: legs.iter().filter_map(known).collect(),
            pools: legs.iter().filter_map(pool).collect(),
            answering: answering.filter_map(|place| place.link.clone()).collect(),
        }
    }

    /// The congestion control `name` with the leg's settings, if it is available.
    fn tuning(&self, leg: &LegPlan, name: &str) -> Result<Tuning, String> {
        let link = leg.interface.as_deref().unwrap_or(&leg.name);
        let proxys = ProxyLeg {
            name: leg.name.clone(),
            rate: leg.rate,
            rate_in: leg.rate_in,
            rtt0: leg.rtt0,
            start_at_rate: leg.start == Start::Rate,
            answers_xcp: self.answering.contains(link),
        };
        // A rule may name another one, and then only by its name.
        let table = self.tables.get(&leg.name).filter(|table| table.algorithm == name);
        let written = table.cloned().unwrap_or_else(|| CongestionSpec::from(name));
        let tuning = proxys.tuning(&written).map_err(|error| error.message)?;
        tuning.ok_or_else(|| format!("there is no congestion control `{name}`"))
    }
}

/// The part of the data that a naive proxy holds back, as long as more may arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeps {
    Nothing,
    /// Less than a full segment: a cork.
    Partial,
    /// Everything until its buffer is full: store and forward.
    All,
}

/// A leg's configuration, as far as it concerns its connections.
#[derive(Debug, Clone)]
pub(super) struct Model {
    /// The link that its connections use.
    pub link: String,
    pub rtt: Option<Duration>,
    /// The maximum rate of one flow.
    pub pacing: Option<Rate>,
    pub shares: Shares,
    control: midhop_congestion::Settings,
    paced: bool,
    /// The pool by which flows that send into the leg divide its rate; `None`: they do not.
    pub pool: Option<Arc<Pool>>,
    /// Whether it belongs to a naive proxy, whose windows have their configured size.
    naive: bool,
    /// Whether its window ignores the data held behind it, and all received data is read at once.
    pub hoards: bool,
    /// The part of the data that is held back, as long as more may arrive.
    pub keeps: Keeps,
    /// Whether its congestion control gets reports of the queue at the link.
    pub queue_feedback: bool,
    /// The timer that alone detects losses, if there is one; only in a naive proxy.
    timer: Option<Duration>,
}

impl Model {
    /// The settings of a leg's connections.
    ///
    /// # Errors
    /// When neither its congestion control nor the fallback is available.
    pub fn of(leg: &LegPlan, context: &LegContext) -> Result<Self, String> {
        let wanted = context.tuning(leg, leg.congestion.as_deref().unwrap_or(DEFAULT));
        let tuning = match (wanted, &leg.fallback) {
            (Err(_), Some(fallback)) => context.tuning(leg, fallback),
            (wanted, _) => wanted,
        };
        let place = |why| format!("legs.{}.congestion: {why}", leg.name);
        let tuning = tuning.map_err(place)?;
        // A bound on a socket's rate makes the kernel pace it, whatever its congestion control.
        let paced = tuning.pacing || leg.share || leg.pacing.is_some();
        let settings = tuning.settings().ok_or_else(|| {
            place("there is no such congestion control with these parameters".to_owned())
        })?;
        let mut control = midhop_congestion::Settings { paced, ..settings };
        if let (Law::KnownRate(known), Some(shared)) =
            (&mut control.law, context.known.get(&leg.name))
        {
            known.leg = shared.clone();
            known.rtt = leg.rtt;
        }
        let knows_its_rate = matches!(control.law, Law::KnownRate(_));
        Ok(Self {
            link: leg.name.clone(),
            rtt: leg.rtt,
            pacing: leg.pacing,
            shares: Shares::of(leg.buffer).offering(leg.window),
            control,
            paced,
            // An algorithm that knows its rate divides it itself.
            pool: (leg.share && !knows_its_rate)
                .then(|| context.pools.get(&leg.name).cloned())
                .flatten(),
            naive: false,
            hoards: false,
            keeps: Keeps::Nothing,
            queue_feedback: tuning.own.has_queue_feedback(),
            timer: None,
        })
    }

    /// The model of the naive proxy's leg `name`, for connections that the proxy `opens` or accepts. All flows
    /// of known rate of one model share it.
    pub fn of_naive(
        name: &str,
        leg: &NaiveLeg,
        plan: &NaivePlan,
        opens: bool,
    ) -> Result<Self, String> {
        let tuning = plan.accepted.as_ref().filter(|_| !opens).unwrap_or(&leg.tuning);
        let control = tuning.settings().ok_or_else(|| {
            format!("legs.{name}: there is no such congestion control with its parameters")
        })?;
        Ok(Self {
            link: name.to_owned(),
            rtt: None,
            pacing: None,
            shares: Shares { stage: plan.buffer, ..Shares::of(None).offering(leg.window) },
            control,
            paced: tuning.pacing,
            pool: None,
            naive: true,
            hoards: plan.holds == Holds::All,
            keeps: match plan.forwards {
                Forwards::Bundles => Keeps::All,
                Forwards::Stream if plan.cork && opens => Keeps::Partial,
                Forwards::Stream => Keeps::Nothing,
            },
            queue_feedback: tuning.own.has_queue_feedback(),
            timer: leg.timer,
        })
    }

    /// The same for connections over `link`.
    pub fn over(self, link: Option<&str>) -> Self {
        let link = link.map_or_else(|| self.link.clone(), str::to_owned);
        Self { link, ..self }
    }

    /// The same, without a part in its leg's rate.
    pub fn without_pool(self) -> Self {
        Self { pool: None, ..self }
    }

    /// The same for a connection whose host remembers this threshold.
    pub fn with_threshold(mut self, threshold: Option<u32>) -> Self {
        self.control.threshold = threshold;
        self
    }

    /// The payload of a full segment of a connection on a host with such a TCP. Unit: bytes.
    pub fn segment(tcp: &TcpPlan, family: Family) -> u64 {
        stack::settings(tcp, family).segment_payload().get()
    }

    /// A new connection's end on a host with such a TCP; it opens, or it listens.
    pub fn endpoint(&self, tcp: &TcpPlan, family: Family, dials: bool, initial: u32) -> Endpoint {
        let mut host = stack::settings(tcp, family);
        if let Some(timer) = self.timer {
            (host.sack, host.undo, host.limited_transmit) = (false, false, false);
            (host.fast_retransmit, host.rto) = (false, RtoRule::Fixed(timer));
        }
        // The kernel counts segments with their overhead and offers half.
        let offered = |bytes: Bytes| if self.naive { bytes } else { Bytes::new(bytes.get() / 2) };
        let settings = Settings {
            receive_buffer: self.shares.receive.map_or(host.receive_buffer, offered),
            receive_autotuning: match self.shares.receive {
                Some(_) => None,
                None => host.receive_autotuning,
            },
            send_buffer: self.shares.send.unwrap_or(host.send_buffer),
            pacing: self.paced,
            ..host
        };
        let mss = settings.segment_payload();
        // Probing flows must not all probe at the same time.
        let seed = Seed(initial.into()).derive("congestion");
        let mut control = midhop_congestion::Settings { mss, seed, ..self.control.clone() };
        if let Law::KnownRate(known) = &mut control.law {
            known.overhead = stack::overhead(&settings, family);
        }
        let mut control = build(&control).expect("it was built once to see that it can");
        control.cap(self.pacing);
        if dials {
            Endpoint::connect(settings, control, initial)
        } else {
            Endpoint::listen(settings, control, initial)
        }
    }

    /// How much of the staged data the connection's send queue takes now.
    pub fn room(&self, endpoint: &Endpoint, written: u64) -> u64 {
        match (self.shares.send, self.shares.unsent) {
            (Some(_), Some(unsent)) => {
                endpoint.writable().min(unsent.get().saturating_sub(endpoint.unsent()))
            }
            (Some(_), None) => endpoint.writable(),
            (None, _) => send_room(endpoint, written),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_experiment::pep::PepPlan;

    /// The models of all legs, then of those that rules change.
    fn models(text: &str) -> Result<Vec<Model>, String> {
        let table: toml::Table = text.parse().expect("TOML");
        let pep = PepPlan::try_from(table).map_err(|error| error.to_string())?;
        let mut plan = pep.config().clone().resolve().expect("a configuration");
        let context = LegContext::new(pep.leg_tables().clone(), &plan.legs, &[]);
        let mut models = Vec::new();
        plan.replace_congestion(|leg| {
            models.push(Model::of(leg, &context)?);
            Ok::<_, String>(leg.congestion.clone())
        })?;
        Ok(models)
    }

    #[test]
    fn flows_of_known_rate_share_their_leg_under_every_rule() {
        let text = "[legs.s]\nrate = \"20 Mbit/s\"\nrtt = \"600 ms\"\ncongestion = \"known-rate\"\n\
                    [legs.t]\nrate = \"20 Mbit/s\"\ncongestion = \"known-rate\"\n\
                    [[rules]]\naction = \"split\"\nlegs.s.pacing = \"1 Mbit/s\"\n";
        let models = models(text).expect("models");
        let known = |at: usize| match &models[at].control.law {
            Law::KnownRate(known) => known.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(known(0).leg, known(2).leg, "the rule's leg is the same leg");
        assert_ne!(known(0).leg, known(1).leg);
        assert_eq!(known(0).rtt, Some(Duration::from_ms(600)));
        assert_eq!(known(0).leg.rate(), Rate::from_mbit_per_s(20));
        assert!(models.iter().all(|model| model.pool.is_none()), "it divides its rate itself");
    }

    #[test]
    fn a_table_sets_more_than_a_name_and_the_leg_fills_in_what_it_has() {
        let text = "[legs.s]\nrate = \"20 Mbit/s\"\nrtt = \"600 ms\"\nrtt0 = \"50 ms\"\n\
                    congestion = { algorithm = \"hybla-plus\", loss_tolerance = 0.1 }\n\
                    [legs.t]\ncongestion = { algorithm = \"cubic\", slow_start = \"search\", \
                    initial_window = 32 }\n\
                    [[rules]]\naction = \"split\"\nlegs.t.congestion = \"reno\"\n";
        let models = models(text).expect("models");
        let Law::HyblaPlus(hybla) = models[0].control.law else { panic!("not asked for") };
        assert_eq!(hybla.rtt0, Duration::from_ms(50));
        assert_eq!(hybla.rate, Some(Rate::from_mbit_per_s(20)));
        assert!(hybla.start_at_rate && hybla.loss_tolerance_q16 == 6554);
        let cubic = &models[1].control;
        assert_eq!(cubic.slow_start, Some(midhop_congestion::SlowStart::Search));
        assert_eq!(cubic.initial_window, 32);
        assert_eq!(models[2].control.law, Law::Reno);
        assert_eq!(models[2].control.initial_window, 10, "the table is not the rule's");
    }

    #[test]
    fn what_a_leg_lacks_is_reported() {
        for (text, why) in [
            ("[legs.s]\ncongestion = \"known-rate\"", "the leg has no rate that could be known"),
            ("[legs.s]\ncongestion = \"xcp\"", "no router on the path"),
            ("[legs.s]\ncongestion = \"illinois\"", "there is no congestion control `illinois`"),
            ("[legs.s]\ncongestion = { algorithm = \"cubic\", rtt0 = \"1 s\" }", "has no `rtt0`"),
        ] {
            let error = models(text).expect_err(text);
            assert!(error.starts_with("legs.s.congestion: ") && error.contains(why), "{error}");
        }
        let with_fallback = "[legs.s]\ncongestion = \"xcp\"\nfallback = \"westwood\"";
        let model = &models(with_fallback).expect("the fallback")[0];
        assert_eq!(model.control.law, Law::Westwood);
    }
}
