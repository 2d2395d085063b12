//! The admin server: metrics, a live status page and a health check over HTTP.
//!
//! Invariant: whatever a client does, it holds at most one of `CONNECTIONS_MAX` places, for at most
//! `CONNECTION_TIME`, with at most `HEAD_BYTES_MAX` of its bytes. It cannot affect the data plane, from which this
//! server only takes snapshots.

mod host;

use crate::{health::Health, history::History, metrics, reloads::Reloads, snapshot::Snapshot};
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{self, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use midhop_process::logging;
use midhop_units::Duration;
use serde::Serialize;
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinHandle,
    time,
};

/// Maximum number of connections served at a time; others wait in the listener's backlog.
const CONNECTIONS_MAX: usize = 64;
/// Maximum lifetime of a connection, however slow its client is.
const CONNECTION_TIME: time::Duration = time::Duration::from_secs(60);
/// How long a client may take to send a request's head.
const HEAD_TIME: time::Duration = time::Duration::from_secs(5);
/// Maximum length of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;

const PAGE: &str = include_str!("admin/page.html");
const STYLE: &str = include_str!("admin/page.css");
/// The parts of the page's script, in their order.
const SCRIPT: &str = concat!(
    include_str!("admin/quantity.js"),
    include_str!("admin/chart.js"),
    include_str!("admin/page.js")
);
/// The page's Content Security Policy. It permits requests to this server only, and no inline scripts: injected text
/// would be displayed, and never executed.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
    img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The daemon's state on its status page.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Status {
    /// The program's version.
    pub version: &'static str,
    /// The name of this instance.
    pub instance: String,
    /// Time since the daemon's start.
    pub uptime_s: f64,
    /// Whether the daemon takes no new flows.
    pub draining: bool,
    /// The present state of the data plane.
    pub data_plane: Snapshot,
}

/// Returns the status.
pub type StatusSource = Arc<dyn Fn() -> Status + Send + Sync>;

/// The sources of responses.
#[derive(Clone)]
pub struct AnswerSources {
    /// The status. Building it takes time in proportion to the number of live flows.
    pub status: StatusSource,
    /// The daemon's health, for `/healthz`. Reading it does not depend on the number of flows.
    pub health: Arc<Health>,
    /// Whether the daemon takes no new flows.
    pub draining: Arc<AtomicBool>,
    /// The reloads of the configuration: how many, and with which results.
    pub reloads: Arc<Reloads>,
    /// The samples of the last hour.
    pub history: Arc<History>,
    /// Host names permitted in requests, besides addresses and `localhost`.
    pub names: Arc<[String]>,
}

/// Serves in a task of this runtime until the task is aborted.
pub fn serve(listener: TcpListener, source: AnswerSources) -> JoinHandle<Infallible> {
    // The crate that spawns a future compiles it: here that is this crate.
    tokio::spawn(admit(listener, source))
}

async fn admit(listener: TcpListener, source: AnswerSources) -> Infallible {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The semaphore is never closed. If it were, refusing to serve would be safe.
        let Ok(place) = places.clone().acquire_owned().await else {
            return std::future::pending().await;
        };
        let Some(stream) = accept(&listener).await else { continue };
        let source = source.clone();
        tokio::spawn(async move {
            if time::timeout(CONNECTION_TIME, serve_connection(stream, source)).await.is_err() {
                tracing::debug!("an admin connection reached its time limit");
            }
            drop(place);
        });
    }
}

async fn accept(listener: &TcpListener) -> Option<TcpStream> {
    match listener.accept().await {
        Ok((stream, _)) => Some(stream),
        Err(error) => {
            // The likely reason is a lack of descriptors: trying again at once would be a busy loop.
            tracing::warn!(%error, "an admin connection was not accepted");
            time::sleep(time::Duration::from_millis(100)).await;
            None
        }
    }
}

async fn serve_connection(stream: TcpStream, source: AnswerSources) {
    let service = service_fn(|request| {
        let response = respond(&request, &source);
        async move { Ok::<_, Infallible>(response) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "an admin connection failed");
    }
}

fn respond(request: &Request<Incoming>, source: &AnswerSources) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    if !host::is_own(request, &source.names) {
        // No response reveals to a page of another origin what runs here.
        return plain(
            StatusCode::MISDIRECTED_REQUEST,
            "use an address or localhost, or list the name in admin.names\n",
        );
    }
    match request.uri().path() {
        "/page.css" => typed("text/css; charset=utf-8", STYLE),
        "/page.js" => typed("text/javascript; charset=utf-8", SCRIPT),
        "/history.json" => match serde_json::to_vec(&source.history.view(after(request))) {
            Ok(json) => typed("application/json", json),
            Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "history not rendered\n"),
        },
        "/" => {
            let mut page = typed("text/html; charset=utf-8", PAGE);
            let policy = HeaderValue::from_static(PAGE_POLICY);
            page.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
            page
        }
        "/metrics" => {
            let status = (source.status)();
            let daemon = metrics::DaemonState {
                uptime: Duration::from_s_f64(status.uptime_s),
                draining: status.draining,
                health: source.health.clone(),
                reloads: source.reloads.counts(),
                log_messages: logging::counts(),
            };
            match metrics::render(status.data_plane, daemon) {
                Ok(text) => typed(metrics::MEDIA_TYPE, text),
                Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "metrics not rendered\n"),
            }
        }
        "/status.json" => match serde_json::to_vec(&(source.status)()) {
            Ok(json) => typed("application/json", json),
            Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "status not rendered\n"),
        },
        "/healthz" => healthz(source),
        _ => {
            plain(StatusCode::NOT_FOUND, "see /, /metrics, /status.json, /history.json, /healthz\n")
        }
    }
}

/// The time from which on samples are requested, `?after=SECONDS` since the start; all of them without a valid number.
fn after(request: &Request<Incoming>) -> f64 {
    let asked = request.uri().query().and_then(|query| query.strip_prefix("after="));
    asked.and_then(|seconds| seconds.parse().ok()).unwrap_or(-1.0)
}

/// Answers `/healthz` without a status: its cost must not grow with the number of flows, and it must not wait for
/// another thread.
fn healthz(source: &AnswerSources) -> Response<Full<Bytes>> {
    if let Some(illness) = source.health.illness() {
        return plain(StatusCode::SERVICE_UNAVAILABLE, format!("{illness}\n"));
    }
    if source.draining.load(Relaxed) {
        return plain(StatusCode::SERVICE_UNAVAILABLE, "draining\n");
    }
    plain(StatusCode::OK, "ok\n")
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = typed("text/plain; charset=utf-8", text);
    *response.status_mut() = status;
    response
}

fn typed(media_type: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests;
