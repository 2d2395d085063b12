//! Tunnels with an end that others wrote.
//!
//! With quic-go far: `client – gateway with midhopd – server's host with quic-go, and the server`; with
//! quic-go near it is a program on the gateway whose TCP listener the client connects to.

mod ends;
mod program;
mod stage;

use ends::{Authority, Ends, PORT, near_config, start_far};
use midhop_testbed::namespace::Namespace;
use stage::{Family, PATIENCE, Stage, hear, noise, queued, say, until};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread::{scope, sleep};
use std::time::Duration;

const EARLY: &str = "accept = \"early\"\n";

/// Builds the program once; `None`, said loudly, where that cannot be done.
fn quic_go() -> Option<&'static Path> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testbed/peers/quic-go");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("quic-go");
        let installed = Path::new("/usr/local/go/bin/go");
        let go = if installed.exists() { installed } else { Path::new("go") };
        let mut command = Command::new(go);
        command.args(["build", "-o"]).arg(&program).arg(".").current_dir(sources);
        let built = command.stdin(Stdio::null()).output();
        let output = built.map_err(|error| format!("there is no Go: {error}"))?;
        if output.status.success() {
            return Ok(program);
        }
        Err(format!("quic-go is not built: {}", String::from_utf8_lossy(&output.stderr)))
    };
    match BUILT.get_or_init(build) {
        Ok(program) => Some(program),
        Err(why) => {
            midhop_skips::skipped(why);
            None
        }
    }
}

/// It, running.
struct Peer {
    child: Child,
    /// Where it listens.
    address: SocketAddr,
}

