//! The iteration over live flows: in slices, with each byte counted once.

use super::*;
use crate::ends::Ends;
use std::thread;

fn opened(number: u16) -> FlowBook {
    let ends = Ends { client: ([10, 0, 0, 1], number).into(), server: ([10, 0, 0, 2], 80).into() };
    let leg = |name: &str| Party { is_tunnel: false, ..Party::tunnel(name) };
    FlowBook::new(ends, leg("lan0"), leg("wan0"))
}

fn ended() -> RelayOutcome {
    RelayOutcome { outcome: Ok(Side::Client) }
}

#[test]
fn flows_are_looked_at_a_few_at_a_time() {
    let ledger = Ledger::default();
    let books: Vec<_> = (0..1000).map(|number| ledger.open(opened(number))).collect();
    let slices: Vec<_> = ledger.slices().map(|slice| slice.len()).collect();
    assert_eq!(slices, [SLICE, SLICE, SLICE, 1000 - 3 * SLICE]);
    let seen: std::collections::BTreeSet<_> =
        ledger.live().iter().map(|book| book.ends.client.port()).collect();
    assert_eq!(seen.len(), books.len());
}

/// While flows move, end and begin, a reader sees no byte twice, misses none, and sees no count
/// fall.
#[test]
fn each_byte_is_booked_once_while_flows_come_and_go() {
    const ROUNDS: u16 = 200;
    const FLOWS: u16 = 600;
    let ledger = Ledger::default();
    thread::scope(|scope| {
        let moving = scope.spawn(|| {
            let mut books: Vec<_> = (0..FLOWS).map(|number| ledger.open(opened(number))).collect();
            for round in 0..ROUNDS {
                for book in &books {
                    book.up.add(1);
                    book.down.add(2);
                }
                let at = usize::from(round % FLOWS);
                ledger.close(&books[at], &ended());
                books[at] = ledger.open(opened(FLOWS + round));
            }
            for book in books {
                ledger.close(&book, &ended());
            }
        });
        let mut last = 0;
        while !moving.is_finished() {
            let sent = ledger.legs().get("wan0").map_or(0, |leg| leg.sent);
            assert!(sent >= last, "{sent} after {last}");
            last = sent;
        }
    });
    let moved = u64::from(ROUNDS) * u64::from(FLOWS);
    let legs = ledger.legs();
    assert_eq!((legs["wan0"].sent, legs["wan0"].received), (moved, 2 * moved));
    assert_eq!((legs["lan0"].sent, legs["lan0"].received), (2 * moved, moved));
    assert_eq!(legs["wan0"].connections, 0);
    assert_eq!(ledger.live().len(), 0);
}
