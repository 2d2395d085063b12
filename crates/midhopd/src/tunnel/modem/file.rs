//! Reads files that scripts write. The rate is in the first line, and is valid for a time after the
//! file was written.

use super::Reported;
use crate::tunnel::directory::Tunnels;
use midhop_pep::config::ModemPlan;
use midhop_pep::modem::LOOK_EVERY;
use midhop_units::{Instant, Rate};
use nix::libc;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The most that is read of a file. Unit: bytes.
const READ_MAX: u64 = 64;

/// Why nothing is reported.
#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("it is not a regular file")]
    NoFile,
    #[error("its first line is not a rate: {0}")]
    NoRate(String),
    #[error("it was written more than {} s ago", .0.as_secs())]
    Old(Duration),
}

impl Unread {
    fn hint(&self) -> &'static str {
        match self {
            Self::Io(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                "until it can be read, the tunnel uses peers.NAME.rate; give all users read permission for it and search permission for its \
                 directory, and restart midhopd if that directory is new in its configuration"
            }
            _ => {
                "until it is written again, the tunnel uses peers.NAME.rate; write a new file beside it, and rename that"
            }
        }
    }
}

/// Reads the file at `path` at intervals, and applies its rate to the tunnel to `peer`. The rate is
/// valid for `valid`. A failure is logged once until there is a rate again.
pub(super) async fn follow(
    peer: String,
    (path, valid): (PathBuf, Duration),
    plan: ModemPlan,
    tunnels: Arc<Tunnels>,
) {
    let began = tokio::time::Instant::now();
    let mut reported = Reported::new(&peer, &plan, &tunnels);
    let mut written = Written::default();
    // Nothing is known yet, so the first result is logged.
    let mut was_read = None;
    let mut ticks = tokio::time::interval(LOOK_EVERY.into());
    loop {
        ticks.tick().await;
        let now = began.elapsed();
        let found = read(&path).and_then(|(at, rate)| {
            let age = written.age(at, SystemTime::now(), now);
            if age < valid { Ok(rate) } else { Err(Unread::Old(valid)) }
        });
        match &found {
            Ok(rate) => {
                reported.put(Instant::START + now.into(), *rate);
                if was_read != Some(true) {
                    tracing::info!(peer, file = %path.display(), %rate, "a file reports the rate of a link");
                }
            }
            Err(why) if was_read != Some(false) => tracing::warn!(
                peer,
                file = %path.display(),
                %why,
                hint = why.hint(),
                "a file reports no rate"
            ),
            Err(_) => {}
        }
        was_read = Some(found.is_ok());
    }
}

/// When the file was written, and the rate in its first line.
fn read(path: &Path) -> Result<(SystemTime, Rate), Unread> {
    // A path that is not a file, such as a pipe, must not block this thread.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Unread::NoFile);
    }
    let mut bytes = Vec::new();
    file.take(READ_MAX).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().next().unwrap_or_default().trim();
    let rate = line.parse().map_err(|error| Unread::NoRate(format!("{error}")))?;
    Ok((metadata.modified()?, rate))
}

/// When a file was last written, by a clock that nobody sets.
#[derive(Debug, Default)]
struct Written {
    /// The file's modification time.
    at: Option<SystemTime>,
    /// The file's age when it was first seen, and the time of that.
    seen: (Duration, Duration),
}

impl Written {
    /// The age of a file with the modification time `at`. The host's `clock` is used only when a
    /// new time is seen; `now` is independent of it.
    fn age(&mut self, at: SystemTime, clock: SystemTime, now: Duration) -> Duration {
        if self.at.replace(at) != Some(at) {
            // A time in the future means that the file has just been written, with another clock.
            self.seen = (clock.duration_since(at).unwrap_or_default(), now);
        }
        let (age, since) = self.seen;
        age + now.saturating_sub(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_s_age_does_not_go_by_a_clock_that_is_set() {
        let s = Duration::from_secs;
        let at = |seconds| SystemTime::UNIX_EPOCH + s(seconds);
        let mut written = Written::default();
        assert_eq!(written.age(at(990), at(1000), s(0)), s(10));
        assert_eq!(written.age(at(990), at(5000), s(3)), s(13));
        assert_eq!(written.age(at(990), at(20), s(4)), s(14));
        assert_eq!(written.age(at(1001), at(21), s(5)), s(0));
        assert_eq!(written.age(at(1001), at(22), s(9)), s(4));
    }

    #[test]
    fn only_a_file_with_a_rate_is_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("rate");
        assert!(matches!(read(&path), Err(Unread::Io(_))));
        for (text, rate) in [
            ("12.5 Mbit/s", Some(12_500_000)),
            ("  9600 bit/s \nsecond line", Some(9_600)),
            ("1 kbit/s\r\n", Some(1_000)),
            ("", None),
            ("fast", None),
            ("\n20 Mbit/s", None),
            ("-3 Mbit/s", None),
        ] {
            std::fs::write(&path, text).expect("written");
            let found = read(&path).ok().map(|(_, rate)| rate.bits_per_s());
            assert_eq!(found, rate, "{text:?}");
        }
        std::fs::write(&path, vec![b'1'; 1 << 20]).expect("written");
        assert!(matches!(read(&path), Err(Unread::NoRate(_))));
        std::fs::write(&path, [0xff, 0xfe]).expect("written");
        assert!(matches!(read(&path), Err(Unread::NoRate(_))));
        assert!(matches!(read(directory.path()), Err(Unread::NoFile)));
        let pipe = directory.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        assert!(matches!(read(&pipe), Err(Unread::NoFile)));
    }
}
