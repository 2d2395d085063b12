//! Flows that are requested by a template, whose bytes and end are in capsules. The tests check how
//! a far end handles everything that a peer may send there.

use crate::ends::{Authority, Ends, far_config, near_config};
use crate::program::{Running, Setup, wording_of};
use crate::stage::{self, Family, PATIENCE, Stage, noise, receive_all, send_all, until};
use crate::visitor::{Flow, Shown, Visitor};
use midhop_tunnel::cause::Cause;
use midhop_tunnel::connect::{Form, Request, Response};
use midhop_tunnel::http3::{Code, Field, Frame, frame};
use midhop_tunnel::payload::{DATA, FINAL_DATA, Payload, PayloadReader};
use midhop_tunnel::target::Target;
use midhop_tunnel::varint;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

const EARLY: &str = "accept = \"early\"\n";
pub(crate) const TEMPLATE: Form<'_> = Form::Template { authority: "far:4433" };

pub(crate) fn capsule(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint::write(kind, &mut out);
    varint::write(payload.len() as u64, &mut out);
    out.extend_from_slice(payload);
    out
}

/// A hostile peer's view of a far end.
pub(crate) struct Place {
    pub(crate) visitor: Visitor,
    pub(crate) shown: Shown,
    pub(crate) listener: TcpListener,
    pub(crate) ends: Ends,
    pub(crate) stage: Stage,
}

impl Place {
    pub(crate) fn set() -> Option<Self> {
        let stage = Stage::set()?;
        let ends = Ends::start(&stage, Family::V4, EARLY);
        let visitor = Visitor::new(&stage.gateway);
        let shown = Shown::of(&ends.authority, "near");
        let listener = stage.listen(Family::V4);
        Some(Self { visitor, shown, listener, ends, stage })
    }

    pub(crate) fn target(&self) -> Target {
        Target::Address(self.listener.local_addr().expect("an address"))
    }

    /// A flow that was granted, and its server's connection.
    fn flow(&self) -> (Flow, TcpStream) {
        let request = Request { target: self.target(), client: None, class: None, hops: 0 };
        let (answer, flow) = self.visitor.ask_with("far", &self.shown, &request.fields(TEMPLATE));
        let granted = Response::decode(&answer, Payload::Capsules);
        assert_eq!(granted, Ok(Some(Response::Granted)));
        assert!(answer.contains(&Field::new("capsule-protocol", "?1")), "{answer:?}");
        let (server, _) = self.listener.accept().expect("the far side");
        server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        (flow, server)
    }

    /// Sends capsules; if they are few, each byte is in a frame of its own. Ends the stream if
    /// `ends`.
    pub(crate) fn send_all(&self, flow: &mut Flow, capsules: &[u8], ends: bool) {
        let size = if capsules.len() < 100 { 1 } else { 16_000 };
        let mut stream = Vec::new();
        capsules.chunks(size).for_each(|piece| frame::write(frame::DATA, piece, &mut stream));
        self.visitor.runtime.block_on(async {
            flow.send.write_all(&stream).await.expect("writing");
            if ends {
                flow.send.finish().expect("the stream's end");
            }
        });
    }

    /// Everything that the far end sends, up to the end of its stream.
    pub(crate) fn receive_all(&self, flow: &mut Flow) -> (Vec<u8>, bool) {
        let (mut reader, mut bytes) = (PayloadReader::new(Payload::Capsules), Vec::new());
        while let Some(frame) = self.visitor.runtime.block_on(flow.frame()).expect("no reset") {
            let Frame::Data(mut data) = frame else { panic!("{frame:?}") };
            while let Some(more) = reader.read(&mut data).expect("capsules") {
                bytes.extend_from_slice(&more);
            }
        }
        (bytes, reader.close().expect("between two capsules"))
    }

