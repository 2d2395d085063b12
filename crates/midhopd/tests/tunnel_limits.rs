//! What flows of a tunnel hold is counted and bounded, and nobody is reset for it.

mod ends;
mod stage;

use ends::{Authority, near_config, start_far};
use midhopd::daemon::DataPlane;
use stage::{Family, Stage, hear, noise, say, until};
use std::thread::scope;

const FLOWS: u64 = 12;

/// A pair whose near end may hold so much.
fn pair(stage: &Stage, limit: u64) -> (DataPlane, DataPlane, Authority) {
    let authority = Authority::new(&["near", "far"]);
    let far = start_far(stage, Family::V4, &authority, "");
    let near = near_config(Family::V4, &authority, "", "", "");
    let limits = format!("[limits]\nmemory = \"{limit} B\"\nflow_buffer = \"64 KiB\"\n");
    let near = stage.try_proxy(&format!("{limits}{near}")).expect("a proxy");
    (near, far, authority)
}

fn waits(proxy: &DataPlane) -> u64 {
    proxy.ledgers().iter().map(|ledger| ledger.memory_waits.value()).sum()
}

#[test]
fn clients_that_do_not_read_fill_the_memory_and_no_more() {
    const LIMIT: u64 = 512 << 10;
    let Some(stage) = Stage::set() else { return };
    let (near, _far, _authority) = pair(&stage, LIMIT);
    let listener = stage.listen(Family::V4);
    let flows: Vec<_> = (0..FLOWS).map(|_| stage.flow(&listener)).collect();
    let noises: Vec<_> = (0..FLOWS).map(|seed| noise(seed, 8 << 20)).collect();
    scope(|scope| {
        for ((_, server), bytes) in flows.iter().zip(&noises) {
            scope.spawn(|| say(server, bytes));
        }
        until("the limit on memory is met", || waits(&near) > 0);
        // Each flow may have taken what its client's kernel holds before it was counted.
        let held = near.budget().held();
        assert!(held <= LIMIT + FLOWS * (128 << 10), "{held} bytes are held");
        for ((client, _), bytes) in flows.iter().zip(&noises) {
            scope.spawn(move || assert!(hear(client) == *bytes, "every byte arrives"));
        }
    });
    for (client, server) in &flows {
        say(client, b"");
        assert_eq!(hear(server), b"");
    }
    until("everything is given back", || near.budget().held() == 0);
}

#[test]
fn what_nobody_acknowledges_is_counted() {
    let Some(stage) = Stage::set() else { return };
    let (near, far, _authority) = pair(&stage, 1 << 30);
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    let bytes = noise(1, 2_000_000);
    scope(|scope| {
        scope.spawn(|| say(&client, &bytes));
        assert!(hear(&server) == bytes, "every byte arrives");
    });
    drop((client, server));
    until("everything is given back", || near.budget().held() + far.budget().held() == 0);
}
