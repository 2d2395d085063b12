//! The congestion window of a restored connection.
//!
//! Decision 0069.

use super::dump::NAME_BYTES;
use super::snapshot::{LocalEnd, PathState, TcpSnapshot};
use crate::sockopt;
use crate::tcp_info::TcpInfo;
use nix::libc;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Unit: segments. `TCP_INFINITE_SSTHRESH`.
const THRESHOLD_NONE: u32 = i32::MAX as u32;

/// Unit: segments. What a window takes more than is outstanding.
const SPARE: u32 = 4;

/// What a restored connection begins with, instead of the window of a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed {
    /// Unit: bytes. Congestion window.
    pub window: u64,
    /// Unit: bytes. Slow start threshold; `u64::MAX` before the first loss.
    pub threshold: u64,
    /// Unit: bytes per second. The rate at which it sends until it has measured a round-trip time; `u64::MAX`: unpaced.
    pub pacing_rate: u64,
}

impl TcpSnapshot {
    /// What the connection can begin with elsewhere; none if its old place had no window to pass on.
    ///
    /// The window takes all that was sent and not acknowledged, so that it can be sent again at once
    /// ([`send_again`](Self::send_again)). It leaves within five sixths of a round-trip time, as the kernel paces what is
    /// not in slow start, and within a second.
    pub fn seed(&self) -> Option<Seed> {
        let PathState { mss, cwnd, ssthresh, rtt_us, .. } = self.path;
        if mss == 0 || cwnd == 0 {
            return None;
        }
        let bytes = |segments| u64::from(segments) * u64::from(mss);
        // With room for the octet of the probe, and so much that no segment fills it (`tcp_tso_should_defer`).
        let outstanding = self.send.sent.len() as u64 + bytes(SPARE);
        let window = bytes(cwnd).max(outstanding);
        let threshold = if ssthresh >= THRESHOLD_NONE { u64::MAX } else { bytes(ssthresh) };
        let pacing_rate = match rtt_us {
            0 => u64::MAX,
            rtt_us => (window.saturating_mul(1_200_000) / u64::from(rtt_us)).max(window),
        };
        Some(Seed { window, threshold, pacing_rate })
    }

    /// Has what was sent, and is not acknowledged, count as unsent: it is sent again once the connection goes on. So what
    /// was lost with the old place, or meanwhile, costs no retransmission timeout. What did arrive is sent in vain, at
    /// a time at which nothing else could be sent. Returns how many bytes these are, for
    /// [`Unsent::sent_before`](super::Unsent::sent_before).
    ///
    /// It stays as it is where a part of it might not be sent at once, because the far end's window ends less than a
    /// segment behind it, or because of Nagle's algorithm: the kernel discards an acknowledgement of what it has not
    /// sent, so that it would wait for one for ever. Therefore, too, only a connection that is given a window ([`seed()`])
    /// may do this, and only if all leaves within a second at `rate` bytes per second: the retransmission timer would
    /// reduce the window. Where this end's FIN has been sent, all stays as it is.
    #[must_use = "`Unsent::sent_before` has to know it"]
    pub fn send_again(&mut self, rate: u64) -> usize {
        let is_open = matches!(self.local_end, LocalEnd::Open | LocalEnd::Unsent);
        let fits = self.send.sent.len() + usize::from(self.negotiated.mss);
        let is_sent_at_once = self.options.no_delay && !self.options.cork;
        let is_quick = self.send.sent.len() as u64 <= rate;
        if !is_open || !is_sent_at_once || !is_quick || (self.window.send as usize) < fits {
            return 0;
        }
        let mut bytes = std::mem::take(&mut self.send.sent);
        let again = bytes.len();
        bytes.append(&mut self.send.unsent);
        self.send.unsent = bytes;
        again
    }
}

/// Gives a restored connection that is still in repair mode its window. `program` is the name of a congestion control whose
/// `init` takes the window from `TCP_NOTSENT_LOWAT` and the threshold from `TCP_USER_TIMEOUT` (`midhop_bpf::WINDOW`). The
/// connection has its own congestion control and options again afterwards. One that sets a window in its `init`, like
/// the kernel's Hybla, undoes this.
///
/// # Errors
/// When `program` is not registered, or the kernel refuses: this requires `CAP_NET_ADMIN`. Then nothing has changed.
pub fn seed(socket: impl AsFd, seed: &Seed, program: &str) -> io::Result<()> {
    let socket = socket.as_fd();
    let mut room = [0; NAME_BYTES];
    let name = sockopt::read(socket, libc::IPPROTO_TCP, libc::TCP_CONGESTION, &mut room)?;
    let own = Options {
        window: tcp(socket, libc::TCP_NOTSENT_LOWAT)?,
        threshold: tcp(socket, libc::TCP_USER_TIMEOUT)?,
        pacing_rate: max_pacing_rate(socket)?,
    };
    let mss = u64::from(TcpInfo::of(socket)?.mss.max(1));
    let segments = |bytes: u64| i32::try_from(bytes.div_ceil(mss)).unwrap_or(i32::MAX);
    let seeding = Options {
        window: segments(seed.window),
        threshold: segments(seed.threshold),
        pacing_rate: seed.pacing_rate.min(own.pacing_rate),
    };
    let select = |name: &[u8]| sockopt::set(socket, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name);
    let seeded = seeding.apply(socket, &own).and_then(|()| select(program.as_bytes()));
    // The rate stays until this one paces by itself, or has measured a round-trip time.
    let changed_back = if seeded.is_ok() { select(name) } else { Ok(()) };
    own.apply(socket, &seeding)?;
    seeded.and(changed_back)
}

