//! The losses of its link that a tunnel repairs before they are retransmitted, and with which
//! peers.

use crate::ends::Ends;
use crate::stage::{Family, PATIENCE, Stage, noise, receive_all, send_all, until};
use midhop_status::snapshot::PeerSnapshot;
use midhopd::snapshot::Source;
use std::time::Instant;

const LOSSY: &str = "rate = \"20 Mbit/s\"\ndelay = \"50 ms\"\nloss = \"2 %\"\n";
const CLEAN: &str = "rate = \"20 Mbit/s\"\ndelay = \"50 ms\"\n";
/// The keys with which both ends describe it.
const LEG: &str = "rtt = \"100 ms\"\nrate = \"20 Mbit/s\"\n";

const AUTO: &str = "repair = \"auto\"\n";

/// What each end reports of the other, first the near end. It is returned once bytes have arrived
/// completely in both directions and the reports are `enough`. `keys` are those of each end's table
/// of its peer.
///
/// Reports arrive some time after the losses. A busy machine lets a queue grow, which counts as
/// congestion: for ten seconds after that an end does not repair automatically. So traffic is sent
/// until the reports are enough.
fn reported_after(
    link: &str,
    keys: [&str; 2],
    enough: fn(&PeerSnapshot) -> bool,
) -> Option<[PeerSnapshot; 2]> {
    let stage = Stage::set_over(link, link, "100 ms")?;
    let [near, far] = keys.map(|keys| format!("{LEG}{keys}"));
    let ends = Ends::start_with(&stage, Family::V4, "", [&near, &far]);
    let listener = stage.listen(Family::V4);
    let carry = |up_bytes: usize, down_bytes: usize| {
        let (client, server) = stage.flow(&listener);
        let (up, down) = (noise(1, up_bytes), noise(2, down_bytes));
        std::thread::scope(|scope| {
            scope.spawn(|| send_all(&client, &up));
            scope.spawn(|| send_all(&server, &down));
            let received = scope.spawn(|| receive_all(&server));
            assert!(receive_all(&client) == down, "what the server sent");
            assert!(received.join().expect("the server") == up, "what the client sent");
        });
    };
    let sources = [(Source::of(&ends.near), "far"), (Source::of(&ends.far), "near")];
    let reports = || sources.each_ref().map(|(source, peer)| source.take().peers[*peer].clone());
    carry(4_000_000, 10_000_000);
    for (source, peer) in &sources {
        until("a tunnel is reported", || source.take().peers[*peer].sent_packets_total > 1000);
    }
    let begun = Instant::now();
    while !reports().iter().all(enough) {
        assert!(begun.elapsed() < PATIENCE * 4, "not enough after all this: {:?}", reports());
        carry(200_000, 200_000);
    }
    Some(reports())
}

#[test]
fn losses_are_repaired_by_two_ends_that_agree() {
    let repaired = |peer: &PeerSnapshot| peer.repaired_total > 0 && peer.repairs_sent_total > 0;
    let keys = [AUTO, "repair = \"always\"\n"];
    let Some([near, far]) = reported_after(LOSSY, keys, repaired) else { return };
    for peer in [&near, &far] {
        assert!(peer.repairs_sent_total > 0 && peer.repaired_total > 0, "{peer:?}");
        assert!(peer.loss.is_some_and(|loss| loss > 0.0), "{peer:?}");
        let overhead = peer.repair_overhead();
        // A fixed part, apart from the ends of bursts and reports.
        assert!(overhead.is_some_and(|part| part > 0.0 && part < 0.4), "{overhead:?} of {peer:?}");
    }
}

#[test]
fn without_loss_nothing_is_repaired() {
    let Some(reported) = reported_after(CLEAN, [AUTO, AUTO], |_| true) else { return };
    for peer in reported {
        // The path's queue is long enough for the delays of a busy machine.
        assert_eq!((peer.repairs_sent_total, peer.repaired_total), (0, 0), "{peer:?}");
        assert_eq!(peer.loss.unwrap_or(0.0), 0.0, "{peer:?}");
    }
}

#[test]
fn an_end_that_is_configured_not_to_neither_repairs_nor_is_sent_repairs() {
    for keys in [["repair = \"off\"\n", AUTO], [AUTO, "repair = \"off\"\n"]] {
        let Some(reported) = reported_after(LOSSY, keys, |_| true) else { return };
        for peer in reported {
            assert_eq!((peer.repairs_sent_total, peer.repaired_total), (0, 0), "{peer:?}");
            assert_eq!((peer.protected_total.get(), peer.loss), (0, None), "{peer:?}");
        }
    }
}
