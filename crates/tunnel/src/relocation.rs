//! The messages by which flows move from one proxy to another (SPEC.md §5.8).
//!
//! A stream moves some flows, in six messages:
//!
//! | | from | message | then |
//! |---|---|---|---|
//! | 1 | old place | [`AnnouncedFlow`]s, which run as before | the new place judges them, and drops their packets |
//! | 2 | new place | [`Readiness`] for each | the old place has those that are ready stand still |
//! | 3 | old place | copies of what queues hold ([`copies`]), while the flows go on; then a [`FlowOffer`] of each: its state; none if it stays | the new place restores what it can |
//! | 4 | new place | [`Readiness`] for each | the old place forgets those that are ready |
//! | 5 | old place | [`Commit`] for each | the new place has them go on |
//! | 6 | new place | [`Arrival`] for each | the old place closes its sockets, or takes flows back |
//!
//! Before message 5 is sent, a flow is the old place's whatever happens. From then on, only message 6 gives it back.
//!
//! Invariant: nothing is allocated by a number that was received. What is held is what has arrived, up to
//! [`OFFER_BYTES_MAX`].

pub mod copies;

use crate::http3::Field;
use copies::{ALL_LEFT_OUT_BYTES, AllLeftOut, decode_left_out, encode_left_out};
use std::net::{IpAddr, SocketAddr};

/// The value of `:protocol` by which a stream is opened for this.
pub const PROTOCOL: &str = "midhop-relocate-1";
/// The most flows of one stream.
pub const FLOWS_MAX: usize = 128;
/// Unit: bytes. The most that the state of one flow may take.
pub const FLOW_BYTES_MAX: usize = (64 << 20) + (4 << 10);
/// Unit: bytes. The most that all flows of a stream may take, copies included.
pub const OFFER_BYTES_MAX: usize = 72 << 20;
/// Unit: bytes. What a flow of IPv6 takes in message 1.
const ANNOUNCED_V6: usize = 38;

/// The header fields of the request; `authority` is the name and port of the proxy that is asked.
pub fn request(authority: &str) -> Vec<Field> {
    vec![
        Field::new(":method", "CONNECT"),
        Field::new(":protocol", PROTOCOL),
        Field::new(":scheme", "https"),
        Field::new(":authority", authority.to_owned()),
        Field::new(":path", "/"),
    ]
}

/// Whether these header fields are such a request.
pub fn is_requested(fields: &[Field]) -> bool {
    let has =
        |name: &str, value: &str| fields.iter().any(|it| it.name == name && it.value == value);
    has(":method", "CONNECT") && has(":protocol", PROTOCOL)
}

/// A flow that is about to stand still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnouncedFlow {
    /// Its client.
    pub client: SocketAddr,
    /// Its server, of the same address family.
    pub server: SocketAddr,
    /// The DSCP of its SYN.
    pub dscp: u8,
}

/// A flow that stands still.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowOffer {
    /// The state of its connection with the client, and of that with the server, for the kernels.
    pub connections: [Vec<u8>; 2],
    /// What their queues lack, of what comes from the client, and from the server; none: nothing.
    pub left_out: Option<[AllLeftOut; 2]>,
}

/// Whether the new place could have a flow go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// It could.
    Ready,
    /// The state is none that a flow has, or one of another version.
    Malformed,
    /// Its rules would not split this flow, or lead it into a tunnel.
    Policy,
    /// A limit is reached.
    Full,
    /// The flow's packets do not pass there, by its routes.
    Route,
    /// Its kernel refuses, for example because it has such a connection.
    Kernel,
}

/// What becomes of a flow, from the old place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    /// It stays.
    Stay,
    /// It goes on at the new place.
    Go,
}

/// What has become of a flow, from the new place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// It goes on.
    GoesOn,
    /// Nothing of it was sent: the old place may go on with it.
    Discarded,
    /// It was reset.
    Lost,
}