/// The options that are lent to the program.
struct Options {
    window: i32,
    threshold: i32,
    pacing_rate: u64,
}

impl Options {
    /// Sets those that differ from `before`.
    fn apply(&self, socket: BorrowedFd<'_>, before: &Self) -> io::Result<()> {
        let set = |name, value| sockopt::set_int(socket, libc::IPPROTO_TCP, name, value);
        set(libc::TCP_NOTSENT_LOWAT, self.window)?;
        set(libc::TCP_USER_TIMEOUT, self.threshold)?;
        // A connection that was never paced stays so.
        if self.pacing_rate == before.pacing_rate {
            return Ok(());
        }
        let (level, name) = (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE);
        sockopt::set_u64(socket, level, name, self.pacing_rate)
    }
}

fn tcp(socket: BorrowedFd<'_>, name: i32) -> io::Result<i32> {
    sockopt::read_int(socket, libc::IPPROTO_TCP, name)
}

fn max_pacing_rate(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut room = [0; 8];
    let value = sockopt::read(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &mut room)?;
    let whole = value.try_into().map(u64::from_ne_bytes);
    // A kernel of 32 bits has half of it, with the same value for no bound.
    Ok(whole.ok().filter(|rate| *rate != u64::from(u32::MAX)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp_repair::wire::tests::snapshot;
    use proptest::prelude::*;

    fn path(mss: u32, cwnd: u32, rtt_us: u32) -> PathState {
        PathState {
            mss,
            cwnd,
            ssthresh: 70,
            rtt_us,
            rtt_variation_us: 0,
            rtt_min_us: rtt_us,
            pacing_rate: u64::MAX,
            delivery_rate: 0,
        }
    }

    proptest! {
        #[test]
        fn what_is_sent_again_is_the_same_stream(before in snapshot()) {
            let mut again = before.clone();
            let count = again.send_again(u64::MAX);
            let stream = |it: &TcpSnapshot| [&it.send.sent[..], &it.send.unsent].concat();
            prop_assert_eq!(stream(&again), stream(&before));
            prop_assert_eq!(again.send.sent.len() + count, before.send.sent.len());
            prop_assert!(count == 0 || again.send.sent.is_empty());
            let rest = |it: TcpSnapshot| TcpSnapshot { send: before.send.clone(), ..it };
            prop_assert_eq!(rest(again), before.clone());
        }

        #[test]
        fn nothing_is_sent_again_that_might_wait(before in snapshot()) {
            let (mss, sent) = (usize::from(before.negotiated.mss), before.send.sent.len());
            let mut state = TcpSnapshot { local_end: LocalEnd::Open, ..before.clone() };
            state.options.no_delay = true;
            state.options.cork = false;
            state.window.send = (sent + mss) as u32;
            prop_assert_eq!(state.clone().send_again(sent as u64), sent);
            if let Some(slower) = (sent as u64).checked_sub(1) {
                prop_assert_eq!(state.clone().send_again(slower), 0, "it takes too long");
            }
            state.window.send -= 1;
            prop_assert_eq!(state.clone().send_again(sent as u64), 0, "the last segment may not fit");
            state.window.send += 1;
            for local_end in [LocalEnd::Sent, LocalEnd::Acknowledged] {
                let count = TcpSnapshot { local_end, ..state.clone() }.send_again(u64::MAX);
                prop_assert_eq!(count, 0, "{:?}", local_end);
            }
            state.options.cork = true;
            prop_assert_eq!(state.clone().send_again(sent as u64), 0);
            state.options.cork = false;
            state.options.no_delay = false;
            prop_assert_eq!(state.send_again(u64::MAX), 0);
        }

        #[test]
        fn a_seed_takes_what_is_outstanding(mut state in snapshot(), cwnd in 1_u32..50, mss in 1_u32..20) {
            state.path = path(mss, cwnd, 100_000);
            let seed = state.seed().expect("it had a window");
            let sent = state.send.sent.len() as u64;
            prop_assert_eq!(seed.window, (sent + u64::from(4 * mss)).max(u64::from(cwnd * mss)));
            prop_assert_eq!(seed.threshold, u64::from(70 * mss));
            // In a tenth of a second, 1.2 windows.
            prop_assert_eq!(seed.pacing_rate, seed.window * 12);
            for (rtt_us, rate) in [(0, u64::MAX), (u32::MAX, seed.window)] {
                state.path.rtt_us = rtt_us;
                prop_assert_eq!(state.seed().map(|seed| seed.pacing_rate), Some(rate));
            }
            state.path.ssthresh = THRESHOLD_NONE;
            prop_assert_eq!(state.seed().map(|seed| seed.threshold), Some(u64::MAX));
            for path in [path(0, cwnd, 1), path(mss, 0, 1)] {
                prop_assert_eq!(TcpSnapshot { path, ..state.clone() }.seed(), None);
            }
        }
    }
}
