//! The law of a receive window beside others, and properties of it.

use super::*;
use crate::budget::BudgetPart;
use proptest::prelude::*;

const LIMIT: u64 = 64 << 20;
const LEAST: u64 = 256 << 10;
/// The size to which a kernel lets a buffer grow.
const KERNEL_MAX: u64 = 32 << 20;

fn budget(limit: u64) -> Arc<Budget> {
    let budget = Arc::new(Budget::new(limit));
    budget.set_window_least(LEAST);
    budget
}

/// A socket as a kernel has it: its buffer grows until it is set, and fills only so far.
struct Socket {
    buffer: u64,
    grows: bool,
    unread: u64,
    /// The buffer that its flow needs at its speed.
    needed: u64,
    held: BudgetPart,
    window: ReceiveWindow,
}

impl Socket {
    fn new(budget: &Arc<Budget>) -> Self {
        let window = ReceiveWindow::new(budget.clone(), Bytes::new(KERNEL_MAX));
        let held = BudgetPart::new(budget.clone());
        Self { buffer: 128 << 10, grows: true, unread: 0, needed: u64::MAX, held, window }
    }

    /// The kernel measures a fast reader.
    fn grow(&mut self, wanted: u64) {
        if self.grows {
            self.buffer = self.buffer.max(wanted.min(KERNEL_MAX));
        }
    }

    fn moves(&mut self) -> Option<BufferChange> {
        self.held.set(self.unread);
        let needed = Bytes::new(self.needed.max(self.buffer));
        let change = self.window.judge_moving(Bytes::new(self.unread), || needed);
        self.change(change)
    }

    fn rests(&mut self) -> Option<BufferChange> {
        self.held.set(self.unread);
        let buffer = Bytes::new(self.buffer);
        let change = self.window.judge_resting(buffer, Bytes::new(self.unread));
        self.change(change)
    }

    fn change(&mut self, change: Option<BufferChange>) -> Option<BufferChange> {
        match change {
            Some(BufferChange::Bound(bytes)) => (self.buffer, self.grows) = (bytes.get(), false),
            Some(BufferChange::Release(bytes)) => (self.buffer, self.grows) = (bytes.get(), true),
            None => {}
        }
        change
    }
}

#[test]
fn a_window_is_left_alone_while_memory_is_free() {
    let budget = budget(1 << 30);
    let mut sockets: Vec<_> = (0..16).map(|_| Socket::new(&budget)).collect();
    for socket in &mut sockets {
        assert_eq!(socket.moves(), None);
        socket.grow(8 << 20);
        assert_eq!(socket.moves(), None);
    }
    // It may grow at any time while it moves, and not while it rests.
    assert_eq!(budget.promised(), 16 * (KERNEL_MAX - LEAST));
    for socket in &mut sockets {
        assert_eq!(socket.rests(), None);
    }
    assert_eq!(budget.promised(), 16 * ((8 << 20) - LEAST));
    drop(sockets);
    assert_eq!(budget.promised(), 0);
}

#[test]
fn windows_that_grow_without_end_get_equal_parts_and_leave_one() {
    let budget = budget(LIMIT);
    let mut sockets: Vec<_> = (0..7).map(|_| Socket::new(&budget)).collect();
    for _ in 0..100 {
        for socket in &mut sockets {
            socket.moves();
            socket.grow(u64::MAX);
        }
    }
    let part = LIMIT / 8;
    for socket in &sockets {
        let beyond = socket.buffer - LEAST;
        assert!(beyond.abs_diff(part) < part / 4, "{beyond} of {part}");
    }
    assert!(LIMIT - budget.promised() > part / 2);
}

#[test]
fn a_kernel_whose_most_is_more_than_there_is_sizes_nothing() {
    let budget = budget(8 << 20);
    let mut socket = Socket::new(&budget);
    assert_eq!(socket.moves(), Some(BufferChange::Bound(Bytes::new(LEAST + (4 << 20)))));
    socket.grow(u64::MAX);
    assert_eq!((socket.moves(), socket.rests()), (None, None));
    assert!(!socket.grows && socket.window.matters());
}

#[test]
fn a_bounded_window_is_as_large_as_its_flow_needs_however_much_memory_there_is() {
    let budget = budget(LIMIT);
    let mut first = Socket::new(&budget);
    assert_eq!(first.moves(), None, "half of the memory is the kernel's most");
    let mut second = Socket::new(&budget);
    second.needed = 1 << 20;
    assert_eq!(second.moves(), Some(BufferChange::Bound(Bytes::new(1 << 20))));
    assert_eq!(budget.promised(), KERNEL_MAX - LEAST + (1 << 20) - LEAST);
    second.needed = 100 << 10;
    assert_eq!(second.moves(), None, "it is not made smaller while there is memory");
    second.needed = 6 << 20;
    assert_eq!(second.moves(), Some(BufferChange::Bound(Bytes::new(6 << 20))));
    second.needed = u64::MAX;
    let Some(BufferChange::Bound(size)) = second.moves() else { panic!("it does not grow") };
    assert!(size.get() <= 2 * LEAST + LIMIT / 4, "{size}");
    assert_eq!(second.rests(), None);
}

