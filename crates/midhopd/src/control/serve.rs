//! Serves the control socket.

use super::answer::{DaemonStatus, ErrorAnswer, Flows, FlowsQuery, Reload, VERSION, WhyQuery};
use super::{Explainer, render};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time;

/// Connections served at a time; others wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 16;
/// Maximum lifetime of a connection, however slow its client is.
const CONNECTION_TIME: Duration = Duration::from_secs(60);
/// How long a client may take to send a request's head.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// Maximum length of a request's body.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// A request to read the configuration again, with where its result goes.
pub type ReloadRequest = oneshot::Sender<Reload>;

/// Returns the present state of the data plane.
pub type SnapshotSource = Arc<dyn Fn() -> crate::snapshot::Snapshot + Send + Sync>;

/// What the answers are made of.
#[derive(Clone)]
pub struct ControlSources {
    /// The state of the data plane.
    pub snapshot: SnapshotSource,
    /// Why flows are carried or not.
    pub explainer: Arc<Explainer>,
    /// Whether all is well.
    pub health: Arc<crate::health::Health>,
    /// Sends requests to reload.
    pub reloads: mpsc::Sender<ReloadRequest>,
    /// The result of the last reload.
    pub last_reload: Arc<Mutex<Option<Reload>>>,
    /// When the daemon started.
    pub started: Instant,
}

/// Serves until it is dropped.
pub async fn serve(listener: UnixListener, sources: ControlSources) -> Infallible {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
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
        let sources = sources.clone();
        tokio::spawn(async move {
            if time::timeout(CONNECTION_TIME, serve_connection(stream, sources)).await.is_err() {
                tracing::debug!("a control client took too long");
            }
            drop(place);
        });
    }
}

async fn serve_connection(stream: UnixStream, sources: ControlSources) {
    let service = service_fn(|request| {
        let sources = &sources;
        async move { Ok::<_, Infallible>(respond(request, sources).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(REQUEST_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a control client went wrong");
    }
}

async fn respond(request: Request<Incoming>, sources: &ControlSources) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    match (&head.method, head.uri.path()) {
        (&Method::GET, "/status") => json(StatusCode::OK, &status(sources)),
        (&Method::POST, "/flows") => match read::<FlowsQuery>(body).await {
            Ok(query) => json(StatusCode::OK, &flows(&query, sources)),
            Err(refusal) => json(StatusCode::BAD_REQUEST, &refusal),
        },
        (&Method::POST, "/why") => match read::<WhyQuery>(body).await {
            Ok(query) => match sources.explainer.explain(&query) {
                Ok(why) => json(StatusCode::OK, &why),
                Err(error) => {
                    let error = format!("the kernel cannot be asked for routes: {error}");
                    json(StatusCode::INTERNAL_SERVER_ERROR, &refusal(&error, None))
                }
            },
            Err(refusal) => json(StatusCode::BAD_REQUEST, &refusal),
        },
        (&Method::POST, "/reload") => match reload(sources).await {
            Some(result) => {
                let refused = result.error.is_some();
                json(if refused { StatusCode::CONFLICT } else { StatusCode::OK }, &result)
            }
            None => json(StatusCode::SERVICE_UNAVAILABLE, &refusal("the daemon is ending", None)),
        },
        (_, "/status" | "/flows" | "/why" | "/reload") => {
            let hint = "GET /status; POST /flows, /why and /reload";
            json(StatusCode::METHOD_NOT_ALLOWED, &refusal("the method does not fit", Some(hint)))
        }
        _ => {
            let hint = "there are /status, /flows, /why and /reload";
            json(StatusCode::NOT_FOUND, &refusal("there is nothing of this name", Some(hint)))
        }
    }
}

fn status(sources: &ControlSources) -> DaemonStatus {
    let plan = sources.explainer.plan.borrow().clone();
    let draining = sources.explainer.draining.load(std::sync::atomic::Ordering::Relaxed);
    DaemonStatus {
        uptime_s: sources.started.elapsed().as_secs_f64(),
        draining,
        illness: sources.health.illness().map(|illness| illness.to_string()),
        passing: sources.explainer.passing(),
        reload: sources.last_reload.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        ..render::status((sources.snapshot)(), &plan)
    }
}

fn flows(query: &FlowsQuery, sources: &ControlSources) -> Flows {
    let limit = match query.limit {
        0 => usize::MAX,
        limit => usize::try_from(limit).unwrap_or(usize::MAX),
    };
    let (matching, flows) = sources.explainer.flows.flows(&query.matches, limit);
    Flows { format: VERSION, matching, flows: flows.into_iter().map(render::flow).collect() }
}

async fn reload(sources: &ControlSources) -> Option<Reload> {
    let (result, done) = oneshot::channel();
    sources.reloads.send(result).await.ok()?;
    done.await.ok()
}

async fn read<T: DeserializeOwned>(body: Incoming) -> Result<T, ErrorAnswer> {
    let collected = Limited::new(body, REQUEST_BYTES_MAX).collect().await;
    let bytes =
        collected.map_err(|error| refusal(&format!("the request has no body: {error}"), None))?;
    serde_json::from_slice(&bytes.to_bytes()).map_err(|error| {
        refusal(
            &format!("the request is not understood: {error}"),
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
