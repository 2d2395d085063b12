//! Two sessions over a link that loses much, in a time of their own.

mod wire;

use super::*;
use crate::{pki, tunnel::Identity, tunnel::transport};
use bytes::Bytes as Piece;
use midhop_pep::config::Plan;
use midhop_tunnel::connect::Response;
use midhop_tunnel::target::Target;
use quinn::{Endpoint, EndpointConfig, TokioRuntime};
use std::{collections::VecDeque, future::poll_fn, net::SocketAddr};
use tempfile::TempDir;
use tokio::task::LocalSet;
use wire::{FAR, NEAR, Wire};

/// The rate and the round trip of a geostationary link: 7,000 datagrams are under way.
const LEG: &str =
    "rate = \"140 Mbit/s\"\nrtt = \"600 ms\"\ncongestion = \"known-rate\"\nwindow = \"16 MiB\"\n";
/// More than may be under way, or wait at either end.
const LONG_BYTES: usize = 80_000_000;
const DELAY: Duration = Duration::from_millis(300);

/// The plan of one end, and who it is.
fn plan_of(authority: &TempDir, own: &str, peer: &str) -> (Plan, Identity) {
    let at = authority.path().display();
    let (listen, address) = match own {
        "far" => (format!("listen = \"{FAR}\"\n"), String::new()),
        _ => (String::new(), format!("address = \"{FAR}\"\n")),
    };
    let text = format!(
        "[tunnel]\ncertificate = \"{at}/{own}.pem\"\nkey = \"{at}/{own}.key\"\n\
         authority = \"{at}/ca.pem\"\n{listen}[peers.{peer}]\n{address}repair = \"off\"\n{LEG}"
    );
    let plan = Plan::read("test.toml", &text).unwrap_or_else(|error| panic!("{error}"));
    let credentials = plan.tunnel.credentials.as_ref().expect("credentials");
    let identity = Identity::load(credentials, &plan.peers).expect("an identity");
    (plan, identity)
}

/// The near end's session and the far end's.
async fn sessions(wire: &Wire) -> [Rc<QuicSession>; 2] {
    let authority = TempDir::new().expect("a directory");
    pki::init(authority.path(), "test authority").expect("an authority");
    for name in ["near", "far"] {
        pki::issue(authority.path(), name, 30).expect("a certificate");
    }
    let (near, near_identity) = plan_of(&authority, "near", "far");
    let (far, far_identity) = plan_of(&authority, "far", "near");
    let endpoint = |at, server| {
        let (config, runtime) = (EndpointConfig::default(), Arc::new(TokioRuntime));
        Endpoint::new_with_abstract_socket(config, server, wire.end(at), runtime)
            .expect("an endpoint")
    };
    let address = |at: &str| at.parse::<SocketAddr>().expect("an address");
    let (server, far_steering, _) =
        transport::server(&far_identity, &far.peers, address(NEAR)).expect("a server");
    let (client, near_steering) =
        transport::client(&near_identity, &near.peers[0], address(FAR)).expect("a client");
    let far_endpoint = endpoint(FAR, Some(server));
    let connecting =
        endpoint(NEAR, None).connect_with(client, address(FAR), "far").expect("a handshake");
    let incoming = async { far_endpoint.accept().await.expect("somebody").await };
    let (near_end, far_end) = tokio::join!(connecting, incoming);
    let initial = near.peers[0].flow_window;
    let begin = |end: Result<Connection, _>, peer, pace| {
        let room = ReorderRoom::new(Arc::new(crate::relay::Budget::new(u64::MAX)));
        let intake = Intake { room, initial };
        QuicSession::begin(end.expect("a connection"), peer, pace, false, intake)
    };
    let near = begin(near_end, &near.peers[0], near_steering.pace());
    let far = begin(far_end, &far.peers[0], far_steering.pace());
    let (near, far) = tokio::join!(near, far);
    let sessions = [near.expect("a session"), far.expect("a session")];
    for session in &sessions {
        session.settings().await;
    }
    sessions
}

/// A flow that the near end has asked for and the far end has granted: the near end's stream, the far end's.
async fn flow([near, far]: &[Rc<QuicSession>; 2]) -> [Stream; 2] {
    let address = "192.0.2.1:80".parse().expect("an address");
    let target = Target::Address(address);
    let request = Request { target, client: None, class: None, hops: 0 };
    let plan = Plan::read("test.toml", "[intercept]\ninterfaces = \"lan0\"\n").expect("a plan");
    let class = plan.classes.last().cloned().expect("that of all others");
    let mut asking = near.ask(&request, &class).await.expect("a stream");
    let mut asked = far.asked().await.expect("a request");
    let fields = asked.input.request().await.expect("fields");
    let (_, payload) = Request::decode(&fields).expect("a request");
    asked.carry_in(payload);
    asked.output.say(&Response::Granted.fields(payload)).await.expect("an answer");
    asking.input.answer().await.expect("an answer");
    [asking, asked]
}

fn noise(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 % 251) as u8 ^ (at >> 11) as u8).collect()
}

/// Says all of it, and the end.
async fn say(stream: &mut Stream, bytes: Vec<u8>) {
    let bytes = Piece::from(bytes);
    for at in (0..bytes.len()).step_by(64 << 10) {
        let end = bytes.len().min(at + (64 << 10));
        stream.output.put(bytes.slice(at..end));
        poll_fn(|cx| stream.output.poll_flush(cx)).await.expect("it is taken");
    }
    stream.output.put_end();
    poll_fn(|cx| stream.output.poll_flush(cx)).await.expect("it is taken");
    stream.output.end();
}

async fn hear(stream: &mut Stream) -> Vec<u8> {
    let (mut heard, mut pieces) = (Vec::new(), VecDeque::new());
    while poll_fn(|cx| stream.input.poll_pieces(cx, &mut pieces)).await.expect("bytes") {
        heard.extend(pieces.drain(..).flatten());
    }
    heard
}

/// What the near end says on one flow, nobody takes at the far end for long; then all of it.
async fn stall(loss_percent: u64) {
    let wire = Wire::new(DELAY);
    let sessions = sessions(&wire).await;
    let [mut asking, mut asked] = flow(&sessions).await;
    let [mut other, mut others_end] = flow(&sessions).await;
    wire.lose(loss_percent);
    let bytes = noise(LONG_BYTES);
    let said = spawn_local({
        let bytes = bytes.clone();
        async move {
            say(&mut asking, bytes).await;
            asking
        }
    });
    // As the relay waits while its TCP connection takes nothing.
    let broken = tokio::select! {
        fault = poll_fn(|cx| asked.input.poll_reset(cx)) => Some(fault),
        () = time::sleep(Duration::from_secs(10)) => None,
    };
    assert!(broken.is_none(), "{broken:?}");
    assert!(!said.is_finished(), "more is said than may wait");
    let (short, other_said) = (noise(1_000_000), noise(1_000_000));
    let saying = spawn_local(async move {
        say(&mut other, other_said).await;
        other
    });
    let heard = tokio::select! {
        fault = poll_fn(|cx| asked.input.poll_reset(cx)) => panic!("{fault}"),
        heard = hear(&mut others_end) => heard,
    };
    assert!(heard == short, "the other flow's bytes");
    assert!(!said.is_finished(), "nor later");
    assert!(hear(&mut asked).await == bytes, "every byte arrives, however late");
    drop((said.await, saying.await));
}

#[tokio::test(start_paused = true)]
async fn a_flow_that_nobody_reads_ends_no_tunnel_whatever_the_link_loses() {
    LocalSet::new().run_until(stall(25)).await;
}
