//! The controller that measures a link by pulses, beside other flows on one link.

use super::driven::Driven;
use super::path::{Link, MSS, Path};
use midhop_congestion::pulse::Pulsed;
use midhop_congestion::{
    Ack, Algorithm, CongestionControl, Controller, Established, Handover, Law, Loss, LostSegment,
    Restart, Rto, Settings, build,
};
use midhop_units::{Bytes, Duration, Rate, Seed};

const RATE: Rate = Rate::from_mbit_per_s(20);

/// One of the flows that share the link.
#[derive(Debug)]
enum Sharer {
    Pulsed(Box<Pulsed>),
    Other(Controller),
}

macro_rules! both {
    ($($event:ident: $what:ty),+) => {
        impl Driven for Sharer {
            $(fn $event(&mut self, event: &$what) {
                match self {
                    Self::Pulsed(law) => CongestionControl::$event(&mut **law, event),
                    Self::Other(controller) => controller.$event(event),
                }
            })+

            fn window(&self) -> Bytes {
                match self {
                    Self::Pulsed(law) => CongestionControl::window(&**law),
                    Self::Other(controller) => controller.window(),
                }
            }

            fn pacing_rate(&self) -> Option<Rate> {
                match self {
                    Self::Pulsed(law) => CongestionControl::pacing_rate(&**law),
                    Self::Other(controller) => controller.pacing_rate(),
                }
            }
        }
    };
}

both!(on_established: Established, on_ack: Ack, on_loss: Loss, on_lost_segment: LostSegment, on_rto: Rto,
    on_restart: Restart, on_handover: Handover);

fn pulsed() -> Sharer {
    Sharer::Pulsed(Box::new(Pulsed::new(Bytes::new(MSS), 10)))
}

fn other(algorithm: Algorithm, seed: u64) -> Sharer {
    let law = Law::usual(algorithm, None).expect("it needs no rate");
    let settings = Settings { seed: Seed(seed), paced: true, ..Settings::of(law) };
    Sharer::Other(build(&settings).expect("a controller"))
}

/// What the first flow gets over `span`, relative to an equal share.
fn part(path: &mut Path<Sharer>, span: Duration) -> f64 {
    let before: Vec<u64> = path.flows.iter().map(|flow| flow.delivered).collect();
    path.run(span);
    let now = path.flows.iter().map(|flow| flow.delivered);
    let delivered: Vec<u64> = now.zip(before).map(|(now, before)| now - before).collect();
    let all: u64 = delivered.iter().sum();
    delivered[0] as f64 * delivered.len() as f64 / all as f64
}

/// The first flow is alone on a link with a queue of one product for 5 s, before `count` others join it.
fn beside(algorithm: Algorithm, count: u64, rtt_ms: u64, seed: u64) -> Path<Sharer> {
    let mut link = Link::new(RATE, Duration::from_ms(rtt_ms));
    link.queue = Bytes::new(link.bdp());
    let mut path = Path::one(link, pulsed());
    path.run(Duration::from_s(5));
    for nth in 0..count {
        path.run(Duration::from_ms(137 * seed + 31));
        path.join(other(algorithm, seed * 10 + nth));
    }
    path
}

fn is_contested(path: &Path<Sharer>) -> bool {
    matches!(&path.flows[0].control, Sharer::Pulsed(law) if law.is_contested())
}

/// Without competing it had 3.5 shares beside four flows. The flows are paced, so its weight has more effect than
/// beside bursts.
#[test]
fn beside_cubic_it_has_at_most_two_parts() {
    for (count, rtt_ms, settling) in [(1, 50, 30), (4, 50, 30), (1, 600, 60), (4, 600, 120)] {
        for seed in 0..5 {
            let mut path = beside(Algorithm::Cubic, count, rtt_ms, seed);
            path.run(Duration::from_s(settling));
            let part = part(&mut path, Duration::from_s(60));
            assert!((0.7..2.0).contains(&part), "{count}, {rtt_ms} ms, seed {seed}: {part}");
        }
    }
}

#[test]
fn beside_bbr_it_has_a_fair_part_in_the_end() {
    for seed in 0..5 {
        let mut path = beside(Algorithm::Bbr, 4, 50, seed);
        path.run(Duration::from_s(90));
        let part = part(&mut path, Duration::from_s(60));
        assert!((0.7..1.3).contains(&part), "seed {seed}: {part}");
    }
}

#[test]
fn the_link_is_its_own_again_when_others_have_ended() {
    for rtt_ms in [50, 600] {
        let mut path = beside(Algorithm::Cubic, 4, rtt_ms, 0);
        path.run(Duration::from_s(30));
        assert!(is_contested(&path), "{rtt_ms} ms");
        for flow in &mut path.flows[1..] {
            flow.backlog = Some(0);
        }
        path.run(Duration::from_s(20));
        assert!(!is_contested(&path), "{rtt_ms} ms");
        let share = path.share(Duration::from_s(20));
        assert!(share > 0.97, "{rtt_ms} ms: {share}");
        path.queue();
        path.run(Duration::from_s(5));
        let queue = path.queue();
        assert!(queue < 0.3, "{rtt_ms} ms: {queue} products");
    }
}

/// Changes of the rate, a longer path, losses and a queue too short for pulses do not look like other flows.
#[test]
fn alone_it_never_competes() {
    for (rtt_ms, loss, queue_percent) in
        [(50, 0, 200), (600, 100, 200), (600, 0, 10), (50, 500, 50)]
    {
        let mut link = Link::new(RATE, Duration::from_ms(rtt_ms));
        link.queue = Bytes::new(link.bdp() * queue_percent / 100);
        link.loss = loss;
        let mut path = Path::one(link, pulsed());
        let case = format!("{rtt_ms} ms, {loss} of 10,000 lost, a queue of {queue_percent} %");
        let mut contested = 0;
        for (mbit, longer_ms) in [(20, 0), (8, 10), (14, 30), (5, 0), (30, 20)] {
            let rtt = Duration::from_ms(rtt_ms + longer_ms);
            path.hand_over(Rate::from_mbit_per_s(mbit), rtt, None);
            for _ in 0..100 {
                path.run(Duration::from_ms(150));
                contested += u32::from(is_contested(&path));
            }
        }
        assert_eq!(contested, 0, "{case}");
    }
}
