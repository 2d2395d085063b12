//! A proxy during a handover: orders by its command line, and its connections.

use crate::lab::find_daemon;
use crate::namespace::Namespace;
use crate::runner::RunError;
use crate::runner::fault::io_error;
use midhop_experiment::pep::PepPlan;
use midhop_linux::sock_diag::{Diag, destroy};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// The two ends of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(super) struct Ends {
    pub(super) client: SocketAddr,
    pub(super) server: SocketAddr,
}

/// What `midhopd flows --json` prints, as far as it is needed here.
#[derive(Debug, Deserialize)]
struct Flows {
    flows: Vec<Ends>,
}

/// What `midhopd move --json` prints, as far as it is needed here.
#[derive(Debug, Deserialize)]
pub(super) struct Moved {
    pub(super) moved: u64,
    pub(super) lost: u64,
    pub(super) state_bytes: u64,
    pub(super) state_frozen_bytes: u64,
    pub(super) stayed: BTreeMap<String, u64>,
}

/// A proxy whose flows are handed over.
#[derive(Debug)]
pub(super) struct Proxied {
    node: String,
    socket: PathBuf,
    file: PathBuf,
    /// Its configuration, and the same with a rule by which all flows bypass it.
    texts: [String; 2],
    drains: bool,
}

impl Proxied {
    /// The proxy of `node`, whose configuration and control socket are in `directory`.
    pub(super) fn new(node: &str, pep: &PepPlan, directory: &Path) -> Result<Self, RunError> {
        let file = directory.join(format!("{node}.toml"));
        let socket = directory.join(format!("{node}.sock"));
        let fault = || io_error(format!("read the configuration of the proxy on {node}"));
        let text = fs::read_to_string(&file).map_err(fault())?;
        let draining = pep.draining(&text).map_err(|error| fault()(io::Error::other(error)))?;
        Ok(Self { node: node.to_owned(), socket, file, texts: [text, draining], drains: false })
    }

    /// Lets new flows bypass it, or not.
    pub(super) fn drain(&mut self, drains: bool) -> Result<(), RunError> {
        if drains == self.drains {
            return Ok(());
        }
        let text = &self.texts[usize::from(drains)];
        let fault = io_error(format!("write the configuration of the proxy on {}", self.node));
        fs::write(&self.file, text).map_err(fault)?;
        let _: serde_json::Value = self.request(&["reload"])?;
        self.drains = drains;
        Ok(())
    }

    /// Its live flows.
    pub(super) fn flows(&self) -> Result<BTreeSet<Ends>, RunError> {
        let answer: Flows = self.request(&["flows", "--limit", "0"])?;
        Ok(answer.flows.into_iter().collect())
    }

    /// Moves all that can move to a peer.
    pub(super) fn move_flows(&self, peer: &str) -> Result<Moved, RunError> {
        self.request(&["move", "--flows", "all", "--to", peer])
    }

    fn request<T: DeserializeOwned>(&self, arguments: &[&str]) -> Result<T, RunError> {
        let action = || format!("run midhopd {} for {}", arguments.join(" "), self.node);
        let mut command = Command::new(find_daemon()?);
        command.args(arguments).arg("--json").env("MIDHOPD_SOCKET", &self.socket);
        let output = command.output().map_err(io_error(action()))?;
        // A move of which some flows stayed has an exit code of its own.
        serde_json::from_slice(&output.stdout).map_err(|_| {
            let errors = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            io_error(action())(io::Error::other(errors))
        })
    }
}

/// Resets `flows` of the proxy on a node, and returns how many of them there still were.
pub(super) fn reset(namespace: &Namespace, flows: &BTreeSet<Ends>) -> Result<u64, RunError> {
    let fault = || io_error(format!("reset flows on {}", namespace.name()));
    let reset = || -> io::Result<u64> {
        let mut found = Vec::new();
        Diag::open()?.dump(|socket| found.push(socket))?;
        let mut gone = BTreeSet::new();
        for socket in found {
            let (own, other) = (socket.local, socket.remote);
            let sides = [Ends { client: other, server: own }, Ends { client: own, server: other }];
            let Some(ends) = sides.into_iter().find(|ends| flows.contains(ends)) else { continue };
            match destroy(own, other, socket.cookie) {
                Ok(()) => gone.insert(ends),
                // It has ended by itself.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
                Err(error) => return Err(error),
            };
        }
        Ok(gone.len() as u64)
    };
    let done = namespace.run(reset).map_err(|error| fault()(io::Error::other(error)))?;
    done.map_err(fault())
}
