//! A flow joins a link that three CUBIC flows fill, 10 Mbit/s and 540 ms with a queue of one product. The test measures
//! its part of an equal share, with and without a committed rate, and what it leaves the others.

use super::path::{Link, Path};
use midhop_congestion::{Controller, Law, Settings, build, committed};
use midhop_units::{Bytes, Duration, Rate};

const RATE: Rate = Rate::from_mbit_per_s(10);
const RTT: Duration = Duration::from_ms(540);
/// An equal part of four.
const PART: Rate = Rate::from_bits_per_s(2_500_000);
/// The time of 20 MB at an equal part.
const SPAN: Duration = Duration::from_s(66);

fn cubic(committed: Option<Rate>) -> Controller {
    let committed = committed.map(|rate| committed::CommittedSettings {
        overhead: Bytes::ZERO,
        ..committed::CommittedSettings::new(rate)
    });
    let settings = Settings { committed, paced: true, ..Settings::of(Law::Cubic) };
    build(&settings).expect("CUBIC")
}

/// Parts of an equal share, of the newcomer and as the mean of the others, and the part of the segments that the link
/// dropped meanwhile. The newcomer joins at ten different times, a second apart.
fn beside_three(committed: Option<Rate>) -> (f64, f64, f64) {
    let mut sums = (0.0, 0.0, 0.0);
    for came in 20..30 {
        let mut link = Link::new(RATE, RTT);
        link.queue = Bytes::new(link.bdp());
        let mut path = Path::new(link);
        for _ in 0..3 {
            path.join(cubic(None));
        }
        path.run(Duration::from_s(came));
        let before: Vec<u64> = path.flows.iter().map(|flow| flow.delivered).collect();
        let dropped = path.link.dropped;
        path.join(cubic(committed));
        path.run(SPAN);
        let part = RATE.bytes_in(SPAN).get() as f64 / 4.0;
        let others: u64 =
            path.flows.iter().zip(&before).map(|(flow, was)| flow.delivered - was).sum();
        let own = path.flows[3].delivered;
        let lost = (path.link.dropped - dropped) * 1448;
        sums.0 += own as f64 / part / 10.0;
        sums.1 += others as f64 / part / 30.0;
        sums.2 += lost as f64 / (own + others + lost) as f64 / 10.0;
    }
    sums
}

#[test]
fn a_flow_finds_its_part_slowly_and_four_fifths_of_it_committed_give_it_all_at_once() {
    let (plain, _, _) = beside_three(None);
    assert!(plain < 0.8, "{plain}");
    let (own, others, lost) = beside_three(Some(Rate::from_mbit_per_s(2)));
    assert!((0.95..1.05).contains(&own), "{own}");
    assert!((0.95..1.05).contains(&others), "{others}");
    assert!(lost < 0.02, "{lost}");
}

#[test]
fn a_whole_part_committed_leaves_the_others_nine_tenths_of_theirs() {
    let (own, others, lost) = beside_three(Some(PART));
    assert!((1.0..1.25).contains(&own), "{own}");
    assert!(others > 0.9, "{others}");
    assert!(lost < 0.02, "{lost}");
}

#[test]
fn an_idle_link_is_filled_as_if_nothing_were_committed() {
    let start = |committed| {
        let mut link = Link::new(RATE, RTT);
        link.queue = Bytes::new(link.bdp());
        Path::one(link, cubic(committed)).share(Duration::from_s(20))
    };
    let (plain, promised) = (start(None), start(Some(PART)));
    assert!(promised > plain, "{promised} of {plain}");
}