    /// The code of the far end's reset, whatever precedes it.
    pub(crate) fn receive_reset(&self, flow: &mut Flow) -> Code {
        loop {
            match self.visitor.runtime.block_on(flow.frame()) {
                Ok(Some(_)) => {}
                Err(quinn::ReadError::Reset(code)) => return Code(code.into_inner()),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// What a server receives: everything, or a part and an error.
fn outcome(mut server: &TcpStream) -> (Vec<u8>, Result<(), ErrorKind>) {
    let mut received = Vec::new();
    let end = server.read_to_end(&mut received).map(drop).map_err(|error| error.kind());
    (received, end)
}

/// A peer's stream may be cut anywhere, and still end in order for its carrier: only a complete
/// flow ends in order.
#[test]
fn a_stream_that_ends_anywhere_but_after_its_last_capsule_is_a_reset() {
    let Some(place) = Place::set() else { return };
    let stream = [
        capsule(DATA, b"so far"),
        capsule(0x21, b"odd"),
        capsule(FINAL_DATA, b"!"),
        capsule(0x21, b"more"),
    ];
    let whole: usize = stream[..3].iter().map(Vec::len).sum();
    let stream = stream.concat();
    for cut in 0..=stream.len() {
        let (mut flow, server) = place.flow();
        place.send_all(&mut flow, &stream[..cut], true);
        if cut == whole || cut == stream.len() {
            assert_eq!(outcome(&server), (b"so far!".to_vec(), Ok(())), "cut at {cut}");
            send_all(&server, b"an answer");
            assert_eq!(place.receive_all(&mut flow), (b"an answer".to_vec(), true));
            continue;
        }
        // If the stream is cut within the capsule after the last one, the server may have received
        // the flow's end already.
        let (received, end) = outcome(&server);
        let ended = cut > whole && end == Ok(());
        assert!(b"so far!".starts_with(&received[..]), "cut at {cut}: {received:?}");
        assert!(ended || end == Err(ErrorKind::ConnectionReset), "cut at {cut}: {end:?}");
        // A stream that is cut between two capsules is valid: only the flow's end is missing.
        let between = [0, capsule(DATA, b"so far").len(), whole - capsule(FINAL_DATA, b"!").len()];
        let code = if between.contains(&cut) { Code::CONNECT_ERROR } else { Code::MESSAGE_ERROR };
        assert_eq!(place.receive_reset(&mut flow), code, "cut at {cut}");
    }
}

#[test]
fn more_of_a_flow_after_its_end_is_refused() {
    let Some(place) = Place::set() else { return };
    for kind in [DATA, FINAL_DATA] {
        let (mut flow, _server) = place.flow();
        let stream = [capsule(FINAL_DATA, b"the end"), capsule(kind, b"")].concat();
        place.send_all(&mut flow, &stream, false);
        assert_eq!(place.receive_reset(&mut flow), Code::MESSAGE_ERROR);
        // The fault concerns that flow alone.
        assert!(flow.connection.close_reason().is_none());
    }
}

/// In the draft the stream ends only once the TCP connection is closed; the flow ends before.
#[test]
fn a_flow_ends_with_its_last_capsule_though_its_stream_goes_on() {
    let Some(place) = Place::set() else { return };
    let (mut flow, server) = place.flow();
    place.send_all(&mut flow, &capsule(FINAL_DATA, b"a question"), false);
    assert_eq!(receive_all(&server), b"a question");
    place.send_all(&mut flow, &capsule(0x21, b"something else"), false);
    send_all(&server, b"an answer");
    assert_eq!(place.receive_all(&mut flow), (b"an answer".to_vec(), true));
    place.send_all(&mut flow, b"", true);
    until("it is booked as ended in order", || place.ends.sums(|it| &it.ended)[1] == 1);
    // Until the stream has ended, a break is reported.
    let (mut flow, server) = place.flow();
    place.send_all(&mut flow, &capsule(FINAL_DATA, b"a question"), false);
    assert_eq!(receive_all(&server), b"a question");
    flow.send.reset(quinn::VarInt::from_u32(0x10f)).expect("a reset");
    until("the server learns of it", || {
        socket2::SockRef::from(&server).take_error().expect("a state").is_some()
    });
}

/// A reset is sent in the order of the flow: the stream ends before the flow has.
#[test]
fn a_reset_of_the_server_is_a_stream_that_ends_before_its_flow() {
    let Some(place) = Place::set() else { return };
    let (mut flow, mut server) = place.flow();
    server.write_all(b"so far").expect("writing");
    until("it is acknowledged", || stage::queued::unacknowledged(&server) == 0);
    socket2::SockRef::from(&server).set_linger(Some(std::time::Duration::ZERO)).expect("a linger");
    drop(server);
    assert_eq!(place.receive_all(&mut flow), (b"so far".to_vec(), false));
    let stopped = place.visitor.runtime.block_on(flow.send.stopped()).expect("a connection");
    let code = quinn::VarInt::from_u64(Code::CONNECT_ERROR.0).expect("a code");
    assert_eq!(stopped, Some(code), "and it takes no more");
}

/// A capsule of any size is passed on as it arrives. Its size is no reason to keep it, or to refuse
/// it.
#[test]
fn a_capsule_larger_than_anything_is_passed_on_as_it_comes() {
    let Some(place) = Place::set() else { return };
    let (mut flow, mut server) = place.flow();
    let mut head = capsule(0x21, &noise(1, 300_000));
    varint::write(DATA, &mut head);
    varint::write(varint::MAX, &mut head);
    place.send_all(&mut flow, &head, false);
    for seed in 0..8 {
        let bytes = noise(seed, 200_000);
        place.send_all(&mut flow, &bytes, false);
        let mut received = vec![0; bytes.len()];
        server.read_exact(&mut received).expect("reading");
        assert!(received == bytes, "what was sent is received");
    }
    place.send_all(&mut flow, b"", true);
    assert_eq!(outcome(&server), (Vec::new(), Err(ErrorKind::ConnectionReset)));
}

/// Random bytes: the flow may break, but nothing else does, and no bytes are received that were not
/// sent.
#[test]
fn garbage_in_capsules_harms_nobody() {
    let Some(place) = Place::set() else { return };
    for seed in 1..60_u64 {
        let (mut flow, server) = place.flow();
        let mut bytes = noise(seed, (seed * 53 % 700) as usize);
        if seed % 3 == 0 {
            let head = [capsule(DATA, b"well"), capsule(FINAL_DATA, b"")];
            bytes.splice(0..0, head[..(seed % 2) as usize + 1].concat());
        }
        place.send_all(&mut flow, &bytes, true);
        let (received, _) = outcome(&server);
        assert!(received.len() <= bytes.len());
        assert!(flow.connection.close_reason().is_none(), "{seed}");
    }
    let (mut flow, server) = place.flow();
    place.send_all(&mut flow, &capsule(FINAL_DATA, b"fine"), true);
    assert_eq!(outcome(&server), (b"fine".to_vec(), Ok(())));
}

#[test]
fn requests_by_templates_are_answered_as_the_standard_wants() {
    let Some(place) = Place::set() else { return };
    let port = place.listener.local_addr().expect("an address").port();
    let protocol = protocol();
    let status = |path: &str, change: Option<(&'static str, &'static str)>| {
        let mut fields = vec![
            Field::new(":method", "CONNECT"),
            Field::new(":protocol", protocol.clone()),
            Field::new(":scheme", "https"),
            Field::new(":authority", "far:4433"),
            Field::new(":path", path.to_owned()),
        ];
        if let Some((name, value)) = change {
            fields.iter_mut().filter(|it| it.name == name).for_each(|it| it.value = value.into());
        }
        let (answer, mut flow) = place.visitor.ask_with("far", &place.shown, &fields);
        let status = answer.iter().find(|it| it.name == ":status").expect("a status");
        if status.value == "200" {
            drop(place.listener.accept().expect("the far side"));
        } else {
            let after = place.visitor.runtime.block_on(flow.frame()).expect("an end in order");
            assert_eq!(after, None);
        }
        assert!(answer.iter().any(|it| it.name == "proxy-status"), "{path}: {answer:?}");
        status.value.clone().into_owned()
    };
    let tcp = |rest: &str| format!("/.well-known/masque/tcp/{rest}");
    assert_eq!(status(&tcp(&format!("10.0.2.2/{port}/")), None), "200");
    assert_eq!(status(&tcp(&format!("%31%30.0.2.2/{port}/")), None), "200");
    assert_eq!(status(&tcp(&format!("::ffff:10.0.2.2/{port}/")), None), "200");
    for (path, expected) in [
        (tcp("10.0.2.2/9/"), Cause::Refused.status()),
        (tcp("nowhere.invalid/80/"), Cause::NameUnknown.status()),
        (tcp("127.0.0.1/80/"), Cause::NotAllowed.status()),
        (tcp("%3A%3A1/80/"), Cause::NotAllowed.status()),
        (tcp("10.0.2.2/0/"), 400),
        (tcp("10.0.2.2/80"), 404),
        (tcp("10.0.2.2/80/more/"), 404),
        (tcp("10.0.2.%2/80/"), 400),
        ("/.well-known/masque/udp/10.0.2.2/80/".to_owned(), 404),
        ("/".to_owned(), 404),
    ] {
        assert_eq!(status(&path, None), expected.to_string(), "{path}");
    }
    let path = tcp(&format!("10.0.2.2/{port}/"));
    for (name, value, expected) in [
        (":protocol", "connect-udp", "501"),
        (":protocol", "connect-tcp", "501"),
        (":scheme", "http", "400"),
        (":method", "GET", "405"),
    ] {
        assert_eq!(status(&path, Some((name, value))), expected, "{name} {value}");
    }
}

/// The protocol in the daemon's own requests.
fn protocol() -> String {
    let target = Target::parse("10.0.2.2:80").expect("a target");
    let fields = Request { target, client: None, class: None, hops: 0 }.fields(TEMPLATE);
    let field = fields.iter().find(|it| it.name == ":protocol");
    field.expect("a template has one").value.clone().into_owned()
}

#[test]
fn a_target_of_ipv6_is_reached_by_its_template() {
    let Some(place) = Place::set() else { return };
    let listener = place.stage.listen(Family::V6);
    let target = Target::Address(listener.local_addr().expect("an address"));
    let fields = Request { target, client: None, class: None, hops: 0 }.fields(TEMPLATE);
    assert!(fields.iter().any(|it| it.value.contains("%3A")), "{fields:?}");
    let (_, mut flow) = place.visitor.ask_with("far", &place.shown, &fields);
    let (server, _) = listener.accept().expect("the far side");
    place.send_all(&mut flow, &capsule(FINAL_DATA, b"hello"), true);
    assert_eq!(receive_all(&server), b"hello");
}

/// No configuration is needed: once the far end has announced what it serves, flows are requested
/// by templates.
#[test]
fn two_of_ours_find_it_by_themselves() {
    let Some(stage) = Stage::set() else { return };
    let authority = Authority::new(&["near", "far"]);
    let debug = "[log]\nlevel = \"debug\"\n";
    let far = Setup::new(&format!("{}{debug}", far_config(Family::V4, &authority, "")));
    let _far = Running::start_in(&stage.server, &far);
    let config = near_config(Family::V4, &authority, EARLY, "", "otherwise = \"reject\"\n");
    let _near = stage.start(&config);
    let listener = stage.listen(Family::V4);
    let exchange = || {
        let (client, server) = stage.flow(&listener);
        send_all(&client, b"a question");
        assert_eq!(receive_all(&server), b"a question");
        send_all(&server, b"an answer");
        assert_eq!(receive_all(&client), b"an answer");
    };
    until("a flow is asked for by a template", || {
        exchange();
        wording_of(&far).contains("payload=Capsules")
    });
}
