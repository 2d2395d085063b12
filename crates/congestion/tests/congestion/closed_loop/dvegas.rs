//! DVegas in our reading, with reports of the terminal's queue.

use super::path::{Link, MSS, Path};
use midhop_congestion::{
    CongestionControl, QueueReport,
    dvegas::{DVegas, DVegasThresholds},
};
use midhop_units::{Bytes, Duration, Rate};

const RATE: Rate = Rate::from_mbit_per_s(20);

/// Runs for `span`, with a report of the queue every five milliseconds, the time of a terminal's frame. Returns the
/// shortest and the longest queue. Unit: segments.
fn run_with_reports(path: &mut Path<DVegas>, span: Duration) -> (u64, u64) {
    let end = path.now + span;
    let (mut least, mut most) = (u64::MAX, 0);
    while path.now < end {
        path.run(Duration::from_ms(5));
        let queued = path.link.queued(path.now);
        let report = QueueReport { now: path.now, queued, allocation: None };
        path.flows[0].control.on_queue(&report);
        least = least.min(queued.get().div_ceil(MSS));
        most = most.max(queued.get().div_ceil(MSS));
    }
    (least, most)
}

#[test]
fn the_terminals_queue_stays_between_its_thresholds() {
    let DVegasThresholds { vegas, limit } = DVegasThresholds::default();
    for (rtt_ms, loss) in [(50, 0), (250, 0), (600, 0), (600, 50)] {
        let mut path = Path::one(
            Link::new(RATE, Duration::from_ms(rtt_ms)),
            DVegas::new(Bytes::new(MSS), DVegasThresholds::default()),
        );
        path.link.loss = loss;
        // Slow start, and the queue that it left.
        run_with_reports(&mut path, Duration::from_ms(60 * rtt_ms));
        let before = path.flows[0].delivered;
        let span = Duration::from_s(20);
        let (least, most) = run_with_reports(&mut path, span);
        let share = (path.flows[0].delivered - before) as f64 / RATE.bytes_in(span).get() as f64;
        assert!(most <= u64::from(limit), "{rtt_ms} ms: {most} segments waited");
        if loss == 0 {
            assert!(most >= u64::from(vegas.alpha), "{rtt_ms} ms: {least} to {most}");
        }
        // A loss takes away its own part, and does not change the window.
        assert!(share > 0.97, "{rtt_ms} ms, {loss} of 10,000: {share}");
    }
}
