//! Finds a daemon's control socket, and sends it one request.

use super::Which;
use crate::control::answer::{ErrorAnswer, Reload};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use midhop_failure::Failure;
use midhop_pep::config::Control;
use midhop_process::configuration;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time;

/// How long a daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same for what it does meanwhile.
const LONG_PATIENCE: Duration = Duration::from_secs(60);

/// The body of a request with arguments.
fn written(query: &impl Serialize) -> Result<Bytes, Failure> {
    let body = serde_json::to_vec(query);
    body.map(Bytes::from)
        .map_err(|error| Failure::run("the request cannot be written").because(error))
}

/// A running daemon, by its control socket.
#[derive(Debug)]
pub(super) struct Daemon(PathBuf);

impl Daemon {
    /// The daemon that the options select.
    ///
    /// # Errors
    /// When none, or more than one, may be meant.
    pub(super) fn find(which: &Which) -> Result<Self, Failure> {
        match (&which.socket, &which.config) {
            (Some(path), _) => Ok(Self(path.clone())),
            (None, Some(config)) => {
                let plan = configuration::read_plan(config)?;
                plan.control.path(&plan.intercept.instance).map(Self).ok_or_else(|| {
                    Failure::usage(format!("{}: control.socket is switched off", config.display()))
                        .hint("remove the key, or set a path, and restart the daemon")
                })
            }
            (None, None) => match std::env::var_os(super::SOCKET_VARIABLE) {
                Some(path) => Ok(Self(path.into())),
                None => Self::only(Control::directory()),
            },
        }
    }

    /// Its control socket.
    pub(super) fn into_path(self) -> PathBuf {
        self.0
    }

    /// The only daemon whose socket is in a directory.
    fn only(directory: &Path) -> Result<Self, Failure> {
        let mut sockets = sockets(directory);
        match (sockets.pop(), sockets.pop()) {
            (Some(path), None) => Ok(Self(path)),
            (Some(last), Some(other)) => {
                let names = sockets.iter().chain([&other, &last]);
                let names: Vec<_> = names.map(|path| path.display().to_string()).collect();
                Err(Failure::usage("more than one daemon runs on this host")
                    .hint(format!("name one by --socket: {}", names.join(", "))))
            }
            _ => Err(Failure::run(format!("no daemon has a control socket in {}", directory.display()))
                .hint("start it (`midhopd run`), or name its socket by --socket or its configuration by --config")),
        }
    }

    /// Sends a request without arguments.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let (status, body) = self.exchange(Method::GET, path, Bytes::new(), PATIENCE).await?;
        self.understood(status, &body)
    }

    /// Sends a request with arguments.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &impl Serialize,
    ) -> Result<T, Failure> {
        let (status, body) = self.exchange(Method::POST, path, written(query)?, PATIENCE).await?;
        self.understood(status, &body)
    }

    /// The same for what takes the daemon some time.
    pub(super) async fn post_long<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &impl Serialize,
    ) -> Result<T, Failure> {
        let exchange = self.exchange(Method::POST, path, written(query)?, LONG_PATIENCE);
        let (status, body) = exchange.await?;
        self.understood(status, &body)
    }

    /// Makes it read its configuration again. A configuration that it refused is an answer, not an error.
    pub(super) async fn reload(&self) -> Result<Reload, Failure> {
        match self.exchange(Method::POST, "/reload", Bytes::new(), PATIENCE).await? {
            (StatusCode::CONFLICT, body) => self.understood(StatusCode::OK, &body),
            (status, body) => self.understood(status, &body),
        }
    }

    fn understood<T: DeserializeOwned>(
        &self,
        status: StatusCode,
        body: &[u8],
    ) -> Result<T, Failure> {
        if status.is_success() {
            return serde_json::from_slice(body).map_err(|error| {
                Failure::run(format!("the response of {} is invalid", self.0.display()))
                    .because(error)
                    .hint("daemon and command may be of different versions: `midhopd --version`")
            });
        }
        let refusal = serde_json::from_slice::<ErrorAnswer>(body);
        let refusal =
            refusal.unwrap_or_else(|_| ErrorAnswer { error: status.to_string(), hint: None });
        let failure = Failure::run("the daemon refused").because(refusal.error);
        Err(refusal.hint.into_iter().fold(failure, |failure, hint| failure.hint(hint)))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        patience: Duration,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let silent = |_| {
            Failure::run(format!("{} does not respond", self.0.display()))
                .hint("the daemon may be stuck; see its log and `/healthz`")
        };
        time::timeout(patience, self.talk(method, path, body)).await.map_err(silent)?
    }

    async fn talk(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let stream = UnixStream::connect(&self.0).await.map_err(|error| self.unreachable(error))?;
        let broken = |error: hyper::Error| {
            Failure::run(format!("{} closed the connection", self.0.display())).because(error)
        };
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let connection = tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "midhopd")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| Failure::run("the request cannot be written").because(error))?;
        let answer = sender.send_request(request).await.map_err(broken)?;
        let status = answer.status();
        let body = answer.into_body().collect().await.map_err(broken)?.to_bytes();
        connection.abort();
        Ok((status, body))
    }

    fn unreachable(&self, error: io::Error) -> Failure {
        let hint = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "run as root, or have control.group name a group that you are in"
            }
            io::ErrorKind::ConnectionRefused => "the daemon that made it has died: start it again",
            _ => {
                "start the daemon, or name its socket by --socket or its configuration by --config"
            }
        };
        Failure::run(format!("no daemon responds at {}", self.0.display()))
            .because(error)
            .hint(hint)
    }
}

/// The sockets in a directory, by name.
fn sockets(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let mut sockets: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|it| it == "sock")).collect();
    // The socket of a daemon that has died does not count if there is a live one.
    let refuses = |path: &PathBuf| {
        let connected = std::os::unix::net::UnixStream::connect(path);
        connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    if sockets.len() > 1 {
        sockets.retain(|path| !refuses(path));
    }
    sockets.sort();
    sockets
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn the_only_live_socket_is_found() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        assert!(Daemon::only(directory.path()).is_err(), "there is none");
        let _first = UnixListener::bind(at("a.sock")).expect("a socket");
        drop(UnixListener::bind(at("dead.sock")).expect("a socket"));
        let found = Daemon::only(directory.path()).expect("one is alive");
        assert_eq!(found.0, at("a.sock"));
        let _second = UnixListener::bind(at("b.sock")).expect("a socket");
        let error = Daemon::only(directory.path()).expect_err("two are");
        let hint = error.hint_text().unwrap_or_default();
        assert!(
            hint.contains("a.sock") && hint.contains("b.sock") && !hint.contains("dead"),
            "{hint}"
        );
    }
}
