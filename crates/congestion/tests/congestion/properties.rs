//! Properties of every controller, whatever happens: a window of at least a segment, which does not grow
//! unused.

use midhop_congestion::{
    Ack, Algorithm, Controller, Established, Handover, Law, Loss, LostSegment, Opening, Phase,
    QueueReport, Restart, Rto, Settings, SlowStart, Spurious, build,
    opening::{Jump, Record, Saved},
};
use midhop_units::{Bytes, Duration, Instant, Rate};
use proptest::prelude::*;

const MSS: u64 = 1448;
/// Algorithms whose window follows what is acknowledged; the others follow a rate.
const WINDOWED: [Algorithm; 9] = [
    Algorithm::Reno,
    Algorithm::Cubic,
    Algorithm::Hybla,
    Algorithm::HyblaPlus,
    Algorithm::HyblaLinux,
    Algorithm::Westwood,
    Algorithm::Vegas,
    Algorithm::DVegas,
    Algorithm::Xcp,
];

#[derive(Debug, Clone)]
enum Event {
    Ack { bytes: u64, rtt_us: Option<u64>, in_flight: u64, app_limited: bool, new_round: bool },
    Feedback(i64),
    Queue { bytes: u64, allocation: Option<u64> },
    Loss(u64),
    Mark,
    Recovered,
    Timeout,
    Spurious,
    Handover { rtt_us: Option<u64>, rate: Option<u64> },
    Silence,
}

fn event() -> impl Strategy<Value = Event> {
    let ack = (
        0..200_000_u64,
        prop::option::weighted(0.9, 0..5_000_000_u64),
        0..1_u64 << 32,
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(bytes, rtt_us, in_flight, app_limited, new_round)| Event::Ack {
            bytes,
            rtt_us,
            in_flight,
            app_limited,
            new_round,
        });
    let rate = || prop::option::of(0..1_u64 << 40);
    prop_oneof![
        30 => ack,
        4 => any::<i64>().prop_map(Event::Feedback),
        2 => (any::<u64>(), rate())
            .prop_map(|(bytes, allocation)| Event::Queue { bytes, allocation }),
        2 => (1..100_u64).prop_map(Event::Loss),
        1 => Just(Event::Mark),
        2 => Just(Event::Recovered),
        1 => Just(Event::Timeout),
        1 => Just(Event::Spurious),
        1 => (prop::option::of(0..1_u64 << 32), rate())
            .prop_map(|(rtt_us, rate)| Event::Handover { rtt_us, rate }),
        1 => Just(Event::Silence),
    ]
}

/// A transport that reports events to a controller, in an order in which a transport would.
struct Transport {
    control: Controller,
    now: Instant,
    round: u64,
    delivered: u64,
    phase: Phase,
}

impl Transport {
    fn lose(&mut self, segments: u64) {
        let segment =
            LostSegment { now: self.now, size: Bytes::new(MSS), ..LostSegment::default() };
        for _ in 0..segments {
            self.control.on_lost_segment(&segment);
        }
    }

    fn report(&mut self, event: &Event) {
        let now = self.now;
        match *event {
            Event::Ack { bytes, rtt_us, in_flight, app_limited, new_round } => {
                self.round += u64::from(new_round);
                self.delivered += bytes;
                self.control.on_ack(&Ack {
                    now,
                    acked: Bytes::new(bytes),
                    rtt: rtt_us.map(Duration::from_us),
                    in_flight: Bytes::new(in_flight),
                    round: self.round,
                    app_limited,
                    phase: self.phase,
                    delivered: Bytes::new(self.delivered),
                    cwnd_limited: !app_limited,
                    ..Ack::default()
                });
            }
            Event::Feedback(feedback_q16) => self.control.on_xcp_feedback(feedback_q16),
            Event::Queue { bytes, allocation } => self.control.on_queue(&QueueReport {
                now,
                queued: Bytes::new(bytes),
                allocation: allocation.map(Rate::from_bits_per_s),
            }),
            Event::Loss(segments) => {
                self.lose(segments);
                if self.phase == Phase::Open {
                    self.phase = Phase::Recovery;
                    let lost = Bytes::new(segments * MSS);
                    self.control.on_loss(&Loss { now, lost, in_flight: lost });
                }
            }
            Event::Mark if self.phase != Phase::Open => {}
            Event::Mark => {
                self.phase = Phase::Recovery;
                let in_flight = self.control.window();
                self.control.on_loss(&Loss { now, lost: Bytes::ZERO, in_flight });
            }
            Event::Recovered => self.phase = Phase::Open,
            Event::Timeout => {
                self.lose(10);
                self.phase = Phase::Loss;
                self.control.on_rto(&Rto { now, in_flight: Bytes::new(10 * MSS) });
            }
            Event::Spurious => {
                self.phase = Phase::Open;
                self.control.on_spurious(&Spurious { now });
            }
            Event::Handover { rtt_us, rate } => self.control.on_handover(&Handover {
                now,
                rtt: rtt_us.map(Duration::from_us),
                rate: rate.map(Rate::from_bits_per_s),
            }),
            Event::Silence => self.control.on_restart(&Restart { now, app_limited: true }),
        }
    }
}

