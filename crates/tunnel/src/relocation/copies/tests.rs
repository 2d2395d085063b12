//! Copies and what they leave out, held to what they promise.

use super::*;
use proptest::prelude::*;

/// Bytes of a stream: those at one position differ from their neighbours, and from those 256 further.
fn stream(positions: Range<i64>) -> Vec<u8> {
    positions.map(|position| (position ^ (position >> 7)) as u8).collect()
}

fn split(begins: i64, lengths: [usize; QUEUES]) -> ([Vec<u8>; QUEUES], i64) {
    let mut from = begins;
    let queues = lengths.map(|length| {
        let queue = stream(from..from + length as i64);
        from += length as i64;
        queue
    });
    (queues, from - lengths[QUEUES - 1] as i64)
}

#[test]
fn what_was_unread_is_left_out_of_the_queue_that_has_it() {
    // 20 unread bytes were copied; meanwhile 5 were acknowledged, 5 sent, 4 written, and 6 more have come.
    let (mut queues, read) = split(5, [5, 4, 12]);
    let [sent, unsent, unread] = &mut queues;
    let left_out = leave_out([sent, unsent, unread], read, &(0..20));
    let expected =
        [(0, 5, 5), (0, 10, 4), (0, 14, 6)].map(|(at, from, length)| LeftOut { at, from, length });
    assert_eq!(left_out, expected);
    assert_eq!(queues.map(|queue| queue.len()), [0, 0, 6]);
}