impl Peer {
    fn start(
        place: &Namespace,
        role: &str,
        authority: &Authority,
        own: &str,
        more: &[&str],
    ) -> Self {
        let at = |file: String| authority.path().join(file);
        let mut command = Command::new(quic_go().expect("it was built"));
        command.arg(role);
        command.arg("-certificate").arg(at(format!("{own}.pem")));
        command.arg("-key").arg(at(format!("{own}.key")));
        command.arg("-authority").arg(at("ca.pem".to_owned())).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = place.run(|| command.spawn()).expect("entering").expect("quic-go");
        let mut line = String::new();
        let said = child.stdout.take().expect("its words");
        BufReader::new(said).read_line(&mut line).expect("reading");
        let address = line.trim().strip_prefix("listening ").and_then(|it| it.parse().ok());
        let Some(address) = address else {
            let _ = child.kill();
            panic!("quic-go does not listen: {line:?}");
        };
        Self { child, address }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Opens a flow to the server through whatever there is: the client's end and the server's.
type Flow<'a> = &'a mut dyn FnMut() -> (TcpStream, TcpStream);

/// 20 MB both ways at once.
fn carries_all(flow: Flow<'_>) {
    let (client, server) = flow();
    let (up, down) = (noise(1, 20_000_000), noise(2, 20_000_000));
    scope(|scope| {
        scope.spawn(|| say(&client, &up));
        scope.spawn(|| say(&server, &down));
        let heard = scope.spawn(|| hear(&server));
        assert!(hear(&client) == down, "what the server said");
        assert!(heard.join().expect("the server") == up, "what the client said");
    });
}

/// Each end is the first to end; the other answers after that.
fn keeps_half_closes(flow: Flow<'_>) {
    let reply = noise(3, 1_000_000);
    for from_server in [false, true] {
        let (client, server) = flow();
        let (first, second) = if from_server { (server, client) } else { (client, server) };
        say(&first, b"that is all");
        assert_eq!(hear(&second), b"that is all");
        scope(|scope| {
            scope.spawn(|| say(&second, &reply));
            assert!(hear(&first) == reply, "the whole answer after the half-close");
        });
    }
}

/// The origin closes first, for good, and its bytes wait for a reader that is late.
fn waits_for_late_readers(flow: Flow<'_>) {
    let (client, server) = flow();
    let bytes = noise(8, 12 << 20);
    client.shutdown(Shutdown::Write).expect("it has nothing to say");
    scope(|scope| {
        scope.spawn(|| {
            say(&server, &bytes);
            assert_eq!(hear(&server), b"");
            drop(server);
        });
        until("bytes wait at the client", || queued::unread(&client) > 0);
        sleep(Duration::from_millis(300));
        assert!(hear(&client) == bytes, "every byte arrives before the end does");
    });
}

/// A reset of either end is the other's.
fn passes_resets(flow: Flow<'_>) {
    for from_server in [false, true] {
        let (client, server) = flow();
        let (mut resetting, mut other) =
            if from_server { (server, client) } else { (client, server) };
        resetting.write_all(b"so far").expect("writing");
        let mut heard = [0; 6];
        other.read_exact(&mut heard).expect("what came before the reset");
        socket2::SockRef::from(&resetting).set_linger(Some(Duration::ZERO)).expect("a linger");
        drop(resetting);
        let error = other.read(&mut heard).expect_err("a reset, not an end");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

fn all(flow: Flow<'_>) {
    carries_all(flow);
    keeps_half_closes(flow);
    waits_for_late_readers(flow);
    passes_resets(flow);
}

/// It says that it serves extended CONNECT, and knows of no template: it is asked as every proxy is.
#[test]
fn quic_go_is_a_far_end() {
    is_a_far_end(&[], "");
}

#[test]
fn quic_go_is_a_far_end_that_serves_templates() {
    is_a_far_end(&["-template"], "request = \"template\"\n");
}

fn is_a_far_end(more: &[&str], peer: &str) {
    let (Some(stage), Some(_)) = (Stage::set(), quic_go()) else { return };
    let authority = Authority::new(&["near", "far"]);
    let listen = SocketAddr::new(Family::V4.server(), PORT).to_string();
    let more = [&["-listen", &listen], more].concat();
    let _far = Peer::start(&stage.server, "serve", &authority, "far", &more);
    for mode in [EARLY, "accept = \"after-connect\"\n"] {
        let rule = "otherwise = \"reject\"\n";
        let config = near_config(Family::V4, &authority, mode, peer, rule);
        let _near = stage.try_proxy(&config).expect("a proxy");
        let listener = stage.listen(Family::V4);
        all(&mut || stage.flow(&listener));
        let closed = SocketAddr::new(Family::V4.server(), 9);
        let kind = match stage.connect(closed) {
            Ok(mut client) => client.read(&mut [0; 1]).expect_err("a reset").kind(),
            Err(error) => error.kind(),
        };
        let expected =
            if mode == EARLY { ErrorKind::ConnectionReset } else { ErrorKind::ConnectionRefused };
        assert_eq!(kind, expected, "{mode}");
    }
}

/// The far midhopd passes flows on to quic-go, which is near the source.
#[test]
fn quic_go_is_the_last_of_a_chain() {
    let (Some(stage), Some(_)) = (Stage::set(), quic_go()) else { return };
    let authority = Authority::new(&["near", "far", "last"]);
    let listen = SocketAddr::new(Family::V4.server(), PORT + 1).to_string();
    let _last = Peer::start(&stage.server, "serve", &authority, "last", &["-listen", &listen]);
    let onwards = format!(
        "[peers.last]\naddress = \"{listen}\"\n\
         [[rules]]\ntunnel = \"last\"\notherwise = \"reject\"\n"
    );
    let far = start_far(&stage, Family::V4, &authority, &onwards);
    let config = near_config(Family::V4, &authority, EARLY, "", "otherwise = \"reject\"\n");
    let near = stage.try_proxy(&config).expect("a proxy");
    let _ends = Ends { near, far, authority };
    let listener = stage.listen(Family::V4);
    all(&mut || stage.flow(&listener));
}

#[test]
fn quic_go_is_a_near_end() {
    is_a_near_end(&[]);
}

#[test]
fn quic_go_is_a_near_end_that_asks_by_templates() {
    is_a_near_end(&["-template"]);
}

fn is_a_near_end(how: &[&str]) {
    let (Some(stage), Some(_)) = (Stage::set(), quic_go()) else { return };
    let authority = Authority::new(&["near", "far"]);
    let _far = start_far(&stage, Family::V4, &authority, "");
    let listener = stage.listen(Family::V4);
    let open = |listener: &TcpListener| {
        let proxy = SocketAddr::new(Family::V4.server(), PORT).to_string();
        let target = listener.local_addr().expect("an address").to_string();
        let more = ["-listen", "10.0.1.1:0", "-proxy", &proxy, "-name", "far", "-target", &target];
        let more = [&more[..], how].concat();
        Peer::start(&stage.gateway, "open", &authority, "near", &more)
    };
    let near = open(&listener);
    all(&mut || {
        let client = stage.connect(near.address).expect("quic-go");
        let (server, peer) = listener.accept().expect("the far side");
        assert_eq!(peer.ip(), Family::V4.server());
        server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        server.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        (client, server)
    });
    // Nobody listens any more.
    drop(listener);
    let kind = match stage.connect(near.address) {
        Ok(mut client) => client.read(&mut [0; 1]).expect_err("a refusal").kind(),
        Err(error) => error.kind(),
    };
    assert_eq!(kind, ErrorKind::ConnectionReset);
}