#[test]
fn a_bounded_window_grows_again_when_others_have_gone() {
    let budget = budget(LIMIT);
    let (mut first, mut second) = (Socket::new(&budget), Socket::new(&budget));
    assert_eq!(first.moves(), None, "half of the memory is the kernel's most");
    assert!(matches!(second.moves(), Some(BufferChange::Bound(_))));
    drop(first);
    assert_eq!(second.moves(), Some(BufferChange::Bound(Bytes::new(KERNEL_MAX))));
    assert!(!second.grows, "half of the memory is hardly more than it wants");
    budget.set_limit(2 * LIMIT);
    assert_eq!(second.moves(), Some(BufferChange::Release(Bytes::new(KERNEL_MAX))));
    assert!(second.grows && second.moves().is_none());
}

#[test]
fn a_window_at_rest_makes_room_for_those_that_move() {
    let budget = budget(LIMIT);
    let mut resting = Socket::new(&budget);
    resting.moves();
    resting.grow(u64::MAX);
    assert_eq!(resting.rests(), None);
    let mut moving: Vec<_> = (0..15).map(|_| Socket::new(&budget)).collect();
    for _ in 0..20 {
        for socket in &mut moving {
            socket.moves();
        }
        resting.rests();
    }
    assert!(resting.buffer < LEAST + LIMIT / 8, "{}", resting.buffer);
}

#[test]
fn whoever_goes_on_with_a_bounded_window_releases_it() {
    let budget = budget(1 << 30);
    let mut socket = Socket::new(&budget);
    (socket.buffer, socket.grows) = (300 << 10, false);
    let [most, size] = [KERNEL_MAX, socket.buffer].map(Bytes::new);
    socket.window = ReceiveWindow::bounded(budget.clone(), most, size);
    assert_eq!(socket.rests(), Some(BufferChange::Release(Bytes::new(600 << 10))));
}

/// Something that happens to one of the sockets.
#[derive(Debug, Clone)]
enum Event {
    /// It moves, and its kernel measured that much since.
    Moved(u64),
    /// It fills by such a part of 255 of what it may, and is counted some time later.
    Filled(u8),
    Drained,
    Rested,
    Replaced,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (1u64..KERNEL_MAX).prop_map(Event::Moved),
        any::<u8>().prop_map(Event::Filled),
        Just(Event::Drained),
        Just(Event::Rested),
        Just(Event::Replaced),
    ]
}

const SOCKETS: u64 = 24;

proptest! {
    /// However they grow and fill: what all of them could hold is bounded, at any moment.
    #[test]
    fn what_is_held_and_may_arrive_stays_within_the_limit(
        limit in (2 * LEAST)..(1 << 30),
        events in prop::collection::vec((0..SOCKETS as usize, event()), 1..400),
    ) {
        let budget = budget(limit);
        let mut sockets: Vec<_> = (0..SOCKETS).map(|_| Socket::new(&budget)).collect();
        for (which, event) in events {
            let socket = &mut sockets[which];
            match event {
                Event::Moved(bytes) => {
                    socket.needed = bytes;
                    socket.moves();
                    socket.grow(bytes);
                }
                Event::Filled(part) => {
                    socket.unread = socket.unread.max(socket.buffer * u64::from(part) / 255);
                    socket.moves();
                }
                Event::Drained => socket.unread = 0,
                Event::Rested => {
                    socket.rests();
                }
                Event::Replaced => *socket = Socket::new(&budget),
            }
            let sum: u64 = sockets.iter().map(|it| it.window.promised).sum();
            prop_assert_eq!(budget.promised(), sum);
            // What a buffer may have is promised, or counted as held.
            for socket in &sockets {
                let beyond = socket.buffer.saturating_sub(LEAST.max(socket.unread));
                prop_assert!(beyond <= socket.window.promised + socket.held.held());
            }
        }
        // Each is judged in turn.
        for socket in &mut sockets {
            socket.moves();
        }
        let held = budget.held();
        prop_assert!(held + budget.promised() <= limit.max(held) + 4 * LEAST);
    }

    /// One that is left to its kernel may be less, as it began.
    #[test]
    fn no_window_is_made_less_than_its_least(held in prop_oneof![0..4 * LEAST, 0u64..(4 << 30)]) {
        let budget = budget(LIMIT);
        let mut others = BudgetPart::new(budget.clone());
        others.set(held);
        let mut socket = Socket::new(&budget);
        socket.moves();
        prop_assert!(!matches!(socket.rests(), Some(BufferChange::Release(_))));
        prop_assert_eq!(socket.grows, held <= 2 * LEAST);
        prop_assert!(socket.grows || socket.buffer >= LEAST);
    }
}
