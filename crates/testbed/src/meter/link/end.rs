//! One end of a session's datagrams: a thread that receives them, and the sending of trains.

use super::estimate::Arrived;
use super::inbox::{Inbox, Pong, Receipt};
use super::message::Sent;
use super::train::{PACKET, Pacer, Step, Train};
use super::wire::{DATAGRAM_MAX, Datagram, HEADER, Kind, Token};
use super::{socket, socket::ReceivedDatagram};
use crate::meter::payload::Payload;
use midhop_units::Seed;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A receiver that receives nothing for so long after the end of a train has received all that will
/// arrive.
pub(super) const SILENCE: Duration = Duration::from_millis(300);
/// How long the last datagrams of a train are waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Polling interval of waits.
const LOOK: Duration = Duration::from_millis(20);
/// Shorter waits are skipped: sleeping takes longer.
const NAP_NS_MIN: u64 = 60_000;
/// The number of ICMP refusals after which nobody is assumed to listen at the far host.
const REFUSALS_MAX: u32 = 20;
/// Length of the IP and UDP headers of a packet.
const HEADERS_V4: u64 = 28;
const HEADERS_V6: u64 = 48;

/// One end. The thread stops when the value is dropped.
#[derive(Debug)]
pub(super) struct LinkEnd {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    socket: UdpSocket,
    token: Token,
    stop: AtomicBool,
    sent_bytes: AtomicU64,
    inbox: Mutex<Inbox>,
}

impl LinkEnd {
    /// An end between `local` and `peer` for the session of `token`.
    pub(super) fn start(
        local: SocketAddr,
        peer: SocketAddr,
        token: Token,
        answers: bool,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            socket: socket::connected(local, peer)?,
            token,
            stop: AtomicBool::new(false),
            sent_bytes: AtomicU64::new(0),
            inbox: Mutex::new(Inbox::new(token, answers)),
        });
        let reader = Arc::clone(&shared);
        std::thread::Builder::new().name("link".to_owned()).spawn(move || reader.read())?;
        Ok(Self { shared })
    }

    /// Sends one small datagram.
    pub(super) fn send(&self, kind: Kind, number: u32) {
        self.shared.send(Datagram { number, ..Datagram::new(self.shared.token, kind) });
    }

    /// Whether anything was received from the far end.
    pub(super) fn seen(&self) -> bool {
        self.shared.inbox().seen()
    }

    /// The answers to pings so far.
    pub(super) fn pongs(&self) -> Vec<Pong> {
        self.shared.inbox().pongs().to_vec()
    }

    /// Packets sent and received so far, headers included. Unit: bytes.
    pub(super) fn counts(&self) -> [u64; 2] {
        [self.shared.sent_bytes.load(Ordering::Relaxed), self.shared.inbox().received_bytes()]
    }

    /// Discards earlier arrivals, and expects `train`.
    pub(super) fn expect(&self, train: Train) {
        self.shared.inbox().expect(train);
    }

    /// The arrivals of the expected train, once all have arrived or no more do.
    pub(super) async fn collect(&self, sent: Sent) -> Arrived {
        let begin = Instant::now();
        loop {
            {
                let inbox = self.shared.inbox();
                let all = inbox.arrivals() >= sent.packets as usize;
                let silent =
                    inbox.last().map_or(begin, |last| last.max(begin)).elapsed() >= SILENCE;
                if all || silent || begin.elapsed() >= PATIENCE {
                    break;
                }
            }
            tokio::time::sleep(LOOK).await;
        }
        self.shared.inbox().collect(sent)
    }

    /// Sends a train, on a thread that may block.
    pub(super) async fn send_train(&self, train: Train) -> Sent {
        let sender = Arc::clone(&self.shared);
        let sent = tokio::task::spawn_blocking(move || sender.send_train(train));
        // A thread that panicked sent nothing that counts.
        sent.await.unwrap_or(Sent { packets: 0 })
    }
}

impl Drop for LinkEnd {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, datagram: Datagram) {
        let datagram = Datagram { sent_ns: socket::now_ns(), ..datagram };
        // A datagram that cannot be sent counts as lost.
        let _ = self.socket.send(&datagram.encode());
    }

    fn read(&self) {
        let mut buffer = [0; DATAGRAM_MAX + 1];
        while !self.stop.load(Ordering::Relaxed) {
            match socket::receive(&self.socket, &mut buffer) {
                Ok(received) => self.take(received, &buffer[..received.length]),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    // For example the far host's ICMP error that nobody listens there yet, or any
                    // more. The pause avoids a busy loop.
                    _ => std::thread::sleep(LOOK),
                },
            }
        }
    }

    fn take(&self, received: ReceivedDatagram, bytes: &[u8]) {
        let (at_ns, overflowed) = (received.at_ns, received.overflowed);
        let receipt = Receipt { at_ns, overflowed, now: Instant::now() };
        let answer = self.inbox().take(bytes, receipt);
        if let Some(answer) = answer {
            self.send(answer);
        }
    }

    fn send_train(&self, train: Train) -> Sent {
        let v4 = self.socket.peer_addr().is_ok_and(|peer| peer.is_ipv4());
        let length = PACKET - if v4 { HEADERS_V4 } else { HEADERS_V6 };
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(HEADER)];
        Payload::of_flow(Seed(u64::from(train.id)), 0).fill(0, &mut bytes);
        let begin = Instant::now();
        let elapsed = || u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut pacer = Pacer::new(train, 0);
        let (mut packets, mut refusals) = (0, 0);
        while !self.stop.load(Ordering::Relaxed) {
            let number = match pacer.step(elapsed()) {
                Step::Done => break,
                Step::Wait(ns) if ns < NAP_NS_MIN => {
                    std::thread::yield_now();
                    continue;
                }
                Step::Wait(ns) => {
                    std::thread::sleep(Duration::from_nanos(ns));
                    continue;
                }
                Step::Send(number) => number,
            };
            let header = Datagram {
                train: train.id,
                number,
                sent_ns: socket::now_ns(),
                ..Datagram::new(self.token, Kind::Train)
            };
            bytes[..HEADER].copy_from_slice(&header.encode());
            match self.socket.send(&bytes) {
                Ok(_) => {
                    self.sent_bytes.fetch_add(PACKET, Ordering::Relaxed);
                }
                // The ICMP error for an earlier datagram was returned in place of sending this one.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    refusals += 1;
                    if refusals > REFUSALS_MAX {
                        break;
                    }
                }
                // The device took nothing for a second, or there is no route any more.
                Err(_) => break,
            }
            packets = number + 1;
        }
        Sent { packets }
    }
}
