//! The events that an algorithm receives from a connection, one by one.

use super::*;
use midhop_congestion::{CongestionControl, QueueReport, Spurious};
use std::sync::{Arc, Mutex};

/// An event that a controller received.
#[derive(Debug, Clone, Copy)]
enum Event {
    Established(Duration),
    Ack(Ack),
    Loss(Loss),
    LostSegment(LostSegment),
    Rto(Rto),
    Restart,
    Share(Rate),
}

/// Records its events; its window is constant.
#[derive(Debug, Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Event>>>);

impl Recorder {
    fn note(&self, event: Event) {
        self.0.lock().expect("a lock").push(event);
    }

    fn taken(&self) -> Vec<Event> {
        std::mem::take(&mut *self.0.lock().expect("a lock"))
    }

    fn last_ack(&self) -> Ack {
        let mut acks = self.taken().into_iter().filter_map(|event| match event {
            Event::Ack(ack) => Some(ack),
            _ => None,
        });
        acks.next_back().expect("an acknowledgement")
    }
}

impl CongestionControl for Recorder {
    fn on_established(&mut self, established: &Established) {
        self.note(Event::Established(established.rtt.expect("a round-trip time")));
    }

    fn on_ack(&mut self, ack: &Ack) {
        self.note(Event::Ack(*ack));
    }

    fn on_loss(&mut self, loss: &Loss) {
        self.note(Event::Loss(*loss));
    }

    fn on_rto(&mut self, rto: &Rto) {
        self.note(Event::Rto(*rto));
    }

    fn on_spurious(&mut self, _spurious: &Spurious) {}

    fn on_handover(&mut self, _handover: &Handover) {}

    fn on_lost_segment(&mut self, segment: &LostSegment) {
        self.note(Event::LostSegment(*segment));
    }

    fn on_restart(&mut self, _restart: &Restart) {
        self.note(Event::Restart);
    }

    fn on_share(&mut self, share: Rate) {
        self.note(Event::Share(share));
    }

    fn on_queue(&mut self, _report: &QueueReport) {}

    fn window(&self) -> Bytes {
        Bytes::new(100_000)
    }

    fn pacing_rate(&self) -> Option<Rate> {
        None
    }
}

/// A controller under test with its clock.
struct Tested {
    core: Core,
    recorder: Recorder,
    epoch: std::time::Instant,
    smoothed: std::time::Duration,
}

impl Tested {
    fn new() -> Self {
        #[expect(clippy::disallowed_methods, reason = "there is no other way to have an instant")]
        let epoch = std::time::Instant::now();
        let recorder = Recorder::default();
        let core = Core::new(Controller::new(recorder.clone()), 1000, epoch);
        Self { core, recorder, epoch, smoothed: std::time::Duration::from_millis(600) }
    }

    fn at(&self, ms: u64) -> std::time::Instant {
        self.epoch + std::time::Duration::from_millis(ms)
    }

    fn send(&mut self, ms: u64, bytes: u64) {
        self.core.on_sent(self.at(ms), bytes);
    }

    /// One acknowledgement for packets that left at these times, of 1000 bytes each.
    fn ack(&mut self, ms: u64, sent_ms: &[u64], in_flight: u64) {
        for sent in sent_ms {
            let (sent, smoothed) = (self.at(*sent), self.smoothed);
            let acked = Acked { sent, bytes: 1000, app_limited: false, smoothed };
            self.core.on_acked(&acked);
        }
        self.core.on_end_of_acks(self.at(ms), in_flight, false, Duration::ZERO);
    }

    fn lose(&mut self, ms: u64, newest_ms: u64, bytes: u64, persistent: bool) {
        let lost = Lost { newest_sent: self.at(newest_ms), bytes, persistent };
        self.core.on_lost(self.at(ms), &lost);
    }
}

#[test]
fn a_flight_is_measured_from_its_leaving_to_its_acknowledgement() {
    let mut tested = Tested::new();
    // A datagram each millisecond, 8 Mbit/s, acknowledged 600 ms later, ten at a time.
    for ms in 0..3000 {
        if ms >= 600 && ms % 10 == 9 {
            let sent: Vec<u64> = (ms - 609..=ms - 600).collect();
            tested.ack(ms, &sent, 600_000);
        }
        tested.send(ms, 1000);
    }
    let ack = tested.recorder.last_ack();
    assert_eq!((ack.acked.get(), ack.round, ack.in_flight.get()), (10_000, 4, 600_000));
    let mbit = ack.delivery_rate.expect("a rate").mbit_per_s();
    assert!((mbit - 8.0).abs() < 0.15, "{mbit}");
    let sample = ack.sample.expect("a sample");
    assert_eq!((sample.lost, sample.is_app_limited), (Bytes::ZERO, false));
    assert_eq!(ack.phase, Phase::Open);
}

