//! A helper program that runs beside a run, and ends with it.

use crate::namespace::mortal_command;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Interval at which a wait checks for an interrupt.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A program that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Bystander(Child);

impl Bystander {
    /// Starts `program` as `configure` sets it up. It ends with this process at the latest. A
    /// signal of the terminal interrupts this process and not the program. The program counts as
    /// ended when it closes its standard output.
    ///
    /// # Errors
    /// When there is no such program.
    pub fn start(
        program: impl AsRef<OsStr>,
        configure: impl FnOnce(&mut Command),
    ) -> io::Result<Self> {
        let mut command = mortal_command(program);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        configure(&mut command);
        command.stdout(Stdio::piped()).process_group(0).spawn().map(Self)
    }

    /// Writes `input` to its standard input, where that is piped. The input has to fit into the
    /// pipe, or the program has to read it at once.
    ///
    /// # Errors
    /// When it has gone, or takes no input.
    pub fn feed(&mut self, input: &[u8]) -> io::Result<()> {
        let none = || io::Error::other("it takes no input");
        self.0.stdin.take().ok_or_else(none)?.write_all(input)
    }

    /// Waits for its end, and gives its output; none where `interrupted` was set before.
    ///
    /// # Errors
    /// When a pipe cannot be read, or it cannot be waited for.
    pub fn wait(mut self, interrupted: &AtomicBool) -> io::Result<Option<Output>> {
        let (ended, end) = channel::<()>();
        let (stdout, stderr) = (self.0.stdout.take(), self.0.stderr.take());
        let read = |pipe: Option<Box<dyn Read + Send>>| {
            let ended = ended.clone();
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                let read = pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut bytes));
                drop(ended);
                read.map(|_| bytes)
            })
        };
        let stdout = read(stdout.map(|pipe| Box::new(pipe) as _));
        let stderr = read(stderr.map(|pipe| Box::new(pipe) as _));
        drop(ended);
        while end.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
            if interrupted.load(Ordering::Relaxed) {
                return Ok(None);
            }
        }
        let bytes = |reader: std::thread::JoinHandle<io::Result<Vec<u8>>>| {
            reader.join().unwrap_or_else(|_| Err(io::Error::other("a reader panicked")))
        };
        let (stdout, stderr) = (bytes(stdout)?, bytes(stderr)?);
        let status = self.0.wait()?;
        Ok(Some(Output { status, stdout, stderr }))
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Bystander {
        Bystander::start("/bin/sh", |command| {
            command.args(["-c", script]).stdin(Stdio::piped());
        })
        .expect("a shell")
    }

    #[test]
    fn what_it_wrote_is_there_when_it_has_ended() {
        let script = "cat; head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2; exit 3";
        let mut program = shell(script);
        program.feed(b"plan").expect("it reads");
        let output = program.wait(&AtomicBool::new(false)).expect("it ends").expect("output");
        assert_eq!(output.status.code(), Some(3));
        assert_eq!((output.stdout.len(), output.stderr.len()), (300_004, 300_000));
    }

    #[test]
    fn whoever_asks_to_stop_does_not_wait_for_it() {
        let program = shell("exec cat /dev/zero");
        let id = program.0.id();
        assert!(program.wait(&AtomicBool::new(true)).expect("it is ended").is_none());
        assert!(!std::path::Path::new(&format!("/proc/{id}")).exists(), "{id} runs on");
    }
}
