//! How either end of a link's measurement handles any bytes that somebody sent, without sockets.

use super::estimate::Arrived;
use super::found::Trips;
use super::inbox::{Inbox, Receipt};
use super::message::LinkMessage;
use super::schedule::{Schedule, Task, Times};
use super::train::{RATE_MAX, Train};
use super::wire::{HEADER, Token};
use midhop_experiment::measured::LinkReport;
use midhop_units::Duration;
use std::time::Instant;

/// One input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkInput<'b> {
    /// A datagram, and its time of arrival on the receiver's clock in nanoseconds.
    Datagram(&'b [u8], u64),
    /// The JSON of a control message.
    Message(&'b [u8]),
}

/// The token of the sessions that [`LinkOutline`] has.
const TOKEN: Token = Token([0; 16]);
const TIMES: Times = Times {
    most: Duration::from_s(60),
    rate: Duration::from_s(4),
    loss: Duration::from_s(4),
    tcp: Duration::from_s(3),
};

/// The effects of all inputs.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct LinkOutline {
    /// Datagrams that were answered.
    pub answers: u64,
    /// Messages that were valid.
    pub messages: u64,
    /// Trains that were refused, and answers that fit no train of ours.
    pub refused: u64,
    /// Tasks that the measuring end started.
    pub tasks: u64,
    /// The report of the measuring end.
    pub report: Option<LinkReport>,
}

impl LinkOutline {
    /// Gives `inputs` to a server.
    pub fn of_server(inputs: &[LinkInput<'_>]) -> Self {
        let (mut outline, mut inbox) = (Self::default(), Inbox::new(TOKEN, true));
        let now = Instant::now();
        for input in inputs {
            match *input {
                LinkInput::Datagram(bytes, at_ns) => {
                    outline.datagram(&mut inbox, bytes, at_ns, now);
                }
                LinkInput::Message(json) => match outline.message(json) {
                    Some(LinkMessage::Send(train) | LinkMessage::Expect(train)) => {
                        match train.refusal() {
                            Some(_) => outline.refused += 1,
                            None => inbox.expect(train),
                        }
                    }
                    Some(LinkMessage::Collect(sent)) => {
                        let arrived = inbox.collect(sent);
                        assert!(arrived.is_of(sent.packets), "{arrived:?} of {sent:?}");
                    }
                    _ => {}
                },
            }
        }
        outline
    }

    /// Gives `inputs` to a measuring end: datagrams as what arrived of its pings and trains,
    /// messages as a server's answers.
    pub fn of_client(inputs: &[LinkInput<'_>]) -> Self {
        let (mut outline, mut inbox) = (Self::default(), Inbox::new(TOKEN, false));
        let now = Instant::now();
        let mut schedule: Option<Schedule> = None;
        let mut task = None;
        let mut elapsed = Duration::from_s(3);
        for input in inputs {
            let json = match *input {
                LinkInput::Datagram(bytes, at_ns) => {
                    outline.datagram(&mut inbox, bytes, at_ns, now);
                    continue;
                }
                LinkInput::Message(json) => json,
            };
            let Some(message) = outline.message(json) else { continue };
            let schedule = schedule.get_or_insert_with(|| {
                let rtt_ms = Trips::of(inbox.pongs()).map_or(100.0, |trips| trips.rtt_ms[1]);
                Schedule::new(TIMES, Duration::from_s_f64(rtt_ms / 1e3), RATE_MAX)
            });
            let next = task.take().unwrap_or_else(|| schedule.next(elapsed));
            let Task::Train { rate, time, .. } = next else {
                schedule.flowed(None);
                continue;
            };
            let train = Train::lasting(1, rate, time);
            elapsed = elapsed.saturating_add(Duration::from_ms(700));
            outline.tasks += 1;
            let arrived = match message {
                LinkMessage::Sent(sent) => Some(inbox.collect(sent)),
                LinkMessage::Arrived(arrived) => Some(arrived),
                _ => None,
            };
            match arrived.and_then(|arrived| arrived.bounded(&train)) {
                Some(arrived) => {
                    schedule.arrived(&arrived);
                    inbox.expect(train);
                }
                None => {
                    outline.refused += 1;
                    task = Some(next);
                }
            }
        }
        if let Some(mut schedule) = schedule {
            schedule.stop();
            outline.report = Some(report(schedule, &inbox));
        }
        outline
    }

    fn datagram(&mut self, inbox: &mut Inbox, bytes: &[u8], at_ns: u64, now: Instant) {
        let receipt = Receipt { at_ns, overflowed: None, now };
        if let Some(answer) = inbox.take(bytes, receipt) {
            assert!(HEADER <= bytes.len() && answer.encode().len() <= bytes.len());
            self.answers += 1;
        }
    }

    fn message(&mut self, json: &[u8]) -> Option<LinkMessage> {
        let message = serde_json::from_slice(json).ok()?;
        self.messages += 1;
        Some(message)
    }
}

fn report(schedule: Schedule, inbox: &Inbox) -> LinkReport {
    let trips = Trips::of(inbox.pongs());
    let [rtt_min_s, rtt_median_s, rtt_p95_s] =
        trips.map_or([0.1; 3], |trips| trips.rtt_ms.map(|ms| ms / 1e3));
    let [down, up] = schedule.ways;
    let warnings = [down.warnings("down"), up.warnings("up"), schedule.notes].concat();
    LinkReport {
        host: "fuzz".to_owned(),
        port: 1,
        took_s: 1.0,
        time_s_max: 60.0,
        rtt_min_s,
        rtt_median_s,
        rtt_p95_s,
        pings: 0,
        pings_lost: 0,
        down,
        up,
        warnings,
    }
}

impl Arrived {
    /// Whether the result fits a train of so many packets.
    fn is_of(&self, packets: u32) -> bool {
        self.packets.saturating_add(self.lost) <= u64::from(packets)
    }

    /// The result, where one of `train` is possible; none otherwise. The far end may send anything.
    pub(super) fn bounded(self, train: &Train) -> Option<Self> {
        let rates = |rate: &f64| (0.0..=RATE_BIT_PER_S_MAX).contains(rate);
        let tail = self.tail.as_ref().is_none_or(|tail| {
            [tail.rate_bit_per_s, tail.sent_bit_per_s].iter().all(rates)
                && tail.windows_bit_per_s.iter().flatten().all(rates)
                && (0.0..=1.0).contains(&tail.delivered)
                && (0.0..=STRETCH_MAX).contains(&tail.stretch)
        });
        let counts = self.loss_bursts <= self.lost
            && self.reordered <= self.packets
            && self.duplicates <= COUNT_MAX
            && self.overflowed <= COUNT_MAX;
        (tail && counts && self.is_of(train.packets)).then_some(self)
    }
}

/// The highest possible rate of a train whose packets waited somewhere.
const RATE_BIT_PER_S_MAX: f64 = 1e13;
/// The longest possible stretch of a train.
const STRETCH_MAX: f64 = 1e9;
/// Above the number of packets that a link can duplicate or a host can drop.
const COUNT_MAX: u64 = u32::MAX as u64;
