//! A whole session of a QUIC peer that the daemon knows, with a real daemon: what it does on each stream, in
//! which order, and how it leaves.

use crate::script::Script;
use crate::world::World;
use bytes::Bytes;
use midhop_tunnel::connect::{Form, Request};
use midhop_tunnel::http3::{Frame, FrameReader, Settings, StreamKind, field, frame};
use midhop_tunnel::payload::Payload;
use midhop_tunnel::resumption::{FlowId, Resumption};
use midhop_tunnel::target::Target;
use midhop_tunnel::{credit, varint};
use quinn::{Connection, RecvStream, SendStream, VarInt};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::timeout;

/// The most acts in a session.
const ACTS: usize = 40;
/// The most flows and streams of one session.
const STREAMS: usize = 12;
/// How long to wait for something that may never come.
const GLANCE: Duration = Duration::from_millis(2);

/// A session: a byte that selects how it begins, then acts, each a byte and what it needs.
///
/// Whatever the peer does: it is accepted, what a flow of it receives is what was sent on that flow, and once it has
/// gone nothing of it is left and the flows of others continue.
pub fn peer(data: &[u8]) {
    let (world, _turn) = World::enter();
    world.runtime.block_on(session(world, Script(data)));
    world.settle();
}

/// A flow, or a stream that looks like one.
struct Stream {
    send: SendStream,
    receive: RecvStream,
    /// How much was sent of the flow; none: what the far end makes of it is not known any more.
    sent: Option<u64>,
    /// How much of it came back.
    received: u64,
    reader: FrameReader,
}

async fn session(world: &World, mut script: Script<'_>) {
    let connection = world.come().await;
    let (mut control, mut streams) = (Vec::new(), Vec::new());
    if script.byte().unwrap_or(0) & 1 == 0 {
        let mut bytes = Vec::new();
        varint::write(StreamKind::CONTROL, &mut bytes);
        bytes.extend(Settings::own().encode());
        announce(&connection, &bytes, &mut control).await;
    }
    for _ in 0..ACTS {
        let Some(act) = script.byte() else { break };
        match act % 16 {
            0 => {
                let mut bytes = Vec::new();
                let kinds = [StreamKind::CONTROL, 1, 2, 3, credit::STREAM, 0x21, script.number()];
                varint::write(kinds[script.below(kinds.len())] & varint::MAX, &mut bytes);
                bytes.extend(script.text());
                announce(&connection, &bytes, &mut control).await;
            }
            1 => {
                let bytes = announcement(&mut script);
                let count = control.len();
                if let Some(stream) = control.get_mut(script.below(count.max(1))) {
                    let _ = send_all(stream, &bytes).await;
                }
            }
            2..=4 if streams.len() < STREAMS => {
                let Some(mut stream) = open(&connection).await else { continue };
                ask(&mut stream, &mut script, world.echo).await;
                streams.push(stream);
            }
            5 if streams.len() < STREAMS => {
                let Some(mut stream) = open(&connection).await else { continue };
                stream.sent = None;
                let _ = send_all(&mut stream.send, script.text()).await;
                streams.push(stream);
            }
            _ if act % 16 < 14 => {
                let count = streams.len();
                let Some(stream) = streams.get_mut(script.below(count.max(1))) else { continue };
                go_on(stream, act % 16, &mut script).await;
            }
            14 => drop(connection.send_datagram(Bytes::copy_from_slice(script.text()))),
            _ => tokio::time::sleep(GLANCE).await,
        }
        if connection.close_reason().is_some() {
            return;
        }
    }
    for stream in &mut streams {
        stream.check_received().await;
    }
    connection.close(code(&mut script), script.text());
}

/// Opens a stream of one direction and sends something on it.
async fn announce(connection: &Connection, bytes: &[u8], control: &mut Vec<SendStream>) {
    if control.len() < STREAMS
        && let Ok(Ok(mut stream)) = timeout(GLANCE, connection.open_uni()).await
    {
        let _ = send_all(&mut stream, bytes).await;
        control.push(stream);
    }
}

/// The content of a unidirectional stream: settings, GOAWAY, backlogs, credit, or anything.
fn announcement(script: &mut Script<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    match script.below(5) {
        0 => frame::write(frame::SETTINGS, script.text(), &mut bytes),
        1 => frame::write(frame::GOAWAY, script.text(), &mut bytes),
        2 => frame::write(frame::BACKLOG, script.text(), &mut bytes),
        3 => {
            let (stream, limit) = (script.number(), script.number());
            credit::write(stream & varint::MAX, limit & varint::MAX, &mut bytes);
        }
        _ => bytes.extend(script.text()),
    }
    bytes
}

async fn open(connection: &Connection) -> Option<Stream> {
    let (send, receive) = timeout(GLANCE, connection.open_bi()).await.ok()?.ok()?;
    let reader = FrameReader::default();
    Some(Stream { send, receive, sent: Some(0), received: 0, reader })
}

