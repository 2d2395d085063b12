//! Early data of a client goes through a chain at once: the next proxy receives it before it has
//! responded.
//!
//! `client – gateway with the first proxy – server's host with the second, and a third one that is
//! part of the test`

use crate::ends::{Authority, far_config, near_config};
use crate::flows::read_until_error;
use crate::host::Host;
use crate::stage::{self, Family, Stage, noise, receive_all, send_all, until};
use crate::visitor::{Shown, Visitor};
use midhop_tunnel::connect::{Form, Request};
use midhop_tunnel::http3::{Field, Frame, Settings};
use midhop_tunnel::target::Target;
use midhopd::data_plane::DataPlane;
use midhopd::ledger::{Counter, Ledger};
use std::io::{ErrorKind, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::scope;

const FAMILY: Family = Family::V4;
/// The address at which the third proxy listens.
const LAST: &str = "10.0.2.2:4434";
const EARLY: &str = "accept = \"early\"\n";
const GRANTED: &[(&str, &str)] = &[(":status", "200")];
const FULL: &[(&str, &str)] =
    &[(":status", "503"), ("proxy-status", "third; error=connection_limit_reached")];

struct Chain {
    near: DataPlane,
    middle: DataPlane,
    authority: Authority,
    host: Host,
    opening: Vec<u8>,
}

impl Chain {
    /// `peer` adds to the second proxy's table of the third, `settings` are the third one's.
    fn start(stage: &Stage, otherwise: &str, peer: &str, settings: Settings) -> Self {
        let authority = Authority::new(&["near", "far", "last"]);
        let (host, opening) = Host::new(&stage.server, LAST, &authority, "last", settings);
        let onwards = format!(
            "[peers.last]\naddress = \"{LAST}\"\n{peer}[[rules]]\n\
             match.destination = \"10.0.2.0/24\"\ntunnel = \"last\"\notherwise = \"{otherwise}\"\n"
        );
        let middle = stage::start(&stage.server, &far_config(FAMILY, &authority, &onwards));
        // A tunnel uses the classic form until the far end's settings have arrived. In that form,
        // the request of a client that has left stays until the response.
        let form = "request = \"template\"\n";
        let near = near_config(FAMILY, &authority, EARLY, form, "otherwise = \"reject\"\n");
        let near = stage.start(&near);
        Self { near, middle, authority, host, opening }
    }

    /// A count of both ledgers.
    fn sums(&self, count: fn(&Ledger) -> &Counter) -> [u64; 2] {
        [&self.near, &self.middle].map(|end| end.ledgers().iter().map(|it| count(it).value()).sum())
    }
}

fn connect(stage: &Stage, listener: &TcpListener) -> TcpStream {
    stage.connect(listener.local_addr().expect("an address")).expect("a proxy")
}

fn value<'a>(fields: &'a [Field], name: &str) -> Option<&'a str> {
    fields.iter().find(|it| it.name == name).map(|it| it.value.as_ref())
}

#[test]
fn the_first_bytes_are_there_before_the_next_proxy_has_answered() {
    let Some(stage) = Stage::set() else { return };
    let chain = Chain::start(&stage, "reject", "", Settings::default());
    let guest = chain.host.welcome(&chain.opening);
    let listener = stage.listen(FAMILY);
    let client = connect(&stage, &listener);
    (&client).write_all(b"may I?").expect("writing");
    let mut asked = guest.asked();
    let target = listener.local_addr().expect("an address").to_string();
    assert_eq!(value(&asked.fields, ":authority"), Some(&*target));
    assert_eq!(asked.receive_data(6), b"may I?");
    // A long upload is forwarded as well, while the client receives nothing of the flow.
    let long = noise(1, 2_000_000);
    scope(|scope| {
        scope.spawn(|| send_all(&client, &long));
        assert!(asked.receive_data(long.len()) == long, "what follows, before the answer");
    });
    assert_eq!(asked.receive_data(1), b"", "the end, before the answer");
    assert_eq!(chain.sums(|it| &it.bytes_up), [2_000_006, 0], "no flow yet: it was not granted");
    let reply = noise(2, 3_000_000);
    asked.answer(GRANTED);
    scope(|scope| {
        let received = scope.spawn(|| receive_all(&client));
        reply.chunks(100_000).for_each(|part| asked.send_data(part));
        asked.end();
        assert!(received.join().expect("the client") == reply, "the whole answer");
    });
    until("both have booked an end in order", || chain.sums(|it| &it.ended) == [1; 2]);
    assert_eq!(chain.sums(|it| &it.bytes_up), [2_000_006; 2]);
    assert_eq!(chain.sums(|it| &it.bytes_down), [3_000_000; 2]);
}

