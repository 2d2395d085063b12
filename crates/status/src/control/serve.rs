//! Serves the control socket.

use super::answer::{
    DaemonStatus, ErrorAnswer, Flows, FlowsQuery, MoveOutcome, MoveQuery, RateReport, RateTaken,
    Reload, VERSION, Why, WhyQuery,
};
use super::render;
use crate::health::Health;
use crate::reloads::Reloads;
use crate::snapshot::{FlowSnapshot, Snapshot};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use midhop_pep::config::{Match, Plan, REPORTED_MAX, REPORTED_MIN};
use midhop_units::Rate;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::convert::Infallible;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time;

/// Connections served at a time; others wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 16;
/// Maximum lifetime of a connection, however slow its client is.
const CONNECTION_TIME: Duration = Duration::from_secs(60);
/// How long a client may take to send a request's head.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// Maximum length of a request's body.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// The rates of links that may be reported.
const RATES: RangeInclusive<Rate> = REPORTED_MIN..=REPORTED_MAX;
/// For how long a report may be valid. Unit: seconds.
const VALID_S: RangeInclusive<f64> = 1.0..=86_400.0;

/// A request to read the configuration again: the channel for its result.
pub type ReloadRequest = oneshot::Sender<Reload>;

/// Receives what has become of flows that were to move.
pub type MoveAnswer = oneshot::Receiver<Result<MoveOutcome, ErrorAnswer>>;

/// Returns the present state of the data plane.
pub type SnapshotSource = Arc<dyn Fn() -> Snapshot + Send + Sync>;

/// A data plane that answers questions about its flows.
pub trait Explain: Send + Sync {
    /// The configuration that is in force.
    fn plan(&self) -> Arc<Plan>;

    /// Whether no new flows are taken because the daemon ends.
    fn is_draining(&self) -> bool;

    /// Why new flows bypass the daemon now; none: they are taken.
    fn passing(&self) -> Option<String>;

    /// The number of live flows that `wanted` covers, and at most `limit` of them.
    fn flows(&self, wanted: &Match, limit: usize) -> (u64, Vec<FlowSnapshot>);

    /// Answers one question.
    ///
    /// # Errors
    /// When the kernel does not report routes.
    fn explain(&self, query: &WhyQuery) -> io::Result<Why>;

    /// Makes the tunnel to a peer use `rate` for `valid`.
    fn report_rate(&self, peer: &str, rate: Rate, valid: Duration);

    /// Moves live flows to a peer.
    fn relocate(&self, query: MoveQuery) -> MoveAnswer;
}

/// What a daemon answers.
pub trait Answers: Send + Sync {
    /// Its state at this moment.
    fn status(&self) -> DaemonStatus;

    /// The live flows that are requested.
    fn flows(&self, query: &FlowsQuery) -> Flows;

    /// What happens to a flow.
    ///
    /// # Errors
    /// When the kernel does not report routes.
    fn why(&self, query: &WhyQuery) -> io::Result<Why>;

    /// Accepts a report about a peer's link.
    ///
    /// # Errors
    /// When there is no such peer, or its tunnel uses no rate.
    fn take_rate(&self, report: &RateReport) -> Result<(), ErrorAnswer>;

    /// Moves live flows to a peer.
    fn relocate(&self, query: MoveQuery) -> MoveAnswer;

    /// The channel for requests to reload.
    fn reloads(&self) -> &mpsc::Sender<ReloadRequest>;
}

/// The sources of the answers of a daemon that serves.
#[derive(Clone)]
pub struct ControlSources {
    /// The state of the data plane.
    pub snapshot: SnapshotSource,
    /// Why flows are carried or not.
    pub explainer: Arc<dyn Explain>,
    /// Whether all is well.
    pub health: Arc<Health>,
    /// Sends requests to reload.
    pub reloads: mpsc::Sender<ReloadRequest>,
    /// The reloads so far.
    pub booked_reloads: Arc<Reloads>,
    /// When the daemon started.
    pub started: Instant,
}

/// The places of a control socket's clients.
#[derive(Debug, Clone)]
pub struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(CONNECTIONS_MAX)))
    }
}