/// Each opening has a record of its own: a shared one would carry over from case to case.
fn opening() -> impl Strategy<Value = Opening> {
    (0..4).prop_map(|nth| match nth {
        0 => Opening::Burst,
        1 => Opening::Spread,
        2 => Opening::Jump(Jump::Known {
            rate: Rate::from_mbit_per_s(20),
            window_max: Bytes::new(1 << 20),
        }),
        _ => Opening::Jump(Jump::Saved {
            record: Record::new(Saved {
                window: Bytes::new(1_500_000),
                rtt: Duration::from_ms(600),
            }),
            window_max: Bytes::MAX,
        }),
    })
}

fn settings() -> impl Strategy<Value = Settings> {
    let slow_start = prop::option::of(prop::sample::select(SlowStart::ALL.to_vec()));
    (slow_start, opening(), any::<bool>()).prop_map(|(slow_start, opening, paced)| Settings {
        slow_start,
        paced: paced || opening != Opening::Burst,
        opening,
        ..Settings::of(Law::Reno)
    })
}

/// A controller, with the settings that it accepts.
fn controller(algorithm: Algorithm, settings: &Settings) -> Controller {
    let rate = matches!(algorithm, Algorithm::KnownRate).then_some(Rate::from_mbit_per_s(20));
    let law = Law::usual(algorithm, rate).expect("a rate is known where it must be");
    let settings = &Settings { law, ..settings.clone() };
    let plain = Settings { slow_start: None, ..settings.clone() };
    let plainer = Settings { opening: Opening::Burst, ..plain.clone() };
    [settings, &plain, &plainer]
        .into_iter()
        .find_map(|settings| build(settings).ok())
        .expect("every algorithm takes the defaults")
}

proptest! {
    #[test]
    fn no_window_is_less_than_a_segment_and_none_grows_unused(
        algorithm in prop::sample::select(Algorithm::ALL.to_vec()),
        settings in settings(),
        rtt_us in prop::option::of(0..5_000_000_u64),
        events in prop::collection::vec((event(), 0..2_000_000_000_u64), 1..300),
    ) {
        let mut control = controller(algorithm, &settings);
        control.on_established(&Established {
            now: Instant::START,
            rtt: rtt_us.map(Duration::from_us),
        });
        let mut transport = Transport {
            control,
            now: Instant::START,
            round: 0,
            delivered: 0,
            phase: Phase::Open,
        };
        let mut recovering = false;
        for (event, pause_ns) in events {
            transport.now = transport.now + Duration::from_ns(pause_ns);
            let before = transport.control.window();
            transport.report(&event);
            let after = transport.control.window();
            prop_assert!(after.get() >= MSS, "{algorithm}: {after} after {event:?}");
            prop_assert!(after.get() < 1 << 50, "{algorithm}: {after} after {event:?}");
            recovering |= transport.phase != Phase::Open;
            if let Event::Ack { app_limited, .. } = event {
                // Some windows are only found when a recovery ends, and Hybla's starts with its first
                // round-trip time.
                if WINDOWED.contains(&algorithm) && app_limited && !recovering && rtt_us.is_some() {
                    prop_assert!(after <= before, "{algorithm}: {before} to {after}, unused");
                }
                recovering &= transport.phase != Phase::Open;
            }
        }
    }
}
