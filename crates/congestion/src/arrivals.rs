//! Records which data had arrived at which time, for the rate of arrivals over a span of acknowledgements.

use midhop_units::{Bytes, Duration, Instant, Rate};
use std::collections::VecDeque;

/// At most so many acknowledgements are kept: a quarter of a round trip has fewer.
const KEPT_MAX: usize = 4096;

/// An acknowledgement, with everything delivered so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// When it came.
    pub at: Instant,
    /// When the newest data that it covers was sent.
    pub sent: Instant,
    /// All that was delivered by then. Unit: bytes.
    pub delivered: u64,
}

/// The time between two acknowledgements, and what arrived in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// Unit: bytes.
    bytes: u64,
    /// The time over which the data was sent.
    sending: Duration,
    /// The time over which its acknowledgements came.
    arriving: Duration,
}

impl Span {
    /// What arrived between two acknowledgements.
    fn of(first: &Arrival, last: &Arrival) -> Self {
        Self {
            bytes: last.delivered.saturating_sub(first.delivered),
            sending: last.sent.saturating_since(first.sent),
            arriving: last.at.saturating_since(first.at),
        }
    }

    /// How fast the link delivered: no faster than the data was sent, however close its acknowledgements came.
    pub fn rate(self) -> Rate {
        let longer = self.sending.max(self.arriving).max(Duration::from_us(1));
        Rate::of(Bytes::new(self.bytes), longer)
    }

    /// How fast the arrived data was sent.
    pub fn sent_at(self) -> Rate {
        Rate::of(Bytes::new(self.bytes), self.sending.max(Duration::from_us(1)))
    }

    /// How fast it arrived.
    pub fn arrived_at(self) -> Rate {
        Rate::of(Bytes::new(self.bytes), self.arriving.max(Duration::from_us(1)))
    }

    /// By how much the delay of the data has grown, as a part of the time in which it was sent. Unit: 1/2²⁰.
    pub fn growth_q20(self) -> i64 {
        let span = |span: Duration| i128::from(span.as_ns());
        let sending = span(self.sending).max(1);
        let growth = (span(self.arriving) - sending) * (1 << 20) / sending;
        i64::try_from(growth.clamp(-(1 << 20), 1 << 30)).unwrap_or(0)
    }

    /// How long the last of the data waits, if a link of that `rate` was idle when the first of it came.
    pub fn queueing_at(self, rate: Rate) -> Duration {
        rate.time_for(Bytes::new(self.bytes)).saturating_sub(self.sending)
    }

    /// Whether the data was sent over half of that time or more.
    pub fn is_half_of(self, time: Duration) -> bool {
        self.sending >= time / 2
    }

    /// By how much the last of the data was in transit longer than the first.
    pub fn grown(self) -> Duration {
        self.arriving.saturating_sub(self.sending)
    }
}

/// The recent acknowledgements.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arrivals {
    kept: VecDeque<Arrival>,
}

impl Arrivals {
    pub fn clear(&mut self) {
        self.kept.clear();
    }

    /// Forgets everything before `arrival`.
    pub fn restart(&mut self, arrival: Arrival) {
        self.kept.clear();
        self.kept.push_back(arrival);
    }

    /// Adds an acknowledgement, and forgets those older than `memory`. If it covers no newer data than the one
    /// before, it replaces that.
    pub fn push(&mut self, arrival: Arrival, memory: Duration) {
        if let Some(last) = self.kept.back_mut()
            && arrival.sent <= last.sent
        {
            last.at = arrival.at;
            last.delivered = last.delivered.max(arrival.delivered);
            return;
        }
        let old = |first: &Arrival| arrival.at.saturating_since(first.at) > memory;
        while self.kept.len() >= KEPT_MAX || self.kept.front().is_some_and(old) {
            self.kept.pop_front();
        }
        self.kept.push_back(arrival);
    }

    /// The shortest span that ends with the last acknowledgement, is no shorter than `least` and has at least so many
    /// `bytes`.
    pub fn over(&self, least: Duration, bytes: u64) -> Option<Span> {
        let last = self.kept.back()?;
        self.kept.iter().rev().skip(1).find_map(|first| {
            let span = Span::of(first, last);
            let long = span.sending.max(span.arriving) >= least;
            (long && span.bytes >= bytes).then_some(span)
        })
    }

    /// The data sent from one moment to another, if the span covers at least half of that time and has at least so many
    /// `bytes`.
    pub fn between(&self, from: Instant, to: Instant, bytes: u64) -> Option<Span> {
        let within = |arrival: &&Arrival| from <= arrival.sent && arrival.sent <= to;
        let first = self.kept.iter().find(within)?;
        let last = self.kept.iter().rev().find(within)?;
        let span = Span::of(first, last);
        let most = to.saturating_since(from) / 2;
        (span.bytes >= bytes && span.sending >= most).then_some(span)
    }

    /// The spans from the first data that was sent between two moments to each later acknowledgement of such data, and
    /// the round-trip time of the newest data of each.
    pub fn each_between(
        &self,
        from: Instant,
        to: Instant,
    ) -> impl Iterator<Item = (Span, Duration)> + '_ {
        let mut within = self.kept.iter().filter(move |it| from <= it.sent && it.sent <= to);
        let first = within.next().copied();
        within.filter_map(move |last| {
            let span = Span::of(&first?, last);
            Some((span, last.at.saturating_since(last.sent)))
        })
    }
}
