//! Detects that the handshakes of intercepted flows fail. Then no more flows are taken until the
//! cause may be gone. So a firewall that drops packets for the daemon's own sockets, or a route
//! that leads nowhere, does no more harm than without the daemon.
//!
//! Invariant: while flows complete their handshakes, no one's packets can make the daemon stop
//! taking flows.

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Consecutive checks of the firewall's counters with lost packets. Fewer might only have found
/// packets in flight.
const LOOKS: u32 = 2;
/// Number of different targets in a row that did not respond.
const SILENT: usize = 4;
/// For this long after a flow's handshakes, silent servers are no sign.
const ALIVE: Duration = Duration::from_secs(10);
/// How long no flows are taken at first. It doubles each time that the cause is still there.
const FIRST_REST: Duration = Duration::from_secs(10);
const LAST_REST: Duration = Duration::from_secs(320);

/// Why no flows are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Responses of servers, or held SYNs that were injected again, did not reach the daemon's sockets.
    DroppedHere,
    /// The daemon's own packets may not leave.
    RefusedHere,
    /// No server responds.
    Silence,
    /// The kernel answers every SYN with a cookie, which it then checks for this host's addresses only.
    Cookies,
}

impl Reason {
    /// What to do about it.
    pub fn hint(self) -> &'static str {
        match self {
            Self::DroppedHere => {
                "a filter of this host drops them; with nftables, `nft insert rule inet TABLE INPUT-CHAIN \
                 socket transparent 1 accept` lets them in"
            }
            Self::RefusedHere => {
                "a filter of this host refuses them; with nftables, `nft insert rule inet TABLE OUTPUT-CHAIN \
                 socket transparent 1 accept` lets them out"
            }
            Self::Silence => {
                "routing rules or a filter may treat this host's own packets otherwise than forwarded \
                 ones: see `ip rule` and `midhopd doctor`"
            }
            Self::Cookies => "`sysctl -w net.ipv4.tcp_syncookies=1` limits SYN cookies to floods",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DroppedHere => "packets for the daemon's sockets are dropped on this host",
            Self::RefusedHere => "this host does not let the daemon's packets out",
            Self::Silence => "no server answers the daemon",
            Self::Cookies => {
                "the kernel answers every SYN with a cookie: no client of a split flow could connect"
            }
        })
    }
}

/// The firewall's counts of handshakes since its table was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Handshakes {
    /// Packets received for the daemon's sockets.
    pub inward: Passage,
    /// SYNs that the daemon sent.
    pub outward: Passage,
    /// Packets of assisted flows that the daemon sent, as they left this host.
    pub mended: u64,
}

impl Handshakes {
    /// Encodes them: inward before and behind all filters, then outward, then packets sent to assisted flows.
    pub fn numbers(self) -> [u64; 5] {
        let Self { inward, outward, mended } = self;
        [inward.entered, inward.left, outward.entered, outward.left, mended]
    }

    /// Decodes them.
    pub fn of([entered, left, sent, departed, mended]: [u64; 5]) -> Self {
        let inward = Passage { entered, left };
        Self { inward, outward: Passage { entered: sent, left: departed }, mended }
    }
}

/// Packets before and behind all filters of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Passage {
    /// Before.
    pub entered: u64,
    /// Behind.
    pub left: u64,
}

/// Detects whether packets get lost on a passage.
#[derive(Debug, Default)]
struct Loss {
    counted: Passage,
    /// The number lost when packets last passed, or when taking flows was last stopped.
    known: u64,
    /// Consecutive checks in which more was lost and nothing passed.
    looks: u32,
}

impl Loss {
    /// Evaluates the counters. Returns whether packets get lost.
    fn look(&mut self, counted: Passage) -> bool {
        let before = std::mem::replace(&mut self.counted, counted);
        let gap = self.gap();
        let new_table = counted.entered < before.entered || counted.left < before.left;
        if new_table || counted.left > before.left || gap <= self.known {
            (self.looks, self.known) = (0, gap);
        } else {
            self.looks += 1;
        }
        self.looks >= LOOKS
    }

    fn gap(&self) -> u64 {
        self.counted.entered.saturating_sub(self.counted.left)
    }

    fn forget(&mut self) {
        (self.looks, self.known) = (0, self.gap());
    }
}

/// Watches whether flows complete their handshakes.
#[derive(Debug, Default)]
pub struct Watchdog {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    rest: Option<(Instant, Reason)>,
    /// How long the last rest was.
    last: Option<Duration>,
    /// Number of rests.
    rests: u64,
    looked: Option<Instant>,
    inward: Loss,
    outward: Loss,
    silent: HashSet<SocketAddr>,
    /// When a flow's handshakes were last complete.
    came_about: Option<Instant>,
    /// Whether every SYN is answered with a cookie.
    cookies: bool,
}

impl Watchdog {
    /// Why no flows are taken at this moment. None: they are taken.
    pub fn resting(&self, now: Instant) -> Option<Reason> {
        let state = self.state();
        if state.cookies {
            return Some(Reason::Cookies);
        }
        state.rest.filter(|(until, _)| now < *until).map(|(_, reason)| reason)
    }

    /// Number of times that taking flows was stopped.
    pub fn rests(&self) -> u64 {
        self.state().rests
    }