/// A value of one octet.
pub trait Octet: Copy + PartialEq + 'static {
    /// The values by their octets.
    const VALUES: &'static [Self];

    /// Its octet.
    fn octet(self) -> u8 {
        let at = Self::VALUES.iter().position(|value| *value == self);
        at.and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX)
    }
}

impl Octet for Readiness {
    const VALUES: &'static [Self] =
        &[Self::Ready, Self::Malformed, Self::Policy, Self::Full, Self::Route, Self::Kernel];
}

impl Octet for Commit {
    const VALUES: &'static [Self] = &[Self::Stay, Self::Go];
}

impl Octet for Arrival {
    const VALUES: &'static [Self] = &[Self::GoesOn, Self::Discarded, Self::Lost];
}

/// Encodes message 1. The flows are within the limits, and have addresses of one family each.
pub fn encode_announced(flows: &[AnnouncedFlow]) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 + flows.len() * ANNOUNCED_V6);
    out.extend((flows.len() as u16).to_be_bytes());
    for flow in flows {
        out.push(if flow.client.is_ipv4() { 4 } else { 6 });
        out.push(flow.dscp);
        for end in [flow.client, flow.server] {
            match end.ip() {
                IpAddr::V4(address) => out.extend(address.octets()),
                IpAddr::V6(address) => out.extend(address.octets()),
            }
            out.extend(end.port().to_be_bytes());
        }
    }
    out
}

impl AnnouncedFlow {
    fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&[family, dscp], rest) = bytes.split_first_chunk()?;
        let (client, rest) = end(family, rest)?;
        let (server, rest) = end(family, rest)?;
        Some((Self { client, server, dscp }, rest))
    }
}

fn end(family: u8, bytes: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let (address, rest): (IpAddr, _) = if family == 4 {
        let (address, rest) = bytes.split_first_chunk::<4>()?;
        ((*address).into(), rest)
    } else {
        let (address, rest) = bytes.split_first_chunk::<16>()?;
        ((*address).into(), rest)
    };
    let (port, rest) = rest.split_first_chunk()?;
    Some((SocketAddr::new(address, u16::from_be_bytes(*port)), rest))
}

/// Encodes a flow of message 3, within the limits; none: it stays.
pub fn encode_offer(flow: Option<&FlowOffer>) -> Vec<u8> {
    let Some(flow) = flow else { return vec![0; 4] };
    let mut out = Vec::with_capacity(4 + flow.length());
    out.extend((flow.length() as u32).to_be_bytes());
    for connection in &flow.connections {
        out.extend((connection.len() as u32).to_be_bytes());
        out.extend(connection);
    }
    out.extend(flow.left_out.iter().flat_map(encode_left_out));
    out
}

impl FlowOffer {
    /// Unit: bytes. What follows its length in a message.
    fn length(&self) -> usize {
        self.bytes() + 8 + self.left_out.map_or(0, |_| ALL_LEFT_OUT_BYTES)
    }

    /// Whether it takes no more than this in a message.
    pub fn is_within(&self, bytes_max: usize) -> bool {
        self.length() <= bytes_max
    }

    /// Unit: bytes. The states of both connections.
    pub fn bytes(&self) -> usize {
        self.connections.iter().map(Vec::len).sum()
    }

    fn decode(bytes: &[u8]) -> Result<Self, RelocationError> {
        let (client, rest) = connection(bytes)?;
        let (server, rest) = connection(rest)?;
        let left_out = decode_left_out(rest)?;
        Ok(Self { connections: [client.to_vec(), server.to_vec()], left_out })
    }
}

fn connection(bytes: &[u8]) -> Result<(&[u8], &[u8]), RelocationError> {
    let (length, rest) = bytes.split_first_chunk().ok_or(RelocationError::Malformed)?;
    let length = u32::from_be_bytes(*length) as usize;
    rest.split_at_checked(length).ok_or(RelocationError::Malformed)
}

/// Encodes any other message: a value for each flow, in the order of the offers.
pub fn encode_values<T: Octet>(values: &[T]) -> Vec<u8> {
    values.iter().map(|value| value.octet()).collect()
}

