//! A whole session of a peer that connects over TCP, where UDP does not pass, with a real daemon: frames of
//! HTTP/2, valid or not, in any order.

use crate::script::Script;
use crate::world::{PATIENCE, World};
use rustls::{ClientConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The most acts in a session.
const ACTS: usize = 40;
/// How long to wait for something that may never come.
const GLANCE: Duration = Duration::from_millis(1);
/// RFC 9113 §3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// RFC 9113 §6.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A session: a byte that selects how it begins and ends, then acts, each a byte and what it needs.
///
/// Whatever the peer sends: it is accepted, and once it has gone nothing of it is left and the flows of others
/// continue.
pub fn peer_tcp(data: &[u8]) {
    let (world, _turn) = World::enter();
    let mut script = Script(data);
    let how = script.byte().unwrap_or(0);
    let mut stream = world.come_over_tcp();
    let mut last = 1;
    if how & 1 == 0 {
        let mut bytes = PREFACE.to_vec();
        frame(SETTINGS, 0, 0, b"", &mut bytes);
        let _ = stream.write_all(&bytes);
    }
    for _ in 0..ACTS {
        let Some(act) = script.byte() else { break };
        let mut bytes = Vec::new();
        match act % 12 {
            0..=2 => {
                ask(act, last, &mut script, world.echo, &mut bytes);
                last += 2;
            }
            3 | 4 => {
                let length = usize::from(script.short()) % 20_000;
                let piece: Vec<u8> = (0..length).map(|at| (at * 31 % 251) as u8).collect();
                let flags = u8::from(act & 128 != 0);
                frame(DATA, flags, some(&mut script, last), &piece, &mut bytes);
            }
            5 => {
                let increment = (script.number() as u32).to_be_bytes();
                frame(WINDOW_UPDATE, 0, some(&mut script, last), &increment, &mut bytes);
            }
            6 => {
                let code = (script.number() as u32).to_be_bytes();
                frame(RST_STREAM, 0, some(&mut script, last), &code, &mut bytes);
            }
            7 => {
                let (name, value) = (script.below(9) as u16, script.number() as u32);
                let pair = [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
                frame(SETTINGS, act >> 7, 0, &pair, &mut bytes);
            }
            8 | 9 => {
                let (kind, flags) = (script.byte().unwrap_or(0), script.byte().unwrap_or(0));
                frame(kind, flags, some(&mut script, last), script.text(), &mut bytes);
            }
            10 => bytes.extend(script.text()),
            _ => listen(&mut stream),
        }
        // In two parts, so that a frame ends anywhere.
        let cut = if act & 64 == 0 { bytes.len() } else { bytes.len() / 2 };
        let (first, second) = bytes.split_at(cut);
        let sent = stream.write_all(first).and_then(|()| stream.flush());
        if sent.and_then(|()| stream.write_all(second)).is_err() {
            break;
        }
    }
    listen(&mut stream);
    if how & 2 == 0 {
        stream.conn.send_close_notify();
        let _ = stream.flush();
    }
    if how & 4 == 0 {
        socket2::SockRef::from(&stream.sock).set_linger(Some(Duration::ZERO)).expect("an option");
    }
    drop(stream);
    world.settle();
}

/// A frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    out.extend(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
}

/// One of the streams so far, the connection's own, or one that was never opened.
fn some(script: &mut Script<'_>, last: u32) -> u32 {
    match script.byte().unwrap_or(0) {
        255 => script.number() as u32,
        254 => 0,
        byte => ((u32::from(byte) * 2 + 1) % last.max(2)) | 1,
    }
}

/// Requests a flow to the echo, or to a similar target, with valid fields, or with slightly invalid ones.
fn ask(act: u8, stream: u32, script: &mut Script<'_>, echo: SocketAddr, out: &mut Vec<u8>) {
    let mut target = echo;
    if act & 32 != 0 {
        target.set_port(script.short());
    }
    let authority = target.to_string();
    let mut fields = Vec::new();
    for (name, value) in [(":method", "CONNECT"), (":authority", &authority)] {
        // A literal that is not indexed (RFC 7541 §6.2.2).
        fields.push(0);
        for text in [name, value] {
            fields.push(text.len() as u8);
            fields.extend(text.as_bytes());
        }
    }
    if act & 128 != 0 {
        for _ in 0..=script.below(4) {
            let at = usize::from(script.short()) % fields.len();
            fields[at] = script.byte().unwrap_or(0);
        }
        fields.extend(script.text());
    }
    let ended = if act & 16 == 0 { 0 } else { END_STREAM };
    frame(HEADERS, END_HEADERS | ended, stream, &fields, out);
}

/// Receives what has arrived.
fn listen(stream: &mut StreamOwned<ClientConnection, TcpStream>) {
    stream.sock.set_read_timeout(Some(GLANCE)).expect("a timeout");
    let mut piece = [0; 16 << 10];
    while let Ok(1..) = stream.read(&mut piece) {}
    stream.sock.set_read_timeout(Some(PATIENCE)).expect("a timeout");
}
