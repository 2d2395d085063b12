//! The modems of a plan's tunnels. Each accepts DLEP sessions on its node's loopback, and reports
//! the rate that its link has at that moment of the run.
//!
//! The emulator draws the same rates from the same seed, on the same clock. Before the run starts,
//! a modem reports the rate at its start.

use super::RunError;
use super::fault::io_error;
use crate::emulator::scheduling;
use crate::lab::Network;
use crate::namespace::Namespace;
use midhop_dlep::Modem;
use midhop_experiment::modem::ModemReports;
use midhop_experiment::plan::Plan;
use midhop_linux::sockopt;
use midhop_units::{Duration, Instant};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time;

/// The hop limit that a modem and its router set: they are one hop apart (RFC 8175 §7.2).
const HOPS: i32 = 255;
/// Interval at which a modem checks for a router, and for the end of the run.
const LOOK_EVERY: time::Duration = time::Duration::from_millis(20);
/// The shortest read timeout: a timeout of zero means no limit.
const WAIT_MIN: time::Duration = time::Duration::from_millis(1);

/// The modems of a plan. Dropping the value ends them.
#[derive(Debug)]
pub struct Modems {
    run: Arc<Run>,
    threads: Vec<JoinHandle<()>>,
}

/// State of the run that all modems share.
#[derive(Debug, Default)]
struct Run {
    epoch: OnceLock<Instant>,
    is_over: AtomicBool,
}

impl Run {
    /// The time since the start of the run.
    fn now(&self) -> Instant {
        let since = self.epoch.get().map(|epoch| scheduling::now().saturating_since(*epoch));
        Instant::START + since.unwrap_or_default()
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// Starts the modems of a plan, before its proxies connect to them.
///
/// # Errors
/// When one cannot listen.
pub fn start_modems(plan: &Plan, network: &Network) -> Result<Modems, RunError> {
    let mut modems = Modems { run: Arc::default(), threads: Vec::new() };
    for node in &plan.nodes {
        for peer in node.tunnels.iter().flat_map(|tunnels| &tunnels.peers) {
            let (Some(address), Some(host)) = (peer.modem, network.node(&node.name)) else {
                continue;
            };
            let Some(reports) = plan.modem_reports(&node.name, &peer.link) else { continue };
            let fail = || io_error(format!("start the modem of {} on {}", peer.link, node.name));
            let listener = listen(host, address).map_err(fail())?;
            let run = modems.run.clone();
            let thread = std::thread::Builder::new()
                .name(format!("modem {}", peer.link))
                .spawn(move || serve(&listener, &reports, &run))
                .map_err(fail())?;
            modems.threads.push(thread);
        }
    }
    Ok(modems)
}

impl Modems {
    /// Sets the run's start to `epoch`, which may be in the future.
    pub fn begin(&self, epoch: Instant) {
        // It is set only once.
        let _ = self.run.epoch.set(epoch);
    }
}

impl Drop for Modems {
    fn drop(&mut self) {
        self.run.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn listen(host: &Namespace, address: SocketAddr) -> io::Result<TcpListener> {
    let listener = host.run(|| TcpListener::bind(address)).map_err(io::Error::other)??;
    // Accepted connections inherit this.
    sockopt::set_int(&listener, libc::IPPROTO_IP, libc::IP_TTL, HOPS)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves one session after the other.
fn serve(listener: &TcpListener, reports: &ModemReports, run: &Run) {
    while !run.is_over() {
        match listener.accept() {
            Ok((stream, _)) => {
                // A router that disconnects, or sends something invalid, connects again.
                let _ = session(stream, reports.clone(), run);
            }
            Err(_) => std::thread::sleep(LOOK_EVERY),
        }
    }
}

fn session(mut stream: TcpStream, mut reports: ModemReports, run: &Run) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    // Heartbeats use this clock, which the run's start does not reset.
    let clock = time::Instant::now();
    let now = || Instant::START + Duration::from(clock.elapsed());
    let (rate, mut changes) = reports.at(run.now());
    let mut modem = Modem::new(now(), rate, Vec::new());
    let mut buffer = [0; 4096];
    while !run.is_over() && !modem.is_over() {
        stream.write_all(&modem.to_send())?;
        let next = time::Duration::from(changes.saturating_since(run.now()));
        stream.set_read_timeout(Some(next.clamp(WAIT_MIN, LOOK_EVERY)))?;
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => {
                modem.on_received(now(), &buffer[..length]).map_err(io::Error::other)?;
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        if run.now() >= changes {
            let (rate, next) = reports.at(run.now());
            modem.change(now(), rate);
            changes = next;
        }
        modem.on_time(now());
    }
    stream.write_all(&modem.to_send())
}
