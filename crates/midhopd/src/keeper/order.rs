//! The orders of a data plane thread while it serves. A message has one order, or several. Orders that each
//! packet needs have a fixed size, the others are JSON.

use crate::ends::Ends;
use crate::intercept::marks::Marks;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// The most sockets that are made at a time.
pub const BATCH: usize = 32;

/// The first byte of a message with verdicts. JSON never begins with it.
pub const VERDICTS: u8 = 1;
/// Unit: bytes. The longest order.
pub const ORDER_BYTES: usize = 16 << 10;
/// Unit: bytes. Size of one verdict in its message.
pub const VERDICT_BYTES: usize = 12;

/// The verdict on a packet that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The number of its queue.
    pub queue: u16,
    /// The packet's number in the queue.
    pub packet: u32,
    /// Whether it goes on.
    pub passes: bool,
    /// The new firewall mark, if it gets another one.
    pub mark: Option<u32>,
}

impl Verdict {
    /// Encodes it.
    pub fn bytes(self) -> [u8; VERDICT_BYTES] {
        let mut bytes = [0; VERDICT_BYTES];
        bytes[..2].copy_from_slice(&self.queue.to_le_bytes());
        bytes[2] = u8::from(self.passes);
        bytes[3] = u8::from(self.mark.is_some());
        bytes[4..8].copy_from_slice(&self.packet.to_le_bytes());
        bytes[8..].copy_from_slice(&self.mark.unwrap_or_default().to_le_bytes());
        bytes
    }

    /// Decodes it. Any bytes are valid.
    pub fn read(bytes: [u8; VERDICT_BYTES]) -> Self {
        let [q0, q1, passes, marked, p0, p1, p2, p3, m0, m1, m2, m3] = bytes;
        Self {
            queue: u16::from_le_bytes([q0, q1]),
            packet: u32::from_le_bytes([p0, p1, p2, p3]),
            passes: passes != 0,
            mark: (marked != 0).then_some(u32::from_le_bytes([m0, m1, m2, m3])),
        }
    }
}

/// The first byte of a message with entries for connection tracking. JSON never begins with it.
pub const ENTRIES: u8 = 2;
/// Unit: bytes. Size of one entry in its message.
pub const ENTRY_BYTES: usize = 44;

/// The most entries in one message.
pub const ENTRIES_MAX: usize = 128;

/// An entry for connection tracking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConntrackEntry {
    /// Whether it is a server's leg; else it is a client's.
    pub to_server: bool,
    /// Its ends.
    pub ends: Ends,
    /// The connection's mark.
    pub mark: u32,
}

impl ConntrackEntry {
    /// Encodes it.
    pub fn bytes(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[0] = u8::from(self.to_server);
        bytes[4..8].copy_from_slice(&self.mark.to_le_bytes());
        for (end, at) in [(self.ends.client, 8), (self.ends.server, 26)] {
            let octets = match end.ip() {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            bytes[at..at + 16].copy_from_slice(&octets);
            bytes[at + 16..at + 18].copy_from_slice(&end.port().to_le_bytes());
        }
        bytes
    }

    /// Decodes it. Any bytes are valid. An IPv4-mapped IPv6 address becomes the IPv4 address.
    pub fn read(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let end = |at: usize| {
            let octets: [u8; 16] = std::array::from_fn(|index| bytes[at + index]);
            let port = u16::from_le_bytes([bytes[at + 16], bytes[at + 17]]);
            SocketAddr::new(IpAddr::from(octets).to_canonical(), port)
        };
        let mark = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        Self { to_server: bytes[0] != 0, ends: Ends { client: end(8), server: end(26) }, mark }
    }
}

/// An order. The socket that it is about is sent with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Order {
    /// Sets a socket option that takes a privilege.
    Set(Setting),
    /// Binds a socket to an address whose port takes a privilege.
    Bind(SocketAddr),
    /// Takes over the verdicts of a queue of packets.
    Queue(u16, LeftPackets),
    /// Removes a server's leg.
    ForgetServer(Pair),
    /// Requests the original of a translated flow that leaves between these ends.
    Origin(Pair),
    /// Removes the socket in TIME-WAIT between these ends.
    Dismiss(Pair),
    /// Requests nothing. When it is answered, all earlier orders, verdicts as well, have been executed.
    Settle,
    /// Requests the table's counts of handshakes.
    Handshakes,
    /// Switches repair mode of a connection.
    Repair(Repair),
    /// Prepares a new socket for the state of a connection.
    Prepare(PreparedSocket),
    /// Has a restored connection go on.
    GoOn {
        /// Whether this end's FIN had been sent.
        end_is_sent: bool,
        /// The congestion window that it gets before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window: Option<SeededWindow>,
    },
    /// Determines which packets of flows are dropped.
    Still(Vec<Pair>, Stillness),
}

/// The most flows of one [`Order::Still`]: as many fit into a message.
pub const STILL_MAX: usize = 64;

