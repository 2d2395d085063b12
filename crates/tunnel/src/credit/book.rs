//! Credit of the streams of one session: what they may send, and how much of them may wait, in addition to QUIC's
//! credit.
//!
//! A sender asks here how much it may send. A receiver reports here how much was passed on; the resulting grants to the
//! peer are [taken](CreditBook::take_grants) and sent. A peer that does not know this credit has QUIC's alone.
//!
//! Invariant: what the streams of a session hold outside of QUIC while nobody reads them is bounded: for each stream
//! by its credit, for all of them together by the session's share. A peer that is known to have
//! received this credit and exceeds it is refused ([`StreamCredit::may_come`]). The more credit streams with stalled
//! readers hold, the less the other streams get, so that readers who stop one after another leave room.
//!
//! Decision 0024.

use super::Grant;
use std::collections::BTreeMap;

/// Streams with stalled readers leave some room. Another stream may have this part of it in flight: if its reader
/// stalls as well, the rest is for others.
const LEFT_PARTS: u64 = 4;
/// A stream may always have this part of its window in flight, so that it makes progress.
const LEAST_PARTS: u64 = 512;
/// Unit: bytes. At least a few full datagrams.
const LEAST: u64 = 16 << 10;
/// A stream's credit beyond the initial one: so many times the bytes that were passed on.
const EARNED: u64 = 8;
/// Windows of one flow that may wait behind a gap. A window holds a product of rate and round-trip time, with what
/// credit needs. A retransmission that is lost as well takes another product.
const HELD_WINDOWS: u64 = 2;

/// Bounds on what the streams of a session may have in flight and waiting, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct CreditBounds {
    /// What this end gives each stream at first.
    pub first: u64,
    /// What a stream may have in flight beyond what was passed on, if no reader stalls.
    pub window: u64,
    /// What streams with stalled readers may hold together outside of QUIC.
    pub drawn: u64,
    /// What may have been promised to such streams together before the others get less.
    pub room: u64,
    /// What QUIC accepts of a stream before any of it is read.
    pub initial: u64,
    /// What streams of the peer may hold outside of QUIC, on all of its connections: behind gaps, or because nobody
    /// reads them.
    pub waiting: u64,
}

impl CreditBounds {
    /// For streams that may have `flow_window` in flight each, and `receive_window` all together. QUIC accepts
    /// `initial` of each before any of it is read. Unit: bytes.
    pub const fn of(flow_window: u64, receive_window: u64, initial: u64) -> Self {
        let drawn = receive_window / 2;
        Self {
            // As much as QUIC accepts.
            first: flow_window,
            // Includes what may wait behind a gap: no less than without this credit.
            window: flow_window.saturating_add(held_max(flow_window)),
            drawn,
            // Half of QUIC's window may be promised to flows with stalled readers before the others get less. The
            // other half is for flows that move, however many stall.
            room: drawn.saturating_add(receive_window / 2),
            initial,
            waiting: receive_window,
        }
    }
}

/// How much of a stream with this window may wait behind a gap if the peer does not heed credit. Unit: bytes.
pub const fn held_max(flow_window: u64) -> u64 {
    flow_window.saturating_mul(HELD_WINDOWS)
}

/// The credit of a session's streams. `W` wakes a writer that waits for credit.
#[derive(Debug)]
pub struct CreditBook<W> {
    bounds: CreditBounds,
    /// Whether the peer has shown that it received this end's settings.
    answered: bool,
    /// Unit: bytes. What streams with stalled readers hold.
    drawn: u64,
    /// Unit: bytes. What was promised to streams with stalled readers and has not been passed on.
    stuck: u64,
    /// Unit: bytes. What all streams hold of the bytes received, behind gaps or not, as far as it is counted here.
    waiting: u64,
    /// Unit: bytes. The same of the peer's streams on other connections.
    elsewhere: u64,
    /// The peer's initial credit for each stream, once its settings have arrived; zero: it does not support credit.
    first: Option<u64>,
    /// What was granted to this end's streams, and the writers that wait for more.
    granted: BTreeMap<u64, Place<W>>,
    /// Grants to be sent to the peer: streams and their limits.
    grants: BTreeMap<u64, u64>,
}

