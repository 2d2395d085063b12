//! Network namespaces without a name (`network_namespaces(7)`).
//!
//! Descriptors hold a namespace, and so do the sockets and processes inside. When the last of them is gone, the
//! kernel frees the namespace with all its devices, however the processes ended.
//!
//! Invariant: only [`NetNamespace::enter`] and [`map_root`] change the state of the calling thread.

use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{Gid, Uid};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The path of the calling thread's own namespace.
const OWN: &str = "/proc/thread-self/ns/net";

/// A network namespace that lives at least as long as this value and its clones.
#[derive(Debug, Clone)]
pub struct NetNamespace(Arc<OwnedFd>);

impl NetNamespace {
    /// Creates an empty namespace; its loopback is down.
    ///
    /// # Errors
    /// When the kernel refuses: this requires `CAP_SYS_ADMIN` in the current user namespace.
    pub fn new() -> io::Result<Self> {
        let made = on_own_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open(OWN)
        })?;
        Ok(Self(Arc::new(made.into())))
    }

    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// When `/proc` is not available.
    pub fn current() -> io::Result<Self> {
        Ok(Self(Arc::new(File::open(OWN)?.into())))
    }

    /// Runs `work` on a thread inside and waits for it. Sockets and threads that it creates stay inside.
    ///
    /// # Errors
    /// When the thread cannot enter.
    ///
    /// # Panics
    /// When `work` panics.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_own_thread(|| {
            self.enter()?;
            Ok(work())
        })
    }

    /// Moves the calling thread inside permanently. Makes one system call, and neither allocates nor takes a lock, so
    /// it may be called between fork and exec.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn enter(&self) -> io::Result<()> {
        Ok(setns(self.0.as_fd(), CloneFlags::CLONE_NEWNET)?)
    }
}

impl AsFd for NetNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Maps `user` and `group` of the parent user namespace to root inside the user namespace that the calling process
/// has entered (`user_namespaces(7)`).
///
/// # Errors
/// When the kernel refuses, for example because it was done before.
pub fn map_root(user: Uid, group: Gid) -> io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1"))
}

/// Writes a kernel parameter, such as `net.ipv4.ip_forward`, in the network namespace of the calling thread.
///
/// # Errors
/// When there is no parameter of that name, or it does not accept the value.
pub fn write_sysctl(key: &str, value: &str) -> io::Result<()> {
    fs::write(format!("/proc/sys/{}", key.replace('.', "/")), value)
}

/// Runs `work` on a new thread, so that only that thread changes its namespace.
fn on_own_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("namespace".to_owned())
            .spawn_scoped(scope, work)?
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn here() -> u64 {
        fs::metadata(OWN).expect("a namespace").ino()
    }

    #[test]
    fn work_runs_inside_and_its_caller_stays_where_it_is() {
        let before = here();
        let inside = match NetNamespace::new() {
            Ok(inside) => inside,
            Err(error) => {
                return midhop_testkit::skipped(format!("this takes CAP_SYS_ADMIN: {error}"));
            }
        };
        let there = inside.run(here).expect("entered");
        assert_ne!(there, before);
        assert_eq!(inside.clone().run(here).expect("entered again"), there);
        assert_eq!(here(), before);
        let own = NetNamespace::current().expect("our own");
        assert_eq!(own.run(here).expect("entered"), before);
        let forwards = || fs::read_to_string("/proc/sys/net/ipv4/ip_forward").expect("a number");
        inside.run(|| write_sysctl("net.ipv4.ip_forward", "1")).expect("entered").expect("written");
        assert_eq!(inside.run(forwards).expect("entered").trim(), "1");
    }
}
