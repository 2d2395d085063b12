//! The rules of the pulses, event by event, and properties that always hold.

use super::*;
use crate::RateSample;
use proptest::prelude::*;

const MSS: u64 = 1000;

fn at_ms(ms: u64) -> Instant {
    Instant::START + Duration::from_ms(ms)
}

/// An acknowledgement at `ms` of data that left at `sent_ms`, after which `delivered` bytes have arrived.
fn ack(ms: u64, sent_ms: u64, acked: u64, delivered: u64, in_flight: u64) -> Ack {
    Ack {
        now: at_ms(ms),
        acked: Bytes::new(acked),
        rtt: Some(Duration::from_ms(ms - sent_ms)),
        in_flight: Bytes::new(in_flight),
        delivered: Bytes::new(delivered),
        sample: Some(RateSample {
            sent: at_ms(sent_ms),
            departed: at_ms(sent_ms),
            ..RateSample::default()
        }),
        ..Ack::default()
    }
}

fn begun() -> Pulsed {
    let mut law = Pulsed::new(Bytes::new(MSS), 10);
    law.on_established(&Established { now: at_ms(0), rtt: Some(Duration::from_ms(100)) });
    law
}

/// Acknowledgements every 2 ms of `per_ack` bytes, each of data that left a round trip of 100 ms before.
fn steady(law: &mut Pulsed, from_ms: u64, count: u64, per_ack: u64, delivered: &mut u64) {
    for nth in 0..count {
        *delivered += per_ack;
        let ms = from_ms + 2 * nth;
        law.on_ack(&ack(ms, ms - 100, per_ack, *delivered, per_ack * 50));
    }
}

/// The results of each event by the rules above: capacity in kbit/s, pacing rate in kbit/s, window in bytes.
#[test]
fn a_vector_of_events() {
    let mut law = begun();
    let state = |law: &Pulsed| {
        let kbit = |rate: Option<Rate>| rate.map_or(0, |rate| rate.bits_per_s() / 1000);
        (kbit(law.capacity()), kbit(law.pacing_rate()), law.window().get())
    };
    // Ten segments in 100 ms are 800 kbit/s; the first pulse is eight times as fast for 40 ms, the time of 32 segments.
    // 10,000 bytes, 310 for a queue of 3.125 ms, and seven times 4,000 of the pulse.
    assert_eq!(state(&law), (800, 6400, 38_312));
    let mut delivered = 0;
    // 8,000 bytes each 2 ms are 32 Mbit/s. A span that short is no measurement; one of three quarters of a pulse is.
    steady(&mut law, 100, 3, 8000, &mut delivered);
    assert_eq!(state(&law).0, 800);
    steady(&mut law, 106, 13, 8000, &mut delivered);
    assert_eq!(state(&law).0, 32_000);
    let known = law.capacity();
    // A silence changes nothing.
    law.on_ack(&ack(400, 300, 8000, delivered + 8000, 400_000));
    assert_eq!(law.capacity(), known);
    // Nor does a loss, and a timeout leaves four segments until an acknowledgement arrives.
    law.on_loss(&Loss { now: at_ms(401), lost: Bytes::new(MSS), in_flight: Bytes::new(MSS) });
    let before = law.window();
    law.on_rto(&Rto { now: at_ms(500), in_flight: Bytes::new(MSS) });
    assert_eq!((law.window(), law.capacity()), (Bytes::new(4 * MSS), known));
    law.on_spurious(&Spurious { now: at_ms(501) });
    assert_eq!(law.window(), before);
}

#[test]
fn acknowledgements_that_come_together_are_no_capacity() {
    let mut law = begun();
    let mut delivered = 0;
    steady(&mut law, 100, 40, 2000, &mut delivered);
    let before = law.capacity();
    // Data that left over 40 ms is acknowledged within 4 ms.
    for nth in 0..20 {
        delivered += 2000;
        law.on_ack(&ack(218 + nth / 5, 80 + 2 * nth, 2000, delivered, 100_000));
    }
    assert_eq!(law.capacity(), before);
}

#[test]
fn between_pulses_the_rate_leads_to_the_target() {
    let (rate, quarter) = (Rate::from_mbit_per_s(8), Duration::from_ms(25));
    // A quarter carries 25,000 bytes.
    for (target, in_flight, percent) in [
        (100_000, 100_000, 100),
        (100_000, 95_000, 120),
        (100_000, 0, 125),
        (100_000, 110_000, 60),
        (0, 1 << 40, 50),
    ] {
        let expected = Rate::from_bits_per_s(8_000_000 * percent / 100);
        assert_eq!(steered(rate, target, in_flight, quarter), expected, "{in_flight} of {target}");
    }
}

