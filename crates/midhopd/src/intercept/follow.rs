//! Follows changes that others make to the host's firewall and routing policy while the daemon serves.

use super::Interception;
use midhop_linux::netlink::{Channel, messages};
use midhop_linux::{nft, route};
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::SockProtocol;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Changes come in bursts: all within this time are handled together.
const PAUSE_MS: u8 = 100;
/// Pause before following is started again after a failure.
const AGAIN: Duration = Duration::from_secs(1);

/// A thread that follows; it ends when this is dropped.
#[derive(Debug)]
pub struct Follower {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Has `interception` follow changes in the network namespace of the calling thread.
    ///
    /// # Errors
    /// When the kernel announces no changes, or there can be no thread.
    pub fn start(interception: Arc<Interception>) -> io::Result<Self> {
        let rules = Channel::subscribe(SockProtocol::NetlinkRoute, route::RULE_CHANGES)?;
        let tables = Channel::subscribe(SockProtocol::NetlinkNetFilter, nft::CHANGES)?;
        let (stop, stopped) = UnixStream::pair()?;
        let thread = thread::Builder::new()
            .name("follower".to_owned())
            .spawn(move || follow_on(&interception, &[rules, tables], &stopped))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that follows the firewall panicked");
        }
    }
}

/// Follows until it is stopped, whatever fails meanwhile.
fn follow_on(interception: &Interception, channels: &[Channel], stopped: &UnixStream) {
    if interception.has_left_table() {
        // Flows that another program has left go first.
        let mut stop = [PollFd::new(stopped.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut stop, PAUSE_MS);
    }
    let mut missed = interception.has_left_table();
    loop {
        let followed = catch_unwind(AssertUnwindSafe(|| {
            if missed {
                // Changes since the failure, or since the end of another program, were not followed.
                interception.refresh();
            }
            follow(interception, channels, stopped)
        }));
        match followed {
            Ok(Ok(())) => return,
            Ok(Err(error)) => {
                tracing::error!(%error, "following the firewall's changes failed, and is started again");
            }
            // The panic message has reported the place.
            Err(_) => {
                tracing::error!("following the firewall's changes panicked, and is started again");
            }
        }
        missed = true;
        thread::sleep(AGAIN);
    }
}

fn follow(
    interception: &Interception,
    channels: &[Channel],
    mut stopped: &UnixStream,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let mut waits: Vec<PollFd<'_>> = channels
            .iter()
            .map(|channel| PollFd::new(channel.as_fd(), PollFlags::POLLIN))
            .collect();
        waits.push(PollFd::new(stopped.as_fd(), PollFlags::POLLIN));
        match poll(&mut waits, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ended = waits.last().is_some_and(|wait| wait.any() == Some(true));
        if ended {
            let _ = stopped.read(&mut [0]);
            return Ok(());
        }
        // A stop is not delayed by the rest of the burst.
        let mut stop = [PollFd::new(stopped.as_fd(), PollFlags::POLLIN)];
        if matches!(poll(&mut stop, PAUSE_MS), Ok(1..)) {
            return Ok(());
        }
        // All are read, whatever the first ones say.
        let changed: Vec<bool> =
            channels.iter().map(|channel| has_changed(channel, &mut buffer)).collect();
        if changed.contains(&true) {
            interception.refresh();
        }
    }
}

/// Reads all announcements. Whether tables, rules or routing rules may have changed: then the state is read anew. Elements of
/// sets change often, ours with each flow that moves, and reading the state runs `nft`.
fn has_changed(channel: &Channel, buffer: &mut [u8]) -> bool {
    let mut has_changed = false;
    loop {
        match channel.receive(buffer, false) {
            Ok(received) => {
                has_changed |= messages(received).any(|it| !nft::is_about_elements(it.kind));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return has_changed,
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => has_changed = true,
            Err(_) => return true,
        }
    }
}
