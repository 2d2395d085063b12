//! What the streams of one session may say, and what of them may wait: credit beside QUIC's own.
//!
//! Whoever sends asks here how much it may, whoever receives says here how much was passed on; a task of the
//! session's tells the peer ([`Credit::tell`]). With a peer that knows nothing of it all is as QUIC has it.
//!
//! Invariant: what the streams of a session hold outside of QUIC while nobody reads them is bounded, for each
//! by the credit that it was given, for all of them together by the session's share. A peer that is known to have
//! heard of this credit and goes beyond it is refused ([`Earning::may_come`]). The more those have been
//! promised whose readers stand still, the less the others are, so that readers who stop one after another leave room.
//!
//! Its locks are never contended: a tunnel's flows live on one thread. A flow's stream may be opened for
//! another thread, though.

use super::reorder::ArrivedData;
use midhop_tunnel::{
    credit::{self, Grant},
    varint,
};
use quinn::Connection;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Waker},
};
use tokio::sync::Notify;

/// Of the room that readers who stand still leave a stream may have this part under way: should its reader stop
/// as well, the rest is for others.
const LEFT_PARTS: u64 = 4;
/// A stream may always have this part of its window under way: it goes on.
const LEAST_PARTS: u64 = 512;
/// Unit: bytes. And no less than a few full datagrams.
const LEAST: u64 = 16 << 10;
/// How many times what was passed on of it a stream earns, beyond what it had at first.
const EARNED: u64 = 8;

/// What the streams of a session may have under way and waiting, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// What this end gives each stream at first.
    pub first: u64,
    /// What may be under way to a stream beyond what was passed on, where nobody stands still.
    pub window: u64,
    /// What streams that nobody reads may hold together outside of QUIC.
    pub drawn: u64,
    /// What such streams may have been promised together before the others get less.
    pub room: u64,
    /// What QUIC lets come of a stream before anything of it is read.
    pub initial: u64,
    /// What streams of the peer may hold outside of QUIC, on all of its connections: behind gaps, and because nobody
    /// reads them.
    pub waiting: u64,
}

/// The credit of a session's streams.
#[derive(Debug)]
pub struct Credit {
    bounds: Bounds,
    /// Whether the peer has shown that it knows what it was given.
    answered: AtomicBool,
    /// Unit: bytes. What streams that nobody reads hold.
    drawn: AtomicU64,
    /// Unit: bytes. What those whose readers stand still were promised and have not passed on.
    stuck: AtomicU64,
    book: Mutex<Book>,
    /// There is something to tell.
    news: Notify,
}

#[derive(Debug, Default)]
struct Book {
    /// What the peer gives each stream at first, once it has said what it understands; zero: it knows nothing of
    /// credit.
    first: Option<u64>,
    /// What was granted to this end's streams, and who waits for more.
    granted: BTreeMap<u64, Place>,
    /// What the peer is to be told: streams and their limits.
    untold: BTreeMap<u64, u64>,
}

#[derive(Debug, Default)]
struct Place {
    limit: u64,
    waker: Option<Waker>,
}

