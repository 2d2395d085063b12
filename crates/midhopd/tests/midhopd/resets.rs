//! What an end sent before it broke reaches the other end, and the reset follows.

use crate::ends::Ends;
use crate::flows::{self, duties, read_until_error, reset};
use crate::stage::{Family, Stage, noise, queued, until};
use midhopd::data_plane::DataPlane;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread::{scope, sleep};
use std::time::Duration;

const EARLY: &str = "accept = \"early\"\n";

fn full(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy(EARLY);
    let listener = stage.listen(family);
    for from_server in [false, true] {
        for half_closed in [false, true] {
            let flow: duties::Flow<'_> = &mut || stage.flow(&listener);
            duties::late_resets(flow, from_server, half_closed);
        }
    }
    until("no flow is left", || proxy.admission().flows() == 0);
    let buffers = || proxy.budget().held();
    assert_eq!(buffers(), 0, "what was held is given back");
}

#[test]
fn what_was_acknowledged_is_delivered_before_the_reset_ipv4() {
    full(Family::V4);
}

#[test]
fn what_was_acknowledged_is_delivered_before_the_reset_ipv6() {
    full(Family::V6);
}

/// Load balancers treat slow readers so: a response, all of it acknowledged, then a reset.
///
/// `client lan0 – gateway – 2 Mbit/s – server`: the client is on the slow side.
fn answer_and_reset(family: Family, config: &str) {
    const ANSWER: usize = 300_000;
    let slow = "rate = \"2 Mbit/s\"\n";
    let Some(stage) = Stage::set_over(slow, slow, "20 ms") else { return };
    let _proxy = stage.start(&format!("[intercept]\ninterfaces = \"wan0\"\n{config}"));
    let address = std::net::SocketAddr::new(family.client(), 0);
    let listener = stage.client.run(|| std::net::TcpListener::bind(address)).expect("entering");
    let listener = listener.expect("a listener");
    let near = listener.local_addr().expect("an address");
    let mut asks = stage.server.run(|| TcpStream::connect(near)).expect("entering").expect("it");
    flows::impatient(&asks);
    let (mut answers, _) = listener.accept().expect("the other end");
    let bytes = noise(11, ANSWER);
    answers.write_all(&bytes).expect("it fits");
    until("all of it is acknowledged", || queued::unacknowledged(&answers) == 0);
    reset(answers);
    let mut received = vec![0; ANSWER];
    asks.read_exact(&mut received).expect("all that was acknowledged");
    assert!(received == bytes, "other bytes came");
    assert_eq!(read_until_error(&asks), ErrorKind::ConnectionReset);
}

#[test]
fn an_answer_outlives_the_server_that_resets_on_a_slow_leg_ipv4() {
    answer_and_reset(Family::V4, EARLY);
}

#[test]
fn an_answer_outlives_the_server_that_resets_on_a_slow_leg_ipv6() {
    answer_and_reset(Family::V6, "accept = \"after-connect\"\n");
}

/// An end that writes everything before it reads still receives what is to be delivered to it.
#[test]
fn who_writes_on_to_an_end_that_broke_still_gets_what_that_sent() {
    let Some(stage) = Stage::set() else { return };
    let _proxy = stage.proxy(EARLY);
    let listener = stage.listen(Family::V4);
    let (mut client, server) = stage.flow(&listener);
    let written = flows::fill(&server);
    let acknowledged = written - queued::unacknowledged(&server);
    reset(server);
    // More than the buffers of any two kernels.
    let bytes = noise(3, 1 << 20);
    for _ in 0..64 {
        client.write_all(&bytes).expect("somebody takes it");
    }
    let (received, kind) = duties::count_until_error(&client);
    assert!(received >= acknowledged, "{received} of {acknowledged} came");
    assert_eq!(kind, ErrorKind::ConnectionReset);
}

fn held(proxy: &DataPlane) -> u64 {
    proxy.admission().flows()
}

