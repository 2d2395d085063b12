//! One side of a flow: its endpoint, made as the leg's configuration asks.

use super::bounded::Bounded;
use midhop_congestion::{Algorithm, build, hybla};
use midhop_pep::config::{LegPlan, Start};
use midhop_pep::credit::Shares;
use midhop_tcp::{Endpoint, Settings};
use midhop_units::{Bytes, Duration, Rate, Seed};

/// The congestion control of a leg that names none: the kernel's default.
const DEFAULT: Algorithm = Algorithm::Cubic;
/// Windows of data that a send buffer holds which the kernel measures.
const WINDOWS_BUFFERED: u64 = 6;

/// A leg's configuration, as far as it concerns its connections.
#[derive(Debug, Clone)]
pub(super) struct Model {
    /// Its place among the legs.
    pub at: usize,
    /// The link that its connections use.
    pub link: String,
    pub rtt: Option<Duration>,
    /// The fastest that one flow may send.
    pub pacing: Option<Rate>,
    pub shares: Shares,
    algorithm: Algorithm,
    control: midhop_congestion::Settings,
    paced: bool,
    divided: bool,
}

impl Model {
    /// What a leg's connections are made with.
    ///
    /// # Errors
    /// When its congestion control is not to be had, and neither is its fallback.
    pub fn of(leg: &LegPlan) -> Result<Self, String> {
        let algorithm = match (&leg.congestion, &leg.fallback) {
            (None, _) => DEFAULT,
            (Some(name), fallback) => usable(name)
                .or_else(|why| fallback.as_deref().map_or(Err(why), usable))
                .map_err(|why| format!("legs.{}.congestion: {why}", leg.name))?,
        };
        // A bound on a socket's rate makes the kernel pace it, whatever its congestion control.
        let paced = algorithm.paces() || leg.share || leg.pacing.is_some();
        let defaults = hybla::Settings::default();
        let control = midhop_congestion::Settings {
            paced,
            hybla: hybla::Settings {
                rtt0: leg.rtt0.unwrap_or(defaults.rtt0),
                rate: leg.rate,
                start_at_rate: leg.start == Start::Rate,
                ..defaults
            },
            ..midhop_congestion::Settings::default()
        };
        Ok(Self {
            at: 0,
            link: leg.name.clone(),
            rtt: leg.rtt,
            pacing: leg.pacing,
            shares: Shares::of(leg.buffer).offering(leg.window),
            algorithm,
            control,
            paced,
            divided: leg.share,
        })
    }

    /// The same as the leg `at` that place, for connections over `link`.
    pub fn at(self, at: usize, link: Option<&str>) -> Self {
        let link = link.map_or_else(|| self.link.clone(), str::to_owned);
        Self { at, link, ..self }
    }

    /// Whether the flows that send into the leg divide its rate.
    pub fn divides(&self) -> bool {
        self.divided
    }

    /// A new connection's end on such a host; it dials, or it listens.
    pub fn endpoint(&self, host: &Settings, dials: bool, initial: u32) -> Endpoint {
        let settings = Settings {
            // The kernel counts segments with their bookkeeping and offers half.
            receive_buffer: self
                .shares
                .receive
                .map_or(host.receive_buffer, |bytes| Bytes::new(bytes.get() / 2)),
            receive_autotuning: match self.shares.receive {
                Some(_) => None,
                None => host.receive_autotuning,
            },
            send_buffer: self.shares.send.unwrap_or(host.send_buffer),
            pacing: self.paced,
            ..host.clone()
        };
        let mss = settings.segment_payload();
        // Flows that probe must not do so all at the same moment.
        let seed = Seed(initial.into()).derive("congestion");
        let control = midhop_congestion::Settings { mss, seed, ..self.control.clone() };
        let inner = build(self.algorithm, &control).expect("it was built once to see that it can");
        let control = Box::new(Bounded { inner, most: self.pacing });
        if dials {
            Endpoint::connect(settings, control, initial)
        } else {
            Endpoint::listen(settings, control, initial)
        }
    }

    /// How much of what is staged the connection's send queue takes now.
    pub fn room(&self, endpoint: &Endpoint, written: u64) -> u64 {
        match (self.shares.send, self.shares.unsent) {
            (Some(_), Some(unsent)) => {
                endpoint.writable().min(unsent.get().saturating_sub(endpoint.unsent()))
            }
            (Some(_), None) => endpoint.writable(),
            (None, _) => {
                let held = written - endpoint.acknowledged();
                (endpoint.window().get() * WINDOWS_BUFFERED).saturating_sub(held)
            }
        }
    }
}

/// The algorithm called `name`, if it can be had.
fn usable(name: &str) -> Result<Algorithm, String> {
    let algorithm = Algorithm::from_name(name);
    let algorithm = algorithm.ok_or_else(|| format!("nobody knows `{name}`"))?;
    match build(algorithm, &midhop_congestion::Settings::default()) {
        Ok(_) => Ok(algorithm),
        Err(error) => Err(error.to_string()),
    }
}
