//! A meter process on a node. It prints a line when it is ready, receives the run's start on its
//! standard input, and prints a report at its end.

use super::RunError;
use super::meters::Meter;
use midhop_units::Instant;
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{ChildStdin, Command};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{self, Duration};

/// How long a report may take after the work is over. Generous: machines may be busy.
const REPORT_WITHIN: Duration = Duration::from_secs(30);

/// Interval at which a wait checks for an interrupt.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A meter process. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Worker {
    meter: Meter,
    stop: Option<ChildStdin>,
    output: Receiver<String>,
}

impl Worker {
    /// Starts `command`, with its standard error in a file of `directory` named after `name`.
    pub(super) fn start(
        command: Command,
        node: &str,
        name: &str,
        directory: &Path,
    ) -> Result<Self, RunError> {
        let (mut meter, stop) = Meter::start_stoppable(command, node, name, directory)?;
        let (sender, output) = channel();
        let stdout = meter.take_stdout();
        std::thread::spawn(move || {
            let Some(stdout) = stdout else { return };
            let mut lines = BufReader::new(stdout);
            let mut line = String::new();
            if lines.read_line(&mut line).is_err() || sender.send(line).is_err() {
                return;
            }
            let mut rest = String::new();
            let _ = lines.read_to_string(&mut rest);
            let _ = sender.send(rest);
        });
        Ok(Self { meter, stop, output })
    }

    /// Waits for its first line, which shows that it is ready.
    pub(super) fn wait_ready(&mut self) -> Result<(), RunError> {
        match self.output.recv_timeout(REPORT_WITHIN) {
            Ok(line) if !line.is_empty() => Ok(()),
            _ => Err(self.meter.failed("ended before it was ready")),
        }
    }

    /// Sends it the run's start. All processes that wait for it begin together.
    pub(super) fn begin(&mut self, epoch: Instant) -> Result<(), RunError> {
        let line = format!("{}\n", epoch.as_ns());
        let written = self.stop.as_mut().map(|stop| stop.write_all(line.as_bytes()));
        match written {
            Some(Ok(())) => Ok(()),
            _ => Err(self.meter.failed("ended before the run started")),
        }
    }

    /// Waits for the report of a process that ends by itself, until `deadline` or until
    /// `interrupted`.
    pub(super) fn wait<T: DeserializeOwned>(
        self,
        deadline: time::Instant,
        interrupted: impl Fn() -> bool,
    ) -> Result<T, RunError> {
        let text = loop {
            match self.output.recv_timeout(LOOK_EVERY) {
                Ok(text) => break text,
                Err(RecvTimeoutError::Disconnected) => break String::new(),
                Err(RecvTimeoutError::Timeout) if interrupted() => {
                    return Err(RunError::Interrupted);
                }
                Err(RecvTimeoutError::Timeout) if time::Instant::now() > deadline => {
                    return Err(self.meter.failed("did not end"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        };
        if interrupted() {
            return Err(RunError::Interrupted);
        }
        // An incomplete transfer gives a report as well, and exit code 1.
        serde_json::from_str(&text).map_err(|_| self.meter.failed("gave no report"))
    }

    /// Ends a process that works until then, and gives its report.
    pub(super) fn finish<T: DeserializeOwned>(mut self) -> Result<T, RunError> {
        drop(self.stop.take());
        let mut report = String::new();
        while let Ok(text) = self.output.recv_timeout(REPORT_WITHIN) {
            report.push_str(&text);
        }
        serde_json::from_str(&report).map_err(|_| self.meter.failed("gave no report"))
    }
}