/// Why a stream moves no flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RelocationError {
    /// There are no flows, or more than [`FLOWS_MAX`].
    #[error("{0} flows are offered; 1 to {FLOWS_MAX} are possible")]
    Count(
        /// How many.
        usize,
    ),
    /// More than is taken.
    #[error("{0} bytes are offered, more than are accepted")]
    TooLong(
        /// Unit: bytes.
        usize,
    ),
    /// A message is malformed.
    #[error("a message about moving flows is malformed")]
    Malformed,
}

/// Reads the messages of a stream, whichever pieces they arrive in.
#[derive(Debug, Default)]
pub struct MessageReader {
    bytes: Vec<u8>,
    /// Unit: bytes. What the flows took that were offered.
    taken: usize,
}

impl MessageReader {
    /// Takes the next bytes of the stream.
    pub fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Unit: bytes. What is held here, and was offered before.
    pub fn held(&self) -> usize {
        self.bytes.len() + self.taken
    }

    /// Message 1, once it is complete.
    ///
    /// # Errors
    /// When it is malformed or beyond a limit.
    pub fn announced(&mut self) -> Result<Option<Vec<AnnouncedFlow>>, RelocationError> {
        let Some((count, mut rest)) = self.bytes.split_first_chunk() else { return Ok(None) };
        let count = usize::from(u16::from_be_bytes(*count));
        if !(1..=FLOWS_MAX).contains(&count) {
            return Err(RelocationError::Count(count));
        }
        let mut flows = Vec::new();
        while flows.len() < count {
            // The two octets from which the length follows.
            let Some([family, dscp]) = rest.first_chunk() else { return Ok(None) };
            if ![4, 6].contains(family) || *dscp > 63 {
                return Err(RelocationError::Malformed);
            }
            let Some((flow, behind)) = AnnouncedFlow::decode(rest) else { return Ok(None) };
            flows.push(flow);
            rest = behind;
        }
        let taken = self.bytes.len() - rest.len();
        self.bytes.drain(..taken);
        Ok(Some(flows))
    }

    /// The next flow of message 3, once it is complete. To be called after each piece.
    ///
    /// # Errors
    /// When it is malformed or beyond a limit.
    pub fn offer(&mut self) -> Result<Option<Option<FlowOffer>>, RelocationError> {
        let Some(length) = self.bytes.first_chunk() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        let total = self.taken.saturating_add(length);
        if length > FLOW_BYTES_MAX || total > OFFER_BYTES_MAX {
            return Err(RelocationError::TooLong(length.max(total)));
        }
        let Some(flow) = self.bytes.get(4..4 + length) else { return Ok(None) };
        let flow = if flow.is_empty() { None } else { Some(FlowOffer::decode(flow)?) };
        self.taken = total;
        self.bytes.drain(..4 + length);
        Ok(Some(flow))
    }