#[test]
fn what_was_not_copied_stays() {
    let (mut queues, read) = split(-7, [4, 3, 9]);
    let whole = queues.clone();
    for copied in [0..0, -20..-7, 9..12] {
        let [sent, unsent, unread] = &mut queues;
        let left_out = leave_out([sent, unsent, unread], read, &copied);
        assert_eq!(left_out, AllLeftOut::default());
        assert_eq!(queues, whole);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let copy = [7; 10];
    let none = LeftOut::default();
    let one = |at, from, length| LeftOut { at, from, length };
    for (left_out, fits) in [
        ([one(3, 0, 10), none, none], true),
        ([one(4, 0, 10), none, none], false),
        ([one(0, 1, 10), none, none], false),
        ([one(0, u32::MAX, 1), none, none], false),
        ([one(0, 1, u32::MAX), none, none], false),
        ([one(0, 0, 5), one(0, 5, 5), none], true),
        // Twice the same bytes: what is held would not be bounded by what has come.
        ([one(0, 0, 5), one(0, 4, 5), none], false),
        ([one(0, 5, 5), none, one(0, 0, 5)], false),
    ] {
        let [mut sent, mut unsent, mut unread] = [vec![1; 3], vec![2; 3], vec![3; 3]];
        let put = put_back([&mut sent, &mut unsent, &mut unread], &left_out, &copy);
        assert_eq!(put.is_ok(), fits, "{left_out:?}");
    }
}

#[test]
fn a_copy_is_bounded_before_its_bytes_have_arrived() {
    let head = |flow: u8, direction: u8, length: u32| {
        [&[1, flow, direction][..], &length.to_be_bytes()].concat()
    };
    for (bytes, too_long) in [
        (head(0, 0, COPY_BYTES_MAX as u32 + 1), true),
        (head(0, 0, u32::MAX), true),
        (head(2, 0, 1), false),
        (head(255, 0, 1), false),
        (head(0, 2, 1), false),
        (head(0, 0, 0), false),
        (vec![3], false),
    ] {
        let mut reader = MessageReader::default();
        reader.put(&bytes);
        let read = reader.advance(2);
        assert_eq!(matches!(read, Err(RelocationError::TooLong(_))), too_long, "{bytes:?}");
        assert!(read.is_err(), "{bytes:?}");
    }
    // Each is within its limit, and all are not.
    let mut reader = MessageReader::default();
    let copy = Advance::Copy { flow: 1, direction: 1, bytes: vec![5; COPY_BYTES_MAX] };
    let most = OFFER_BYTES_MAX / COPY_BYTES_MAX;
    for number in 0..=most {
        reader.put(&copy.encode());
        assert_eq!(reader.advance(2).is_err(), number == most);
    }
}

#[test]
fn copies_and_states_share_a_limit() {
    let mut reader = MessageReader::default();
    let copy = Advance::Copy { flow: 0, direction: 0, bytes: vec![5; COPY_BYTES_MAX] };
    for _ in 0..8 {
        reader.put(&copy.encode());
        assert!(matches!(reader.advance(1), Ok(Some(Advance::Copy { .. }))));
    }
    assert_eq!(reader.held(), 8 * COPY_BYTES_MAX);
    reader.put(&Advance::States.encode());
    assert_eq!(reader.advance(1), Ok(Some(Advance::States)));
    reader.put(&(super::super::FLOW_BYTES_MAX as u32).to_be_bytes());
    assert!(matches!(reader.offer(), Err(RelocationError::TooLong(_))));
}

proptest! {
    /// Whatever has become of bytes between the copy and the state, both together are what the queues have.
    #[test]
    fn a_copy_and_what_is_left_are_the_whole(
        begins in -300_i64..300,
        lengths in [0..300_usize, 0..300, 0..300],
        (first, length) in (-400_i64..900, 0..900_i64),
    ) {
        let (mut queues, read) = split(begins, lengths);
        let whole = queues.clone();
        let copied = first..first + length;
        let [sent, unsent, unread] = &mut queues;
        let left_out = leave_out([sent, unsent, unread], read, &copied);
        let bytes: usize = left_out.iter().map(|it| it.length as usize).sum();
        let left: usize = queues.iter().map(Vec::len).sum();
        prop_assert_eq!(bytes + left, whole.iter().map(Vec::len).sum::<usize>());
        let ends = begins + lengths.iter().sum::<usize>() as i64;
        prop_assert_eq!(bytes as i64, (ends.min(copied.end) - begins.max(copied.start)).max(0));
        let left_out = decode_left_out(&encode_left_out(&[left_out; 2]).collect::<Vec<_>>());
        let [left_out, again] = left_out.expect("sound").expect("all");
        prop_assert_eq!(left_out, again);
        let [sent, unsent, unread] = &mut queues;
        put_back([sent, unsent, unread], &left_out, &stream(copied)).expect("it fits");
        prop_assert_eq!(queues, whole);
    }

    #[test]
    fn copies_survive_in_any_pieces(
        copies in proptest::collection::vec((0..5_usize, 0..2_usize, 1..400_usize), 0..6),
        piece in 1..200_usize,
    ) {
        let mut sent: Vec<_> = copies.into_iter().flat_map(|(flow, direction, length)| {
            let bytes = stream(0..length as i64);
            [Advance::Copy { flow, direction, bytes }, Advance::Confirm]
        }).collect();
        sent.push(Advance::States);
        let stream = sent.iter().flat_map(Advance::encode).collect::<Vec<_>>();
        let (mut reader, mut received) = (MessageReader::default(), Vec::new());
        for piece in stream.chunks(piece) {
            reader.put(piece);
            while let Some(one) = reader.advance(5).expect("sound") {
                received.push(one);
            }
        }
        prop_assert_eq!(received, sent);
    }

    #[test]
    fn nothing_can_hurt(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        words in proptest::collection::vec(any::<u32>(), 9),
        copy in proptest::collection::vec(any::<u8>(), 0..50),
    ) {
        let mut reader = MessageReader::default();
        reader.put(&bytes);
        while let Ok(Some(_)) = reader.advance(3) {}
        let left_out = [0, 3, 6].map(|at| LeftOut {
            at: words[at] % 8, from: words[at + 1] % 60, length: words[at + 2] % 60,
        });
        let [mut sent, mut unsent, mut unread] = [vec![1; 3], vec![2; 5], vec![3; 7]];
        let _ = put_back([&mut sent, &mut unsent, &mut unread], &left_out, &copy);
        prop_assert!(sent.len() + unsent.len() + unread.len() <= 15 + copy.len());
    }
}
