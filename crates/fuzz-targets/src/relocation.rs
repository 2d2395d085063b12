//! The messages by which another machine moves flows here.

use midhop_linux::tcp_repair::TcpSnapshot;
use midhop_tunnel::relocation::copies::{Advance, put_back};
use midhop_tunnel::relocation::{
    AnnouncedFlow, Arrival, FLOW_BYTES_MAX, FLOWS_MAX, FlowOffer, MessageReader, OFFER_BYTES_MAX,
    RelocationError, encode_announced, encode_offer, encode_values,
};

/// Whatever pieces it comes in, a message is read in the same way, and written again as it came. What is held is bounded by
/// what has come, and so are states to which copies are put back.
pub fn relocation(data: &[u8]) {
    let Some((piece, data)) = data.split_first() else { return };
    let mut whole = MessageReader::default();
    whole.put(data);
    let expected = read(&mut whole, None);
    let mut reader = MessageReader::default();
    let (mut came, mut known) = (0, None);
    for piece in data.chunks(usize::from(*piece).max(1)) {
        reader.put(piece);
        came += piece.len();
        assert!(reader.held() <= came);
        known = Some(read(&mut reader, known));
        if known.as_ref().is_some_and(|known| known.error.is_some()) {
            break;
        }
    }
    let Some(known) = known else { return };
    // Behind what is malformed, nothing is read.
    assert_eq!(known, expected);
    let Some(announced) = &known.announced else { return };
    assert!((1..=FLOWS_MAX).contains(&announced.len()));
    let mut written = encode_announced(announced);
    written.extend(known.ahead.iter().flat_map(Advance::encode));
    written.extend(known.flows.iter().flat_map(|flow| encode_offer(flow.as_ref())));
    assert_eq!(written, data[..written.len()]);
    let offered = || known.flows.iter().flatten();
    assert!(offered().all(|flow| flow.is_within(FLOW_BYTES_MAX)));
    assert!(offered().map(|flow| flow.bytes()).sum::<usize>() <= OFFER_BYTES_MAX);
    let mut copies = vec![[const { Vec::new() }; 2]; announced.len()];
    for advance in &known.ahead {
        if let Advance::Copy { flow, direction, bytes } = advance {
            copies[*flow][*direction].extend(bytes);
        }
    }
    for (flow, copies) in known.flows.iter().zip(&copies) {
        flow.iter().for_each(|flow| complete(flow, copies));
    }
    if known.error.is_some() || known.flows.len() < announced.len() {
        return;
    }
    if let Ok(Some(values)) = whole.values::<Arrival>(announced.len()) {
        assert_eq!(encode_values(&values), data[written.len()..written.len() + values.len()]);
    }
}

/// What a reader has read.
#[derive(Debug, Default, PartialEq, Eq)]
struct Known {
    announced: Option<Vec<AnnouncedFlow>>,
    ahead: Vec<Advance>,
    flows: Vec<Option<FlowOffer>>,
    error: Option<RelocationError>,
}

/// Reads on as far as it goes.
fn read(reader: &mut MessageReader, before: Option<Known>) -> Known {
    let mut known = before.unwrap_or_default();
    if let Err(error) = try_read(reader, &mut known) {
        known.error = Some(error);
    }
    known
}

fn try_read(reader: &mut MessageReader, known: &mut Known) -> Result<(), RelocationError> {
    if known.announced.is_none() {
        known.announced = reader.announced()?;
    }
    let Some(count) = known.announced.as_ref().map(Vec::len) else { return Ok(()) };
    while known.ahead.last() != Some(&Advance::States) {
        let Some(next) = reader.advance(count)? else { return Ok(()) };
        known.ahead.push(next);
    }
    while known.flows.len() < count {
        let Some(flow) = reader.offer()? else { return Ok(()) };
        known.flows.push(flow);
    }
    Ok(())
}

/// Puts back what is left out of a state, as the new place does.
fn complete(flow: &FlowOffer, copies: &[Vec<u8>; 2]) {
    let states = flow.connections.each_ref().map(|it| TcpSnapshot::decode(it, FLOW_BYTES_MAX));
    let ([Ok(mut client), Ok(mut server)], Some([up, down])) = (states, &flow.left_out) else {
        return;
    };
    let before = client.queued_bytes() + server.queued_bytes();
    let put = put_back(
        [&mut server.send.sent, &mut server.send.unsent, &mut client.receive.unread],
        up,
        &copies[0],
    );
    let put = put.and_then(|()| {
        put_back(
            [&mut client.send.sent, &mut client.send.unsent, &mut server.receive.unread],
            down,
            &copies[1],
        )
    });
    let after = client.queued_bytes() + server.queued_bytes();
    assert!(after <= before + copies.iter().map(Vec::len).sum::<usize>());
    if put.is_ok() && client.check(FLOW_BYTES_MAX).is_ok() {
        let again = TcpSnapshot::decode(&client.encode(), FLOW_BYTES_MAX);
        assert_eq!(again.as_ref(), Ok(&client));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `two` has three flows, of which two move, and arrivals. `ahead` has the same with copies, and a state that lacks them.
    #[test]
    fn its_corpus_has_flows() {
        let corpus: [&[u8]; 2] = [
            include_bytes!("../../../fuzz/corpus/relocation/two"),
            include_bytes!("../../../fuzz/corpus/relocation/ahead"),
        ];
        for (with_copies, offered) in corpus.into_iter().enumerate() {
            let mut reader = MessageReader::default();
            reader.put(&offered[1..]);
            let known = read(&mut reader, None);
            assert_eq!(known.announced.map(|flows| flows.len()), Some(3));
            assert_eq!(known.ahead.len(), [1, 4][with_copies]);
            assert_eq!(known.flows.iter().flatten().count(), 2);
            let lacking = known.flows.iter().flatten().filter(|flow| flow.left_out.is_some());
            assert_eq!(lacking.count(), with_copies);
            for state in known.flows.iter().flatten().flat_map(|flow| &flow.connections) {
                TcpSnapshot::decode(state, FLOW_BYTES_MAX).expect("a connection");
            }
            let arrivals = vec![Arrival::GoesOn, Arrival::Discarded, Arrival::Lost];
            assert_eq!(reader.values(3), Ok(Some(arrivals)));
        }
    }
}
