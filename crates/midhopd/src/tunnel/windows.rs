//! QUIC's windows for a peer with several connections.
//!
//! A window bounds one connection, and a peer may have several. So the first connection has the
//! peer's full windows, and each later one has half of those of the previous one. When one closes,
//! those behind it move up. Granted credit cannot be withdrawn, so a connection has the
//! [minimum](first) until its peer is identified.
//!
//! Invariant: the windows of a peer's connections are together less than twice the peer's, plus [`LEAST`] for each.

use super::quic::QuicConnection;
use midhop_pep::config::PeerPlan;
use midhop_units::Bytes;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The minimum window of each connection, however many there are.
const LEAST: Bytes = Bytes::new(64 << 10);

/// A connection whose windows can be set.
pub trait Windowed {
    /// Sets the most bytes that may be sent and unacknowledged, and the most that may be received,
    /// from now on.
    fn set(&self, send: Bytes, receive: Bytes);
}

/// The connections of peers that connect to this daemon, on all workers, the oldest first.
#[derive(Debug)]
pub struct Windows<C = QuicConnection>(Mutex<Book<C>>);

#[derive(Debug)]
struct Book<C> {
    by_peer: BTreeMap<String, Vec<(u64, C)>>,
    joined: u64,
}

impl<C> Default for Windows<C> {
    fn default() -> Self {
        Self(Mutex::new(Book { by_peer: BTreeMap::new(), joined: 0 }))
    }
}

/// A connection's place among those of its peer. Dropping it frees the place.
#[derive(Debug)]
pub struct Portion<C: Windowed = QuicConnection> {
    windows: Arc<Windows<C>>,
    peer: String,
    /// The whole peer's windows: to send, and to receive.
    whole: [Bytes; 2],
    number: u64,
}

/// The receive window of a connection before its peer is identified.
pub fn first(receive: Bytes) -> Bytes {
    receive.min(LEAST)
}

impl<C: Windowed> Windows<C> {
    /// Assigns a connection of a peer its windows.
    pub fn join(self: &Arc<Self>, peer: &PeerPlan, connection: C) -> Portion<C> {
        let whole = [peer.send_window, peer.receive_window];
        let mut book = self.lock();
        book.joined += 1;
        let number = book.joined;
        let all = book.by_peer.entry(peer.name.clone()).or_default();
        all.push((number, connection));
        divide(whole, all, all.len() - 1);
        drop(book);
        Portion { windows: self.clone(), peer: peer.name.clone(), whole, number }
    }

    fn lock(&self) -> MutexGuard<'_, Book<C>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Windowed> Drop for Portion<C> {
    fn drop(&mut self) {
        let mut book = self.windows.lock();
        let Some(all) = book.by_peer.get_mut(&self.peer) else { return };
        let Some(at) = all.iter().position(|(number, _)| *number == self.number) else { return };
        let (_, _gone) = all.remove(at);
        divide(self.whole, all, at);
        if all.is_empty() {
            book.by_peer.remove(&self.peer);
        }
    }
}

/// Assigns the connections from this place on their windows.
fn divide<C: Windowed>([send, receive]: [Bytes; 2], all: &[(u64, C)], from: usize) {
    for (place, (_, connection)) in all.iter().enumerate().skip(from) {
        connection.set(part(send, place), part(receive, place));
    }
}

/// The part of a window for a connection with this many before it.
fn part(window: Bytes, before: usize) -> Bytes {
    let before = u32::try_from(before).unwrap_or(u32::MAX);
    let part = window.get().checked_shr(before).unwrap_or(0);
    Bytes::new(part).max(first(window))
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_pep::config::Plan;
    use std::{cell::Cell, rc::Rc};

    #[derive(Debug, Default)]
    struct One(Cell<[u64; 2]>);

    impl Windowed for Rc<One> {
        fn set(&self, send: Bytes, receive: Bytes) {
            self.0.set([send.get(), receive.get()]);
        }
    }

    fn peer() -> PeerPlan {
        let text = "[limits]\nmemory = \"32 MiB\"\n[tunnel]\ncertificate = \"/a\"\nkey = \"/a\"\n\
                    authority = \"/a\"\nlisten = \"127.0.0.1:443\"\n[peers.near]\nwindow = \"8 MiB\"\n";
        let plan = Plan::read("test.toml", text).unwrap_or_else(|error| panic!("{error}"));
        plan.peers.into_iter().next().expect("a peer")
    }

    #[test]
    fn however_many_connections_a_peer_has_it_has_no_more_than_two_of_its_windows() {
        let (windows, peer) = (Arc::<Windows<Rc<One>>>::default(), peer());
        let whole = [peer.send_window.get(), peer.receive_window.get()];
        assert!(whole.iter().all(|whole| *whole > 4 << 20), "{whole:?}");
        let ones: Vec<_> = (0..16).map(|_| Rc::<One>::default()).collect();
        let mut portions: Vec<_> =
            ones.iter().map(|one| windows.join(&peer, one.clone())).collect();
        for way in [0, 1] {
            let sum: u64 = ones.iter().map(|one| one.0.get()[way]).sum();
            assert!(sum < 2 * whole[way] + 16 * LEAST.get(), "{sum}");
        }
        assert_eq!(ones[0].0.get(), whole);
        assert_eq!(ones[1].0.get(), whole.map(|whole| whole / 2));
        // Those behind a closed one move up, and no others.
        drop(portions.remove(1));
        assert_eq!(ones[0].0.get(), whole);
        assert_eq!(ones[2].0.get(), whole.map(|whole| whole / 2));
        portions.drain(..14).for_each(drop);
        assert_eq!(ones[15].0.get(), whole);
        drop(portions);
        assert!(windows.lock().by_peer.is_empty());
    }

    #[test]
    fn peers_have_their_own_and_none_has_less_than_it_needs() {
        let windows = Arc::<Windows<Rc<One>>>::default();
        let (near, mut other) = (peer(), peer());
        other.name = "other".to_owned();
        let ones = [Rc::<One>::default(), Rc::default()];
        let _portions =
            [windows.join(&near, ones[0].clone()), windows.join(&other, ones[1].clone())];
        assert_eq!(ones[0].0.get(), ones[1].0.get());
        assert_eq!(part(Bytes::new(8 << 20), 99), LEAST);
        assert_eq!(part(Bytes::new(1000), 99), Bytes::new(1000));
    }
}
