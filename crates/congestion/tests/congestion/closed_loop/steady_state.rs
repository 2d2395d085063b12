//! What the loss-based controllers reach when every nth segment is lost, against their published laws, and the queue
//! that the delay-based ones keep.

use super::path::{Link, MSS, Path};
use midhop_congestion::{Algorithm, Controller, Law, QueueReport, Settings, SlowStart, build};
use midhop_units::{Bytes, Duration, Rate};

/// A path wide enough that only losses bound the window.
const WIDE: Rate = Rate::from_mbit_per_s(10_000);

fn controller(algorithm: Algorithm, slow_start: Option<SlowStart>) -> Controller {
    let law = Law::usual(algorithm, None).expect("none of these needs a rate");
    build(&Settings { slow_start, ..Settings::of(law) }).expect("a controller")
}

/// The mean window in segments over `losses` losses, where every `every`th segment is lost. Before that, four times as
/// many losses pass, because nothing bounds the first slow start of the published Hybla.
fn window(algorithm: Algorithm, rtt_ms: u64, every: u64, losses: u64) -> f64 {
    let rtt = Duration::from_ms(rtt_ms);
    let mut link = Link::new(WIDE, rtt);
    link.loss_every = Some(every);
    let mut path = Path::one(link, controller(algorithm, None));
    let deliver = |path: &mut Path<Controller>, segments: u64| {
        let (from, began) = (path.flows[0].delivered, path.now);
        while path.flows[0].delivered - from < segments * MSS {
            path.run(rtt);
        }
        let rounds = path.now.saturating_since(began).as_s_f64() / rtt.as_s_f64();
        (path.flows[0].delivered - from) as f64 / MSS as f64 / rounds
    };
    deliver(&mut path, every * losses * 4);
    deliver(&mut path, every * losses)
}

fn assert_near(name: &str, got: f64, law: f64, band: f64) {
    assert!((got / law - 1.0).abs() < band, "{name}: {got:.1} segments, the law says {law:.1}");
}

#[test]
fn reno_keeps_the_window_of_mathis() {
    for (rtt_ms, every) in [(50, 1000), (250, 1000), (600, 1000), (50, 10_000)] {
        let law = (1.5 * every as f64).sqrt();
        let got = window(Algorithm::Reno, rtt_ms, every, 40);
        assert_near(&format!("{rtt_ms} ms, 1/{every}"), got, law, 0.15);
    }
    // Between losses from W/2 to W, one more per round; then a round of repair at W/2, which no law
    // of large windows counts: 3/8 W² + W/2 = 100 for W = 15, in 8.5 rounds.
    let got = window(Algorithm::Reno, 50, 100, 40);
    assert_near("1/100", got, 100.0 / 8.5, 0.17);
}

#[test]
fn cubic_keeps_the_window_of_its_model() {
    for (rtt_ms, every) in [(100, 10_000_u64), (600, 1000), (600, 2000), (250, 1000), (20, 1000)] {
        let rounds = f64::from(rtt_ms) / 1000.0;
        let cubic = 1.0538 * (rounds * every as f64).powf(0.75);
        let reno = (1.5 * every as f64).sqrt();
        let got = window(Algorithm::Cubic, rtt_ms as u64, every, 40);
        assert_near(&format!("{rtt_ms} ms, 1/{every}"), got, cubic.max(reno), 0.2);
    }
}

#[test]
fn hybla_goes_as_fast_as_reno_over_its_reference_path() {
    for (rtt_ms, every) in [(25, 1000_u64), (50, 1000), (100, 1000), (250, 10_000)] {
        let rho = f64::from(rtt_ms) / 25.0;
        let law = rho * (1.5 * every as f64).sqrt();
        let got = window(Algorithm::Hybla, rtt_ms as u64, every, 40);
        assert_near(&format!("{rtt_ms} ms, 1/{every}"), got, law, 0.15);
    }
}

#[test]
fn westwood_loses_less_than_reno_to_a_channel() {
    let reno = window(Algorithm::Reno, 100, 1000, 20);
    let westwood = window(Algorithm::Westwood, 100, 1000, 20);
    assert!(westwood > 1.2 * reno, "{westwood:.1} to {reno:.1}");
}

#[test]
fn vegas_keeps_a_few_segments_in_the_queue() {
    let mut path = Path::one(
        Link::new(Rate::from_mbit_per_s(10), Duration::from_ms(50)),
        controller(Algorithm::Vegas, None),
    );
    path.run(Duration::from_s(20));
    (path.link.queue_max, path.link.dropped) = (Bytes::ZERO, 0);
    let share = path.share(Duration::from_s(10));
    assert!(share > 0.98, "{share}");
    let queued = path.link.queue_max.get() as f64 / MSS as f64;
    assert!((1.0..6.0).contains(&queued), "{queued} segments");
    assert_eq!(path.link.dropped, 0);
}

#[test]
fn dvegas_fills_a_lossy_link_that_reports_its_queue() {
    let rate = Rate::from_mbit_per_s(10);
    let mut shares = [Algorithm::DVegas, Algorithm::Vegas].map(|algorithm| {
        let mut link = Link::new(rate, Duration::from_ms(300));
        link.loss = 10;
        let mut path = Path::one(link, controller(algorithm, None));
        let mut run = |seconds: u64| {
            let before = path.flows[0].delivered;
            for _ in 0..seconds * 20 {
                path.run(Duration::from_ms(50));
                let report = QueueReport {
                    now: path.now,
                    queued: path.link.queued(path.now),
                    allocation: Some(rate),
                };
                path.flows[0].control.on_queue(&report);
            }
            (path.flows[0].delivered - before) as f64
                / rate.bytes_in(Duration::from_s(seconds)).get() as f64
        };
        run(60);
        run(60)
    });
    assert!(shares[0] > 0.9, "{shares:?}");
    shares[0] /= 2.0;
    assert!(shares[0] > shares[1], "less than half for Vegas: {shares:?}");
}

#[test]
fn two_flows_of_a_kind_share_a_link() {
    for algorithm in [Algorithm::Reno, Algorithm::Cubic, Algorithm::Hybla] {
        let mut link = Link::new(Rate::from_mbit_per_s(10), Duration::from_ms(50));
        link.queue = Bytes::new(link.bdp());
        let mut path = Path::new(link);
        path.join(controller(algorithm, Some(SlowStart::Classic)));
        path.run(Duration::from_s(10));
        path.join(controller(algorithm, Some(SlowStart::Classic)));
        path.run(Duration::from_s(60));
        let before: Vec<u64> = path.flows.iter().map(|flow| flow.delivered).collect();
        let share = path.share(Duration::from_s(60));
        assert!(share > 0.97, "{algorithm}: {share}");
        let got: Vec<f64> = path
            .flows
            .iter()
            .zip(before)
            .map(|(flow, before)| (flow.delivered - before) as f64)
            .collect();
        let ratio = got[0] / got[1];
        assert!((0.6..1.67).contains(&ratio), "{algorithm}: {got:?}");
    }
}
