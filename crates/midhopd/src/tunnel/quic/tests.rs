//! Endpoints on the loopback, and datagrams that one of them receives for another.

use super::driver::send;
use super::state::HANDED_MAX;
use super::{EndpointShared, QuicEndpoint};
use crate::ledger::Ledger;
use crate::tunnel::shards::{Keys, Shard, Shards};
use midhop_tunnel::quic::{DatagramBatch, Endpoint, Label};
use quinn_proto::{ConnectionIdGenerator, EndpointConfig};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::LocalSet;
use tokio::time;

const PATIENCE: Duration = Duration::from_secs(10);

/// One of an address's endpoints. In these tests each has a socket of its own.
struct One {
    shard: Shard,
    endpoint: QuicEndpoint,
    ledger: Arc<Ledger>,
}

impl One {
    fn address(&self) -> SocketAddr {
        self.endpoint.local_addr()
    }

    /// Waits until it has received this many datagrams, of which this many were for others.
    async fn expect(&self, came: u64, handed: u64) {
        let counts = || (self.ledger.datagrams.value(), self.ledger.handed_datagrams.value());
        let reached = async {
            while counts() != (came, handed) {
                time::sleep(Duration::from_millis(1)).await;
            }
        };
        let reached = time::timeout(PATIENCE, reached).await;
        assert!(reached.is_ok(), "{:?} instead of {:?}", counts(), (came, handed));
    }
}

fn endpoints(count: usize) -> Vec<One> {
    let shards = Shards::divide(Keys::of(&[7; 32]), count).into_iter();
    let opened = shards.map(|shard| {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.set_nonblocking(true).expect("a socket that does not block");
        let (config, ledger) = (EndpointConfig::default(), Arc::<Ledger>::default());
        let own = (shard.clone(), ledger.clone());
        let endpoint = QuicEndpoint::open(socket, config, None, own.0, own.1);
        One { shard, endpoint: endpoint.expect("an endpoint"), ledger }
    });
    opened.collect()
}

#[test]
fn what_the_kernel_has_no_room_for_stays() {
    let mut batch = DatagramBatch::new(64);
    batch.put(&[7; 1000], Label::of(([192, 0, 2, 1], 1).into()));
    for kept in [io::ErrorKind::WouldBlock, io::ErrorKind::ConnectionAborted] {
        send(&mut batch, |_| Err(kept.into())).expect_err("it does not leave");
        assert!(!batch.is_empty());
    }
    send(&mut batch, |transmit| {
        assert_eq!((transmit.contents.len(), transmit.segment_size), (1000, None));
        Err(io::ErrorKind::NetworkUnreachable.into())
    })
    .expect("lost");
    assert!(batch.is_empty());
}

/// A datagram without a long header for the connection with this ID.
fn short(id: &[u8]) -> Vec<u8> {
    [&[0x41], id, &[7; 30]].concat()
}

#[tokio::test]
async fn what_is_another_shard_s_is_handed_to_it_and_repairs_go_along() {
    let test = async {
        let all = endpoints(3);
        let peer = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let send = |bytes: &[u8]| peer.send_to(bytes, all[0].address()).expect("room");
        // A repair packet of an unknown address stays with its receiver.
        let repair = [&[0xa0, 0, 0, 3, 0][..], &[7; 40]].concat();
        send(&repair);
        all[0].expect(1, 0).await;
        send(&short(&all[2].shard.ids().generate_cid()));
        all[0].expect(2, 1).await;
        send(&repair);
        all[0].expect(3, 2).await;
        send(&short(&all[0].shard.ids().generate_cid()));
        all[0].expect(4, 2).await;
        assert_eq!(all[2].ledger.datagrams.value(), 0, "nothing came by its own socket");
        // Nothing is handed to an endpoint whose socket is gone.
        all[2].endpoint.fail();
        send(&short(&all[2].shard.ids().generate_cid()));
        all[0].expect(5, 2).await;
    };
    LocalSet::new().run_until(test).await;
}

/// Whatever ends the driver of an endpoint, also a panic: its users notice, and open another one.
#[tokio::test]
async fn an_endpoint_that_nobody_drives_has_failed() {
    let tasks = LocalSet::new();
    let mut all = tasks.run_until(async { endpoints(1) }).await;
    let One { endpoint, .. } = all.remove(0);
    assert!(!endpoint.has_failed());
    drop(tasks);
    time::timeout(PATIENCE, endpoint.failed()).await.expect("it has failed");
    assert!(endpoint.accept().await.is_none());
    time::timeout(PATIENCE, endpoint.wait_idle()).await.expect("nothing is there");
}

/// The datagrams that wait for an endpoint which is not driven are bounded.
#[tokio::test]
async fn one_that_does_not_read_is_handed_no_more_than_it_has_room_for() {
    let epoch = time::Instant::now();
    let machine = Endpoint::new(Arc::default(), None, epoch.into_std(), None);
    let shared = EndpointShared::new(machine, epoch);
    for _ in 0..HANDED_MAX + 50 {
        let datagram = (short(&[1; 8]).into(), Label::of(([127, 0, 0, 1], 9).into()));
        shared.take_over(datagram).expect("a socket");
    }
    assert_eq!(shared.lock().handed.len(), HANDED_MAX);
    shared.fail();
    let datagram = (short(&[1; 8]).into(), Label::of(([127, 0, 0, 1], 9).into()));
    assert!(shared.take_over(datagram).is_err());
}
