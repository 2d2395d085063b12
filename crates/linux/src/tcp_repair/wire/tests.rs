//! The travelling form, held to what it promises about any bytes.

use super::*;
use proptest::prelude::*;
use std::time::Duration;

const QUEUE_MAX: usize = 64;

fn address(v4: bool) -> impl Strategy<Value = SocketAddr> {
    (any::<[u8; 14]>(), 1_u16..).prop_map(move |(bytes, port)| {
        let ip = match v4 {
            true => IpAddr::from([bytes[0] % 100 + 10, bytes[1], bytes[2], bytes[3]]),
            false => {
                let [mut all, rest] = [[0x20; 16], [0; 16]];
                all[2..].copy_from_slice(&bytes);
                assert_ne!(all, rest);
                IpAddr::from(all)
            }
        };
        SocketAddr::new(ip, port)
    })
}

fn negotiated() -> impl Strategy<Value = Negotiated> {
    let scales = prop::option::of((0..=SCALE_MAX, 0..=SCALE_MAX));
    let clock = prop::option::of(any::<(u32, bool)>());
    (MSS_MIN.., any::<[bool; 2]>(), scales, clock).prop_map(
        |(mss, [selective_acks, ecn], scales, clock)| Negotiated {
            mss,
            selective_acks,
            ecn,
            window_scales: scales.map(|(send, receive)| WindowScales { send, receive }),
            timestamps: clock.map(|(value, microseconds)| Timestamps { value, microseconds }),
        },
    )
}

fn options() -> impl Strategy<Value = SocketOptions> {
    let keepalive = (any::<bool>(), 1..=i16::MAX as u16, 1..=i16::MAX as u16, 1..=127_u8);
    let ints = [0..=i32::MAX as u32, 0..=i32::MAX as u32, 0..=i32::MAX as u32];
    (any::<[bool; 2]>(), keepalive, ints, 0..64_u8, any::<u64>(), "[!-~]{1,15}").prop_map(
        |(flags, (on, idle_s, interval_s, probes), ints, class, pacing_rate_max, name)| {
            SocketOptions {
                no_delay: flags[0],
                cork: flags[1],
                keepalive: Keepalive { on, idle_s, interval_s, probes },
                user_timeout_ms: ints[0],
                traffic_class: class << 2,
                unsent_low_water: ints[1],
                window_clamp: ints[2],
                pacing_rate_max,
                congestion_control: name,
            }
        },
    )
}

fn path() -> impl Strategy<Value = PathState> {
    any::<([u32; 6], [u64; 2])>().prop_map(|(words, [pacing_rate, delivery_rate])| PathState {
        mss: words[0],
        cwnd: words[1],
        ssthresh: words[2],
        rtt_us: words[3],
        rtt_variation_us: words[4],
        rtt_min_us: words[5],
        pacing_rate,
        delivery_rate,
    })
}

/// A snapshot that a connection can have.
pub fn snapshot() -> impl Strategy<Value = TcpSnapshot> {
    let queue = || prop::collection::vec(any::<u8>(), 0..QUEUE_MAX / 2);
    let windows = (0..=WINDOW_MAX, 0..=WINDOW_MAX, 0..=WINDOW_MAX, any::<[u16; 2]>());
    let buffers = [(0..=BUFFER_MAX, any::<bool>()), (0..=BUFFER_MAX, any::<bool>())];
    let addresses = any::<bool>().prop_flat_map(|v4| (address(v4), address(v4)));
    let ends = (0..ENDS.len(), any::<bool>());
    let rest = (negotiated(), options(), path());
    let queues = (queue(), queue(), queue());
    (addresses, ends, any::<[u32; 2]>(), windows, buffers, queues, rest).prop_map(
        |(
            addresses,
            (end, remote_ended),
            [unacknowledged, next],
            windows,
            buffers,
            queues,
            rest,
        )| {
            let (send, send_max, receive, [updated, advertised]) = windows;
            let [receive_buffer, send_buffer] =
                buffers.map(|(bytes, locked)| Buffer { bytes, locked });
            let (mut sent, mut unsent, unread) = queues;
            let local_end = ENDS[end];
            if matches!(local_end, LocalEnd::Sent | LocalEnd::Acknowledged) {
                unsent.clear();
            }
            if local_end == LocalEnd::Acknowledged {
                sent.clear();
            }
            TcpSnapshot {
                local: addresses.0,
                remote: addresses.1,
                local_end,
                remote_ended: remote_ended && local_end != LocalEnd::Acknowledged,
                send: SendQueue { unacknowledged, sent, unsent },
                receive: ReceiveQueue { next, unread },
                negotiated: rest.0,
                window: Window {
                    send_updated_at: next.wrapping_sub(updated.into()),
                    send: send.min(send_max),
                    send_max,
                    receive,
                    receive_updated_at: next.wrapping_sub(advertised.into()),
                },
                buffers: Buffers { receive: receive_buffer, send: send_buffer },
                options: rest.1,
                path: rest.2,
            }
        },
    )
}