impl Order {
    /// Whether a socket is sent with it.
    pub const fn is_about_socket(&self) -> bool {
        match self {
            Self::Set(_)
            | Self::Bind(_)
            | Self::Queue(..)
            | Self::Repair(_)
            | Self::Prepare(_)
            | Self::GoOn { .. } => true,
            Self::ForgetServer(_)
            | Self::Origin(_)
            | Self::Dismiss(_)
            | Self::Settle
            | Self::Handshakes
            | Self::Still(..) => false,
        }
    }
}

/// A message of a thread: one order, or several that are executed in turn until one fails. The answer to several has an
/// outcome for each that was tried.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OrderMessage {
    /// Several. Their sockets are sent in the same sequence.
    InTurn(Vec<Order>),
    /// One.
    One(Order),
}

/// What becomes of the packets in a queue when its reader has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeftPackets {
    /// They go on.
    Passes,
    /// They are dropped.
    Drops,
}

/// How repair mode is switched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Repair {
    /// On.
    On,
    /// Off, and the far end's window is probed.
    Off,
    /// Off.
    OffWithoutProbe,
}

/// Which packets of a flow are dropped, on both sides of it. Dropping ends by itself after
/// [`STILL_TIME`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stillness {
    /// Those that arrive, from now on, or they are forwarded to this neighbour, a peer. What this host sends passes as before.
    Arriving(Option<IpAddr>),
    /// Those that this host's sockets send, from now on. What happens to those that arrive stays as it is.
    Leaving,
    /// Those that arrive, and those that this host's sockets send.
    Both,
    /// The same, but what arrives waits in a queue.
    Waiting,
    /// The same, but this host's sockets receive what arrives, if there are any.
    Receiving,
    /// None.
    None,
}

impl Stillness {
    /// To whom what arrives is forwarded.
    pub const fn neighbour(self) -> Option<IpAddr> {
        match self {
            Self::Arriving(neighbour) => neighbour,
            Self::Leaving | Self::Both | Self::Waiting | Self::Receiving | Self::None => None,
        }
    }
}

/// How long the packets of a flow are dropped at most: while it moves, and after it has moved away, until its route has
/// changed.
pub const STILL_TIME: Duration = Duration::from_secs(120);

/// A socket for the state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreparedSocket {
    /// The address of this end.
    pub local: SocketAddr,
    /// The firewall mark of its packets.
    pub mark: u32,
    /// The receive buffer: its size in bytes as the kernel reports it, and whether it is locked.
    pub receive: (u32, bool),
    /// The send buffer likewise.
    pub send: (u32, bool),
}

/// The congestion window of a restored connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeededWindow {
    /// The kernel's name of the program that sets it.
    pub program: String,
    /// Unit: bytes.
    pub bytes: u64,
    /// Unit: bytes. The slow start threshold; none before the first loss.
    pub threshold: Option<u64>,
    /// Unit: bytes per second. The rate at which it sends at first; none: unpaced.
    pub rate: Option<u64>,
}

/// Unit: bytes. The largest buffer of such a socket.
pub const PREPARED_BUFFER_MAX: u32 = 128 << 20;

impl PreparedSocket {
    /// Whether the data plane may have it: its mark is one of its own sockets', and its buffers are bounded.
    pub fn is_allowed(&self, marks: Marks) -> bool {
        let largest = self.receive.0.max(self.send.0);
        marks.is_socket(self.mark) && largest <= PREPARED_BUFFER_MAX && self.local.port() > 0
    }
}

/// Client and server of a flow.
pub type Pair = (SocketAddr, SocketAddr);

/// Decodes a flow's ends from an order.
pub fn ends((client, server): Pair) -> Ends {
    Ends { client, server }
}

/// Encodes a flow's ends for an order.
pub fn pair(ends: Ends) -> Pair {
    (ends.client, ends.server)
}

/// A socket option that takes a privilege.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Setting {
    /// The socket may use other hosts' addresses.
    Transparent {
        /// In which family.
        v4: bool,
    },
    /// The firewall mark of its packets.
    Mark(u32),
    /// A buffer size above the system's maximum.
    Buffer {
        /// Whether it is the send buffer.
        sends: bool,
        /// The requested size; the kernel doubles it.
        bytes: i32,
    },
    /// A congestion control that takes a privilege.
    Congestion(String),
}

impl Setting {
    /// Whether the data plane may set it: of firewall marks, only those of its own sockets.
    pub fn is_allowed(&self, marks: Marks) -> bool {
        match self {
            Self::Mark(mark) => marks.is_socket(*mark),
            _ => true,
        }
    }
}

/// The result, or the system's error number.
pub type Outcome = Result<Done, i32>;

/// The result of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Done {
    /// Done.
    Yes,
    /// Whether there was something to do.
    Found(bool),
    /// The flow's ends as its client sees them, and the connection's mark.
    Origin(Pair, u32),
    /// Handshake packets: those to this host's sockets before and behind all filters, then those
    /// from them. Last the packets that were sent for assisted flows.
    Handshakes([u64; 5]),
}

