//! A program that goes on in the background and notifies its starter when it is ready.
#![expect(unsafe_code, reason = "going on in a child needs fork")]

use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, dup2_stderr, dup2_stdin, dup2_stdout, fork, pipe, setsid};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

/// First byte of a report of success.
const READY: u8 = b'+';
/// Last byte of any report. The end of the pipe does not mark its end: processes between the
/// reporting one and the starter may hold the pipe open.
const END: u8 = 0;

/// Which side of [`detach`] this process is.
#[derive(Debug)]
pub enum Side {
    /// The starter, with the report of the background process: its message when ready, or why it
    /// failed.
    Starter(Result<String, String>),
    /// The background process, which has to report through this.
    Background(Answer),
}

/// Reports to the starter how it went. Dropped without an answer, it reports a failure.
#[derive(Debug)]
pub struct Answer(File);

impl Answer {
    /// Reports that all is ready; `word` is for the user.
    pub fn ready(mut self, word: &str) {
        self.write(READY, word);
    }

    /// Reports that it failed.
    pub fn failed(mut self, why: &str) {
        self.write(b'-', why);
    }

    fn write(&mut self, verdict: u8, text: &str) {
        // A starter that is gone reads nothing. That is no reason to stop.
        let _ = self.0.write_all(&[&[verdict], text.as_bytes(), &[END]].concat());
    }
}

/// Continues in a background process that has a session of its own and logs to `log`. The starter
/// returns when the background process has reported or ended.
///
/// # Errors
/// When the kernel refuses a process, or the log cannot be made. The program must have one thread.
pub fn detach(log: &Path) -> io::Result<Side> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("a program with several threads cannot go on in its child"));
    }
    let log = OpenOptions::new().create(true).append(true).open(log)?;
    let nothing = File::open("/dev/null")?;
    let (read_end, write_end) = pipe()?;
    // SAFETY: this process has one thread (counted above), so the child may do anything.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => {
            drop(write_end);
            let mut answer = Vec::new();
            BufReader::new(File::from(read_end)).read_until(END, &mut answer)?;
            let answer = match answer.split_last().map(|(end, text)| (end, text.split_first())) {
                Some((&END, Some((verdict, text)))) => {
                    let text = String::from_utf8_lossy(text).into_owned();
                    if *verdict == READY { Ok(text) } else { Err(text) }
                }
                _ => Err("it ended without a word".to_owned()),
            };
            if answer.is_err() {
                let _ = waitpid(child, None);
            }
            Ok(Side::Starter(answer))
        }
        ForkResult::Child => {
            drop(read_end);
            setsid()?;
            dup2_stdin(&nothing)?;
            dup2_stdout(&log)?;
            dup2_stderr(&log)?;
            Ok(Side::Background(Answer(write_end.into())))
        }
    }
}