#[test]
fn the_peer_s_delay_is_no_part_of_a_round_trip() {
    let mut tested = Tested::new();
    // Round trips of 600, 680 and 600 ms, each acknowledged later by as much again. These are quinn's averages
    // after each of them.
    let averages_us = [333_000, 600_000, 610_000, 608_750];
    for (nth, average_us) in averages_us.into_iter().enumerate() {
        let (sent, delay) = (nth as u64 * 1000, [0, 160, 80, 0][nth]);
        tested.send(sent, 1000);
        tested.smoothed = std::time::Duration::from_micros(average_us);
        tested.ack(sent + 600 + delay, &[sent], 0);
    }
    let events = tested.recorder.taken();
    let first = Duration::from_ms(600);
    assert!(events.iter().any(|event| matches!(event, Event::Established(rtt) if *rtt == first)));
    let rtts = events.iter().filter_map(|event| match event {
        Event::Ack(ack) => ack.rtt.map(|rtt| rtt.as_ms_f64()),
        _ => None,
    });
    // Each is reported with the acknowledgement after its own.
    assert_eq!(rtts.collect::<Vec<_>>(), [600.0, 600.0, 680.0, 600.0]);
}

#[test]
fn a_recovery_begins_once_and_ends_with_what_was_sent_in_it() {
    let mut tested = Tested::new();
    (0..10).for_each(|ms| tested.send(ms, 1000));
    tested.ack(603, &[3], 6000);
    tested.recorder.taken();
    tested.lose(603, 2, 3000, false);
    let events = tested.recorder.taken();
    let segments: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::LostSegment(segment) => Some((segment.size.get(), segment.lost.get())),
            _ => None,
        })
        .collect();
    assert_eq!(segments, [(1000, 1000), (1000, 2000), (1000, 3000)]);
    let Some(Event::Loss(loss)) = events.last() else { panic!("no recovery: {events:?}") };
    // What was in flight when the oldest of them left.
    assert_eq!((loss.lost.get(), loss.in_flight.get()), (3000, 1000));

    tested.lose(605, 5, 1000, false);
    assert!(!tested.recorder.taken().iter().any(|event| matches!(event, Event::Loss(_))));
    tested.ack(606, &[6], 3000);
    let ack = tested.recorder.last_ack();
    assert_eq!((ack.phase, ack.lost.get()), (Phase::Recovery, 4000));

    tested.send(700, 1000);
    tested.ack(1300, &[700], 0);
    assert_eq!(tested.recorder.last_ack().phase, Phase::Open);
    // A mark is a loss of zero bytes, and starts another recovery.
    tested.lose(1300, 700, 0, false);
    let events = tested.recorder.taken();
    assert!(
        matches!(events.last(), Some(Event::Loss(loss)) if loss.lost == Bytes::ZERO),
        "{events:?}"
    );
}

#[test]
fn persistent_congestion_is_a_timeout() {
    let mut tested = Tested::new();
    tested.send(0, 5000);
    tested.lose(3000, 0, 5000, true);
    let events = tested.recorder.taken();
    assert!(
        matches!(events.last(), Some(Event::Rto(rto)) if rto.in_flight.get() == 5000),
        "{events:?}"
    );
}

#[test]
fn acknowledgements_alone_are_not_in_flight() {
    let mut tested = Tested::new();
    for ms in 0..1000 {
        tested.send(ms, 60);
    }
    assert!(tested.recorder.taken().is_empty(), "nothing has begun");
    // Until quinn reports what is in flight, the core counts it itself.
    assert!(tested.core.has_room_for(10));
    (1000..1800).for_each(|ms| tested.send(ms, 60));
    assert!(!tested.core.has_room_for(10));
    tested.send(2000, 1000);
    assert!(matches!(tested.recorder.taken()[..], [Event::Restart]));
    tested.ack(2600, &[2000], 0);
    assert!(tested.core.has_room_for(10));
}

#[test]
fn a_share_reaches_the_controller() {
    let mut tested = Tested::new();
    let share = Rate::from_mbit_per_s(7);
    tested.core.share(share);
    assert!(matches!(tested.recorder.taken()[..], [Event::Share(rate)] if rate == share));
}

#[test]
fn another_algorithm_takes_over_and_is_informed_of_the_path() {
    let mut tested = Tested::new();
    tested.send(0, 1000);
    tested.ack(600, &[0], 0);
    tested.send(600, 1000);
    let other = Recorder::default();
    tested.core.turn(tested.at(700), Controller::new(other.clone()), 1200);
    let events = other.taken();
    let rtt = Duration::from_ms(600);
    assert!(matches!(events[..], [Event::Established(known)] if known == rtt), "{events:?}");
    tested.recorder.taken();
    // The new algorithm is informed of what left before.
    tested.ack(1200, &[600], 0);
    assert_eq!(other.last_ack().acked.get(), 1000);
    assert!(tested.recorder.taken().is_empty());
}
