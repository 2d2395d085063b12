//! A whole conversation with a real daemon's explicit listeners: handshake, flow and end, cut anywhere.

use crate::script::Script;
use crate::world::{PATIENCE, World};
use midhop_tunnel::cause::Cause;
use midhop_tunnel::target::Target;
use midhopd::explicit::handshake::{Handshake, Protocol, State};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// The most pieces that a client sends in a conversation.
const PIECES: usize = 24;

/// A conversation: a byte that selects protocol and end, then pieces of what the client sends, each with a byte
/// that selects its kind.
///
/// The client gets the same answers as from a handshake without a socket for the same bytes, however they were cut. The
/// flow has each byte behind the request once and in order. Once the client has gone nothing is left.
pub fn conversation(data: &[u8]) {
    let (world, _turn) = World::enter();
    let mut script = Script(data);
    let how = script.byte().unwrap_or(0);
    let protocol = if how & 1 == 1 { Protocol::HttpConnect } else { Protocol::Socks5 };
    let door = if how & 1 == 1 { world.http } else { world.socks };
    let mut stream = TcpStream::connect(door).expect("a listener");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_nodelay(true).expect("an option");
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    for _ in 0..PIECES {
        let Some(kind) = script.byte() else { break };
        let piece = piece(kind, &mut script, world.echo);
        if kind >= 128 {
            listen(&mut stream, &mut received);
        }
        // A client that was refused may be reset while it continues.
        if stream.write_all(&piece).is_err() {
            break;
        }
        sent.extend(piece);
    }
    if how & 2 == 2 {
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("an option");
    } else {
        let _ = stream.shutdown(Shutdown::Write);
        let ended = stream.read_to_end(&mut received).map_err(|error| error.kind());
        judge(protocol, &sent, &received, ended.err(), world.echo);
    }
    drop(stream);
    world.settle();
}

/// What a client sends: a part of a valid request, or anything.
fn piece(kind: u8, script: &mut Script<'_>, echo: SocketAddr) -> Vec<u8> {
    let [high, low] = echo.port().to_be_bytes();
    match kind % 8 {
        0 => vec![5, 1, 0],
        1 => vec![5, 1, 0, 1, 127, 0, 0, 1, high, low],
        2 => format!("CONNECT {echo} HTTP/1.1\r\nHost: {echo}\r\n").into_bytes(),
        3 => b"\r\n".to_vec(),
        4 => [b"X-Padding: ", script.text(), b"\r\n"].concat(),
        5 => {
            let length = usize::from(script.short());
            (0..length).map(|at| (at * 31 % 251) as u8).collect()
        }
        // A request for a target that no rule allows.
        6 => vec![5, 1, 0, 1, 127, 0, 0, script.byte().unwrap_or(0), 0, script.byte().unwrap_or(1)],
        _ => script.text().to_vec(),
    }
}

/// Receives some of what has arrived, so that the daemon's answers and the client's bytes may cross.
fn listen(stream: &mut TcpStream, received: &mut Vec<u8>) {
    stream.set_nonblocking(true).expect("a mode");
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut piece) {
        received.extend_from_slice(&piece[..count]);
    }
    stream.set_nonblocking(false).expect("a mode");
}

/// Whether a client that sent all of this may have received that.
fn judge(
    protocol: Protocol,
    sent: &[u8],
    received: &[u8],
    broken: Option<ErrorKind>,
    echo: SocketAddr,
) {
    assert!(matches!(broken, None | Some(ErrorKind::ConnectionReset)), "{broken:?}");
    let mut handshake = Handshake::new(protocol);
    handshake.handle_input(sent);
    let mut answers: Vec<u8> = std::iter::from_fn(|| handshake.poll_output()).flatten().collect();
    let target = match handshake.state() {
        State::Asked(target) => Some(target.clone()),
        _ => None,
    };
    let granted = target == Some(Target::Address(echo));
    if granted {
        handshake.answer(Ok(echo));
    } else if target.is_some() {
        handshake.answer(Err(Cause::NotAllowed));
    }
    let reply_at = answers.len();
    answers.extend(std::iter::from_fn(|| handshake.poll_output()).flatten());
    if granted {
        assert_eq!(broken, None, "a flow that ends in order is not reset");
        // The address from which the daemon connected is its own.
        let own = if protocol == Protocol::Socks5 {
            reply_at + 8..reply_at + 10
        } else {
            reply_at..reply_at
        };
        let mut received = received.to_vec();
        if received.len() >= own.end {
            received[own.clone()].copy_from_slice(&answers[own]);
        }
        answers.extend(handshake.into_rest());
        assert!(received == answers, "{} bytes were received of {}", received.len(), answers.len());
    } else if broken.is_some() {
        // A client that sends much more after a refusal is reset, and may not receive the reason.
        assert!(answers.starts_with(received), "{}", received.escape_ascii());
    } else {
        assert_eq!(received.escape_ascii().to_string(), answers.escape_ascii().to_string());
    }
}
