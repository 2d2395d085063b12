//! Both ends of a stream, on a connection through a pipe in memory.

use super::*;
use crate::tunnel::scheduling::SharedScheduler;
use midhop_tunnel::cause::Cause;
use midhop_tunnel::connect::{Form, Request as Asked, Response as Answer};
use midhop_tunnel::payload::Payload;
use midhop_tunnel::target::Target;
use proptest::prelude::*;
use std::future::poll_fn;
use std::task::Waker;
use tokio::task::{LocalSet, spawn_local};

/// The windows of the far end. Unit: bytes.
const WINDOW: u32 = 100_000;

struct Pair {
    near: (Http2Sender, Http2Receiver),
    far: (Http2Sender, Http2Receiver),
    room: Arc<Http2Room>,
}

async fn pair(asked: &Asked) -> Pair {
    let (near, far) = tokio::io::duplex(1 << 16);
    let mut server = h2::server::Builder::new();
    server.initial_window_size(WINDOW).initial_connection_window_size(WINDOW);
    let (near, far) = tokio::join!(
        h2::client::Builder::new().handshake::<_, Piece>(near),
        server.handshake::<_, Piece>(far)
    );
    let ((mut requests, connection), mut server) = (near.expect("near"), far.expect("far"));
    spawn_local(async move { drop(connection.await) });
    let turns = Arc::<SharedScheduler>::default();
    let room = Http2Room::new(midhop_units::Bytes::new(64 << 10));
    let message = request_of(&asked.fields(Form::Classic)).expect("a request");
    let halves = requests.send_request(message, false).expect("a stream");
    let near = to_ask(halves, &room, ScheduledFlow::new(&turns));
    let asked = server.accept().await.expect("a stream").expect("a request");
    let far_room = Http2Room::new(midhop_units::Bytes::new(64 << 10));
    let far = to_answer(asked, &far_room, ScheduledFlow::new(&Arc::default()));
    spawn_local(async move {
        // The near end lives as long as its last handle.
        let _requests = requests;
        while server.accept().await.is_some() {}
    });
    Pair { near, far, room }
}

fn asked() -> Asked {
    let target = Target::parse("[2001:db8::1]:443").expect("a target");
    Asked { target, client: "198.51.100.7:50000".parse().ok(), class: None, hops: 0 }
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    LocalSet::new().block_on(&runtime.expect("a runtime"), test)
}

async fn send(sender: &mut Http2Sender, bytes: Bytes) {
    sender.enqueue(&[], bytes);
    poll_fn(|cx| sender.poll_flush(cx)).await.expect("written");
    sender.release_turn();
}

#[test]
fn what_is_asked_and_answered_arrives() {
    for answer in Cause::all().map(Answer::from).chain([Answer::Granted]) {
        run(async {
            let mut pair = pair(&asked()).await;
            let fields = poll_fn(|cx| pair.far.1.poll_fields(cx)).await.expect("a request");
            assert_eq!(Asked::decode(&fields), Ok((asked(), Payload::Raw)));
            pair.far.0.enqueue_fields(&answer.fields(Payload::Raw)).expect("sent");
            let fields = poll_fn(|cx| pair.near.1.poll_fields(cx)).await.expect("an answer");
            assert_eq!(Answer::decode(&fields, Payload::Raw), Ok(Some(answer)));
        });
    }
}

#[test]
fn bytes_arrive_in_order_and_so_does_the_end() {
    run(async {
        let pair = pair(&asked()).await;
        let sent: Bytes = (0..5_000_000_u32).map(|at| (at * 7 % 251) as u8).collect();
        let all = sent.clone();
        let (mut sender, mut receiver) = (pair.near.0, pair.far.1);
        let writing = spawn_local(async move {
            send(&mut sender, all).await;
            sender.end();
            poll_fn(|cx| sender.poll_stopped(cx)).await.expect("all is on its way");
            sender
        });
        let mut received = Vec::new();
        while let Some(bytes) = poll_fn(|cx| receiver.poll_data(cx)).await.expect("no fault") {
            received.extend_from_slice(&bytes);
            receiver.grant();
        }
        assert!(received == sent);
        let _sender = writing.await.expect("no panic");
        assert_eq!(pair.room.held(), 0);
        drop(pair.near.1);
    });
}

