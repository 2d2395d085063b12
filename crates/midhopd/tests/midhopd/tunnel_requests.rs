//! Requests of a peer that are not for a flow: each gets its response and ends. None keeps a place
//! or a byte, whatever follows it, and all are counted.

use crate::ends::{Authority, PORT, start_far};
use crate::stage::{Family, PATIENCE, ReadOnce, Stage, until};
use crate::visitor::{self, Shown};
use midhop_tunnel::connect::{Form, Request};
use midhop_tunnel::http3::{Code, Field, Frame, FrameReader, Settings, StreamKind, field, frame};
use midhop_tunnel::target::Target;
use midhop_tunnel::varint;
use midhopd::data_plane::DataPlane;
use midhopd::snapshot::Source;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// Flows that the peer may have.
const PLACES: usize = 4;
/// Unit: bytes. The body of a request that is to store something.
const BODY: usize = 20_000;

/// A peer that sends any request.
struct Client {
    runtime: Runtime,
    connection: quinn::Connection,
    _endpoint: quinn::Endpoint,
    _control: quinn::SendStream,
}

/// A request's stream, with both halves.
struct Asked {
    send: quinn::SendStream,
    receive: quinn::RecvStream,
}

impl Client {
    /// A client whose initial window for each response has this size.
    fn new(stage: &Stage, shown: &Shown, window: u32) -> Self {
        let bind = || UdpSocket::bind("0.0.0.0:0");
        let socket = stage.gateway.run(bind).expect("entering").expect("a socket");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("an event loop");
        let (mut config, _) = visitor::config(Some(shown));
        let mut transport = quinn::TransportConfig::default();
        transport.stream_receive_window(window.into());
        config.transport_config(Arc::new(transport));
        let (endpoint, connection, control) = runtime.block_on(async {
            let own = quinn::EndpointConfig::default();
            let endpoint = quinn::Endpoint::new(own, None, socket, Arc::new(quinn::TokioRuntime));
            let endpoint = endpoint.expect("an endpoint");
            let address = SocketAddr::new(Family::V4.server(), PORT);
            let connecting = endpoint.connect_with(config, address, "far").expect("a handshake");
            let connection = connecting.await.expect("a peer gets in");
            let mut control = connection.open_uni().await.expect("a stream");
            let mut bytes = Vec::new();
            varint::write(StreamKind::CONTROL, &mut bytes);
            bytes.extend(Settings::own().encode());
            control.write_all(&bytes).await.expect("settings");
            (endpoint, connection, control)
        });
        Self { runtime, connection, _endpoint: endpoint, _control: control }
    }

    /// Sends a request, and as much of a body as is taken. The request does not end.
    fn ask(&self, fields: &[Field], body: usize) -> Asked {
        let mut bytes = Vec::new();
        frame::write(frame::HEADERS, &field::encode(fields), &mut bytes);
        if body > 0 {
            frame::write(frame::DATA, &vec![7; body], &mut bytes);
        }
        self.runtime.block_on(async {
            let opened = timeout(PATIENCE, self.connection.open_bi()).await;
            let (mut send, receive) = opened.expect("a stream in time").expect("a stream");
            // The stream may be stopped before all of it is sent.
            let _ = send.write_all(&bytes).await;
            Asked { send, receive }
        })
    }

    /// The status of the response, after which the stream has to end in order, and the code with
    /// which the rest of the request is stopped.
    fn outcome(&self, asked: &mut Asked) -> (String, u64) {
        let (mut reader, mut status) = (FrameReader::default(), None);
        self.runtime.block_on(async {
            loop {
                let read = asked.receive.read_chunk(4096, true);
                let chunk = timeout(PATIENCE, read).await.expect("in time").expect("no reset");
                let Some(mut chunk) = chunk else { break };
                while let Some(frame) = reader.read(&mut chunk.bytes).expect("a frame") {
                    let Frame::Headers(section) = frame else { panic!("{frame:?}") };
                    let fields = field::decode(&section).expect("fields");
                    let found = fields.iter().find(|it| it.name == ":status").expect("a status");
                    assert_eq!(status.replace(found.value.clone().into_owned()), None);
                }
            }
            let stopped = timeout(PATIENCE, asked.send.stopped()).await.expect("in time");
            let code = stopped.expect("no loss").expect("it is not read to its end");
            (status.expect("a response"), code.into_inner())
        })
    }

    /// Opens a flow, and takes it to its end in order.
    fn flow(&self, listener: &TcpListener) {
        let mut asked = self.ask(&connect(listener), 0);
        let (mut server, _) = listener.accept().expect("the far side");
        server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        asked.send.finish().expect("an end");
        assert_eq!(server.read_once(&mut [0]).expect("an end"), 0);
        drop(server);
        let end = self
            .runtime
            .block_on(async { timeout(PATIENCE, asked.receive.read_to_end(4096)).await });
        assert!(!end.expect("in time").expect("an end in order").is_empty());
    }
}