/// The properties of sockets for servers' legs, which are ordered many at a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Their family.
    pub v4: bool,
    /// Their firewall mark.
    pub mark: u32,
    /// Their congestion control; none: the kernel's default.
    pub congestion: Option<String>,
    /// The congestion control if that one is refused.
    pub fallback: Option<String>,
    /// Unit: bytes. The receive buffer. None: the kernel sizes it by measuring.
    pub receive: Option<i32>,
    /// Unit: bytes. The send buffer likewise.
    pub send: Option<i32>,
}

/// An order of sockets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// The shelf number, by which the sockets refer to the order.
    pub shelf: u32,
    /// How many; the keeper makes at most a batch at a time.
    pub count: usize,
    /// The properties of these sockets.
    pub recipe: Recipe,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn marks_of_others_are_not_to_be_had() {
        let marks = Marks::new(0xff00_0000);
        assert!(Setting::Mark(marks.server | 7).is_allowed(marks));
        assert!(Setting::Mark(marks.client).is_allowed(marks));
        assert!(!Setting::Mark(7).is_allowed(marks));
        assert!(!Setting::Mark(marks.injected).is_allowed(marks));
        assert!(!Setting::Mark(marks.refused()).is_allowed(marks));
        assert!(!Setting::Mark(marks.client | marks.server).is_allowed(marks));
    }

    #[test]
    fn buffers_and_marks_of_a_prepared_socket_are_bounded() {
        let marks = Marks::new(0xff00_0000);
        let local = "10.0.0.1:80".parse().expect("an address");
        let buffer = (PREPARED_BUFFER_MAX, false);
        let sound = PreparedSocket { local, mark: marks.client, receive: buffer, send: buffer };
        assert!(sound.is_allowed(marks));
        let beyond = (PREPARED_BUFFER_MAX + 1, true);
        assert!(!PreparedSocket { receive: beyond, ..sound }.is_allowed(marks));
        assert!(!PreparedSocket { send: beyond, ..sound }.is_allowed(marks));
        assert!(!PreparedSocket { mark: marks.injected, ..sound }.is_allowed(marks));
        let any = "10.0.0.1:0".parse().expect("an address");
        assert!(!PreparedSocket { local: any, ..sound }.is_allowed(marks));
    }

    #[test]
    fn no_order_is_taken_for_verdicts() {
        let ends = ("10.0.0.1:1".parse().expect("one"), "[fd00::1]:2".parse().expect("one"));
        for order in [Order::Handshakes, Order::Origin(ends), Order::Set(Setting::Mark(1))] {
            let bytes = serde_json::to_vec(&order).expect("JSON");
            assert_ne!(bytes.first(), Some(&VERDICTS));
            let one = serde_json::from_slice::<OrderMessage>(&bytes).expect("an order");
            assert!(matches!(one, OrderMessage::One(one) if one == order));
            let bytes = serde_json::to_vec(&[&order, &order]).expect("JSON");
            let several = serde_json::from_slice::<OrderMessage>(&bytes).expect("orders");
            assert!(matches!(several, OrderMessage::InTurn(all) if all == [order.clone(), order]));
        }
    }

    #[test]
    fn the_longest_order_fits_into_a_message() {
        let end = "[fd00:1111:2222:3333:4444:5555:6666:7777]:65535".parse().expect("an address");
        let order = Order::Still(vec![(end, end); STILL_MAX], Stillness::Arriving(Some(end.ip())));
        assert!(serde_json::to_vec(&[order]).expect("JSON").len() <= ORDER_BYTES);
    }

    proptest! {
        #[test]
        fn verdicts_are_read_as_they_were_written(
            queue in any::<u16>(), packet in any::<u32>(), passes in any::<bool>(), mark in any::<Option<u32>>(),
        ) {
            let verdict = Verdict { queue, packet, passes, mark };
            prop_assert_eq!(Verdict::read(verdict.bytes()), verdict);
        }

        #[test]
        fn entries_are_read_as_they_were_written(
            to_server in any::<bool>(), client in any::<[u8; 4]>(), server in any::<[u8; 16]>(),
            v4 in any::<bool>(), ports in any::<(u16, u16)>(), mark in any::<u32>(),
        ) {
            let [client, server] = match v4 {
                true => [IpAddr::from(client), IpAddr::from([server[0], server[1], server[2], server[3]])],
                false => [[0x20; 16], server].map(IpAddr::from),
            };
            let server = SocketAddr::new(server.to_canonical(), ports.1);
            let ends = Ends { client: SocketAddr::new(client, ports.0), server };
            let entry = ConntrackEntry { to_server, ends, mark };
            prop_assert_eq!(ConntrackEntry::read(&entry.bytes()), entry);
        }

        #[test]
        fn no_bytes_can_hurt(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = serde_json::from_slice::<OrderMessage>(&bytes);
            let _ = serde_json::from_slice::<Batch>(&bytes);
        }
    }
}
