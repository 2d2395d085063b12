//! The messages by which another machine moves flows here.

use midhop_linux::tcp_repair::TcpSnapshot;
use midhop_tunnel::relocation::{
    Arrival, FLOW_BYTES_MAX, FLOWS_MAX, MessageReader, OFFER_BYTES_MAX, encode_announced,
    encode_offer, encode_values,
};

/// Whatever pieces it comes in, a message is read in the same way, and written again as it came. What is held is bounded by
/// what has come.
pub fn relocation(data: &[u8]) {
    let Some((piece, data)) = data.split_first() else { return };
    let mut reader = MessageReader::default();
    let mut whole = MessageReader::default();
    whole.put(data);
    let announced = whole.announced();
    let count = announced.as_ref().map_or(0, |flows| flows.as_ref().map_or(0, Vec::len));
    let expected: Vec<_> = (0..count).map_while(|_| whole.offer().transpose()).collect();
    let mut read = Vec::new();
    let (mut came, mut is_announced) = (0, false);
    for piece in data.chunks(usize::from(*piece).max(1)) {
        reader.put(piece);
        came += piece.len();
        assert!(reader.held() <= came);
        if !is_announced {
            match reader.announced() {
                Ok(None) => continue,
                read => assert_eq!(read, announced),
            }
            is_announced = true;
        }
        while read.len() < count
            && read.last().is_none_or(Result::is_ok)
            && let Some(flow) = reader.offer().transpose()
        {
            read.push(flow);
        }
    }
    let Ok(Some(announced)) = announced else { return };
    assert!((1..=FLOWS_MAX).contains(&announced.len()));
    let mut written = encode_announced(&announced);
    assert_eq!(written, data[..written.len()]);
    // Behind what is malformed, nothing is read.
    assert_eq!(read[..], expected[..read.len()]);
    assert!(read.len() == expected.len() || read.last().is_some_and(Result::is_err));
    let Ok(flows) = read.into_iter().collect::<Result<Vec<_>, _>>() else { return };
    let offered = || flows.iter().flatten();
    assert!(offered().all(|flow| flow.bytes() <= FLOW_BYTES_MAX));
    assert!(offered().map(|flow| flow.bytes()).sum::<usize>() <= OFFER_BYTES_MAX);
    written.extend(flows.iter().flat_map(|flow| encode_offer(flow.as_ref())));
    assert_eq!(written, data[..written.len()]);
    for state in offered().flat_map(|flow| &flow.connections) {
        let _ = TcpSnapshot::decode(state, FLOW_BYTES_MAX);
    }
    if flows.len() < count {
        return;
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
        assert_eq!(reader.announced().expect("sound").expect("whole").len(), 3);
        let flows = [(); 3].map(|()| reader.offer().expect("sound").expect("whole"));
        assert_eq!(flows.iter().flatten().count(), 2);
        for state in flows.iter().flatten().flat_map(|flow| &flow.connections) {
            TcpSnapshot::decode(state, FLOW_BYTES_MAX).expect("a connection");
        }
        let arrivals = vec![Arrival::GoesOn, Arrival::Discarded, Arrival::Lost];
        assert_eq!(reader.values(3), Ok(Some(arrivals)));
    }
}
