//! The datagrams and the messages of a link's measurement, as a stranger may send them to either end.

use midhop_testbed::meter::link::{LinkInput, LinkOutline};

/// The beginning of a session's datagram: magic, version, and the token of the target's sessions.
const SESSION: [u8; 20] = [b'M', b'H', b'L', 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Pieces of `data`: a byte that selects the kind, two bytes with the length, and the bytes. A datagram of even kind is
/// just the bytes. One of odd kind has a session's beginning before them, so that the code behind that is reached too.
/// If the very first byte is odd, the measuring end receives the pieces.
///
/// Neither end panics, a server never responds with more bytes than it got, and a report of the measuring end can be
/// read as a link, or is refused as one.
pub fn meter_link(data: &[u8]) {
    if let Some(report) = outline(data).report {
        assert!(!report.tables().is_empty());
        if let Err(error) = report.plan() {
            assert!(!error.to_string().is_empty());
        }
    }
}

fn outline(data: &[u8]) -> LinkOutline {
    let Some((end, mut rest)) = data.split_first() else { return LinkOutline::default() };
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
    if end & 1 == 1 { LinkOutline::of_client(&inputs) } else { LinkOutline::of_server(&inputs) }
}

enum Piece<'d> {
    Datagram(Vec<u8>, u64),
    Message(&'d [u8]),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first inputs of the corpus reach what a whole session reaches.
    #[test]
    fn the_first_inputs_are_whole_sessions() {
        let kept = |name: &str| {
            let path =
                format!("{}/../../fuzz/corpus/meter_link/{name}", env!("CARGO_MANIFEST_DIR"));
            outline(&std::fs::read(path).expect("a kept input"))
        };
        let server = kept("server");
        assert_eq!((server.answers, server.messages, server.refused), (2, 6, 2));
        let client = kept("client");
        let report = client.report.expect("a report");
        assert!(client.tasks >= 8 && client.refused <= 1, "{} {}", client.tasks, client.refused);
        assert!((report.down.rate_bit_per_s / 1.1e6 - 1.0).abs() < 0.1, "{report:?}");
        assert!(report.down.loss_at_bit_per_s.is_some() && report.rtt_min_s > 0.0, "{report:?}");
        assert_eq!(kept("stranger"), LinkOutline::default());
        assert!(kept("hostile").refused > 0);
    }
}
