//! The datagrams and the messages of a link's measurement, as a stranger may send them to either end.

use midhop_testbed::meter::link::{LinkInput, LinkOutline};

/// What a datagram of a session begins with: magic, version, and the token that the target's sessions have.
const SESSION: [u8; 20] = [b'M', b'H', b'L', 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Pieces of `data`: a byte that tells what comes, two bytes with its length, and its bytes. A datagram of even
/// kind is as the bytes are; one of odd kind has a session's beginning before them, so that the rest of it is met too.
/// The first byte of all is odd where the measuring end receives it.
///
/// Neither end panics, a server answers nothing with more than it got, and what the measuring end reports can be read
/// as a link, or is refused as one.
pub fn meter_link(data: &[u8]) {
    let Some((end, mut rest)) = data.split_first() else { return };
    let mut pieces = Vec::new();
    let mut at_ns = 0u64;
    while let [kind, high, low, more @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let (bytes, left) = more.split_at(length.min(more.len()));
        rest = left;
        at_ns += u64::from(kind >> 2) * 1_000_000;
        pieces.push(match kind & 3 {
            0 => Piece::Datagram(bytes.to_vec(), at_ns),
            1 => Piece::Datagram([&SESSION, bytes].concat(), at_ns),
            _ => Piece::Message(bytes),
        });
    }
    let inputs: Vec<LinkInput<'_>> = pieces
        .iter()
        .map(|piece| match piece {
            Piece::Datagram(bytes, at_ns) => LinkInput::Datagram(bytes, *at_ns),
            Piece::Message(json) => LinkInput::Message(json),
        })
        .collect();
    let outline = if end & 1 == 1 {
        LinkOutline::of_client(&inputs)
    } else {
        LinkOutline::of_server(&inputs)
    };
    if let Some(report) = outline.report {
        assert!(!report.tables().is_empty());
        if let Err(error) = report.plan() {
            assert!(!error.to_string().is_empty());
        }
    }
}

enum Piece<'d> {
    Datagram(Vec<u8>, u64),
    Message(&'d [u8]),
}
