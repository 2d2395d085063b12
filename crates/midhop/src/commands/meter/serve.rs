//! `midhop meter serve`.

use super::{activate, runtime};
use crate::commands::arguments;
use crate::failure::Failure;
use midhop_bpf::Active;
use midhop_testbed::meter::link::LinkLimits;
use midhop_testbed::meter::{Limits, ServedFlow, Server, ServerOptions};
use midhop_units::{Bytes, Duration, Rate};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use tokio::signal::unix::{SignalKind, signal};

/// The most programs that are kept registered at once.
const HELD_MAX: usize = 16;

/// Arguments of `midhop meter serve`.
#[derive(Debug, clap::Args)]
pub struct Serve {
    /// Where to listen; `[::]` serves IPv4 too, port 0 takes any.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = arguments::endpoint, default_value = "[::]:5201")]
    listen: SocketAddr,
    /// Stop after the first client's run.
    #[arg(long)]
    once: bool,
    /// Print JSON on standard output: one line when ready, and one for each flow that has ended.
    #[arg(long)]
    json: bool,
    /// The most payload per request.
    #[arg(long, value_name = "BYTES", default_value = "1000GB")]
    bytes_max: Bytes,
    /// The longest request that is limited by time.
    #[arg(long, value_name = "TIME", default_value = "1h")]
    time_max: Duration,
    /// The most connections at once; further ones wait.
    #[arg(long, value_name = "N", default_value_t = Limits::default().connections)]
    connections_max: usize,
    /// The most links that `midhop meter link` may measure at once; 0: none.
    #[arg(long, value_name = "N", default_value_t = LinkLimits::default().sessions)]
    links_max: usize,
    /// The highest rate of datagrams to and from a client that measures a link.
    #[arg(long, value_name = "RATE", default_value_t = LinkLimits::default().rate)]
    link_rate_max: Rate,
}

impl Serve {
    /// Serves until interrupted.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let json = self.json;
        let server = Server::bind(ServerOptions {
            listen: self.listen,
            once: self.once,
            limits: Limits {
                connections: self.connections_max,
                bytes: self.bytes_max,
                time: self.time_max,
            },
            resolve: Some(resolver()),
            on_flow: Some(Box::new(move |flow| print_flow(flow, json))),
            arrived: None,
            links: (self.links_max > 0)
                .then_some(LinkLimits { sessions: self.links_max, rate: self.link_rate_max }),
        })
        .map_err(|error| {
            Failure::run(&error).hint("choose another address or port with --listen")
        })?;
        let address = server.address();
        if json {
            print_line(&serde_json::json!({ "ready": address }).to_string());
        } else {
            eprintln!("ready on {address}");
        }
        runtime()?.block_on(async move {
            let mut terminate = signal(SignalKind::terminate())?;
            tokio::select! {
                ended = server.run() => ended.map_err(Failure::run)?,
                _ = terminate.recv() => {}
                interrupted = tokio::signal::ctrl_c() => interrupted?,
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// Resolves the names of congestion controls that users give, and keeps ours registered.
pub(super) fn resolver() -> Box<midhop_testbed::meter::Resolve> {
    let held: Mutex<BTreeMap<String, Active>> = Mutex::default();
    Box::new(move |name| {
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(active) = held.get(name) {
            return Ok(active.kernel_name().to_owned());
        }
        let active = activate(name).map_err(|failure| failure.to_string())?;
        let kernel_name = active.kernel_name().to_owned();
        // The kernel's own need not be kept. Ours exist once for each combination of settings, so
        // strangers must not make this map grow without bound.
        if matches!(active, Active::Program(_)) {
            if held.len() >= HELD_MAX {
                return Err(format!("more than {HELD_MAX} congestion controls at once"));
            }
            held.insert(name.to_owned(), active);
        }
        Ok(kernel_name)
    })
}

fn print_flow(flow: &ServedFlow, json: bool) {
    if json {
        if let Ok(line) = serde_json::to_string(&serde_json::json!({ "flow": flow })) {
            print_line(&line);
        }
        return;
    }
    let mut line = format!(
        "flow {} with {}: sent {}, received {} in {:.3} s, {}, {} retransmissions",
        flow.flow,
        flow.peer,
        flow.sent,
        flow.received,
        flow.took.as_s_f64(),
        flow.congestion,
        flow.retransmissions
    );
    if let Some(error) = &flow.error {
        line += &format!("; {error}");
    }
    eprintln!("{line}");
}

/// Prints a whole line at once, so that a program that waits for it reads it immediately. A reader
/// that is gone does not stop the server.
pub(super) fn print_line(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