impl Credit {
    /// Nothing has come.
    pub fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self {
            bounds,
            answered: AtomicBool::new(false),
            drawn: AtomicU64::new(0),
            stuck: AtomicU64::new(0),
            book: Mutex::default(),
            news: Notify::new(),
        })
    }

    /// What the peer gives each stream at first; zero: it knows nothing of credit.
    pub fn begin(&self, first: u64) {
        let mut book = self.book();
        book.first = Some(first);
        if first == 0 {
            book.untold.clear();
        }
        drop(book);
        self.news.notify_one();
    }

    /// The peer has opened the stream by which it grants credit: it does so once it has this end's settings, and
    /// with them what each stream has at first.
    pub fn answer(&self) {
        self.answered.store(true, Relaxed);
    }

    /// Whether the peer heeds the credit that it is given: it says that it would, and knows what it was given.
    pub fn is_heeded(&self) -> bool {
        self.answered.load(Relaxed) && self.is_understood()
    }

    /// Whether the peer says that it heeds credit. It may not have heard of any.
    fn is_understood(&self) -> bool {
        self.book().first.is_some_and(|first| first > 0)
    }

    /// The peer lets a stream be used so far.
    pub fn raise(&self, stream: u64, limit: u64) {
        if let Some(place) = self.book().granted.get_mut(&stream)
            && place.limit < limit
        {
            place.limit = limit;
            if let Some(waker) = place.waker.take() {
                waker.wake();
            }
        }
    }

    /// Tells the peer what it may say, until the connection is gone.
    pub async fn tell(&self, connection: &Connection) {
        let mut stream = None;
        loop {
            self.news.notified().await;
            if !self.is_understood() {
                continue;
            }
            let mut said = Vec::new();
            if stream.is_none() {
                varint::write(credit::STREAM, &mut said);
            }
            let untold = std::mem::take(&mut self.book().untold);
            untold.into_iter().for_each(|(stream, limit)| credit::write(stream, limit, &mut said));
            let stream = match &mut stream {
                Some(stream) => stream,
                None => match connection.open_uni().await {
                    Ok(opened) => stream.insert(opened),
                    Err(_gone) => return,
                },
            };
            if stream.write_all(&said).await.is_err() {
                return;
            }
        }
    }

    /// Unit: bytes. What may be under way to a stream, or wait here, beside others that were promised `stuck`.
    fn window(&self, stuck: u64) -> u64 {
        let Bounds { window, room, .. } = self.bounds;
        if stuck == 0 {
            return window;
        }
        let least = (window / LEAST_PARTS).max(LEAST);
        (room.saturating_sub(stuck) / LEFT_PARTS).max(least).min(window)
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What this end may say on a stream.
#[derive(Debug)]
pub struct Spending {
    credit: Arc<Credit>,
    stream: u64,
    /// Unit: bytes.
    said: u64,
}

impl Spending {
    /// Nothing has been said.
    pub fn new(credit: &Arc<Credit>, stream: u64) -> Self {
        credit.book().granted.insert(stream, Place::default());
        Self { credit: credit.clone(), stream, said: 0 }
    }

    /// How much more may be said, if any; else whoever asks is woken. Unit: bytes.
    pub fn room(&self, cx: &Context<'_>) -> Option<u64> {
        let mut book = self.credit.book();
        let Some(first) = book.first.filter(|first| *first > 0) else { return Some(u64::MAX) };
        let place = book.granted.get_mut(&self.stream)?;
        let room = place.limit.max(first).saturating_sub(self.said);
        place.waker = (room == 0).then(|| cx.waker().clone());
        (room > 0).then_some(room)
    }

    /// So much more was said.
    pub fn spend(&mut self, bytes: usize) {
        self.said += bytes as u64;
    }
}

impl Drop for Spending {
    fn drop(&mut self) {
        self.credit.book().granted.remove(&self.stream);
    }
}

/// What the peer may say on a stream, and what of it waits here because nobody takes it.
#[derive(Debug)]
pub struct Earning {
    credit: Arc<Credit>,
    stream: u64,
    grant: Grant,
    /// Unit: bytes. What of it was passed on.
    position: u64,
    /// Unit: bytes.
    drawn: u64,
    /// Unit: bytes. What it was promised and is not passed on, while its reader stands still.
    stuck: u64,
    /// Whether all of the stream was sent by a peer that knew what it may say. Of a stream that began before,
    /// bytes may come, late, that only QUIC's credit covers.
    enforced: bool,
}

impl Earning {
    /// Nothing has come.
    pub fn new(credit: &Arc<Credit>, stream: u64) -> Self {
        let grant = Grant::new(credit.bounds.first);
        let enforced = credit.is_heeded();
        Self { credit: credit.clone(), stream, grant, position: 0, drawn: 0, stuck: 0, enforced }
    }

    /// Whether the peer may say the stream's bytes up to `end`, where it knows what it may say.
    pub fn may_come(&self, end: u64) -> bool {
        !self.enforced || end <= self.grant.told().max(self.credit.bounds.initial)
    }

    /// Whether as much waits as may: only what the first gap waits for is to be taken. Of a stream that no credit
    /// bounds that is `held_max`.
    pub fn is_full(&self, waiting: &ArrivedData, held_max: u64) -> bool {
        !self.enforced && waiting.cost() >= held_max
            || waiting.is_crowded(self.credit.bounds.waiting)
    }

    /// Whether the peer heeds it.
    pub fn is_heeded(&self) -> bool {
        self.credit.is_heeded()
    }

    /// So much of the stream has been passed on.
    pub fn pass_on(&mut self, position: u64) {
        self.position = position;
        let others = self.credit.stuck.load(Relaxed).saturating_sub(self.stuck);
        // What nobody has begun to read gets no more than it had at first.
        let earned = self.credit.bounds.first.saturating_add(position.saturating_mul(EARNED));
        let told = self.grant.pass_on(position, self.credit.window(others).min(earned));
        self.charge(self.drawn > 0);
        if let Some(limit) = told {
            let mut book = self.credit.book();
            // As long as the peer has not said whether it heeds credit, it may.
            if book.first != Some(0) {
                book.untold.insert(self.stream, limit);
                drop(book);
                self.credit.news.notify_one();
            }
        }
    }

    /// Its reader stands still: all that it was promised may come and wait.
    pub fn stand_still(&mut self) {
        self.charge(true);
    }

    fn charge(&mut self, stands_still: bool) {
        let promised = self.grant.told().saturating_sub(self.position);
        let stuck = if stands_still { promised } else { 0 };
        if stuck == self.stuck {
            return;
        }
        self.credit.stuck.fetch_sub(self.stuck, Relaxed);
        self.credit.stuck.fetch_add(stuck, Relaxed);
        self.stuck = stuck;
    }

    /// Whether more may wait here though nobody takes it.
    pub fn may_draw(&self, waiting: &ArrivedData) -> bool {
        waiting.cost() <= self.credit.bounds.window
            && !waiting.is_crowded(self.credit.bounds.waiting)
            && self.credit.drawn.load(Relaxed) < self.credit.bounds.drawn
            && self.is_heeded()
    }

    /// So much more has been drawn out of QUIC though nobody takes it.
    pub fn draw(&mut self, bytes: u64) {
        self.drawn += bytes;
        self.credit.drawn.fetch_add(bytes, Relaxed);
    }

    /// No more than this waits here.
    pub fn settle(&mut self, held: u64) {
        let taken = self.drawn.saturating_sub(held);
        if taken > 0 {
            self.drawn -= taken;
            self.credit.drawn.fetch_sub(taken, Relaxed);
        }
    }
}

impl Drop for Earning {
    fn drop(&mut self) {
        self.settle(0);
        self.credit.stuck.fetch_sub(self.stuck, Relaxed);
        // A peer that lets nothing be told must not make this grow with each stream that was ever there.
        self.credit.book().untold.remove(&self.stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{relay::Budget, tunnel::reorder::ReorderRoom};
    use bytes::Bytes;

    const BOUNDS: Bounds =
        Bounds { first: 100, window: 400, drawn: 150, room: 1000, initial: 120, waiting: 10_000 };

    /// What waits of a stream.
    fn waiting(bytes: usize) -> ArrivedData {
        let mut waiting = ArrivedData::new(&ReorderRoom::new(Arc::new(Budget::new(u64::MAX))));
        waiting.insert(0, Bytes::from(vec![0; bytes]));
        waiting
    }

    #[test]
    fn a_peer_that_knows_nothing_of_credit_bounds_nothing() {
        let credit = Credit::new(BOUNDS);
        let mut spending = Spending::new(&credit, 4);
        spending.spend(1 << 40);
        let cx = Context::from_waker(Waker::noop());
        assert_eq!(spending.room(&cx), Some(u64::MAX), "it has said nothing yet");
        credit.begin(0);
        assert_eq!(spending.room(&cx), Some(u64::MAX));
        let mut earning = Earning::new(&credit, 4);
        assert!(!earning.may_draw(&waiting(0)));
        earning.pass_on(500);
        assert!(credit.book().untold.is_empty());
    }

    #[test]
    fn what_was_granted_may_be_said_and_no_more() {
        let credit = Credit::new(BOUNDS);
        let mut spending = Spending::new(&credit, 4);
        let cx = Context::from_waker(Waker::noop());
        credit.begin(50);
        spending.spend(30);
        assert_eq!(spending.room(&cx), Some(20));
        spending.spend(20);
        assert_eq!(spending.room(&cx), None);
        credit.raise(8, 1000);
        assert_eq!(spending.room(&cx), None, "that was another stream's");
        credit.raise(4, 90);
        credit.raise(4, 60);
        assert_eq!(spending.room(&cx), Some(40));
        drop(spending);
        assert!(credit.book().granted.is_empty());
    }

    #[test]
    fn what_nobody_takes_is_bounded_for_each_stream_and_for_all() {
        let credit = Credit::new(BOUNDS);
        credit.begin(100);
        assert!(!Earning::new(&credit, 0).may_draw(&waiting(0)), "it may not have heard of any");
        credit.answer();
        let mut earnings = [0, 4].map(|stream| Earning::new(&credit, stream));
        let [first, second] = &mut earnings;
        first.draw(100);
        assert!(!first.may_draw(&waiting(401)) && second.may_draw(&waiting(0)));
        second.draw(50);
        assert!(!second.may_draw(&waiting(50)), "together they hold as much as may be");
        first.settle(70);
        assert!(second.may_draw(&waiting(50)) && first.drawn == 70);
        first.pass_on(30);
        assert_eq!(credit.book().untold.get(&0), Some(&370));
        drop(earnings);
        assert_eq!(credit.drawn.load(Relaxed), 0);
        assert!(credit.book().untold.is_empty(), "nobody is told of a stream that is gone");
    }

    #[test]
    fn a_peer_may_say_what_it_was_granted_and_no_more_once_it_knows_of_it() {
        let credit = Credit::new(BOUNDS);
        credit.begin(100);
        let early = Earning::new(&credit, 0);
        credit.answer();
        let mut late = Earning::new(&credit, 4);
        assert!(early.may_come(1 << 40), "it began when only QUIC's credit was known");
        assert!(
            late.may_come(120) && !late.may_come(121),
            "what QUIC lets come at first is no offence"
        );
        late.pass_on(50);
        let told = credit.book().untold.get(&4).copied();
        let told = told.expect("more than at first");
        assert!(told > 120 && late.may_come(told) && !late.may_come(told + 1));
    }

    #[test]
    fn what_may_wait_is_less_where_no_credit_is_heeded() {
        let credit = Credit::new(BOUNDS);
        let earning = Earning::new(&credit, 0);
        let (none, some) = (waiting(0), waiting(100));
        assert!(!earning.is_full(&none, 200) && earning.is_full(&some, 200));
        credit.begin(100);
        credit.answer();
        assert!(earning.is_full(&some, 200), "it began before");
        let earning = Earning::new(&credit, 4);
        assert!(!earning.is_full(&some, 200));
        assert!(earning.is_full(&waiting(10_000), 20_000), "the peer's room is full");
    }

    const MB: u64 = 1_000_000;
    const LARGE: Bounds =
        Bounds { first: 16 * MB, window: 96 * MB, drawn: 256 * MB, room: 512 * MB, ..BOUNDS };

    /// What a stream may have under way, as its peer was told.
    fn promised(credit: &Credit, one: &Earning) -> u64 {
        let told = credit.book().untold.get(&one.stream).copied();
        told.unwrap_or(credit.bounds.first) - one.position
    }

    #[test]
    fn a_stream_earns_its_window_by_being_read() {
        let credit = Credit::new(LARGE);
        credit.begin(1);
        let mut one = Earning::new(&credit, 0);
        let windows = [100, 2 * MB, 5 * MB, 80 * MB, 200 * MB].map(|position| {
            one.pass_on(position);
            promised(&credit, &one)
        });
        // A few bytes are a request's head; what they earn is no news.
        assert_eq!(windows, [16 * MB - 100, 32 * MB, 56 * MB, 96 * MB, 96 * MB]);
    }

    #[test]
    fn readers_that_stop_one_after_another_leave_room_for_those_that_go_on() {
        let credit = Credit::new(LARGE);
        credit.begin(1);
        let mut streams: Vec<_> = (0..400).map(|stream| Earning::new(&credit, stream)).collect();
        let mut position = 1 << 40;
        let mut windows = Vec::new();
        for next in 0..streams.len() {
            // All that still move are read on, and so learn what the last one left.
            position += 200 * MB;
            streams[next..].iter_mut().for_each(|one| one.pass_on(position));
            windows.push(promised(&credit, &streams[next]));
            streams[next].stand_still();
        }
        assert_eq!(windows[..4], [96 * MB, 96 * MB, 80 * MB, 60 * MB]);
        assert!(windows.is_sorted_by(|one, next| one >= next));
        assert_eq!(windows.last(), Some(&(96 * MB / LEAST_PARTS)));
        // QUIC's own window has as much again as may be drawn: it is never used up by these.
        let sum: u64 = windows.iter().sum();
        assert!(sum < LARGE.room + 75 * MB, "{sum}");
        assert_eq!(credit.stuck.load(Relaxed), sum);

        // The last one goes on with what little it has, and has all again when nobody stands still.
        let mut last = streams.pop().expect("a stream");
        last.pass_on(position + 1000);
        assert_eq!(promised(&credit, &last), 96 * MB / LEAST_PARTS - 1000);
        last.pass_on(position + 96 * MB / LEAST_PARTS);
        assert_eq!(promised(&credit, &last), 96 * MB / LEAST_PARTS);
        drop(streams);
        last.pass_on(position + 96 * MB / LEAST_PARTS + 1);
        assert_eq!(promised(&credit, &last), 96 * MB);
        assert_eq!(credit.stuck.load(Relaxed), 0);
    }

    #[test]
    fn a_slow_reader_does_not_take_from_itself() {
        let credit = Credit::new(LARGE);
        credit.begin(1);
        let mut slow = Earning::new(&credit, 0);
        slow.pass_on(200 * MB);
        slow.draw(50 * MB);
        slow.stand_still();
        slow.pass_on(240 * MB);
        assert_eq!(promised(&credit, &slow), 96 * MB);
        // Once it has taken what waited it is as any other.
        slow.settle(0);
        slow.pass_on(250 * MB);
        assert_eq!(credit.stuck.load(Relaxed), 0);
    }
}
