//! What waits on a lane and what does not, and what another shard is handed.

use super::*;
use crate::tunnel::shards::{Keys, Shards};
use midhop_units::{Bytes as Size, Rate};
use quinn::Runtime;
use quinn_proto::ConnectionIdGenerator;

/// However busy the machine is.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

fn pace(mbit: u64) -> Pace {
    Pace::of(Some(Rate::from_mbit_per_s(mbit)), Size::new(28))
}

fn sockets() -> (Arc<Paced>, std::net::UdpSocket) {
    let bind = || std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let peer = bind();
    peer.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let own = bind();
    own.set_nonblocking(true).expect("a socket that does not block");
    let alone = Shard::alone(Keys::of(&[7; 32]));
    (Paced::new(own, alone, Arc::default()).expect("a socket"), peer)
}

fn to(peer: &std::net::UdpSocket, contents: &'static [u8]) -> Transmit<'static> {
    let destination = peer.local_addr().expect("an address");
    Transmit { destination, ecn: None, contents, segment_size: Some(1000), src_ip: None }
}

#[tokio::test]
async fn a_full_lane_refuses_and_lets_go_as_time_passes() {
    let (socket, peer) = sockets();
    let address = peer.local_addr().expect("an address");
    let _course = socket.steer(address, pace(8));
    let mut poller = socket.clone().create_io_poller();
    let refused = socket
        .try_send(&to(&peer, &[1; 20_000]))
        .and_then(|()| socket.try_send(&to(&peer, &[2; 1000])));
    assert_eq!(refused.map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock));
    let writable = std::future::poll_fn(|cx| poller.as_mut().poll_writable(cx));
    tokio::select! {
        writable = writable => writable.expect("room"),
        stopped = socket.drive() => panic!("it stopped: {stopped:?}"),
    }
    socket.try_send(&to(&peer, &[2; 1000])).expect("room");
    let heard = async {
        let peer = tokio::task::spawn_blocking(move || {
            let mut buffer = [0; 2000];
            (0..21).map(|_| peer.recv(&mut buffer).map(|len| (len, buffer[0]))).collect::<Vec<_>>()
        });
        peer.await.expect("the peer")
    };
    let heard = tokio::select! {
        heard = heard => heard,
        stopped = socket.drive() => panic!("it stopped: {stopped:?}"),
    };
    let heard: Vec<_> = heard.into_iter().map(|one| one.expect("a datagram")).collect();
    assert!(heard[..20].iter().all(|one| *one == (1000, 1)) && heard[20] == (1000, 2));
}

#[tokio::test]
async fn a_stranger_takes_nobodys_course() {
    let (socket, peer) = sockets();
    let address = peer.local_addr().expect("an address");
    let owner = |socket: &Paced| socket.state().lanes.owner(address);
    let own = socket.steer(address, pace(8));
    let mut other = socket.steer_attempt(address, pace(1));
    assert_eq!(owner(&socket), own.number);
    other.take(address);
    assert_eq!(owner(&socket), other.number);
    // Its successor stays.
    drop(own);
    assert_eq!(owner(&socket), other.number);
    let moved = ([127, 0, 0, 1], 9).into();
    other.take(moved);
    assert_eq!(owner(&socket), None);
    drop(other);
    assert!(socket.state().lanes.is_empty());
}

#[tokio::test]
async fn what_was_agreed_moves_with_the_peer_and_ends_with_the_connection() {
    let (socket, peer) = sockets();
    let at_once = || Pace::of(None, Size::new(28));
    let address = peer.local_addr().expect("an address");
    // The runtime finds out.
    socket.io.writable().await.expect("a socket");
    let sent = || {
        socket.try_send(&to(&peer, &[0x40; 500])).expect("room");
        peer.recv(&mut [0; 2000]).expect("a datagram")
    };
    let mut course = socket.steer(([127, 0, 0, 1], 9).into(), at_once());
    course.repair(fec::FecSettings::default());
    course.agree(128);
    course.take(address);
    assert_eq!(sent(), 500);
    // Nothing was lost until now.
    course.pace().loses();
    assert_eq!(sent(), 503);
    assert!(course.repaired().is_some_and(|(stats, _)| stats.sources_sent == 1));
    let mut next = socket.steer(address, at_once());
    assert_eq!(sent(), 500);
    assert!(course.repaired().is_none());
    // Whoever has not said that it reads repairs gets none.
    next.agree(128);
    assert_eq!(sent(), 500);
    // What the first one's peer may still send is read.
    assert!(socket.state().lanes.see(address).is_some_and(Lane::hears));
}

#[tokio::test]
async fn answers_to_strangers_leave_at_once() {
    let (socket, peer) = sockets();
    for _ in 0..100 {
        socket.try_send(&to(&peer, &[1; 1000])).expect("no lane");
    }
    assert_eq!(peer.recv(&mut [0; 2000]).expect("a datagram"), 1000);
    assert_eq!(socket.max_transmit_segments(), SEGMENTS.min(socket.udp.max_gso_segments()));
}

#[tokio::test]
async fn a_slow_lane_takes_no_segments_from_others() {
    let (socket, peer) = sockets();
    let slow = peer.local_addr().expect("an address");
    let (_, other) = sockets();
    let fast = other.local_addr().expect("an address");
    let _courses = [socket.steer(slow, pace(1)), socket.steer(fast, pace(1000))];
    let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
    for (peer, segments) in [(&peer, 1), (&other, SEGMENTS), (&peer, 1)] {
        let (socket, sender) = (socket.clone(), sender.clone());
        let transmit = Transmit { contents: &[1; 100], ..to(peer, &[]) };
        drivers::Drivers.spawn(Box::pin(async move {
            let _ = socket.try_send(&transmit);
            tokio::task::yield_now().await;
            let _ = sender.send((socket.max_transmit_segments(), segments));
        }));
    }
    drop(sender);
    let most = socket.udp.max_gso_segments();
    while let Some((asked, wanted)) = told.recv().await {
        assert_eq!(asked, wanted.min(most));
    }
}

