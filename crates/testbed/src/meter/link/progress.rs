//! The progress lines of a measurement: its current phase, and each second the bytes that passed.

use super::client::{LinkOptions, OnLine};
use super::end::LinkEnd;
use crate::meter::message::Direction;
use crate::meter::options::Progress;
use midhop_units::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration as StdDuration, Instant};

/// How often a line reports progress.
const LINE_EVERY: StdDuration = StdDuration::from_secs(1);
/// A rest at the end of a phase is left out where it is shorter than this.
const SHORT: StdDuration = StdDuration::from_millis(200);

/// Reports the progress of a measurement.
pub(super) struct ProgressLines {
    on_line: Arc<OnLine>,
    begin: Instant,
    end: Arc<LinkEnd>,
    phase: Mutex<Phase>,
}

/// The current phase.
struct Phase {
    name: String,
    /// The TCP flow of the phase, if any.
    flow: Option<(Direction, Arc<Progress>)>,
    /// Bytes sent and received up to its last line, and the time of that line.
    counts: [u64; 2],
    at: Instant,
}

impl ProgressLines {
    pub(super) fn new(on_line: Arc<OnLine>, begin: Instant, end: Arc<LinkEnd>) -> Arc<Self> {
        let (counts, at) = (end.counts(), Instant::now());
        let phase = Mutex::new(Phase { name: String::new(), flow: None, counts, at });
        Arc::new(Self { on_line, begin, end, phase })
    }

    pub(super) fn elapsed(&self) -> Duration {
        Duration::from_s_f64(self.begin.elapsed().as_secs_f64())
    }

    /// The rest of the time that the measurement may take.
    pub(super) fn left(&self, options: &LinkOptions) -> StdDuration {
        StdDuration::from(options.time_max).saturating_sub(self.begin.elapsed())
    }

    pub(super) fn line(&self, text: &str) {
        (self.on_line)(&format!("{:3} s  {text}", self.begin.elapsed().as_secs()));
    }

    /// Begins another phase, with its TCP flow, if any.
    pub(super) fn phase(&self, name: &str, flow: Option<(Direction, Arc<Progress>)>) {
        let mut phase = self.present();
        self.passed(&mut phase);
        self.line(name);
        name.clone_into(&mut phase.name);
        phase.flow = flow;
        phase.counts = self.counts(&phase);
    }

    /// Prints a line each second, with what passed since the last.
    pub(super) async fn print_all(self: Arc<Self>) {
        loop {
            let next = self.present().at + LINE_EVERY;
            tokio::time::sleep_until(next.into()).await;
            let mut phase = self.present();
            // Unless another phase has begun meanwhile.
            if phase.at.elapsed() >= LINE_EVERY {
                self.passed(&mut phase);
            }
        }
    }

    /// Prints what passed in a phase since its last line.
    fn passed(&self, phase: &mut Phase) {
        let (now, counts) = (Instant::now(), self.counts(phase));
        let took = now.saturating_duration_since(phase.at);
        if took >= SHORT && !phase.name.is_empty() {
            let [sent, received] =
                [0, 1].map(|way| counts[way].saturating_sub(phase.counts[way]) as f64 * 8.0 / 1e6);
            let (name, took) = (&phase.name, took.as_secs_f64());
            self.line(&format!(
                "{name}: sent {sent:.2} Mbit, received {received:.2} Mbit in {took:.1} s"
            ));
        }
        (phase.counts, phase.at) = (counts, now);
    }

    /// Datagrams with their headers, and payload of the TCP flow.
    fn counts(&self, phase: &Phase) -> [u64; 2] {
        let mut counts = self.end.counts();
        if let Some((direction, flow)) = &phase.flow {
            counts[usize::from(*direction == Direction::Down)] += flow.bytes().get();
        }
        counts
    }

    fn present(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