#[test]
fn a_handover_is_believed() {
    let mut law = begun();
    let rate = Rate::from_mbit_per_s(50);
    let rtt = Some(Duration::from_ms(30));
    law.on_handover(&Handover { now: at_ms(10), rtt, rate: Some(rate) });
    assert_eq!((law.capacity(), law.base_rtt()), (Some(rate), rtt));
}

#[derive(Debug, Clone)]
enum Event {
    Ack { bytes: u64, way_us: u64, in_flight: u64, limited: bool },
    Lost(u64),
    Timeout,
    Spurious,
    Handover { rtt_us: Option<u64>, rate: Option<u64> },
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    let ack =
        (1..3_000_000_u64, 0..2_000_000_u64, 0..1_u64 << 32, prop::bool::weighted(0.1)).prop_map(
            |(bytes, way_us, in_flight, limited)| Event::Ack { bytes, way_us, in_flight, limited },
        );
    prop_oneof![
        30 => ack,
        3 => (1..100_000_u64).prop_map(Event::Lost),
        1 => Just(Event::Timeout),
        1 => Just(Event::Spurious),
        1 => (prop::option::of(0..1_u64 << 32), prop::option::of(0..1_u64 << 40))
            .prop_map(|(rtt_us, rate)| Event::Handover { rtt_us, rate }),
        1 => Just(Event::Restart),
    ]
}

proptest! {
    /// Whatever is acknowledged, lost or reported of the path: the controller sends, within its bounds, and its window
    /// is never less than four segments.
    #[test]
    fn it_never_stalls_and_keeps_its_bounds(
        rtt_us in 0..3_000_000_u64,
        events in prop::collection::vec((event(), 0..100_000_000_u64), 1..300),
    ) {
        let mut law = Pulsed::new(Bytes::new(MSS), 10);
        let mut now = at_ms(10_000);
        let rtt = Some(Duration::from_us(rtt_us));
        law.on_established(&Established { now, rtt });
        let mut delivered = 0;
        for (event, pause_ns) in events {
            now = now + Duration::from_ns(pause_ns);
            match event {
                Event::Ack { bytes, way_us, in_flight, limited } => {
                    delivered += bytes;
                    let way = Duration::from_us(way_us);
                    let sent = Instant::START + now.saturating_since(Instant::START).saturating_sub(way);
                    law.on_ack(&Ack {
                        now,
                        acked: Bytes::new(bytes),
                        rtt: Some(way),
                        in_flight: Bytes::new(in_flight),
                        delivered: Bytes::new(delivered),
                        sample: Some(RateSample {
                            sent,
                            departed: sent,
                            is_app_limited: limited,
                            ..RateSample::default()
                        }),
                        ..Ack::default()
                    });
                }
                Event::Lost(bytes) => law.on_lost_segment(&LostSegment {
                    now,
                    size: Bytes::new(bytes),
                    ..LostSegment::default()
                }),
                Event::Timeout => law.on_rto(&Rto { now, in_flight: Bytes::new(MSS) }),
                Event::Spurious => law.on_spurious(&Spurious { now }),
                Event::Handover { rtt_us, rate } => law.on_handover(&Handover {
                    now,
                    rtt: rtt_us.map(Duration::from_us),
                    rate: rate.map(Rate::from_bits_per_s),
                }),
                Event::Restart => law.on_restart(&Restart { now, app_limited: true }),
            }
            let (capacity, pace) = (law.capacity(), law.pacing_rate());
            let (Some(capacity), Some(pace)) = (capacity, pace) else {
                return Err(TestCaseError::fail("no rate"));
            };
            let (bits, most) = (capacity.bits_per_s(), RATE_MAX.bits_per_s());
            prop_assert!(bits > 0 && bits <= most, "{capacity}");
            // A radio loses at most a quarter, so 4/3 of eight capacities is the fastest.
            prop_assert!(pace.bits_per_s() > 0 && pace.bits_per_s() <= bits * 8 * 4 / 3 + 8);
            prop_assert!(pace <= RATE_MAX, "{pace}");
            prop_assert!(law.window().get() >= 4 * MSS);
        }
    }
}