    /// Records that a flow's handshakes are complete: a server has responded, and a client was
    /// accepted.
    pub fn flow_came_about(&self, now: Instant) {
        let mut state = self.state();
        state.came_about = Some(now);
        state.last = None;
        state.silent.clear();
    }

    /// Records that a server was silent for so long that its client's SYN passed by.
    pub fn silent(&self, target: SocketAddr, now: Instant) {
        let mut state = self.state();
        // A stranger's unreachable targets are no sign while others' flows complete their
        // handshakes.
        if state.came_about.is_some_and(|at| now.duration_since(at) < ALIVE) {
            return;
        }
        state.silent.insert(target);
        if state.silent.len() >= SILENT {
            state.begin(Reason::Silence, now);
        }
    }

    /// Records whether the kernel answers every SYN with a cookie. While it does, no flows are
    /// taken.
    pub fn cookies(&self, for_everybody: bool) {
        let mut state = self.state();
        if state.cookies == for_everybody {
            return;
        }
        state.cookies = for_everybody;
        if for_everybody {
            state.rests += 1;
            let reason = Reason::Cookies;
            tracing::error!(%reason, hint = reason.hint(), "new flows pass by");
        } else {
            tracing::info!(
                "SYN cookies are no longer sent for every SYN: new flows are intercepted again"
            );
        }
    }

    /// Whether a check of the counters is due, once in `pause`.
    pub fn is_due(&self, now: Instant, pause: Duration) -> bool {
        let mut state = self.state();
        let due = state.looked.is_none_or(|at| now.duration_since(at) >= pause);
        if due {
            state.looked = Some(now);
        }
        due
    }

    /// Evaluates the firewall's counters, while flows wait for their handshakes.
    pub fn counted(&self, counted: Handshakes, now: Instant) {
        let mut state = self.state();
        let inward = state.inward.look(counted.inward);
        let outward = state.outward.look(counted.outward);
        if outward {
            state.begin(Reason::RefusedHere, now);
        } else if inward {
            state.begin(Reason::DroppedHere, now);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn begin(&mut self, reason: Reason, now: Instant) {
        self.inward.forget();
        self.outward.forget();
        self.silent.clear();
        if self.rest.is_some_and(|(until, _)| now < until) {
            return;
        }
        let rest = self.last.map_or(FIRST_REST, |last| (last * 2).min(LAST_REST));
        self.last = Some(rest);
        self.rest = Some((now + rest, reason));
        self.rests += 1;
        tracing::error!(%reason, hint = reason.hint(), ?rest, "new flows pass by");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(entered: u64, left: u64) -> Handshakes {
        Handshakes { inward: Passage { entered, left }, ..Handshakes::default() }
    }

    #[test]
    fn packets_that_get_lost_here_make_it_rest() {
        let (watchdog, now) = (Watchdog::default(), Instant::now());
        watchdog.counted(count(5, 5), now);
        watchdog.counted(count(6, 5), now);
        assert_eq!(watchdog.resting(now), None, "it may be under way");
        watchdog.counted(count(6, 5), now);
        assert_eq!(watchdog.resting(now), Some(Reason::DroppedHere));
        assert_eq!(watchdog.resting(now + FIRST_REST), None);
        watchdog.counted(count(7, 5), now + FIRST_REST);
        watchdog.counted(count(8, 5), now + FIRST_REST);
        assert!(watchdog.resting(now + FIRST_REST * 2).is_some(), "longer than before");
        assert_eq!(watchdog.rests(), 2);
    }

    #[test]
    fn cookies_for_everybody_make_it_rest_as_long_as_there_are_any() {
        let (watchdog, now) = (Watchdog::default(), Instant::now());
        watchdog.cookies(false);
        assert_eq!(watchdog.resting(now), None);
        watchdog.cookies(true);
        watchdog.cookies(true);
        watchdog.flow_came_about(now);
        assert_eq!(watchdog.resting(now + LAST_REST * 2), Some(Reason::Cookies));
        watchdog.cookies(false);
        assert_eq!((watchdog.resting(now), watchdog.rests()), (None, 1));
    }

    #[test]
    fn while_packets_are_delivered_some_may_get_lost() {
        let (watchdog, now) = (Watchdog::default(), Instant::now());
        for look in 0..100 {
            watchdog.counted(count(10 * look, 9 * look), now);
        }
        assert_eq!(watchdog.resting(now), None);
    }

    #[test]
    fn dead_targets_are_nothing_while_others_answer() {
        let (watchdog, now) = (Watchdog::default(), Instant::now());
        let target = |host: u8| SocketAddr::from(([192, 0, 2, host], 80));
        for host in 0..100 {
            watchdog.silent(target(host), now);
            if host % 3 == 2 {
                watchdog.flow_came_about(now);
            }
        }
        for _ in 0..100 {
            watchdog.silent(target(1), now);
        }
        assert_eq!(watchdog.resting(now), None, "one dead target is no sign");
        for host in 0..4 {
            watchdog.silent(target(host), now + ALIVE / 2);
        }
        assert_eq!(
            watchdog.resting(now + ALIVE / 2),
            None,
            "nor are many at once, while flows come about"
        );
        for host in 0..4 {
            watchdog.silent(target(host), now + ALIVE);
        }
        assert_eq!(watchdog.resting(now + ALIVE), Some(Reason::Silence));
    }
}
