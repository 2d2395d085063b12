//! The messages by which another machine moves flows here.

use midhop_linux::tcp_repair::TcpSnapshot;
use midhop_tunnel::relocation::{
    Arrival, FLOW_BYTES_MAX, FLOWS_MAX, MessageReader, OFFER_BYTES_MAX, encode_offers,
    encode_values,
};

/// Whatever pieces it comes in, a message is read in the same way, and written again as it came. What is held is bounded by
/// what has come.
pub fn relocation(data: &[u8]) {
    let Some((piece, data)) = data.split_first() else { return };
    let mut reader = MessageReader::default();
    let mut whole = MessageReader::default();
    whole.put(data);
    let expected = whole.offers();
    let mut came = 0;
    for piece in data.chunks(usize::from(*piece).max(1)) {
        reader.put(piece);
        came += piece.len();
        assert!(reader.held() <= came);
        match reader.offers() {
            Ok(None) => {}
            read => {
                assert_eq!(read, expected);
                break;
            }
        }
    }
    let Ok(Some(flows)) = expected else { return };
    assert!(flows.len() <= FLOWS_MAX);
    assert!(flows.iter().all(|flow| flow.bytes() <= FLOW_BYTES_MAX));
    assert!(flows.iter().map(|flow| flow.bytes()).sum::<usize>() <= OFFER_BYTES_MAX);
    let written = encode_offers(&flows);
    assert_eq!(written, data[..written.len()]);
    for state in flows.iter().flat_map(|flow| &flow.connections) {
        let _ = TcpSnapshot::decode(state, FLOW_BYTES_MAX);
    }
    if let Ok(Some(values)) = whole.values::<Arrival>(flows.len()) {
        assert_eq!(encode_values(&values), data[written.len()..written.len() + values.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_corpus_has_flows() {
        let offered = &include_bytes!("../../../fuzz/corpus/relocation/two")[1..];
        let mut reader = MessageReader::default();
        reader.put(offered);
        let flows = reader.offers().expect("sound").expect("whole");
        assert_eq!(flows.len(), 2);
        for state in flows.iter().flat_map(|flow| &flow.connections) {
            TcpSnapshot::decode(state, FLOW_BYTES_MAX).expect("a connection");
        }
        assert_eq!(reader.values(2), Ok(Some(vec![Arrival::GoesOn, Arrival::Discarded])));
    }
}