proptest! {
    #[test]
    fn any_window_of_a_kernel_becomes_one_that_is_accepted(
        words in any::<[u32; 5]>(),
        next in any::<u32>(),
        near in any::<bool>(),
    ) {
        let mut state = plain();
        let [one, send, send_max, receive, other] = words;
        let at = |number: u32| if near { next.wrapping_add(number % 9).wrapping_sub(4) } else { number };
        state.receive.next = next;
        state.window = Window {
            send_updated_at: at(one),
            send: send % (1 << 30),
            send_max: send_max % (1 << 30),
            receive: if near { receive % 3 } else { receive % (1 << 30) },
            receive_updated_at: at(other),
        };
        let before = state.window;
        let was_accepted = state.check(usize::MAX).is_ok();
        state.window = state.window.acceptable(next);
        prop_assert!(!was_accepted || state.window == before);
        prop_assert_eq!(TcpSnapshot::decode(&state.encode(), usize::MAX), Ok(state));
    }

    #[test]
    fn what_is_written_is_read(snapshot in snapshot()) {
        let bytes = snapshot.encode();
        prop_assert!(bytes.len() <= HEAD_MAX + snapshot.queued_bytes());
        prop_assert_eq!(TcpSnapshot::decode(&bytes, QUEUE_MAX), Ok(snapshot));
    }

    #[test]
    fn every_part_of_it_is_needed(snapshot in snapshot(), more in 1_usize..4) {
        let mut bytes = snapshot.encode();
        for length in 0..bytes.len() {
            let cut = TcpSnapshot::decode(&bytes[..length], QUEUE_MAX);
            prop_assert!(matches!(cut, Err(DecodeError::Truncated(_))), "{} bytes: {:?}", length, cut);
        }
        bytes.extend(vec![0; more]);
        prop_assert_eq!(TcpSnapshot::decode(&bytes, QUEUE_MAX), Err(DecodeError::Trailing(more)));
    }

    #[test]
    fn whatever_is_read_would_be_written_so(
        snapshot in snapshot(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = snapshot.encode();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(read) = TcpSnapshot::decode(&bytes, QUEUE_MAX) {
            prop_assert_eq!(read.encode(), bytes);
        }
    }

    #[test]
    fn no_bytes_can_hurt(mut bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = TcpSnapshot::decode(&bytes, QUEUE_MAX);
        if let Some(first) = bytes.first_mut() {
            *first = VERSION;
        }
        let _ = TcpSnapshot::decode(&bytes, usize::MAX);
    }
}

/// A plain one, over IPv4.
fn plain() -> TcpSnapshot {
    TcpSnapshot {
        local: ([192, 0, 2, 1], 80).into(),
        remote: ([192, 0, 2, 2], 4000).into(),
        local_end: LocalEnd::Open,
        remote_ended: false,
        send: SendQueue { unacknowledged: 5, sent: vec![1; 40], unsent: vec![2; 20] },
        receive: ReceiveQueue { next: 9, unread: vec![3; 60] },
        negotiated: Negotiated {
            mss: 1460,
            selective_acks: true,
            window_scales: None,
            timestamps: None,
            ecn: false,
        },
        window: Window {
            send_updated_at: 8,
            send: 100,
            send_max: 200,
            receive: 300,
            receive_updated_at: 9,
        },
        buffers: Buffers {
            receive: Buffer { bytes: 4096, locked: false },
            send: Buffer { bytes: 4096, locked: true },
        },
        options: SocketOptions {
            no_delay: false,
            cork: false,
            keepalive: Keepalive { on: true, idle_s: 7200, interval_s: 75, probes: 9 },
            user_timeout_ms: 0,
            traffic_class: 0,
            unsent_low_water: 0,
            window_clamp: 65_535,
            pacing_rate_max: u64::MAX,
            congestion_control: "cubic".to_owned(),
        },
        path: PathState::default(),
    }
}

#[test]
fn impossible_values_are_refused() {
    let refusal = |change: fn(&mut TcpSnapshot)| {
        let mut changed = plain();
        change(&mut changed);
        match TcpSnapshot::decode(&changed.encode(), QUEUE_MAX) {
            Err(DecodeError::Invalid(field)) => field,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(TcpSnapshot::decode(&plain().encode(), QUEUE_MAX), Ok(plain()));
    assert_eq!(refusal(|it| it.local.set_port(0)), "address");
    assert_eq!(refusal(|it| it.remote.set_ip([224, 0, 0, 1].into())), "address");
    assert_eq!(refusal(|it| it.remote.set_ip([0; 4].into())), "address");
    assert_eq!(refusal(|it| it.local.set_ip([169, 254, 0, 1].into())), "address");
    let mapped = |it: &mut TcpSnapshot| {
        it.local = "[::ffff:192.0.2.1]:80".parse().expect("an address");
        it.remote = "[2001:db8::1]:80".parse().expect("an address");
    };
    assert_eq!(refusal(mapped), "address");
    assert_eq!(refusal(|it| it.local_end = LocalEnd::Sent), "end");
    assert_eq!(refusal(|it| it.local_end = LocalEnd::Acknowledged), "end");
    let over = |it: &mut TcpSnapshot| {
        it.local_end = LocalEnd::Acknowledged;
        it.remote_ended = true;
        it.send.sent.clear();
        it.send.unsent.clear();
    };
    assert_eq!(refusal(over), "end");
    assert_eq!(refusal(|it| it.negotiated.mss = 47), "MSS");
    let scaled = |it: &mut TcpSnapshot| {
        it.negotiated.window_scales = Some(WindowScales { send: 15, receive: 0 });
    };
    assert_eq!(refusal(scaled), "window scale");
    assert_eq!(refusal(|it| it.window.send = 201), "largest window");
    assert_eq!(refusal(|it| it.window.send_max = u32::MAX), "window");
    assert_eq!(refusal(|it| it.window.send_updated_at = 310), "window update");
    assert_eq!(refusal(|it| it.window.receive_updated_at = 10), "window announcement");
    assert_eq!(refusal(|it| it.buffers.send.bytes = u32::MAX), "buffers");
    assert_eq!(refusal(|it| it.options.keepalive.probes = 128), "keepalive");
    assert_eq!(refusal(|it| it.options.keepalive.idle_s = 0), "keepalive");
    assert_eq!(refusal(|it| it.options.traffic_class = 1), "traffic class");
    assert_eq!(refusal(|it| it.options.window_clamp = u32::MAX), "window clamp");
    assert_eq!(refusal(|it| it.options.congestion_control.clear()), "congestion control");
    assert_eq!(refusal(|it| it.options.congestion_control = "a b".into()), "congestion control");
    let long = |it: &mut TcpSnapshot| it.options.congestion_control = "a".repeat(16);
    assert_eq!(refusal(long), "congestion control");
}

#[test]
fn a_queue_beyond_the_limit_is_refused_by_its_length_alone() {
    for (at, bytes) in [(0, 40), (1, 20), (2, 60)] {
        let limit = bytes - 1;
        let mut snapshot = plain();
        let queues =
            [&mut snapshot.send.sent, &mut snapshot.send.unsent, &mut snapshot.receive.unread];
        for (number, queue) in queues.into_iter().enumerate() {
            if number != at {
                queue.clear();
            }
        }
        let refused = Err(DecodeError::TooLong { bytes, bytes_max: limit });
        assert_eq!(TcpSnapshot::decode(&snapshot.encode(), limit), refused);
    }
    let both = Err(DecodeError::TooLong { bytes: 60, bytes_max: 59 });
    let mut snapshot = plain();
    snapshot.receive.unread.clear();
    assert_eq!(TcpSnapshot::decode(&snapshot.encode(), 59), both);
    // A length that nothing stands behind.
    let mut bytes = plain().encode();
    let at = bytes.len() - 64;
    bytes[at..at + 4].copy_from_slice(&u32::MAX.to_be_bytes());
    let refused = TcpSnapshot::decode(&bytes, QUEUE_MAX);
    assert!(matches!(refused, Err(DecodeError::TooLong { .. })), "{refused:?}");
}

#[test]
fn another_version_is_refused() {
    let mut bytes = plain().encode();
    bytes[0] = 9;
    assert_eq!(TcpSnapshot::decode(&bytes, QUEUE_MAX), Err(DecodeError::Version(9)));
    assert_eq!(TcpSnapshot::decode(&[], QUEUE_MAX), Err(DecodeError::Truncated("version")));
}

#[test]
fn the_clock_goes_on_in_its_own_unit() {
    let mut snapshot = plain();
    snapshot.advance_clock(Duration::from_secs(1));
    assert_eq!(snapshot, plain());
    for (microseconds, value) in [(false, 49), (true, 49_999)] {
        let clock = Timestamps { value: u32::MAX, microseconds };
        snapshot.negotiated.timestamps = Some(clock);
        snapshot.advance_clock(Duration::from_millis(50));
        assert_eq!(snapshot.negotiated.timestamps, Some(Timestamps { value, microseconds }));
    }
}
