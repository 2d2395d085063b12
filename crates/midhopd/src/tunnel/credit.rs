//! What the streams of one session may say, and what of them may wait: credit beside QUIC's own.
//!
//! Whoever sends asks here how much it may, whoever receives says here how much was passed on; a task of the
//! session's tells the peer ([`Credit::tell`]). With a peer that knows nothing of it all is as QUIC has it.
//!
//! Invariant: what the streams of a session hold outside of QUIC while nobody reads them is bounded, for each
//! by the credit that it was given, for all of them together by the session's share.
//!
//! Its locks are never contended: a tunnel's flows live on one thread. A flow's stream may be opened for
//! another thread, though.

use midhop_tunnel::{
    credit::{self, Grant},
    varint,
};
use quinn::Connection;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Waker},
};
use tokio::sync::Notify;

/// The credit of a session's streams.
#[derive(Debug)]
pub struct Credit {
    /// Unit: bytes. What this end gives each stream at first.
    window: u64,
    /// Unit: bytes. What streams that nobody reads may hold together.
    drawn_max: u64,
    drawn: AtomicU64,
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
    /// Each stream has `window` at first, and so many bytes of streams that nobody reads may wait here.
    pub fn new(window: u64, drawn_max: u64) -> Arc<Self> {
        Arc::new(Self {
            window,
            drawn_max,
            drawn: AtomicU64::new(0),
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

    /// Whether the peer heeds the credit that it is given.
    pub fn is_heeded(&self) -> bool {
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
            if !self.is_heeded() {
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
    /// Unit: bytes.
    drawn: u64,
}

impl Earning {
    /// Nothing has come.
    pub fn new(credit: &Arc<Credit>, stream: u64) -> Self {
        let grant = Grant::new(credit.window);
        Self { credit: credit.clone(), stream, grant, drawn: 0 }
    }

    /// Whether the peer heeds it.
    pub fn is_heeded(&self) -> bool {
        self.credit.is_heeded()
    }

    /// So much of the stream has been passed on.
    pub fn pass_on(&mut self, position: u64) {
        if let Some(limit) = self.grant.pass_on(position) {
            let mut book = self.credit.book();
            // As long as the peer has not said whether it heeds credit, it may.
            if book.first != Some(0) {
                book.untold.insert(self.stream, limit);
                drop(book);
                self.credit.news.notify_one();
            }
        }
    }

    /// Whether more may wait here though nobody takes it: `held` bytes do.
    pub fn may_draw(&self, held: u64) -> bool {
        held <= self.credit.window
            && self.credit.drawn.load(Relaxed) < self.credit.drawn_max
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

    /// Unit: bytes. What was drawn and waits.
    pub fn drawn(&self) -> u64 {
        self.drawn
    }
}

impl Drop for Earning {
    fn drop(&mut self) {
        self.settle(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_knows_nothing_of_credit_bounds_nothing() {
        let credit = Credit::new(100, 1000);
        let mut spending = Spending::new(&credit, 4);
        spending.spend(1 << 40);
        let cx = Context::from_waker(Waker::noop());
        assert_eq!(spending.room(&cx), Some(u64::MAX), "it has said nothing yet");
        credit.begin(0);
        assert_eq!(spending.room(&cx), Some(u64::MAX));
        let mut earning = Earning::new(&credit, 4);
        assert!(!earning.may_draw(0));
        earning.pass_on(500);
        assert!(credit.book().untold.is_empty());
    }

    #[test]
    fn what_was_granted_may_be_said_and_no_more() {
        let credit = Credit::new(100, 1000);
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
        let credit = Credit::new(100, 150);
        credit.begin(100);
        let mut earnings = [0, 4].map(|stream| Earning::new(&credit, stream));
        let [first, second] = &mut earnings;
        first.draw(100);
        assert!(!first.may_draw(101) && second.may_draw(0));
        second.draw(50);
        assert!(!second.may_draw(50), "together they hold as much as may be");
        first.settle(70);
        assert!(second.may_draw(50) && first.drawn() == 70);
        first.pass_on(30);
        assert_eq!(credit.book().untold.get(&0), Some(&130));
        drop(earnings);
        assert_eq!(credit.drawn.load(Relaxed), 0);
    }
}