#[derive(Debug)]
struct Place<W> {
    limit: u64,
    waker: Option<W>,
}

impl<W> CreditBook<W> {
    /// A book without streams.
    pub fn new(bounds: CreditBounds) -> Self {
        let (first, granted, grants) = Default::default();
        Self {
            bounds,
            answered: false,
            drawn: 0,
            stuck: 0,
            waiting: 0,
            elsewhere: 0,
            first,
            granted,
            grants,
        }
    }

    /// The bounds of the session.
    pub fn bounds(&self) -> &CreditBounds {
        &self.bounds
    }

    /// A stream that held `before` now holds `now`. Unit: bytes.
    pub fn recount(&mut self, before: u64, now: u64) {
        self.waiting = self.waiting - before + now;
    }

    /// Unit: bytes. What all streams hold.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// What streams on other connections of the same peer hold. Unit: bytes.
    pub fn set_elsewhere(&mut self, bytes: u64) {
        self.elsewhere = bytes;
    }

    /// Whether all streams together hold as much as they may.
    pub fn is_crowded(&self) -> bool {
        self.waiting.saturating_add(self.elsewhere) >= self.bounds.waiting
    }

    /// The peer's settings have arrived: its initial credit for each stream; zero: it does not support credit.
    pub fn begin(&mut self, first: u64) {
        self.first = Some(first);
        if first == 0 {
            self.grants.clear();
        }
    }

    /// The peer has opened the stream by which it grants credit. It does so once it has this end's settings, and
    /// with them the initial credit of each stream.
    pub fn answer(&mut self) {
        self.answered = true;
    }

    /// Whether the peer heeds the credit that it is given: it has announced support, and has this end's settings.
    pub fn is_heeded(&self) -> bool {
        self.answered && self.is_understood()
    }

    /// Whether the peer has announced that it heeds credit. It may not have received any.
    pub fn is_understood(&self) -> bool {
        self.first.is_some_and(|first| first > 0)
    }

    /// Starts to track the credit of a stream that this end writes to.
    pub fn open(&mut self, stream: u64) {
        self.granted.insert(stream, Place { limit: 0, waker: None });
    }

    /// Forgets such a stream.
    pub fn close(&mut self, stream: u64) {
        self.granted.remove(&stream);
    }

    /// The peer grants a stream credit up to `limit`. Returns the writer to wake.
    pub fn raise(&mut self, stream: u64, limit: u64) -> Option<W> {
        let place = self.granted.get_mut(&stream).filter(|place| place.limit < limit)?;
        place.limit = limit;
        place.waker.take()
    }

    /// How much more may be sent on a stream after `sent` bytes; if nothing, keeps `waker`. Unit: bytes.
    pub fn room(&mut self, stream: u64, sent: u64, waker: impl FnOnce() -> W) -> Option<u64> {
        let Some(first) = self.first.filter(|first| *first > 0) else { return Some(u64::MAX) };
        let place = self.granted.get_mut(&stream)?;
        let room = place.limit.max(first).saturating_sub(sent);
        place.waker = (room == 0).then(waker);
        (room > 0).then_some(room)
    }

    /// Takes the grants to send to the peer: streams and their limits. Empty until the peer has announced that it
    /// heeds credit.
    pub fn take_grants(&mut self) -> BTreeMap<u64, u64> {
        if self.is_understood() { std::mem::take(&mut self.grants) } else { BTreeMap::new() }
    }

    /// Unit: bytes. What a stream may have in flight or waiting here, while `stuck` is promised to streams with
    /// stalled readers.
    fn window(&self, stuck: u64) -> u64 {
        let CreditBounds { window, room, .. } = self.bounds;
        if stuck == 0 {
            return window;
        }
        let least = (window / LEAST_PARTS).max(LEAST);
        (room.saturating_sub(stuck) / LEFT_PARTS).max(least).min(window)
    }
}

