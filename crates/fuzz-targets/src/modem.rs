//! A modem that sends anything to the daemon's end of DLEP.

use crate::script::Script;
use midhop_dlep::{Inbox, Kind, Mac, Router};
use midhop_units::{Duration, Instant};

/// The most destinations that a session may store.
const DESTINATIONS_MAX: usize = 4096;
/// The longest answer to one message, which has at least four bytes, without the text about what was wrong.
const ANSWER_BYTES_MAX: usize = 64;
const REFUSAL_BYTES_MAX: usize = 256;

/// A byte with the length of the pieces in which the rest arrives, 10 ms between them.
///
/// What the router sends is valid whatever it receives, and bounded for each message. A rate is known only while the
/// session is open, and a session that is over sends nothing more.
pub fn modem(data: &[u8]) {
    let mut script = Script(data);
    let piece = script.below(256) + 1;
    let (mut now, mut sent, mut is_over) = (Instant::START, Inbox::default(), false);
    let mut router = Router::new(now, "midhopd");
    let (mut received, mut answered) = (0, 0);
    let first = router.to_send();
    sent.put(&first);
    for bytes in script.0.chunks(piece) {
        now = now + Duration::from_ms(10);
        received += bytes.len();
        let result = if router.next_time() <= now { router.on_time(now) } else { Ok(()) };
        let result = result.and_then(|()| router.on_received(now, bytes));
        let answer = router.to_send();
        assert!(!is_over || answer.is_empty(), "it was over");
        answered += answer.len();
        sent.put(&answer);
        is_over |= result.is_err();
        assert!(!(is_over && router.is_open()));
        assert!(router.destinations() <= DESTINATIONS_MAX);
        for destination in [None, Mac::new(&[0; 6])] {
            assert!(router.is_open() || router.rate(destination).is_none());
        }
    }
    // A heartbeat every 5 s, of 10 ms for each piece.
    let heartbeats = 4 * (data.len() / piece / 500 + 1);
    assert!(answered <= received / 4 * ANSWER_BYTES_MAX + heartbeats + REFUSAL_BYTES_MAX);
    let mut kinds = Vec::new();
    while let Some(message) = sent.take().expect("a router sends what is valid") {
        kinds.push(message.kind);
    }
    assert_eq!(kinds.first(), Some(&Kind::SessionInitialization));
    if is_over {
        let last = kinds.last().expect("the first");
        assert!(
            matches!(last, Kind::SessionTermination | Kind::SessionTerminationResponse)
                || kinds.len() == 1,
            "{kinds:?}"
        );
    }
}
