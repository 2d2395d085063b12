//! Tunnels over TCP with an end that others wrote: Go's net/http at either end. libcurl is in `interop.rs`.

mod ends;
mod flows;
mod stage;

use ends::{Authority, PORT, near_config, start_far};
use flows::{block, exchange, hear_break, reset};
use midhop_testbed::namespace::Namespace;
use stage::{Family, PATIENCE, Stage, hear, noise, queued, say, until};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread::{scope, sleep};
use std::time::Duration;

/// Builds the program once; `None`, said loudly, where that cannot be done.
fn go_http2() -> Option<&'static Path> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testbed/peers/go-http2");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-http2");
        let installed = Path::new("/usr/local/go/bin/go");
        let go = if installed.exists() { installed } else { Path::new("go") };
        let mut command = Command::new(go);
        command.args(["build", "-o"]).arg(&program).arg(".").current_dir(sources);
        let built = command.stdin(Stdio::null()).output();
        let output = built.map_err(|error| format!("there is no Go: {error}"))?;
        if output.status.success() {
            return Ok(program);
        }
        Err(format!("go-http2 is not built: {}", String::from_utf8_lossy(&output.stderr)))
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
        let mut command = Command::new(go_http2().expect("it was built"));
        command.arg(role);
        command.arg("-certificate").arg(at(format!("{own}.pem")));
        command.arg("-key").arg(at(format!("{own}.key")));
        command.arg("-authority").arg(at("ca.pem".to_owned())).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = place.run(|| command.spawn()).expect("entering").expect("go-http2");
        let mut line = String::new();
        let said = child.stdout.take().expect("its words");
        BufReader::new(said).read_line(&mut line).expect("reading");
        let address = line.trim().strip_prefix("listening ").and_then(|it| it.parse().ok());
        let Some(address) = address else {
            let _ = child.kill();
            panic!("go-http2 does not listen: {line:?}");
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

/// The client is the first to end. Where the server is, Go is no help at either end: a handler ends its
/// response as it returns, and a client whose response has ended sends no more of its request.
fn keeps_half_closes(flow: Flow<'_>) {
    let reply = noise(3, 1_000_000);
    let (client, server) = flow();
    say(&client, b"that is all");
    assert_eq!(hear(&server), b"that is all");
    scope(|scope| {
        scope.spawn(|| say(&server, &reply));
        assert!(hear(&client) == reply, "the whole answer after the half-close");
    });
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
        reset(resetting);
        assert_eq!(hear_break(&other), ErrorKind::ConnectionReset);
    }
}

#[test]
fn go_is_a_far_end() {
    let (Some(stage), Some(_)) = (Stage::set(), go_http2()) else { return };
    block(&stage);
    let authority = Authority::new(&["near", "far"]);
    let listen = SocketAddr::new(Family::V4.server(), PORT).to_string();
    let _far = Peer::start(&stage.server, "serve", &authority, "far", &["-listen", &listen]);
    let rule = "otherwise = \"reject\"\n";
    let mode = "accept = \"after-connect\"\n";
    let config = near_config(Family::V4, &authority, mode, "rtt = \"20 ms\"\n", rule);
    let _near = stage.try_proxy(&config).expect("a proxy");
    let listener = stage.listen(Family::V4);
    let mut flow = || stage.flow(&listener);
    let (client, server) = flow();
    exchange(&client, &server, 20_000_000);
    keeps_half_closes(&mut flow);
    waits_for_late_readers(&mut flow);
    passes_resets(&mut flow);
    let closed = SocketAddr::new(Family::V4.server(), 9);
    let error = stage.connect(closed).expect_err("nobody listens there");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn go_is_a_near_end() {
    let (Some(stage), Some(_)) = (Stage::set(), go_http2()) else { return };
    let authority = Authority::new(&["near", "far"]);
    let _far = start_far(&stage, Family::V4, &authority, "");
    let listener = stage.listen(Family::V4);
    let near = {
        let proxy = SocketAddr::new(Family::V4.server(), PORT).to_string();
        let target = listener.local_addr().expect("an address").to_string();
        let more = ["-listen", "10.0.1.1:0", "-proxy", &proxy, "-name", "far", "-target", &target];
        Peer::start(&stage.gateway, "open", &authority, "near", &more)
    };
    let mut flow = || {
        let client = stage.connect(near.address).expect("go-http2");
        let (server, peer) = listener.accept().expect("the far side");
        assert_eq!(peer.ip(), Family::V4.server());
        server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        server.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        (client, server)
    };
    let (client, server) = flow();
    exchange(&client, &server, 20_000_000);
    keeps_half_closes(&mut flow);
    waits_for_late_readers(&mut flow);
    passes_resets(&mut flow);
    // Nobody listens any more.
    drop(listener);
    // The reset may come before it is known that there was a connection.
    let kind = match stage.connect(near.address) {
        Ok(mut client) => client.read(&mut [0; 1]).expect_err("a refusal").kind(),
        Err(error) => error.kind(),
    };
    assert_eq!(kind, ErrorKind::ConnectionReset);
}