/// What the peer may send on a stream, and how much of it waits here because nobody reads it.
#[derive(Debug)]
pub struct StreamCredit {
    stream: u64,
    /// A copy of the book's bounds, which do not change.
    bounds: CreditBounds,
    grant: Grant,
    /// Unit: bytes. How much of it was passed on.
    position: u64,
    /// Unit: bytes.
    drawn: u64,
    /// Unit: bytes. What was promised to it and has not been passed on, while its reader is stalled.
    stuck: u64,
    /// Whether the peer knew its credit from the stream's first byte on. Of an earlier stream, late bytes may
    /// arrive that only QUIC's credit covers.
    enforced: bool,
}

impl StreamCredit {
    /// A stream of which nothing has arrived.
    pub fn new<W>(book: &CreditBook<W>, stream: u64) -> Self {
        let (bounds, enforced) = (book.bounds, book.is_heeded());
        let grant = Grant::new(bounds.first);
        Self { stream, bounds, grant, position: 0, drawn: 0, stuck: 0, enforced }
    }

    /// Whether the peer may send the stream's bytes up to `end`. Always true if the peer does not know its credit.
    pub fn may_come(&self, end: u64) -> bool {
        !self.enforced || end <= self.grant.limit().max(self.bounds.initial)
    }

    /// Bounds on what may wait of all of the peer's streams, and behind a gap of this one. Unit: bytes.
    pub fn bounds(&self) -> &CreditBounds {
        &self.bounds
    }

    /// Whether the peer knew its credit from the stream's first byte on.
    pub fn is_enforced(&self) -> bool {
        self.enforced
    }

    /// So much of the stream has been passed on. Returns true if the book need not know: no new grant, however
    /// little others leave, and the reader is not stalled. Otherwise call [`StreamCredit::pass_on`].
    pub fn pass_on_quietly(&mut self, position: u64) -> bool {
        let mut grant = self.grant;
        let window = self.bounds.window.min(self.earned(position));
        let quiet = self.drawn == 0 && self.stuck == 0 && grant.pass_on(position, window).is_none();
        if quiet {
            self.position = position;
        }
        quiet
    }

    /// A stream that nobody has begun to read gets no more than its initial credit.
    fn earned(&self, position: u64) -> u64 {
        self.bounds.first.saturating_add(position.saturating_mul(EARNED))
    }

    /// So much of the stream has been passed on. Returns whether there is a new grant to send.
    pub fn pass_on<W>(&mut self, book: &mut CreditBook<W>, position: u64) -> bool {
        self.position = position;
        let others = book.stuck.saturating_sub(self.stuck);
        let earned = self.earned(position);
        let granted = self.grant.pass_on(position, book.window(others).min(earned));
        self.charge(book, self.drawn > 0);
        // Until the peer has announced whether it heeds credit, assume that it does.
        let Some(limit) = granted.filter(|_| book.first != Some(0)) else { return false };
        book.grants.insert(self.stream, limit);
        true
    }

    /// The reader is stalled: all that was promised to the stream may arrive and wait.
    pub fn stand_still<W>(&mut self, book: &mut CreditBook<W>) {
        self.charge(book, true);
    }

    fn charge<W>(&mut self, book: &mut CreditBook<W>, stands_still: bool) {
        let promised = self.grant.limit().saturating_sub(self.position);
        let stuck = if stands_still { promised } else { 0 };
        book.stuck = book.stuck - self.stuck + stuck;
        self.stuck = stuck;
    }

    /// Whether more may wait here without a reader, if what waits of it costs so much.
    pub fn may_draw<W>(&self, book: &CreditBook<W>, cost: u64) -> bool {
        cost <= book.bounds.window && book.drawn < book.bounds.drawn && book.is_heeded()
    }

    /// So many more bytes have been read out of QUIC without a reader.
    pub fn draw<W>(&mut self, book: &mut CreditBook<W>, bytes: u64) {
        self.drawn += bytes;
        book.drawn += bytes;
    }

    /// Whether bytes that were read out of QUIC without a reader still wait here.
    pub fn has_drawn(&self) -> bool {
        self.drawn > 0
    }

    /// At most this much waits here now.
    pub fn settle<W>(&mut self, book: &mut CreditBook<W>, held: u64) {
        let taken = self.drawn.saturating_sub(held);
        self.drawn -= taken;
        book.drawn -= taken;
    }

