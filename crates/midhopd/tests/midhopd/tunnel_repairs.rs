//! What a tunnel repairs of its link's losses before anybody asks again, and with whom.

use crate::ends::Ends;
use crate::stage::{Family, Stage, hear, noise, say, until};
use midhopd::snapshot::{PeerSnapshot, Source};

const LOSSY: &str = "rate = \"20 Mbit/s\"\ndelay = \"50 ms\"\nloss = \"2 %\"\n";
const CLEAN: &str = "rate = \"20 Mbit/s\"\ndelay = \"50 ms\"\n";
/// What both ends know of it.
const TOLD: &str = "rtt = \"100 ms\"\nrate = \"20 Mbit/s\"\n";

const AUTO: &str = "repair = \"auto\"\n";

/// What each end tells of the other, the near end's word first, after both have said something that has come
/// whole and what they tell is `enough`: reports come some time after that. `keys` are those of each end's table of
/// its peer.
fn told_after(
    link: &str,
    keys: [&str; 2],
    enough: fn(&PeerSnapshot) -> bool,
) -> Option<[PeerSnapshot; 2]> {
    let stage = Stage::set_over(link, link, "100 ms")?;
    let [near, far] = keys.map(|keys| format!("{TOLD}{keys}"));
    let ends = Ends::start_with(&stage, Family::V4, "", [&near, &far]);
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    let (up, down) = (noise(1, 4_000_000), noise(2, 10_000_000));
    std::thread::scope(|scope| {
        scope.spawn(|| say(&client, &up));
        scope.spawn(|| say(&server, &down));
        let heard = scope.spawn(|| hear(&server));
        assert!(hear(&client) == down, "what the server said");
        assert!(heard.join().expect("the server") == up, "what the client said");
    });
    let told = [(&ends.near, "far"), (&ends.far, "near")].map(|(end, peer)| {
        let source = Source::of(end);
        let told = || source.take().peers[peer].clone();
        until("a tunnel is told of", || told().sent_packets_total > 1000);
        until("enough is told of it", || enough(&told()));
        told()
    });
    Some(told)
}

#[test]
fn losses_are_repaired_by_two_ends_that_agree() {
    let repaired = |told: &PeerSnapshot| told.repaired_total > 0;
    let keys = [AUTO, "repair = \"always\"\n"];
    let Some([near, far]) = told_after(LOSSY, keys, repaired) else { return };
    for told in [&near, &far] {
        assert!(told.repairs_sent_total > 0 && told.repaired_total > 0, "{told:?}");
        assert!(told.loss.is_some_and(|loss| loss > 0.0), "{told:?}");
        let overhead = told.repair_overhead();
        // A set part, ends of bursts and reports apart.
        assert!(overhead.is_some_and(|part| part > 0.0 && part < 0.4), "{overhead:?} of {told:?}");
    }
}

#[test]
fn without_loss_nothing_is_repaired() {
    let Some(told) = told_after(CLEAN, [AUTO, AUTO], |_| true) else { return };
    for told in told {
        // The path's queue is long enough for whatever a busy machine does.
        assert_eq!((told.repairs_sent_total, told.repaired_total), (0, 0), "{told:?}");
        assert_eq!(told.loss.unwrap_or(0.0), 0.0, "{told:?}");
    }
}

#[test]
fn an_end_that_is_told_not_to_neither_repairs_nor_is_sent_repairs() {
    for keys in [["repair = \"off\"\n", AUTO], [AUTO, "repair = \"off\"\n"]] {
        let Some(told) = told_after(LOSSY, keys, |_| true) else { return };
        for told in told {
            assert_eq!((told.repairs_sent_total, told.repaired_total), (0, 0), "{told:?}");
            assert_eq!((told.protected_total.get(), told.loss), (0, None), "{told:?}");
        }
    }
}
