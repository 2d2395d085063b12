//! The layer below the tunnel's QUIC: anybody may send it anything.

use bytes::Bytes;
use midhop_tunnel::control::Pace;
use midhop_tunnel::fec::{FecSettings, Shim};
use midhop_units::{Duration, Instant, Rate};
use std::collections::{BTreeSet, VecDeque};

/// Datagrams in transit to each side. More are dropped, as on any path.
const UNDER_WAY_MAX: usize = 600;
/// Unit: bytes. No repair is longer, with its header.
const LONGEST: u64 = 320;

struct Side {
    shim: Shim<()>,
    /// Datagrams in transit to it.
    coming: VecDeque<Bytes>,
    /// What the other side's QUIC has sent.
    sent: BTreeSet<Vec<u8>>,
    /// Whether it received something that nobody sent.
    fooled: bool,
}

impl Side {
    /// Everything that comes out must have been sent, unless it was given something that nobody sent.
    fn take(&mut self, now: Instant, datagram: Bytes, marked: bool) {
        self.shim.handle_input(now, datagram, (), marked);
        while let Some((datagram, ())) = self.shim.poll_delivery() {
            assert!(!datagram.is_empty());
            assert!(self.fooled || self.sent.contains(datagram.as_ref()), "invented");
        }
    }
}

/// Two shims and the path between them: two bytes of settings, then each byte is an event.
///
/// Nothing is invented, timers fire, and repairs stay within their bounds.
pub fn fec(data: &[u8]) {
    let [choice, window, ops @ ..] = data else { return };
    let settings = FecSettings {
        rtt: Duration::from_ms(u64::from(*choice) * 4),
        despite_congestion: choice % 2 == 0,
        ..FecSettings::default()
    };
    let rate = (choice % 3 > 0).then(|| Rate::from_mbit_per_s(u64::from(choice % 3) * 10));
    let mut now = Instant::START;
    let mut sides = [0, 1].map(|_| {
        let pace = Pace::of(rate, midhop_units::Bytes::new(28));
        let mut shim = Shim::new(settings.clone(), pace, now);
        shim.agree(usize::from(*window));
        shim.pace().loses();
        Side { shim, coming: VecDeque::new(), sent: BTreeSet::new(), fooled: false }
    });
    let mut ops = ops.iter().copied();
    let mut count = 0_u32;
    while let Some(op) = ops.next() {
        let to = usize::from(op & 1);
        let [first, second] = &mut sides;
        let (near, far) = if to == 1 { (first, second) } else { (second, first) };
        match op >> 1 & 7 {
            // QUIC sends some datagrams.
            0 | 1 => {
                for _ in 0..=(op >> 4) {
                    count += 1;
                    let mut datagram = [&[0x40], count.to_be_bytes().as_slice()].concat();
                    datagram.resize(5 + usize::from(ops.next().unwrap_or(0)), op);
                    near.shim.push(now, Bytes::copy_from_slice(&datagram), ());
                    far.sent.insert(datagram);
                }
            }
            2 => now = now + Duration::from_ms(u64::from(op >> 4) * 10 + 1),
            // Datagrams arrive, are lost, overtaken, or duplicated.
            3 | 4 => {
                for _ in 0..=(op >> 4) {
                    let Some(datagram) = far.coming.pop_front() else { break };
                    far.take(now, datagram, op == 0xff);
                }
            }
            5 => {
                far.coming.pop_front();
            }
            6 => {
                let next = far.coming.pop_front();
                if op & 0x10 != 0 {
                    far.coming.extend(next.clone());
                }
                far.coming.extend(next);
            }
            // A datagram from somebody else, or one with a changed bit.
            _ => {
                far.fooled = true;
                let datagram = match far.coming.pop_front().filter(|_| op & 0x10 != 0) {
                    Some(datagram) => {
                        let mut bytes = datagram.to_vec();
                        let at = usize::from(ops.next().unwrap_or(0)) % bytes.len();
                        bytes[at] ^= op >> 5 | 1;
                        bytes.into()
                    }
                    None => {
                        let len = usize::from(ops.next().unwrap_or(0));
                        ops.by_ref().take(len).collect()
                    }
                };
                far.take(now, datagram, false);
            }
        }
        for to in [0, 1] {
            while let Some((datagram, ())) = sides[1 - to].shim.poll_output(now) {
                if sides[to].coming.len() < UNDER_WAY_MAX {
                    sides[to].coming.push_back(datagram);
                }
            }
            assert!(sides[1 - to].shim.poll_timeout().is_none_or(|at| at > now));
        }
    }
    for side in &sides {
        let stats = side.shim.stats();
        let loss = side.shim.loss();
        assert!((0.0..=1.0).contains(&loss), "{loss}");
        assert!(*window > 0 || stats.sources_sent + stats.repairs_sent + stats.reports_sent == 0);
        // Whatever the reports: repairs of burst ends take a quarter of what was sent, so much in each round trip, and
        // so much at once; other repairs are fewer than datagrams. A report has some bytes of its own.
        let passed = now.saturating_since(Instant::START).as_ns();
        let trips = passed / settings.rtt.as_ns().max(1);
        let of_ends = 12_000 + 150 * (trips + 1) + stats.source_bytes_sent / 4;
        let of_streams = stats.sources_sent * LONGEST;
        let most = of_ends + of_streams + 64 * stats.reports_sent;
        assert!(*choice == 0 || stats.extra_bytes_sent <= most, "{stats:?} {most}");
    }
}