    /// The next message, of `count` values, once it is complete.
    ///
    /// # Errors
    /// When there is no such value.
    pub fn values<T: Octet>(&mut self, count: usize) -> Result<Option<Vec<T>>, RelocationError> {
        if self.bytes.len() < count {
            return Ok(None);
        }
        let octets = self.bytes.drain(..count);
        let values = octets.map(|octet| T::VALUES.get(usize::from(octet)).copied());
        values.collect::<Option<_>>().map(Some).ok_or(RelocationError::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offer(client: usize, server: usize) -> FlowOffer {
        let one = copies::LeftOut { at: 1, from: client as u32, length: server as u32 };
        let left_out = (client % 2 == 1).then_some([[one; 3]; 2]);
        FlowOffer { connections: [vec![1; client], vec![2; server]], left_out }
    }

    #[test]
    fn a_count_is_bounded_before_anything_is_read() {
        for count in [0, FLOWS_MAX + 1, 0xffff] {
            let mut reader = MessageReader::default();
            reader.put(&(count as u16).to_be_bytes());
            assert_eq!(reader.announced(), Err(RelocationError::Count(count)));
        }
    }

    #[test]
    fn a_length_is_bounded_before_its_bytes_have_arrived() {
        let mut reader = MessageReader::default();
        reader.put(&[0xff, 0xff, 0xff, 0xff]);
        assert!(matches!(reader.offer(), Err(RelocationError::TooLong(_))));
        // Each is within its limit, and all are not.
        let mut reader = MessageReader::default();
        let one = encode_offer(Some(&offer(FLOW_BYTES_MAX - 8, 0)));
        let beyond = OFFER_BYTES_MAX / FLOW_BYTES_MAX;
        for number in 0..=beyond {
            reader.put(&one);
            let read = reader.offer();
            assert!(reader.held() <= OFFER_BYTES_MAX + FLOW_BYTES_MAX + 4);
            assert_eq!(read.is_err(), number == beyond, "{number}");
        }
    }

    #[test]
    fn a_request_is_known() {
        let fields = request("far:4433");
        assert!(is_requested(&fields));
        assert!(!is_requested(&fields[1..]) && !is_requested(&fields[..1]));
        // A proxy that does not know it denies it.
        let denied = crate::connect::Request::decode(&fields).expect_err("no flow");
        assert!(matches!(denied, crate::connect::Response::Denied { status: 501, .. }));
    }

    #[test]
    fn what_is_none_of_the_values_is_refused() {
        let mut reader = MessageReader::default();
        reader.put(&[0, 1]);
        assert_eq!(reader.values::<Commit>(3), Ok(None));
        reader.put(&[1, 2, 0]);
        assert_eq!(reader.values(3), Ok(Some(vec![Commit::Stay, Commit::Go, Commit::Go])));
        assert_eq!(reader.values::<Commit>(1), Err(RelocationError::Malformed));
    }

    proptest! {
        #[test]
        fn messages_survive_in_any_pieces(
            flows in proptest::collection::vec(
                (0..64_u8, any::<[u8; 4]>(), any::<Option<[u8; 16]>>(), any::<Option<(u8, u8)>>()), 1..6,
            ),
            piece in 1..200_usize,
        ) {
            let ends = |v4: [u8; 4], v6: Option<[u8; 16]>| v6.map_or(IpAddr::from(v4), IpAddr::from);
            let announced: Vec<_> = flows.iter().map(|(dscp, v4, v6, _)| AnnouncedFlow {
                client: (ends(*v4, *v6), 80).into(),
                server: (ends([10, 0, 0, 1], v6.map(|it| it.map(|byte| byte ^ 1))), 5000).into(),
                dscp: *dscp,
            }).collect();
            let flows: Vec<_> = flows.into_iter()
                .map(|(_, _, _, sizes)| sizes.map(|(c, s)| offer(c.into(), s.into()))).collect();
            let commits: Vec<_> = (0..flows.len()).map(|at| Commit::VALUES[at % 2]).collect();
            let mut sent = encode_announced(&announced);
            sent.extend(flows.iter().flat_map(|flow| encode_offer(flow.as_ref())));
            sent.extend(encode_values(&commits));
            let mut reader = MessageReader::default();
            let (mut first, mut received) = (None, Vec::new());
            for piece in sent.chunks(piece) {
                reader.put(piece);
                if first.is_none() {
                    first = reader.announced().expect("sound");
                }
                while first.is_some()
                    && received.len() < flows.len()
                    && let Some(flow) = reader.offer().expect("sound")
                {
                    received.push(flow);
                }
            }
            prop_assert_eq!(first.expect("all"), announced);
            prop_assert_eq!(received, flows);
            prop_assert_eq!(reader.values(commits.len()), Ok(Some(commits)));
        }

        #[test]
        fn no_bytes_can_hurt(bytes in proptest::collection::vec(any::<u8>(), 0..300), piece in 1..50_usize) {
            let mut reader = MessageReader::default();
            for piece in bytes.chunks(piece) {
                reader.put(piece);
                if reader.announced().is_err()
                    || reader.offer().is_err()
                    || reader.values::<Arrival>(3).is_err()
                {
                    break;
                }
            }
        }
    }
}
