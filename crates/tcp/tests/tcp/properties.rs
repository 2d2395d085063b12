//! Properties that hold for any settings, any path and any peer.

use crate::pair::{Pair, Path, PlainReno};
use midhop_tcp::{
    Autotuning, DelayedAck, Ecn, Endpoint, Flags, LossDetection, RtoRule, SackBlock, Segment,
    Settings, Timestamps,
};
use midhop_units::{Bytes, Duration, Instant, Rate};
use proptest::prelude::*;

fn settings() -> impl Strategy<Value = Settings> {
    let switches = prop::array::uniform10(any::<bool>());
    let sizes = (88..3000_u16, 200..60_000_u64, 200..60_000_u64, 1..6_u32, 0..3_u8);
    (switches, sizes).prop_map(|(on, (mss, receive, send, segments, detection))| Settings {
        mss,
        receive_buffer: Bytes::new(receive),
        receive_autotuning: on[0].then_some(Autotuning { initial: Bytes::new(receive / 3 + 1) }),
        send_buffer: Bytes::new(send),
        sack: on[1],
        timestamps: on[2],
        newreno: !on[2] || on[1],
        fast_retransmit: !on[3] || on[6],
        window_scaling: on[3],
        ecn: on[4],
        delayed_ack: DelayedAck { segments, ..DelayedAck::default() },
        loss_detection: match detection {
            0 => LossDetection::Rack,
            1 => LossDetection::RackWithoutProbe,
            _ => LossDetection::DupThresh,
        },
        limited_transmit: on[5],
        prr: on[6],
        rto: match (on[7], on[9]) {
            (true, _) => RtoRule::Linux,
            (false, true) => RtoRule::Rfc6298,
            (false, false) => RtoRule::Fixed(Duration::from_ms(700)),
        },
        undo: on[8],
        nagle: on[9],
        pacing: on[0] ^ on[9],
        slow_start_after_idle: on[5] ^ on[1],
        // Neither end may give up on paths as bad as these.
        retries: 1000,
        syn_retries: 1000,
        time_wait: Duration::from_s(40_000),
    })
}

fn paths() -> impl Strategy<Value = Path> {
    let rate = prop::option::of(100_000..100_000_000_u64);
    (0..300_u64, 0..100_u64, 0..250_u32, 0..100_u32, rate).prop_map(
        |(delay, jitter, loss_per_mille, duplicate_per_mille, rate)| Path {
            delay: Duration::from_ms(delay),
            jitter: Duration::from_ms(jitter),
            loss_per_mille,
            duplicate_per_mille,
            rate: rate.map(Rate::from_bits_per_s),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Every byte arrives once and in order, the ends of both streams too, and then nothing happens.
    #[test]
    fn transfers_end_whole(
        ours in settings(),
        theirs in settings(),
        path in paths(),
        bytes in prop::array::uniform2(0..60_000_u64),
        seed in any::<u64>(),
    ) {
        let client = Endpoint::connect(ours.clone(), PlainReno::control(&ours, 10), seed as u32);
        let server = Endpoint::listen(theirs.clone(), PlainReno::control(&theirs, 4), !seed as u32);
        let mut pair = Pair::new(client, server, path, seed);
        pair.transfer(bytes);
    }

    /// The same seed gives the same segments at the same moments.
    #[test]
    fn a_run_repeats_itself(ours in settings(), path in paths(), seed in any::<u64>()) {
        let run = || {
            let mut pair = Pair::reno(&ours, path, seed);
            pair.keep_seen = true;
            pair.check = false;
            pair.transfer([20_000, 5_000]);
            format!("{:?}", pair.seen)
        };
        prop_assert_eq!(run(), run());
    }
}

/// What an adversary may send: numbers close to those that matter, and any flags.
#[derive(Debug, Clone)]
enum Act {
    Segment(Box<Segment>),
    Wait(u64),
    Write(u64),
    Read(u64),
    Close,
}

fn acts() -> impl Strategy<Value = Act> {
    let near = || prop_oneof![4 => 0..6000_u32, 1 => any::<u32>()];
    let blocks = prop::collection::vec((near(), near()), 0..4);
    let numbers = (near(), near(), 0..2000_u32, any::<u16>());
    let flags = prop_oneof![6 => Just(0x10_u8), 2 => Just(0x11), 2 => any::<u8>()];
    let stamps = prop::option::of((0..200_u32, 0..200_u32));
    let segment = (numbers, flags, stamps, blocks, any::<bool>()).prop_map(
        |((sequence, acknowledgment, length, window), flags, stamps, blocks, marked)| {
            let mut segment = Segment {
                // The peer's SYN had 1000, ours 5000.
                sequence: sequence.wrapping_add(1001).wrapping_sub(2000),
                acknowledgment: acknowledgment.wrapping_add(5001).wrapping_sub(500),
                length,
                window,
                flags: Flags::from_bits(flags),
                ecn: if marked { Ecn::Congested } else { Ecn::NotCapable },
                timestamps: stamps.map(|(value, echo)| Timestamps { value, echo }),
                ..Segment::default()
            };
            for (start, end) in blocks {
                segment.sack.push(SackBlock { start: start + 4500, end: end.wrapping_add(4500) });
            }
            Act::Segment(Box::new(segment))
        },
    );
    prop_oneof![
        10 => segment,
        3 => (0..3_000_u64).prop_map(Act::Wait),
        3 => (0..20_000_u64).prop_map(Act::Write),
        1 => (0..20_000_u64).prop_map(Act::Read),
        1 => Just(Act::Close),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Whatever a peer sends, nothing panics and every count stays true.
    #[test]
    fn no_peer_breaks_an_endpoint(
        ours in settings(),
        open in any::<bool>(),
        acts in prop::collection::vec(acts(), 0..60),
    ) {
        let mut end = Endpoint::connect(ours.clone(), PlainReno::control(&ours, 10), 5000);
        let mut now = Instant::START;
        let drain = |end: &mut Endpoint, now| {
            // Nothing lets out more than the window at once.
            for _ in 0..10_000 {
                if end.poll_transmit(now).is_none() {
                    break;
                }
                end.check_invariants().map_err(|broken| TestCaseError::fail(broken.to_string()))?;
            }
            prop_assert!(end.poll_transmit(now).is_none(), "it never stops sending");
            while end.poll_event().is_some() {}
            Ok(())
        };
        drain(&mut end, now)?;
        if open {
            let answer = Segment {
                sequence: 1000,
                acknowledgment: 5001,
                window: 60_000,
                flags: Flags::SYN | Flags::ACK,
                timestamps: Some(Timestamps { value: 50, echo: 0 }),
                syn: midhop_tcp::SynOptions {
                    mss: Some(536),
                    window_scale: Some(2),
                    sack_permitted: true,
                },
                ..Segment::default()
            };
            end.handle_segment(now, &answer);
            drain(&mut end, now)?;
        }
        for act in acts {
            match act {
                Act::Segment(segment) => end.handle_segment(now, &segment),
                Act::Wait(ms) => {
                    now = now + Duration::from_ms(ms);
                    end.handle_timeout(now);
                }
                Act::Write(bytes) => {
                    end.write(bytes);
                }
                Act::Read(bytes) => {
                    end.read(now, bytes);
                }
                Act::Close => end.close(),
            }
            end.check_invariants().map_err(|broken| TestCaseError::fail(broken.to_string()))?;
            drain(&mut end, now)?;
        }
    }
}
