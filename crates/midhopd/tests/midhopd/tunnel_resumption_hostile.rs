//! Peers that resume flows of others, or from a wrong offset: only the flow that they name breaks.

use crate::flows::read_until_error;
use crate::stage::{PATIENCE, noise, receive_all, send_all, until};
use crate::tunnel_capsules::{Place, TEMPLATE, capsule};
use crate::visitor::Flow;
use midhop_tunnel::connect::{Request, Response};
use midhop_tunnel::http3::{Code, Field, Frame};
use midhop_tunnel::payload::{CONFIRMED, DATA, Payload, PayloadReader};
use midhop_tunnel::resumption::{self, FlowId, Resumption};
use midhop_tunnel::varint;
use midhopd::snapshot::Source;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

const ID: FlowId = FlowId::new(*b"a flow of a peer");

impl Place {
    /// Sends a request. Returns the fields of the response.
    fn request(&self, asked: Resumption) -> (Vec<Field>, Flow) {
        let request = Request { target: self.target(), client: None, class: None, hops: 0 };
        let mut fields = request.fields(TEMPLATE);
        fields.extend(asked.fields());
        self.visitor.ask_with("far", &self.shown, &fields)
    }

    /// A flow that can be resumed, and its server.
    fn lasting(&self, id: FlowId) -> (Flow, TcpStream) {
        let (answer, flow) = self.request(Resumption::Offered(id));
        assert!(resumption::grants(&answer, id), "{answer:?}");
        let (server, _) = self.listener.accept().expect("the far side");
        server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        (flow, server)
    }

    /// Continues a flow of which this many bytes were received. Returns the new stream, and how
    /// much the far end has received.
    fn go_on(&self, id: FlowId, received: u64) -> (Flow, u64) {
        let (answer, flow) = self.request(Resumption::Requested { id, received });
        let granted = Response::decode(&answer, Payload::Capsules);
        assert_eq!(granted, Ok(Some(Response::Granted)), "{answer:?}");
        (flow, resumption::resumed_at(&answer).expect("an offset"))
    }

    /// The status of the response to that.
    fn refused(&self, id: FlowId, received: u64) -> String {
        let (answer, _flow) = self.request(Resumption::Requested { id, received });
        answer[0].value.to_string()
    }

    /// Reads this many bytes of a flow.
    fn read(&self, flow: &mut Flow, bytes: usize) -> Vec<u8> {
        let (mut reader, mut received) = (PayloadReader::new(Payload::Capsules), Vec::new());
        while received.len() < bytes {
            let frame = self.visitor.runtime.block_on(flow.frame()).expect("no reset");
            let Some(Frame::Data(mut data)) = frame else { panic!("{frame:?}") };
            while let Some(more) = reader.read(&mut data).expect("capsules") {
                received.extend_from_slice(&more);
            }
        }
        received
    }
}

fn confirmation(offset: u64) -> Vec<u8> {
    let mut number = Vec::new();
    varint::write(offset, &mut number);
    capsule(CONFIRMED, &number)
}

#[test]
fn what_nobody_knows_is_not_resumed_and_opens_nothing() {
    let Some(place) = Place::set() else { return };
    let (mut flow, mut server) = place.lasting(ID);
    for guess in [[0; 16], *b"a flow of a pees", [0xff; 16]] {
        assert_eq!(place.refused(FlowId::new(guess), 0), "410");
    }
    let refused = Source::of(&place.ends.far).take().resumptions_total["refused"];
    assert_eq!(refused, 3);
    place.listener.set_nonblocking(true).expect("a mode");
    let opened = place.listener.accept().map(drop).map_err(|error| error.kind());
    assert_eq!(opened, Err(ErrorKind::WouldBlock), "a server was connected");
    // Another flow is not affected.
    place.send_all(&mut flow, &capsule(DATA, b"ping"), false);
    let mut received = [0; 4];
    server.read_exact(&mut received).expect("reading");
    server.write_all(b"pong").expect("writing");
    assert_eq!(place.read(&mut flow, 4), b"pong");
}

/// An offset beyond what was sent, or below what was confirmed.
#[test]
fn a_false_offset_breaks_the_flow_and_no_other() {
    let Some(place) = Place::set() else { return };
    let (_other, other_server) = place.lasting(FlowId::new([9; 16]));
    for (sent, offset) in [("", 4), ("word", 5), ("word", u64::MAX), ("word", 2)] {
        let (mut flow, mut server) = place.lasting(ID);
        server.write_all(sent.as_bytes()).expect("writing");
        assert_eq!(place.read(&mut flow, sent.len()), sent.as_bytes());
        if offset < sent.len() as u64 {
            place.send_all(&mut flow, &confirmation(sent.len() as u64), false);
            // What was sent after it arrives: it has been read.
            place.send_all(&mut flow, &capsule(DATA, b"ping"), false);
            server.read_exact(&mut [0; 4]).expect("reading");
        }
        assert_eq!(place.refused(ID, offset), "410", "{sent} {offset}");
        assert_eq!(read_until_error(&server), ErrorKind::ConnectionReset, "{sent} {offset}");
    }
    (&other_server).write_all(b"still there").expect("writing");
    until("the flows are counted", || {
        Source::of(&place.ends.far).take().resumptions_total["lost"] == 4
    });
}

#[test]
fn who_confirms_what_was_never_sent_breaks_a_rule() {
    let Some(place) = Place::set() else { return };
    for offset in [1, varint::MAX] {
        let (mut flow, server) = place.lasting(ID);
        place.send_all(&mut flow, &confirmation(offset), false);
        assert_eq!(place.receive_reset(&mut flow), Code::MESSAGE_ERROR);
        assert_eq!(read_until_error(&server), ErrorKind::ConnectionReset);
    }
}

/// A peer continues a flow again and again, from any permitted offset. Each byte arrives once,
/// whatever the peer sends on streams that were replaced, and the daemon holds nothing for these
/// streams.
#[test]
fn the_last_one_to_go_on_counts() {
    let Some(place) = Place::set() else { return };
    let (mut flow, server) = place.lasting(ID);
    let down = noise(4, 200_000);
    let mut read = Vec::new();
    send_all(&server, &down);
    for turn in 0..30_usize {
        read.extend(place.read(&mut flow, 1));
        // It names what it has received: everything, or any part that was not confirmed.
        read.truncate(read.len() - read.len().min(turn * 7));
        let (next, received) = place.go_on(ID, read.len() as u64);
        assert_eq!(received, turn as u64);
        flow = next;
        place.send_all(&mut flow, &capsule(DATA, &[turn as u8]), false);
        let mut byte = [0];
        (&server).read_exact(&mut byte).expect("the byte of this turn");
        assert_eq!(byte, [turn as u8]);
    }
    let rest = place.read(&mut flow, down.len() - read.len());
    read.extend(rest);
    assert!(read == down, "what the server sent");
    place.send_all(&mut flow, &Payload::Capsules.end(), true);
    assert_eq!(receive_all(&server), b"");
}

#[test]
fn a_request_that_resumes_nothing_that_it_names_is_malformed() {
    let Some(place) = Place::set() else { return };
    let request = Request { target: place.target(), client: None, class: None, hops: 0 };
    for more in [
        vec![resumption::resumed(5)],
        vec![Field::new("midhop-flow", "x"), resumption::resumed(5)],
        vec![resumption::granted(ID), Field::new("midhop-received", "-1")],
    ] {
        let mut fields = request.fields(TEMPLATE);
        fields.extend(more);
        let (answer, _flow) = place.visitor.ask_with("far", &place.shown, &fields);
        assert_eq!(answer[0].value, "400", "{fields:?}");
    }
}