    /// The stream is gone: releases what was promised to it.
    pub fn leave<W>(&mut self, book: &mut CreditBook<W>) {
        self.settle(book, 0);
        book.stuck -= std::mem::take(&mut self.stuck);
        // If the peer never lets grants be sent, the map must not grow with each stream that ever existed.
        book.grants.remove(&self.stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Book = CreditBook<u8>;

    const BOUNDS: CreditBounds = CreditBounds {
        first: 100,
        window: 400,
        drawn: 150,
        room: 1000,
        initial: 120,
        waiting: 10_000,
    };

    #[test]
    fn a_peer_that_knows_nothing_of_credit_bounds_nothing() {
        let mut book = Book::new(BOUNDS);
        book.open(4);
        assert_eq!(book.room(4, 1 << 40, || 0), Some(u64::MAX), "its settings have not come yet");
        book.begin(0);
        assert_eq!(book.room(4, 1 << 40, || 0), Some(u64::MAX));
        let mut stream = StreamCredit::new(&book, 4);
        assert!(!stream.may_draw(&book, 0) && !stream.pass_on(&mut book, 500));
        assert!(book.take_grants().is_empty());
    }

    #[test]
    fn what_was_granted_may_be_sent_and_no_more() {
        let mut book = Book::new(BOUNDS);
        book.open(4);
        book.begin(50);
        assert_eq!(book.room(4, 30, || 0), Some(20));
        assert_eq!(book.room(4, 50, || 7), None);
        assert_eq!(book.raise(8, 1000), None, "that was another stream's");
        assert_eq!(book.raise(4, 90), Some(7));
        assert_eq!(book.raise(4, 60), None);
        assert_eq!(book.room(4, 50, || 0), Some(40));
        book.close(4);
        assert_eq!(book.room(4, 50, || 0), None);
    }

    #[test]
    fn what_nobody_takes_is_bounded_for_each_stream_and_for_all() {
        let mut book = Book::new(BOUNDS);
        book.begin(100);
        assert!(!StreamCredit::new(&book, 0).may_draw(&book, 0), "it may not have received any");
        book.answer();
        let [mut first, mut second] = [0, 4].map(|stream| StreamCredit::new(&book, stream));
        first.draw(&mut book, 100);
        assert!(!first.may_draw(&book, 401) && second.may_draw(&book, 0));
        second.draw(&mut book, 50);
        assert!(!second.may_draw(&book, 50), "together they hold as much as may be");
        first.settle(&mut book, 70);
        assert!(second.may_draw(&book, 50) && first.drawn == 70);
        assert!(first.pass_on(&mut book, 30));
        assert_eq!(book.grants.get(&0), Some(&370));
        first.leave(&mut book);
        second.leave(&mut book);
        assert_eq!(book.drawn, 0);
        assert!(book.take_grants().is_empty(), "nothing is granted to a stream that is gone");
    }

    #[test]
    fn a_peer_may_send_what_it_was_granted_and_no_more_once_it_knows_of_it() {
        let mut book = Book::new(BOUNDS);
        book.begin(100);
        let early = StreamCredit::new(&book, 0);
        book.answer();
        let mut late = StreamCredit::new(&book, 4);
        assert!(early.may_come(1 << 40), "it began when only QUIC's credit was known");
        let [initial, beyond] = [120, 121].map(|end| late.may_come(end));
        assert!(initial && !beyond, "what QUIC lets come at first is no offence");
        late.pass_on(&mut book, 50);
        let limit = book.grants.get(&4).copied().expect("more than at first");
        assert!(limit > 120 && late.may_come(limit) && !late.may_come(limit + 1));
    }

    #[test]
    fn what_waits_of_all_streams_has_a_bound_beside_that_of_each() {
        let mut book = Book::new(BOUNDS);
        for held in [6000, 3999] {
            book.recount(0, held);
            assert!(!book.is_crowded());
        }
        book.recount(3999, 4000);
        assert!(book.is_crowded());
        book.recount(6000, 0);
        assert!(!book.is_crowded(), "one is gone");
    }

    const MB: u64 = 1_000_000;
    const LARGE: CreditBounds =
        CreditBounds { first: 16 * MB, window: 96 * MB, drawn: 256 * MB, room: 512 * MB, ..BOUNDS };

    /// What a stream may have in flight according to its credit.
    fn promised(book: &Book, one: &StreamCredit) -> u64 {
        book.grants.get(&one.stream).copied().unwrap_or(book.bounds.first) - one.position
    }

    #[test]
    fn a_stream_earns_its_window_by_being_read() {
        let mut book = Book::new(LARGE);
        book.begin(1);
        let mut one = StreamCredit::new(&book, 0);
        let windows = [100, 2 * MB, 5 * MB, 80 * MB, 200 * MB].map(|position| {
            one.pass_on(&mut book, position);
            promised(&book, &one)
        });
        // A few bytes are a request's head; the credit that they earn is too small for a grant.
        assert_eq!(windows, [16 * MB - 100, 32 * MB, 56 * MB, 96 * MB, 96 * MB]);
    }

    #[test]
    fn what_is_passed_on_quietly_would_have_granted_nothing() {
        let mut book = Book::new(LARGE);
        book.begin(1);
        let (mut one, mut other) = (StreamCredit::new(&book, 0), StreamCredit::new(&book, 4));
        let (mut quiet, mut position) = (0, 0);
        for step in 1..2000 {
            position += step * 100;
            if one.pass_on_quietly(position) {
                quiet += 1;
                assert!(!other.pass_on(&mut book, position), "at {position}");
            } else {
                assert_eq!(one.pass_on(&mut book, position), other.pass_on(&mut book, position));
            }
            assert_eq!(one.grant.limit(), other.grant.limit());
        }
        assert!(quiet > 1900, "{quiet}");
        one.draw(&mut book, 1);
        assert!(!one.pass_on_quietly(position), "the book has to know");
    }

    #[test]
    fn readers_that_stop_one_after_another_leave_room_for_those_that_go_on() {
        let mut book = Book::new(LARGE);
        book.begin(1);
        let mut streams: Vec<_> = (0..400).map(|stream| StreamCredit::new(&book, stream)).collect();
        let mut position = 1 << 40;
        let mut windows = Vec::new();
        for next in 0..streams.len() {
            // All streams that still move are read further, and so learn what the last stalled one left.
            position += 200 * MB;
            for one in &mut streams[next..] {
                one.pass_on(&mut book, position);
            }
            windows.push(promised(&book, &streams[next]));
            streams[next].stand_still(&mut book);
        }
        assert_eq!(windows[..4], [96 * MB, 96 * MB, 80 * MB, 60 * MB]);
        assert!(windows.is_sorted_by(|one, next| one >= next));
        assert_eq!(windows.last(), Some(&(96 * MB / LEAST_PARTS)));
        // QUIC's own window has as much again as may be drawn: these streams never use it up.
        let sum: u64 = windows.iter().sum();
        assert!(sum < LARGE.room + 75 * MB, "{sum}");
        assert_eq!(book.stuck, sum);

        // The last one continues with its small window, and has the full window again once no reader is stalled.
        let mut last = streams.pop().expect("a stream");
        last.pass_on(&mut book, position + 1000);
        assert_eq!(promised(&book, &last), 96 * MB / LEAST_PARTS - 1000);
        last.pass_on(&mut book, position + 96 * MB / LEAST_PARTS);
        assert_eq!(promised(&book, &last), 96 * MB / LEAST_PARTS);
        streams.iter_mut().for_each(|one| one.leave(&mut book));
        last.pass_on(&mut book, position + 96 * MB / LEAST_PARTS + 1);
        assert_eq!(promised(&book, &last), 96 * MB);
        assert_eq!(book.stuck, 0);
    }

    #[test]
    fn a_slow_reader_does_not_take_from_itself() {
        let mut book = Book::new(LARGE);
        book.begin(1);
        let mut slow = StreamCredit::new(&book, 0);
        slow.pass_on(&mut book, 200 * MB);
        slow.draw(&mut book, 50 * MB);
        slow.stand_still(&mut book);
        slow.pass_on(&mut book, 240 * MB);
        assert_eq!(promised(&book, &slow), 96 * MB);
        // Once it has passed on what waited, it is like any other.
        slow.settle(&mut book, 0);
        slow.pass_on(&mut book, 250 * MB);
        assert_eq!(book.stuck, 0);
    }
}
