//! What the streams of one session may send, and what of them may wait, as tasks ask for it: the [`CreditBook`] of all.
//!
//! Its lock is never contended: a tunnel's flows live on one thread. A flow's stream may be opened for
//! another thread, though.

use super::reorder::ArrivedData;
use midhop_tunnel::{
    credit::{self, CreditBook, CreditBounds, StreamCredit},
    varint,
};
use quinn::Connection;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Waker},
};
use tokio::sync::Notify;

/// The credit of a session's streams.
#[derive(Debug)]
pub struct Credit {
    book: Mutex<CreditBook<Waker>>,
    /// There is something to grant.
    news: Notify,
}

impl Credit {
    /// Nothing has come.
    pub fn new(bounds: CreditBounds) -> Arc<Self> {
        Arc::new(Self { book: Mutex::new(CreditBook::new(bounds)), news: Notify::new() })
    }

    /// What the peer gives each stream at first; zero: it knows nothing of credit.
    pub fn begin(&self, first: u64) {
        self.book().begin(first);
        self.news.notify_one();
    }

    /// The peer has opened the stream by which it grants credit.
    pub fn answer(&self) {
        self.book().answer();
    }

    /// The peer lets a stream be used so far.
    pub fn raise(&self, stream: u64, limit: u64) {
        let waiting = self.book().raise(stream, limit);
        if let Some(waker) = waiting {
            waker.wake();
        }
    }

    /// Grants the peer what it may send, until the connection is gone.
    pub async fn grant(&self, connection: &Connection) {
        let mut stream = None;
        loop {
            self.news.notified().await;
            let grants = self.book().take_grants();
            let mut message = Vec::new();
            if stream.is_none() && self.book().is_understood() {
                varint::write(credit::STREAM, &mut message);
            }
            grants
                .into_iter()
                .for_each(|(stream, limit)| credit::write(stream, limit, &mut message));
            if message.is_empty() {
                continue;
            }
            let stream = match &mut stream {
                Some(stream) => stream,
                None => match connection.open_uni().await {
                    Ok(opened) => stream.insert(opened),
                    Err(_gone) => return,
                },
            };
            if stream.write_all(&message).await.is_err() {
                return;
            }
        }
    }

    fn book(&self) -> MutexGuard<'_, CreditBook<Waker>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What this end may send on a stream.
#[derive(Debug)]
pub struct Spending {
    credit: Arc<Credit>,
    stream: u64,
    /// Unit: bytes.
    sent: u64,
}

impl Spending {
    /// Nothing has been sent.
    pub fn new(credit: &Arc<Credit>, stream: u64) -> Self {
        credit.book().open(stream);
        Self { credit: credit.clone(), stream, sent: 0 }
    }

    /// How much more may be sent, if any; else whoever asks is woken. Unit: bytes.
    pub fn room(&self, cx: &Context<'_>) -> Option<u64> {
        self.credit.book().room(self.stream, self.sent, || cx.waker().clone())
    }

    /// So much more was sent.
    pub fn spend(&mut self, bytes: usize) {
        self.sent += bytes as u64;
    }
}

impl Drop for Spending {
    fn drop(&mut self) {
        self.credit.book().close(self.stream);
    }
}

/// What the peer may send on a stream, and what of it waits here because nobody takes it.
#[derive(Debug)]
pub struct Earning {
    credit: Arc<Credit>,
    stream: StreamCredit,
}

impl Earning {
    /// Nothing has come.
    pub fn new(credit: &Arc<Credit>, stream: u64) -> Self {
        let stream = StreamCredit::new(&credit.book(), stream);
        Self { credit: credit.clone(), stream }
    }

    /// Whether the peer may send the stream's bytes up to `end`, where it knows what it may send.
    pub fn may_come(&self, end: u64) -> bool {
        self.stream.may_come(end)
    }

    /// Whether as much waits as may: only what the first gap waits for is to be taken. Of a stream that no credit
    /// bounds that is `held_max`.
    pub fn is_full(&self, waiting: &ArrivedData, held_max: u64) -> bool {
        !self.stream.is_enforced() && waiting.cost() >= held_max
            || waiting.is_crowded(self.stream.bounds().waiting)
    }

    /// So much of the stream has been passed on.
    pub fn pass_on(&mut self, position: u64) {
        if self.stream.pass_on_quietly(position) {
            return;
        }
        if self.stream.pass_on(&mut self.credit.book(), position) {
            self.credit.news.notify_one();
        }
    }

    /// Its reader stands still: all that it was promised may come and wait.
    pub fn stand_still(&mut self) {
        self.stream.stand_still(&mut self.credit.book());
    }

    /// Whether more may wait here though nobody takes it.
    pub fn may_draw(&self, waiting: &ArrivedData) -> bool {
        self.stream.may_draw(&self.credit.book(), waiting.cost())
            && !waiting.is_crowded(self.stream.bounds().waiting)
    }

    /// So much more has been drawn out of QUIC though nobody takes it.
    pub fn draw(&mut self, bytes: u64) {
        self.stream.draw(&mut self.credit.book(), bytes);
    }

    /// No more than this waits here.
    pub fn settle(&mut self, held: u64) {
        if self.stream.has_drawn() {
            self.stream.settle(&mut self.credit.book(), held);
        }
    }
}

impl Drop for Earning {
    fn drop(&mut self) {
        self.stream.leave(&mut self.credit.book());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{relay::Budget, tunnel::reorder::ReorderRoom};
    use bytes::Bytes;

    /// What waits of a stream.
    fn waiting(bytes: usize) -> ArrivedData {
        let mut waiting = ArrivedData::new(&ReorderRoom::new(Arc::new(Budget::new(u64::MAX))));
        waiting.insert(0, Bytes::from(vec![0; bytes]));
        waiting
    }

    #[test]
    fn what_may_wait_is_less_where_no_credit_is_heeded() {
        let credit =
            Credit::new(CreditBounds { waiting: 10_000, ..CreditBounds::of(100, 300, 120) });
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

    #[test]
    fn a_stream_that_is_dropped_is_in_no_book() {
        let credit = Credit::new(CreditBounds::of(100, 300, 120));
        credit.begin(100);
        let (spending, mut earning) = (Spending::new(&credit, 4), Earning::new(&credit, 4));
        earning.pass_on(200);
        earning.stand_still();
        drop((spending, earning));
        let mut book = credit.book();
        assert!(
            book.take_grants().is_empty() && book.room(4, 0, || Waker::noop().clone()).is_none()
        );
    }
}