/// An end that takes nothing is not waited for without limit.
fn nobody_reads(family: Family) {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy(&format!("{EARLY}[limits]\nlinger = \"500 ms\"\n"));
    let listener = stage.listen(family);
    let (client, server) = stage.flow(&listener);
    flows::fill(&server);
    reset(server);
    until("the reset comes without having been waited for", || {
        socket2::SockRef::from(&client).take_error().expect("a state").is_some()
    });
    until("its place is free", || held(&proxy) == 0);
}

#[test]
fn who_reads_nothing_is_reset_in_the_end_ipv4() {
    nobody_reads(Family::V4);
}

#[test]
fn who_reads_nothing_is_reset_in_the_end_ipv6() {
    nobody_reads(Family::V6);
}

/// The same through a tunnel: over QUIC by template, and over TCP.
fn tunnel(family: Family, peer: &str, over_tcp: bool) {
    let Some(stage) = Stage::set() else { return };
    if over_tcp {
        flows::block(&stage);
    }
    let ends = Ends::start_with(&stage, family, EARLY, [peer, ""]);
    let listener = stage.listen(family);
    for from_server in [false, true] {
        for half_closed in [false, true] {
            let flow: duties::Flow<'_> = &mut || stage.flow(&listener);
            duties::late_resets(flow, from_server, half_closed);
        }
    }
    until("no flow is left", || [&ends.near, &ends.far].map(held) == [0, 0]);
}

#[test]
fn what_was_acknowledged_passes_a_tunnel_before_the_reset_ipv4() {
    tunnel(Family::V4, "request = \"template\"\n", false);
}

#[test]
fn what_was_acknowledged_passes_a_tunnel_before_the_reset_ipv6() {
    tunnel(Family::V6, "request = \"template\"\n", false);
}

/// Other proxies use this form of requests: the reset cannot follow the bytes in order, and waits
/// for them.
#[test]
fn what_was_acknowledged_passes_a_tunnel_in_the_classic_form_before_the_reset_ipv4() {
    tunnel(Family::V4, "request = \"classic\"\n", false);
}

#[test]
fn what_was_acknowledged_passes_a_tunnel_in_the_classic_form_before_the_reset_ipv6() {
    tunnel(Family::V6, "request = \"classic\"\n", false);
}

#[test]
fn what_was_acknowledged_passes_a_tunnel_over_tcp_before_the_reset_ipv4() {
    tunnel(Family::V4, "rtt = \"20 ms\"\n", true);
}

#[test]
fn what_was_acknowledged_passes_a_tunnel_over_tcp_before_the_reset_ipv6() {
    tunnel(Family::V6, "rtt = \"20 ms\"\n", true);
}

/// A stalled flow of a tunnel is given up after a while, too.
#[test]
fn who_reads_nothing_through_a_tunnel_is_reset_in_the_end() {
    let Some(stage) = Stage::set() else { return };
    let limits = "[limits]\nlinger = \"500 ms\"\n";
    let ends = Ends::start_with(
        &stage,
        Family::V4,
        EARLY,
        [&format!("request = \"template\"\n{limits}"), limits],
    );
    let listener = stage.listen(Family::V4);
    for from_server in [false, true] {
        let (client, server) = stage.flow(&listener);
        let (writer, reader) = if from_server { (server, client) } else { (client, server) };
        flows::fill(&writer);
        reset(writer);
        until("the reset comes", || {
            socket2::SockRef::from(&reader).take_error().expect("a state").is_some()
        });
    }
    until("no place is kept", || [&ends.near, &ends.far].map(held) == [0, 0]);
}

/// A reset, while the other end's response is on its way in the same direction as the reset's own
/// bytes.
#[test]
fn both_ends_may_break() {
    let Some(stage) = Stage::set() else { return };
    let proxy = stage.proxy(EARLY);
    let listener = stage.listen(Family::V4);
    let (client, server) = stage.flow(&listener);
    scope(|scope| {
        scope.spawn(|| flows::fill(&client));
        flows::fill(&server);
    });
    reset(server);
    sleep(Duration::from_millis(50));
    reset(client);
    until("its place is free", || held(&proxy) == 0);
}
