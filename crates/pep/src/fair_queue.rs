//! Decides which flow may write next into a tunnel: fair queueing with weights.
//!
//! Each flow pays for what it writes, less if its class is heavier. The flow that has paid least has the next turn.
//! In the long run this equals weighted deficit round robin, but the turns of a heavy flow are spread among those
//! of the others. If it had to write its whole part of a round at once, it would lose what its sender did not have
//! ready at that moment.
//!
//! Source: Goyal, Vin and Cheng, Start-time Fair Queueing, 1996. Differs in one point: the size of a piece is known
//! only after it was written, so a flow pays afterwards.
//!
//! Invariant: among flows that always have something to write, none gets ahead of another by more than a turn and a
//! piece of each, scaled by their weights.

use std::collections::BTreeMap;

/// How much a flow may write in a turn: as much as is read from a socket at once. Unit: bytes.
const TURN: u64 = 64 << 10;
/// The default weight of a flow.
pub const WEIGHT: u32 = 10;

/// The price of a byte for a flow of weight 1.
const PRICE: u32 = 1000;

/// The flows that wait for a turn, and what wakes them.
#[derive(Debug)]
pub struct FairQueue<W> {
    waiting: BTreeMap<Place, W>,
    /// What the flow that had the last turn had paid by then.
    now: u64,
    /// How many places have been assigned.
    given: u64,
}

/// A place: what its flow has paid, and the order of arrival.
type Place = (u64, u64);

/// One flow's account.
#[derive(Debug)]
pub struct Account {
    weight: u32,
    /// What it has paid, in bytes of a flow of weight [`PRICE`].
    paid: u64,
    /// Unit: bytes. Written in the present turn.
    written: u64,
    place: Option<Place>,
}

impl Account {
    /// The account of a flow of this weight.
    pub fn new(weight: u32) -> Self {
        Self { weight: weight.max(1), paid: 0, written: 0, place: None }
    }

    /// Changes its weight from its next turn on.
    pub fn weigh(&mut self, weight: u32) {
        self.weight = weight.max(1);
    }
}

impl<W> Default for FairQueue<W> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), now: 0, given: 0 }
    }
}

impl<W: Clone> FairQueue<W> {
    /// Takes a place, or keeps the present one; `true`: it is this flow's turn. A flow with a place must write or
    /// leave once it is its turn. A flow that comes late has no claim to earlier turns.
    pub fn wait(&mut self, account: &mut Account, waker: &W) -> bool {
        let place = *account.place.get_or_insert_with(|| {
            self.given += 1;
            (account.paid.max(self.now), self.given)
        });
        self.waiting.insert(place, waker.clone());
        let is_first = self.waiting.keys().next() == Some(&place);
        if is_first {
            self.now = place.0;
        }
        is_first
    }

    /// Books what a flow has written in its turn. Returns the next flow if the turn is over.
    pub fn spend(&mut self, account: &mut Account, bytes: usize) -> Option<W> {
        account.written += bytes as u64;
        if account.written < TURN { None } else { self.leave(account) }
    }

    /// Gives up a place. Returns the flow whose turn it is now, if it was this one's.
    pub fn leave(&mut self, account: &mut Account) -> Option<W> {
        let place = account.place.take()?;
        let was_first = self.waiting.keys().next() == Some(&place);
        self.waiting.remove(&place);
        let price =
            std::mem::take(&mut account.written) * u64::from(PRICE) / u64::from(account.weight);
        account.paid = place.0 + price;
        if was_first { self.waiting.values().next().cloned() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Lets flows that always have something to write take so many turns. Returns what each wrote.
    fn contend(flows: &[(u32, usize)], turns: usize) -> Vec<f64> {
        let mut queue = FairQueue::default();
        let mut accounts: Vec<_> = flows.iter().map(|(weight, _)| Account::new(*weight)).collect();
        let mut written = vec![0.0; flows.len()];
        let mut next = 0;
        for (number, account) in accounts.iter_mut().enumerate() {
            queue.wait(account, &number);
        }
        for _ in 0..turns {
            assert!(queue.wait(&mut accounts[next], &next), "who was woken has its turn");
            let piece = flows[next].1;
            written[next] += piece as f64;
            if let Some(woken) = queue.spend(&mut accounts[next], piece) {
                queue.wait(&mut accounts[next], &next);
                let first = queue.waiting.values().next().copied();
                next = first.unwrap_or(woken);
            }
        }
        written
    }

    #[test]
    fn parts_follow_weights_whatever_the_pieces() {
        let flows = [(10, 65_000), (10, 1000), (40, 65_000), (40, 400), (1, 65_000)];
        let written = contend(&flows, 1_000_000);
        for ((weight, _), bytes) in flows.iter().zip(&written) {
            let part = bytes / f64::from(*weight) / (written[0] / 10.0);
            assert!((part - 1.0).abs() < 0.02, "{weight}: {part} of {written:?}");
        }
    }

    #[test]
    fn who_sends_little_at_a_time_pays_for_no_more() {
        let mut queue = FairQueue::default();
        let (mut chatty, mut bulk) = (Account::new(WEIGHT), Account::new(WEIGHT));
        assert!(queue.wait(&mut chatty, &0) && !queue.wait(&mut bulk, &1));
        assert_eq!(queue.spend(&mut chatty, 100), None);
        assert_eq!(queue.leave(&mut chatty), Some(1), "it rests");
        assert!(!queue.wait(&mut chatty, &0), "it comes again, behind the other");
        assert!(queue.wait(&mut bulk, &1));
        assert_eq!(queue.spend(&mut bulk, 64 << 10), Some(0));
        for _ in 0..600 {
            assert!(queue.wait(&mut chatty, &0) && !queue.wait(&mut bulk, &1));
            queue.spend(&mut chatty, 100);
            queue.leave(&mut chatty);
        }
    }

    #[test]
    fn who_comes_late_has_nothing_in_arrears() {
        let mut queue = FairQueue::default();
        let mut old = Account::new(WEIGHT);
        for _ in 0..1000 {
            assert!(queue.wait(&mut old, &0));
            queue.spend(&mut old, 64 << 10);
        }
        let mut late = Account::new(WEIGHT);
        assert!(!queue.wait(&mut old, &0) || !queue.wait(&mut late, &1));
        let mut turns = [0; 2];
        for _ in 0..10 {
            let who = usize::from(queue.waiting.values().next() == Some(&1));
            turns[who] += 1;
            let account = if who == 0 { &mut old } else { &mut late };
            assert!(queue.wait(account, &who));
            queue.spend(account, 64 << 10);
            queue.wait(account, &who);
        }
        assert_eq!(turns, [5, 5]);
    }

    proptest! {
        #[test]
        fn somebody_is_always_first(steps in proptest::collection::vec((0usize..4, 0u8..3, 0usize..200_000), 0..200)) {
            let mut queue = FairQueue::default();
            let mut accounts: Vec<_> = [1, 10, 100, 10].map(Account::new).into();
            for (who, what, bytes) in steps {
                match what {
                    0 => drop(queue.wait(&mut accounts[who], &who)),
                    1 => {
                        if queue.wait(&mut accounts[who], &who) {
                            queue.spend(&mut accounts[who], bytes);
                        }
                    }
                    _ => drop(queue.leave(&mut accounts[who])),
                }
                let places: Vec<_> = accounts.iter().filter_map(|it| it.place).collect();
                prop_assert_eq!(queue.waiting.len(), places.len());
                prop_assert!(places.iter().all(|place| queue.waiting.contains_key(place)));
                prop_assert!(places.iter().all(|place| place.0 >= queue.now));
            }
        }
    }
}