/// Bytes that were handed out, or only taken out of h2, grant no credit to the peer.
#[test]
fn credit_is_granted_for_what_was_passed_on() {
    run(async {
        let mut pair = pair(&asked()).await;
        pair.near.0.enqueue(&[], Bytes::from(vec![1; 300_000]));
        let near = &mut pair.near.0;
        let mut come = 0;
        loop {
            let flushed = poll_fn(|cx| Poll::Ready(near.poll_flush(cx))).await;
            assert!(flushed.is_pending());
            let broken = pair.far.1.poll_reset(&mut Context::from_waker(Waker::noop()));
            assert!(broken.is_pending(), "{broken:?}");
            tokio::task::yield_now().await;
            let arrived = pair.far.1.arrived.iter().map(Bytes::len).sum::<usize>();
            if arrived == WINDOW as usize {
                come += 1;
            }
            // There is no change any more.
            if come > 1000 {
                break;
            }
            assert!(arrived <= WINDOW as usize, "{arrived}");
        }
        while pair.far.1.given < WINDOW as usize {
            poll_fn(|cx| pair.far.1.poll_data(cx)).await.expect("data");
        }
        pair.far.1.grant();
        while pair.near.0.waiting() > 0 {
            let _ = pair.near.0.poll_flush(&mut Context::from_waker(Waker::noop()));
            let next = pair.far.1.poll_data(&mut Context::from_waker(Waker::noop()));
            if next.is_ready() {
                pair.far.1.grant();
            }
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn what_is_dropped_is_reset_as_a_broken_connection() {
    for far_drops in [false, true] {
        run(async {
            let mut pair = pair(&asked()).await;
            pair.far.0.enqueue_fields(&Answer::Granted.fields(Payload::Raw)).expect("sent");
            poll_fn(|cx| pair.near.1.poll_fields(cx)).await.expect("an answer");
            let (dropped, mut left) =
                if far_drops { (pair.far, pair.near) } else { (pair.near, pair.far) };
            drop(dropped);
            match poll_fn(|cx| left.0.poll_stopped(cx)).await {
                Err(StreamError::Reset(code)) => assert_eq!(code, Code::CONNECT_ERROR),
                other => panic!("{other:?}"),
            }
            match poll_fn(|cx| left.1.poll_data(cx)).await {
                Err(StreamError::Reset(code)) => assert_eq!(code, Code::CONNECT_ERROR),
                other => panic!("{other:?}"),
            }
        });
    }
}

/// When one end has sent its end, the other must not take a reset for that end.
#[test]
fn a_reset_after_the_end_is_a_reset() {
    run(async {
        let mut pair = pair(&asked()).await;
        pair.far.0.enqueue_fields(&Answer::Granted.fields(Payload::Raw)).expect("sent");
        poll_fn(|cx| pair.near.1.poll_fields(cx)).await.expect("an answer");
        pair.near.0.end();
        assert!(poll_fn(|cx| pair.far.1.poll_data(cx)).await.expect("an end").is_none());
        drop(pair.near);
        let broken = poll_fn(|cx| pair.far.0.poll_stopped(cx)).await;
        assert!(matches!(broken, Err(StreamError::Reset(Code::CONNECT_ERROR))), "{broken:?}");
    });
}

proptest! {
    #[test]
    fn no_fields_panic(pairs in proptest::collection::vec((":?[a-zA-Z-]{0,12}", ".*"), 0..8)) {
        let fields: Vec<Field> =
            pairs.into_iter().map(|(name, value)| Field::new(name, value)).collect();
        let _ = (request_of(&fields), response_of(&fields));
    }

    /// HTTP/2 can express every target that a request may have.
    #[test]
    fn every_target_can_be_asked_for(host in "[a-zA-Z0-9_.-]{1,60}", v6 in any::<u128>(), port in 1..=u16::MAX) {
        let v6 = Target::Address((std::net::Ipv6Addr::from(v6), port).into());
        for target in Target::of(&host, port).into_iter().chain([v6]) {
            let asked = Asked { target, client: None, class: None, hops: 0 };
            let request = request_of(&asked.fields(Form::Classic));
            prop_assert!(request.is_some(), "{:?}", asked);
            let authority = request.and_then(|it| Some(it.uri().authority()?.as_str().to_owned()));
            prop_assert_eq!(authority, Some(asked.target.to_string()));
        }
    }
}

/// Frames of one byte each that are not read take no more memory than their bytes.
#[test]
fn small_pieces_that_wait_are_put_together() {
    run(async {
        let mut pair = pair(&asked()).await;
        let sent: Bytes = (0..200_000_u32).map(|at| (at * 7 % 251) as u8).collect();
        let far = &mut pair.far.1;
        let (mut at, mut rounds) = (0, 0_usize);
        while at < sent.len() {
            // Some large ones among them.
            let length = if rounds % 1000 == 999 { 5000 } else { 1 };
            let end = (at + length).min(sent.len());
            far.keep(sent.slice(at..end));
            (at, rounds) = (end, rounds + 1);
        }
        assert!(rounds > 30_000 && far.arrived.len() < 200, "{} pieces", far.arrived.len());
        let mut received = Vec::new();
        while received.len() < sent.len() {
            let bytes = poll_fn(|cx| far.poll_data(cx)).await.expect("no fault").expect("no end");
            received.extend_from_slice(&bytes);
        }
        assert!(received == sent);
    });
}