/// Requests a flow to the echo, or to a similar target, with valid fields, or with slightly invalid ones.
async fn ask(stream: &mut Stream, script: &mut Script<'_>, echo: SocketAddr) {
    let how = script.byte().unwrap_or(0);
    let target = match how & 7 {
        6 => Target::Address(SocketAddr::new(echo.ip(), script.short().max(1))),
        7 => Target::Name("nowhere.invalid".to_owned(), 80),
        _ => Target::Address(echo),
    };
    let client = (how & 8 != 0).then(|| SocketAddr::from(([10, 9, 0, 1], 50_000)));
    let class = (how & 16 != 0).then(|| "bulk".to_owned());
    let request = Request { target, client, class, hops: how >> 5 & 1 };
    let is_classic = how & 64 == 0;
    let form = if is_classic { Form::Classic } else { Form::Template { authority: "far:1" } };
    let mut fields = request.fields(form);
    let resumption = script.below(8);
    match resumption {
        // A few identities, so that some are known when they are resumed.
        0 => fields.extend(Resumption::Offered(identity(script)).fields()),
        1 => {
            let received = u64::from(script.short());
            fields.extend(Resumption::Requested { id: identity(script), received }.fields());
        }
        _ => {}
    }
    let mut fields = field::encode(&fields);
    if how & 128 != 0 {
        stream.sent = None;
        for _ in 0..=script.below(4) {
            let at = usize::from(script.short()) % fields.len();
            fields[at] = script.byte().unwrap_or(0);
        }
    }
    // A flow that is resumed is not a flow to the echo.
    if !is_classic || resumption == 1 {
        stream.sent = None;
    }
    let mut bytes = Vec::new();
    frame::write(frame::HEADERS, &fields, &mut bytes);
    if !send_all(&mut stream.send, &bytes).await {
        stream.sent = None;
    }
}

fn identity(script: &mut Script<'_>) -> FlowId {
    FlowId::new([script.below(4) as u8; 16])
}

/// Sends on a stream, ends it, or receives.
async fn go_on(stream: &mut Stream, act: u8, script: &mut Script<'_>) {
    match act {
        6 | 7 => {
            let length = usize::from(script.short()) % 20_000 + 1;
            let begin = stream.sent.unwrap_or(0);
            let piece: Vec<u8> = (begin..begin + length as u64).map(byte_at).collect();
            let mut bytes = Vec::new();
            frame::write(frame::DATA, &piece, &mut bytes);
            // In two parts, so that a frame ends anywhere in a packet.
            let (first, second) = bytes.split_at(usize::from(script.short()) % bytes.len());
            let whole =
                send_all(&mut stream.send, first).await && send_all(&mut stream.send, second).await;
            stream.sent = stream.sent.filter(|_| whole).map(|sent| sent + length as u64);
        }
        8 => {
            stream.sent = None;
            let mut bytes = Vec::new();
            let (kind, length) = (script.number() & varint::MAX, script.number() >> 24);
            frame::write_head(kind, length as usize, &mut bytes);
            bytes.extend(script.text());
            let _ = send_all(&mut stream.send, &bytes).await;
        }
        9 => {
            stream.sent = None;
            let mut bytes = Payload::Capsules.head(usize::from(script.short()));
            bytes.extend(script.text());
            let mut framed = Vec::new();
            frame::write(frame::DATA, &bytes, &mut framed);
            let _ = send_all(&mut stream.send, &framed).await;
        }
        10 => drop(stream.send.finish()),
        11 => drop(stream.send.reset(code(script))),
        12 => drop(stream.receive.stop(code(script))),
        _ => stream.check_received().await,
    }
}

impl Stream {
    /// Reads what has arrived. A valid flow to the echo must return only what was sent.
    async fn check_received(&mut self) {
        while let Ok(Ok(Some(chunk))) =
            timeout(GLANCE, self.receive.read_chunk(16 << 10, true)).await
        {
            let mut bytes = chunk.bytes;
            let Some(sent) = self.sent else { continue };
            while let Some(frame) = self.reader.read(&mut bytes).expect("sound frames") {
                let Frame::Data(bytes) = frame else { continue };
                for byte in bytes {
                    assert!(
                        self.received < sent && byte == byte_at(self.received),
                        "a byte was invented"
                    );
                    self.received += 1;
                }
            }
        }
    }
}

/// The byte of a flow at an offset.
fn byte_at(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

/// Sends all of it; false: there was no room, or the peer stopped reading.
async fn send_all(stream: &mut SendStream, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        match timeout(GLANCE, stream.write(bytes)).await {
            Ok(Ok(count)) => bytes = &bytes[count..],
            _ => return false,
        }
    }
    true
}

fn code(script: &mut Script<'_>) -> VarInt {
    let codes = [0x100, 0x101, 0x102, 0x10b, 0x10c, 0x10f, 0, 0x33, u32::MAX];
    VarInt::from_u32(codes[script.below(codes.len())])
}