impl Places {
    /// Waits until no client has one.
    pub async fn free(&self) {
        // The semaphore is never closed. If it were, nobody would have a place.
        drop(self.0.acquire_many(CONNECTIONS_MAX as u32).await);
    }
}

/// Serves in a task of this runtime until the task is aborted.
pub fn serve(
    listener: UnixListener,
    answers: Arc<dyn Answers>,
    places: Places,
) -> JoinHandle<Infallible> {
    // The crate that spawns a future compiles it: here that is this crate.
    tokio::spawn(admit(listener, answers, places))
}

async fn admit(
    listener: UnixListener,
    answers: Arc<dyn Answers>,
    Places(places): Places,
) -> Infallible {
    loop {
        // The semaphore is never closed. If it were, refusing to serve would be safe.
        let Ok(place) = places.clone().acquire_owned().await else {
            return std::future::pending().await;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a control connection was not accepted");
                time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let answers = answers.clone();
        tokio::spawn(async move {
            if time::timeout(CONNECTION_TIME, serve_connection(stream, answers)).await.is_err() {
                tracing::debug!("a control connection reached its time limit");
            }
            drop(place);
        });
    }
}

async fn serve_connection(stream: UnixStream, answers: Arc<dyn Answers>) {
    let service = service_fn(|request| {
        let answers = &*answers;
        async move { Ok::<_, Infallible>(respond(request, answers).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(REQUEST_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a control connection failed");
    }
}

async fn respond(request: Request<Incoming>, answers: &dyn Answers) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    match (&head.method, head.uri.path()) {
        (&Method::GET, "/status") => json(StatusCode::OK, &answers.status()),
        (&Method::POST, "/flows") => match read::<FlowsQuery>(body).await {
            Ok(query) => json(StatusCode::OK, &answers.flows(&query)),
            Err(refusal) => json(StatusCode::BAD_REQUEST, &refusal),
        },
        (&Method::POST, "/why") => match read::<WhyQuery>(body).await {
            Ok(query) => match answers.why(&query) {
                Ok(why) => json(StatusCode::OK, &why),
                Err(error) => {
                    let error = format!("routes cannot be queried: {error}");
                    json(StatusCode::INTERNAL_SERVER_ERROR, &refusal(&error, None))
                }
            },
            Err(refusal) => json(StatusCode::BAD_REQUEST, &refusal),
        },
        (&Method::POST, "/reload") => match reload(answers.reloads()).await {
            Some(result) => {
                let refused = result.error.is_some();
                json(if refused { StatusCode::CONFLICT } else { StatusCode::OK }, &result)
            }
            None => json(StatusCode::SERVICE_UNAVAILABLE, &refusal("the daemon is ending", None)),
        },
        (&Method::POST, "/rate") => match rate(body, answers).await {
            Ok(taken) => json(StatusCode::OK, &taken),
            Err(refusal) => json(StatusCode::BAD_REQUEST, &refusal),
        },
        (&Method::POST, "/move") => match relocate(body, answers).await {
            Ok(outcome) => json(StatusCode::OK, &outcome),
            Err(refusal) => json(StatusCode::CONFLICT, &refusal),
        },
        (_, "/status" | "/flows" | "/why" | "/reload" | "/rate" | "/move") => {
            let hint = "GET /status; POST /flows, /why, /reload, /rate and /move";
            json(StatusCode::METHOD_NOT_ALLOWED, &refusal("the method does not fit", Some(hint)))
        }
        _ => {
            let hint = "there are /status, /flows, /why, /reload, /rate and /move";
            json(StatusCode::NOT_FOUND, &refusal("there is nothing of this name", Some(hint)))
        }
    }
}

impl Answers for ControlSources {
    fn status(&self) -> DaemonStatus {
        DaemonStatus {
            uptime_s: self.started.elapsed().as_secs_f64(),
            draining: self.explainer.is_draining(),
            illness: self.health.illness().map(|illness| illness.to_string()),
            passing: self.explainer.passing(),
            reload: self.booked_reloads.last(),
            reloads_total: self.booked_reloads.counts(),
            failures_total: self.health.failures(),
            ..render::status((self.snapshot)(), &self.explainer.plan())
        }
    }

    fn flows(&self, query: &FlowsQuery) -> Flows {
        let limit = match query.limit {
            0 => usize::MAX,
            limit => usize::try_from(limit).unwrap_or(usize::MAX),
        };
        let (matching, flows) = self.explainer.flows(&query.matches, limit);
        Flows { format: VERSION, matching, flows: flows.into_iter().map(render::flow).collect() }
    }

    fn why(&self, query: &WhyQuery) -> io::Result<Why> {
        self.explainer.explain(query)
    }

    fn take_rate(&self, report: &RateReport) -> Result<(), ErrorAnswer> {
        let plan = self.explainer.plan();
        let RateReport { peer, rate_bit_per_s, valid_s } = report;
        let Some(known) = plan.peers.iter().find(|it| it.name == *peer) else {
            let names: Vec<_> = plan.peers.iter().map(|it| it.name.as_str()).collect();
            let hint = match names.is_empty() {
                true => "there are no peers".to_owned(),
                false => format!("there are {}", names.join(", ")),
            };
            return Err(refusal(&format!("no peer is called \"{peer}\""), Some(&hint)));
        };
        if !known.goes_by_its_rate() {
            let error = format!(
                "the tunnel to {peer} has no configured rate: it uses {}",
                known.congestion
            );
            let hint =
                format!("set `peers.{peer}.rate`, and no other `congestion` than known-rate");
            return Err(refusal(&error, Some(&hint)));
        }
        let rate = Rate::from_bits_per_s(*rate_bit_per_s);
        self.explainer.report_rate(peer, rate, Duration::from_secs_f64(*valid_s));
        Ok(())
    }

    fn relocate(&self, query: MoveQuery) -> MoveAnswer {
        self.explainer.relocate(query)
    }

    fn reloads(&self) -> &mpsc::Sender<ReloadRequest> {
        &self.reloads
    }
}

async fn relocate(body: Incoming, answers: &dyn Answers) -> Result<MoveOutcome, ErrorAnswer> {
    let query = read::<MoveQuery>(body).await?;
    let answer = answers.relocate(query).await;
    answer.unwrap_or_else(|_| Err(refusal("the daemon is ending", None)))
}

async fn rate(body: Incoming, answers: &dyn Answers) -> Result<RateTaken, ErrorAnswer> {
    let report = read::<RateReport>(body).await?;
    if !RATES.contains(&Rate::from_bits_per_s(report.rate_bit_per_s)) {
        let error = format!("{} bit/s is not a valid rate of a link", report.rate_bit_per_s);
        return Err(refusal(
            &error,
            Some("8 kbit/s to 100 Gbit/s; where a link is down, the tunnel finds out"),
        ));
    }
    if !VALID_S.contains(&report.valid_s) {
        let error = format!("a report cannot count for {} s", report.valid_s);
        return Err(refusal(&error, Some("1 s to 24 h; 30 s are usual, with a report every 10 s")));
    }
    answers.take_rate(&report)?;
    Ok(RateTaken { format: VERSION, report })
}

async fn reload(reloads: &mpsc::Sender<ReloadRequest>) -> Option<Reload> {
    let (result, done) = oneshot::channel();
    reloads.send(result).await.ok()?;
    done.await.ok()
}

async fn read<T: DeserializeOwned>(body: Incoming) -> Result<T, ErrorAnswer> {
    let collected = Limited::new(body, REQUEST_BYTES_MAX).collect().await;
    let bytes =
        collected.map_err(|error| refusal(&format!("the request has no body: {error}"), None))?;
    serde_json::from_slice(&bytes.to_bytes()).map_err(|error| {
        refusal(
            &format!("the request is invalid: {error}"),
            Some("`midhopd schema --of` prints what is"),
        )
    })
}

fn refusal(error: &str, hint: Option<&str>) -> ErrorAnswer {
    ErrorAnswer { error: error.to_owned(), hint: hint.map(str::to_owned) }
}

fn json(status: StatusCode, body: &impl Serialize) -> Response<Full<Bytes>> {
    let (status, body) = match serde_json::to_vec(body) {
        Ok(body) => (status, body),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, b"{\"error\":\"not rendered\"}".to_vec()),
    };
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
