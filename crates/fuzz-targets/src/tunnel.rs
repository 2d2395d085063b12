//! What a peer, or a stranger before it is refused, can send on the streams of a tunnel.

use midhop_tunnel::connect::{Form, Request, Response};
use midhop_tunnel::credit;
use midhop_tunnel::http3::{Code, Field, Frame, FrameReader, Settings, StreamKind, field};
use midhop_tunnel::payload::{Payload, PayloadError, PayloadReader};
use midhop_tunnel::varint;

/// A stream of HTTP/3: its kind, its frames, and their contents. However the bytes are cut, they mean the same,
/// nothing exceeds its limits, and what was understood can be sent on unchanged.
pub fn stream(data: &[u8]) {
    let (whole, fault) = frames(data, data.len().max(1));
    // By pieces of one byte and of some.
    for size in [1, 2, 5] {
        assert_eq!(frames(data, size), (whole.clone(), fault));
    }
    for frame in whole {
        match frame {
            Frame::Headers(section) => headers(&section),
            Frame::Settings(payload) => {
                if let Ok(settings) = Settings::decode(&payload) {
                    let mut sent = settings.encode().into();
                    let read = FrameReader::default().read(&mut sent);
                    let Ok(Some(Frame::Settings(payload))) = read else { panic!("{read:?}") };
                    assert_eq!(Settings::decode(&payload), Ok(settings));
                }
            }
            Frame::Data(bytes) => assert!(!bytes.is_empty()),
            Frame::GoAway(_) | Frame::Backlog(_) | Frame::Push => {}
        }
    }
    if let Some((number, length)) = varint::read(data) {
        let _ = StreamKind::of(number);
        assert!(length <= varint::BYTES_MAX);
    }
    headers(data);
    let _ = Settings::decode(data);
    // The content of other streams: however it is cut it means the same, and sent again it is the same.
    let limits = limits(data, data.len().max(1));
    assert!([1, 2, 5].into_iter().all(|size| self::limits(data, size) == limits));
    let mut sent = Vec::new();
    limits.iter().for_each(|(stream, limit)| credit::write(*stream, *limit, &mut sent));
    assert_eq!(self::limits(&sent, 7), limits);
}

/// The streams and their limits in bytes that arrive in pieces of `size`.
fn limits(data: &[u8], size: usize) -> Vec<(u64, u64)> {
    let mut reader = credit::CreditReader::default();
    let pieces = data.chunks(size).map(bytes::Bytes::copy_from_slice);
    pieces
        .flat_map(|mut piece| std::iter::from_fn(|| reader.read(&mut piece)).collect::<Vec<_>>())
        .collect()
}

/// The frames of a stream that arrives in pieces of `size`, with adjoining data joined, and what is wrong
/// with it.
fn frames(data: &[u8], size: usize) -> (Vec<Frame>, Option<Code>) {
    let (mut reader, mut frames) = (FrameReader::default(), Vec::new());
    for piece in data.chunks(size) {
        let mut piece = bytes::Bytes::copy_from_slice(piece);
        loop {
            match reader.read(&mut piece) {
                Ok(Some(Frame::Data(more))) => match frames.last_mut() {
                    Some(Frame::Data(known)) => *known = [&known[..], &more[..]].concat().into(),
                    _ => frames.push(Frame::Data(more)),
                },
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(code) => return (frames, Some(code)),
            }
        }
        assert!(piece.is_empty(), "something was left that nobody asked for");
    }
    (frames, None)
}

/// What a stream carries once a flow was granted by a template: capsules. However they are cut they mean the
/// same, no more of the flow is found than arrived, and its end is only where it was sent.
pub fn capsules(data: &[u8]) {
    let (flow, end) = flow(data, data.len().max(1));
    assert!(flow.len() <= data.len());
    for size in [1, 2, 5] {
        assert_eq!(self::flow(data, size), (flow.clone(), end));
    }
    if end == Ok(true) {
        // A flow that has ended contains its end, and is sent on as one capsule and the end.
        let mut sent = Payload::Capsules.head(flow.len());
        sent.extend_from_slice(&flow);
        assert_eq!(self::flow(&sent, sent.len()), (flow.clone(), Ok(false)));
        sent.extend(Payload::Capsules.end());
        assert_eq!(self::flow(&sent, sent.len()), (flow, Ok(true)));
    }
}

/// The flow in capsules that arrive in pieces of `size`, and how it ends.
fn flow(data: &[u8], size: usize) -> (Vec<u8>, Result<bool, PayloadError>) {
    let (mut reader, mut flow) = (PayloadReader::new(Payload::Capsules), Vec::new());
    for piece in data.chunks(size) {
        let mut piece = bytes::Bytes::copy_from_slice(piece);
        loop {
            match reader.read(&mut piece) {
                Ok(Some(more)) => {
                    assert!(!more.is_empty());
                    flow.extend_from_slice(&more);
                }
                Ok(None) => break,
                Err(wrong) => return (flow, Err(wrong)),
            }
        }
        assert!(piece.is_empty(), "something was left that nobody asked for");
    }
    (flow, reader.close())
}

/// A section of header fields: a request, a response, or neither.
fn headers(section: &[u8]) {
    let Ok(fields) = field::decode(section) else { return };
    let bytes: usize = fields.iter().map(|it| it.name.len() + it.value.len() + 32).sum();
    assert!(bytes <= field::SECTION_BYTES_MAX);
    assert_eq!(field::decode(&field::encode(&fields)).as_ref(), Ok(&fields));
    if let Ok((request, payload)) = Request::decode(&fields) {
        let forms = [Form::Classic, Form::Template { authority: "proxy.example:443" }];
        assert!(forms.iter().any(|form| form.payload() == payload));
        // However it was requested, it can be requested in both forms.
        for form in forms {
            let sent = fields_of(request.encode(form));
            assert_eq!(Request::decode(&sent), Ok((request.clone(), form.payload())));
        }
    }
    for payload in [Payload::Raw, Payload::Capsules] {
        if let Ok(Some(response)) = Response::decode(&fields, payload) {
            let understood = Response::decode(&fields_of(response.encode(payload)), payload);
            assert!(matches!(understood, Ok(Some(_))), "{response:?}");
        }
    }
}

/// The fields of a frame of ours.
fn fields_of(sent: Vec<u8>) -> Vec<Field> {
    match FrameReader::default().read(&mut sent.into()) {
        Ok(Some(Frame::Headers(section))) => field::decode(&section).expect("fields of ours"),
        other => panic!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_tunnel::cause::Cause;
    use midhop_tunnel::http3::frame;
    use midhop_tunnel::target::Target;

    #[test]
    fn what_ends_send_each_other_holds() {
        let target = Target::parse("server.example:443").expect("a target");
        let client = Some(([192, 0, 2, 7], 50_000).into());
        let request = Request { target, client, class: Some("interactive".to_owned()), hops: 1 };
        let templated = request.encode(Form::Template { authority: "proxy.example:443" });
        let mut request = request.encode(Form::Classic);
        frame::write(frame::DATA, b"hello", &mut request);
        let mut granted = Response::Granted.encode(Payload::Capsules);
        frame::write(0x21, b"grease", &mut granted);
        let mut control = Settings::own().encode();
        frame::write(frame::GOAWAY, &[4], &mut control);
        let denied = Response::from(Cause::Refused).encode(Payload::Raw);
        for seed in [request, templated, granted, control, denied] {
            stream(&seed);
        }
    }
}
