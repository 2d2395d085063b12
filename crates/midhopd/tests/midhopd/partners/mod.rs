//! Ends of a tunnel that others wrote: how they are installed and started.
//!
//! They are installed once from the registries, in fixed versions, into `target/peers`.
pub mod curl;
pub mod envoy;
pub mod python;

use crate::ends::Authority;
use midhop_testbed::namespace::Namespace;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// The command of a program, or why the program is not available.
pub type Had = OnceLock<Result<Vec<PathBuf>, String>>;

/// An end of a tunnel as a program with the commands `serve` and `open`.
#[derive(Debug, Clone, Copy)]
pub enum Program {
    /// HTTP/3, in Go.
    QuicGo,
    /// HTTP/3, in Python.
    Aioquic,
    /// HTTP/2 over TCP, in Go.
    GoHttp2,
}

impl Program {
    /// The command that starts it; `None`, with a clear message, if it is not available.
    pub fn words(self) -> Option<&'static [PathBuf]> {
        static QUIC_GO: Had = OnceLock::new();
        static GO_HTTP2: Had = OnceLock::new();
        static AIOQUIC: Had = OnceLock::new();
        had(match self {
            Self::QuicGo => QUIC_GO.get_or_init(|| build("quic-go")),
            Self::GoHttp2 => GO_HTTP2.get_or_init(|| build("go-http2")),
            Self::Aioquic => AIOQUIC.get_or_init(|| {
                Ok(vec![python::install("aioquic")?, sources("aioquic").join("main.py")])
            }),
        })
    }
}

/// The command that was found; `None`, with a clear message, if there is none.
pub fn had(found: &'static Result<Vec<PathBuf>, String>) -> Option<&'static [PathBuf]> {
    match found {
        Ok(words) => Some(words),
        Err(why) => {
            midhop_testkit::skipped(why);
            None
        }
    }
}

/// The directory of our program for a partner.
pub fn sources(partner: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testbed/peers").join(partner)
}

/// Builds a program that is written in Go.
fn build(partner: &str) -> Result<Vec<PathBuf>, String> {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(partner);
    let installed = Path::new("/usr/local/go/bin/go");
    let go = if installed.exists() { installed } else { Path::new("go") };
    let mut command = Command::new(go);
    command.args(["build", "-o"]).arg(&program).arg(".").current_dir(sources(partner));
    output(&mut command, partner)?;
    Ok(vec![program])
}

/// Runs a command that installs a partner, to its end.
pub fn output(command: &mut Command, partner: &str) -> Result<String, String> {
    let ended = command.stdin(Stdio::null()).output();
    let output = ended.map_err(|error| format!("{partner} cannot be had: {command:?}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{partner} cannot be had: {command:?}: {errors}"))
}

/// A running partner.
pub struct Peer {
    child: Child,
    /// The address at which it listens.
    pub address: SocketAddr,
}

impl Peer {
    pub fn start(
        place: &Namespace,
        program: Program,
        role: &str,
        authority: &Authority,
        own: &str,
        more: &[&str],
    ) -> Self {
        let words = program.words().expect("it was had");
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(role).args(identity(authority, own)).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = place.run(|| command.spawn()).expect("entering").expect("a partner");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("its words");
        BufReader::new(stdout).read_line(&mut line).expect("reading");
        let address = line.trim().strip_prefix("listening ").and_then(|it| it.parse().ok());
        let Some(address) = address else {
            let _ = child.kill();
            panic!("{program:?} does not listen: {line:?}");
        };
        Self { child, address }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A partner's identity, as arguments of its programs.
pub fn identity(authority: &Authority, own: &str) -> Vec<String> {
    let at = |file: String| authority.path().join(file).display().to_string();
    [
        ("certificate", format!("{own}.pem")),
        ("key", format!("{own}.key")),
        ("authority", "ca.pem".into()),
    ]
    .into_iter()
    .flat_map(|(flag, file)| [format!("-{flag}"), at(file)])
    .collect()
}