/// A refusal after bytes were received is forwarded like one without bytes.
#[test]
fn a_refusal_that_comes_after_bytes_is_the_client_s_answer() {
    let Some(stage) = Stage::set() else { return };
    let chain = Chain::start(&stage, "split", "", Settings::default());
    let guest = chain.host.welcome(&chain.opening);
    let listener = stage.listen(FAMILY);
    listener.set_nonblocking(true).expect("a mode");
    let target = Target::Address(listener.local_addr().expect("an address"));
    let fields = Request { target, client: None, class: None, hops: 0 }.fields(Form::Classic);
    let (visitor, shown) = (Visitor::new(&stage.gateway), Shown::of(&chain.authority, "near"));
    for (denial, status, expected) in [
        (
            &[(":status", "502"), ("proxy-status", "third; error=connection_refused")][..],
            "502",
            "\"last\"; error=connection_refused, midhopd",
        ),
        (
            &[(":status", "504"), ("proxy-status", "third; error=connection_timeout")],
            "504",
            "\"last\"; error=connection_timeout, midhopd",
        ),
        (&[(":status", "403")], "403", "\"last\"; error=destination_ip_prohibited, midhopd"),
    ] {
        let (answer, mut flow) = scope(|scope| {
            scope.spawn(|| {
                let mut asked = guest.asked();
                assert_eq!(asked.receive_data(5), b"early");
                asked.deny(denial);
            });
            visitor.ask_with_data("far", &shown, &fields, b"early")
        });
        assert_eq!(value(&answer, ":status"), Some(status));
        assert_eq!(value(&answer, "proxy-status"), Some(expected));
        let rest = visitor.runtime.block_on(flow.frame());
        assert!(matches!(rest, Ok(None::<Frame>)), "{rest:?}");
    }
    assert_eq!(listener.accept().expect_err("nobody").kind(), ErrorKind::WouldBlock);
    // A client that was accepted early sees a reset.
    let client = connect(&stage, &listener);
    (&client).write_all(b"early").expect("writing");
    let mut asked = guest.asked();
    assert_eq!(asked.receive_data(5), b"early");
    asked.deny(&[(":status", "502"), ("proxy-status", "third; error=connection_refused")]);
    assert_eq!(read_until_error(&client), ErrorKind::ConnectionReset);
    until("nobody keeps a place", || chain.middle.admission().flows() == 0);
}

/// The next proxy reports that it has reached no server: the bytes that it received are sent to the
/// server directly, once.
#[test]
fn what_a_proxy_without_room_has_received_comes_to_the_server_without_it() {
    let Some(stage) = Stage::set() else { return };
    let chain = Chain::start(&stage, "split", "", Settings::default());
    let guest = chain.host.welcome(&chain.opening);
    let listener = stage.listen(FAMILY);
    let (early, late, reply) = (noise(3, 100_000), noise(4, 1_000_000), noise(5, 2_000_000));
    for ended in [false, true] {
        let client = connect(&stage, &listener);
        (&client).write_all(&early).expect("writing");
        let mut asked = guest.asked();
        assert!(asked.receive_data(early.len()) == early);
        if ended {
            client.shutdown(Shutdown::Write).expect("the end");
            assert_eq!(asked.receive_data(1), b"");
        }
        asked.deny(FULL);
        let (server, _) = listener.accept().expect("the second one connects itself");
        scope(|scope| {
            scope.spawn(|| send_all(&server, &reply));
            if !ended {
                scope.spawn(|| send_all(&client, &late));
            }
            let received = scope.spawn(|| receive_all(&server));
            assert!(receive_all(&client) == reply, "what the server said");
            let sent = if ended { early.clone() } else { [&early[..], &late].concat() };
            assert!(received.join().expect("the server") == sent, "what the client said");
        });
    }
    until("both have booked ends in order", || chain.sums(|it| &it.ended) == [2; 2]);
}

/// If a proxy is gone, it is not known whether it has sent the bytes to a server: they are not sent
/// again.
#[test]
fn what_may_have_been_sent_is_not_sent_again() {
    let Some(stage) = Stage::set() else { return };
    let chain = Chain::start(&stage, "split", "", Settings::default());
    let guest = chain.host.welcome(&chain.opening);
    let listener = stage.listen(FAMILY);
    listener.set_nonblocking(true).expect("a mode");
    // Bytes beyond the limit of what is kept are not sent again either.
    let much = noise(6, 1_000_000);
    let client = connect(&stage, &listener);
    (&client).write_all(&much).expect("writing");
    let mut asked = guest.asked();
    assert!(asked.receive_data(much.len()) == much);
    asked.deny(FULL);
    assert_eq!(read_until_error(&client), ErrorKind::ConnectionReset);
    let client = connect(&stage, &listener);
    (&client).write_all(b"once").expect("writing");
    let mut asked = guest.asked();
    assert_eq!(asked.receive_data(4), b"once");
    guest.connection.close(0u32.into(), b"");
    assert_eq!(read_until_error(&client), ErrorKind::ConnectionReset);
    assert_eq!(listener.accept().expect_err("nobody").kind(), ErrorKind::WouldBlock);
    until("nobody keeps a place", || chain.middle.admission().flows() == 0);
}

/// If a client resets while the next proxy has not responded, its request there is cancelled.
#[test]
fn a_client_that_leaves_before_the_answer_is_taken_back() {
    let Some(stage) = Stage::set() else { return };
    let chain = Chain::start(&stage, "reject", "", Settings::default());
    let guest = chain.host.welcome(&chain.opening);
    let listener = stage.listen(FAMILY);
    let client = connect(&stage, &listener);
    (&client).write_all(b"never mind").expect("writing");
    let mut asked = guest.asked();
    assert_eq!(asked.receive_data(10), b"never mind");
    socket2::SockRef::from(&client)
        .set_linger(Some(std::time::Duration::ZERO))
        .expect("a linger time");
    drop(client);
    asked.receive_reset();
    until("nobody keeps a place", || chain.middle.admission().flows() == 0);
}