fn connect(listener: &TcpListener) -> Vec<Field> {
    let target = Target::Address(listener.local_addr().expect("an address"));
    Request { target, client: None, class: None, hops: 0 }.fields(Form::Classic)
}

fn fields(pairs: &[(&'static str, &'static str)]) -> Vec<Field> {
    pairs.iter().map(|(name, value)| Field::new(*name, *value)).collect()
}

fn ordinary(method: &'static str, path: &'static str) -> Vec<Field> {
    fields(&[
        (":method", method),
        (":scheme", "https"),
        (":authority", "far:4433"),
        (":path", path),
    ])
}

/// Requests that are not for a flow, and the status of their responses.
fn requests() -> Vec<(Vec<Field>, &'static str)> {
    let mut extended = ordinary("CONNECT", "/chat");
    extended.insert(1, Field::new(":protocol", "websocket"));
    vec![
        (ordinary("GET", "/"), "405"),
        (ordinary("HEAD", "/"), "405"),
        (ordinary("POST", "/form"), "405"),
        (ordinary("PUT", "/file"), "405"),
        (ordinary("OPTIONS", "*"), "405"),
        (fields(&[(":method", "GET")]), "405"),
        (extended, "501"),
        (ordinary("CONNECT", "/"), "400"),
        (fields(&[(":method", "CONNECT"), (":authority", "10.0.2.2")]), "400"),
        (fields(&[(":method", "CONNECT"), (":authority", "10.0.2.2:0")]), "400"),
        (fields(&[(":authority", "10.0.2.2:80")]), "400"),
    ]
}

fn unserved(far: &DataPlane) -> u64 {
    Source::of(far).take().peers_denied_total["request"]
}

struct Scene {
    stage: Stage,
    far: DataPlane,
    shown: Shown,
}

impl Scene {
    fn set() -> Option<Self> {
        let stage = Stage::set()?;
        let authority = Authority::new(&["near", "far"]);
        let far = start_far(&stage, Family::V4, &authority, &format!("flows = {PLACES}\n"));
        let shown = Shown::of(&authority, "near");
        Some(Self { stage, far, shown })
    }

    fn is_empty(&self) -> bool {
        self.far.admission().flows() == 0 && self.far.budget().held() == 0
    }
}

#[test]
fn what_asks_for_no_flow_is_answered_and_over() {
    let Some(scene) = Scene::set() else { return };
    let client = Client::new(&scene.stage, &scene.shown, 1 << 20);
    let listener = scene.stage.listen(Family::V4);
    let mut count = 0;
    // Many more than there are places, one after the other, each with a body that does not end.
    for body in [0, BODY] {
        for (fields, status) in requests() {
            let mut asked = client.ask(&fields, body);
            let outcome = client.outcome(&mut asked);
            assert_eq!(outcome, (status.to_owned(), Code::NO_ERROR.0), "{fields:?}");
            count += 1;
        }
        until("all are counted", || unserved(&scene.far) == count);
        client.flow(&listener);
    }
    // As many at a time as there are places, while the responses are not read.
    for _ in 0..3 {
        let get = ordinary("POST", "/");
        let mut asked: Vec<_> = (0..PLACES).map(|_| client.ask(&get, BODY)).collect();
        for asked in &mut asked {
            assert_eq!(client.outcome(asked), ("405".to_owned(), Code::NO_ERROR.0));
        }
    }
    client.flow(&listener);
    until("nothing is kept", || scene.is_empty());
    assert_eq!(client.connection.close_reason(), None);
}

/// A peer that takes no response gets its places back all the same.
#[test]
fn who_takes_no_response_keeps_no_place() {
    let Some(scene) = Scene::set() else { return };
    let deaf = Client::new(&scene.stage, &scene.shown, 0);
    let get = ordinary("GET", "/");
    let mut asked: Vec<_> = (0..PLACES).map(|_| deaf.ask(&get, 0)).collect();
    until("all are counted", || unserved(&scene.far) == PLACES as u64);
    // Another connection of the same peer, whose flows are counted together with these.
    let other = Client::new(&scene.stage, &scene.shown, 1 << 20);
    let listener = scene.stage.listen(Family::V4);
    let mut refused = other.ask(&connect(&listener), 0);
    assert_eq!(other.outcome(&mut refused), ("503".to_owned(), Code::NO_ERROR.0));
    for asked in &mut asked {
        let read = async { timeout(PATIENCE, asked.receive.read_chunk(1, true)).await };
        let read = deaf.runtime.block_on(read);
        match read.expect("in time") {
            Err(quinn::ReadError::Reset(code)) => {
                assert_eq!(code.into_inner(), Code::REQUEST_CANCELLED.0);
            }
            other => panic!("{other:?}"),
        }
    }
    other.flow(&listener);
    assert_eq!(deaf.connection.close_reason(), None);
    until("nothing is kept", || scene.is_empty());
}
