//! A process on a node that works until its standard input ends, and then tells what it did.

use super::RunError;
use super::meters::Meter;
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{ChildStdin, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How long it may take to tell. Generous: machines may be busy.
const TELL_WITHIN: Duration = Duration::from_secs(30);

/// Such a process. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Worker {
    meter: Meter,
    stop: Option<ChildStdin>,
    told: Receiver<String>,
}

impl Worker {
    /// Starts `command`, whose errors go into a file of `directory` that is called by `name`.
    pub(super) fn start(
        command: Command,
        node: &str,
        name: &str,
        directory: &Path,
    ) -> Result<Self, RunError> {
        let (mut meter, stop) = Meter::start_stoppable(command, node, name, directory)?;
        let (tell, told) = channel();
        let stdout = meter.take_stdout();
        std::thread::spawn(move || {
            let Some(stdout) = stdout else { return };
            let mut lines = BufReader::new(stdout);
            let mut line = String::new();
            if lines.read_line(&mut line).is_err() || tell.send(line).is_err() {
                return;
            }
            let mut rest = String::new();
            let _ = lines.read_to_string(&mut rest);
            let _ = tell.send(rest);
        });
        Ok(Self { meter, stop, told })
    }

    /// Waits for its first line, which says that it is at work.
    pub(super) fn wait_ready(&mut self) -> Result<(), RunError> {
        match self.told.recv_timeout(TELL_WITHIN) {
            Ok(line) if !line.is_empty() => Ok(()),
            _ => Err(self.meter.failed("ended before it was ready")),
        }
    }

    /// Ends it, and gives what it has told.
    pub(super) fn finish<T: DeserializeOwned>(mut self) -> Result<T, RunError> {
        drop(self.stop.take());
        let mut told = String::new();
        while let Ok(text) = self.told.recv_timeout(TELL_WITHIN) {
            told.push_str(&text);
        }
        serde_json::from_str(&told).map_err(|_| self.meter.failed("told nothing of what it did"))
    }
}