/// Sockets of one address, each with a number that nobody else has.
fn shards_of(count: usize) -> Vec<Arc<Paced>> {
    let sockets = std::iter::repeat_with(|| std::net::UdpSocket::bind("127.0.0.1:0"));
    let shards = Shards::divide(Keys::of(&[7; 32]), count).into_iter().zip(sockets);
    let opened = shards.map(|(shard, socket)| {
        let socket = socket.expect("a socket");
        socket.set_nonblocking(true).expect("a socket that does not block");
        Paced::new(socket, shard, Arc::default()).expect("a socket")
    });
    opened.collect()
}

/// What comes out of a socket next: from where, and the bytes.
async fn heard(socket: &Paced) -> (SocketAddr, Vec<u8>) {
    let mut buffer = vec![0; 65_536];
    let mut metas = [RecvMeta::default()];
    loop {
        let count = std::future::poll_fn(|cx| {
            socket.poll_recv(cx, &mut [IoSliceMut::new(&mut buffer)], &mut metas)
        });
        // One of which nothing is for this socket is empty.
        let count = time::timeout(PATIENCE, count).await.expect("in time");
        if count.expect("a datagram") > 0 && metas[0].len > 0 {
            return (metas[0].addr, buffer[..metas[0].len].to_vec());
        }
    }
}

#[tokio::test]
async fn what_is_another_shard_s_comes_out_of_its_socket() {
    let shards = shards_of(3);
    let (_, peer) = sockets();
    let from = peer.local_addr().expect("an address");
    let id = shards[2].shard.ids().generate_cid();
    let own = shards[0].shard.ids().generate_cid();
    let short = |id: &[u8], fill: u8| [&[0x41], id, &[fill; 30]].concat();
    let send = |bytes: &[u8]| {
        peer.send_to(bytes, shards[0].local_addr().expect("an address")).expect("room")
    };
    // Whoever waits there is woken, although nothing comes to its own socket.
    let waits = heard(&shards[2]);
    tokio::pin!(waits);
    let receive = async {
        send(&short(&id, 1));
        send(&short(&own, 2));
        heard(&shards[0]).await
    };
    let ((first, bytes), here) = tokio::join!(&mut waits, receive);
    assert_eq!((first, bytes), (from, short(&id, 1)));
    assert_eq!(here, (from, short(&own, 2)));
    assert_eq!(shards[0].ledger.handed_datagrams.value(), 1);
    assert_eq!(shards[0].ledger.datagrams.value(), 2);
    assert_eq!(shards[2].ledger.datagrams.value(), 0);
    // Nothing waits for one whose socket is gone: its peer is told so by whoever hears it.
    shards[2].fail();
    send(&short(&id, 3));
    assert_eq!(heard(&shards[0]).await, (from, short(&id, 3)));
}

#[tokio::test]
async fn a_repair_goes_where_what_it_repairs_went() {
    let shards = shards_of(2);
    let (_, peer) = sockets();
    let from = peer.local_addr().expect("an address");
    let mut course = shards[1].steer(from, pace(1000));
    course.repair(fec::FecSettings::default());
    let id = shards[1].shard.ids().generate_cid();
    let datagram = |fill: u8| [&[0x41], &id[..], &[fill; 30]].concat();
    // A sender that was told of losses sends a repair once it is silent.
    let mut sender = fec::Shim::new(fec::FecSettings::default(), pace(1000), Instant::START);
    sender.agree(128);
    let report = [&[0x20][..], &[0, 0, 19, 136], &[0, 0, 0, 50], &[0, 0, 0, 50], &[0; 8]].concat();
    sender.handle_input(Instant::START, report.into(), (), false);
    for fill in 1..=3 {
        sender.push(Instant::START, datagram(fill).into(), ());
    }
    let now = Instant::START + midhop_units::Duration::from_ms(1);
    let mut sent: Vec<_> = std::iter::from_fn(|| sender.poll_output(now)).collect();
    let end = sender.poll_timeout().expect("the end of a burst");
    sent.extend(std::iter::from_fn(|| sender.poll_output(end)));
    // All but the third, which its repair gives back.
    let to = shards[0].local_addr().expect("an address");
    for (_, (bytes, ())) in sent.iter().enumerate().filter(|(at, _)| *at != 2) {
        peer.send_to(bytes, to).expect("room");
    }
    let other = async {
        let _ = heard(&shards[0]).await;
    };
    let came = async {
        let mut came = Vec::new();
        while came.len() < 3 * datagram(0).len() {
            came.extend(heard(&shards[1]).await.1);
        }
        came
    };
    let came = tokio::select! {
        came = came => came,
        () = other => panic!("nothing of it is for that one"),
    };
    assert_eq!(came, [datagram(1), datagram(2), datagram(3)].concat());
}

/// What is received for a shard that does not read is bounded.
#[tokio::test]
async fn one_that_does_not_read_is_handed_no_more_than_it_has_room_for() {
    let shards = shards_of(2);
    let id = shards[1].shard.ids().generate_cid();
    let label = Label { peer: ([127, 0, 0, 1], 9).into(), ecn: None, own: None };
    for _ in 0..HANDED_MAX + 50 {
        let datagram = [&[0x41], &id[..], &[1; 30]].concat().into();
        shards[0].shard.hand_over(1, (datagram, label)).expect("a socket");
    }
    assert_eq!(shards[1].state().arrivals.len(), HANDED_MAX);
}
