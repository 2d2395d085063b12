//! The messages by which flows move from one proxy to another (SPEC.md §5.8).
//!
//! A stream moves some flows, in four messages:
//!
//! | | from | message | then |
//! |---|---|---|---|
//! | 1 | old place | [`FlowOffer`]s: the state of each flow, which stands still | the new place prepares what it can |
//! | 2 | new place | [`Readiness`] for each | the old place forgets those that are ready |
//! | 3 | old place | [`Commit`] for each | the new place has them go on |
//! | 4 | new place | [`Arrival`] for each | the old place closes its sockets, or takes flows back |
//!
//! Before message 3 is sent, a flow is the old place's whatever happens. From then on, only message 4 gives it back.
//!
//! Invariant: nothing is allocated by a number that was received. What is held is what has arrived, up to
//! [`OFFER_BYTES_MAX`].

use crate::http3::Field;

/// The value of `:protocol` by which a stream is opened for this.
pub const PROTOCOL: &str = "midhop-relocate-1";
/// The most flows of one stream.
pub const FLOWS_MAX: usize = 128;
/// Unit: bytes. The most that the state of one flow may take.
pub const FLOW_BYTES_MAX: usize = (64 << 20) + (4 << 10);
/// Unit: bytes. The most that all flows of a stream may take.
pub const OFFER_BYTES_MAX: usize = 72 << 20;

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

/// A flow that stands still.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowOffer {
    /// The DSCP of its SYN.
    pub dscp: u8,
    /// The state of its connection with the client, and of that with the server, for the kernels.
    pub connections: [Vec<u8>; 2],
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

/// Encodes message 1. The flows are within the limits.
pub fn encode_offers(flows: &[FlowOffer]) -> Vec<u8> {
    let bytes: usize = flows.iter().map(|flow| 13 + flow.bytes()).sum();
    let mut out = Vec::with_capacity(2 + bytes);
    out.extend((flows.len() as u16).to_be_bytes());
    for flow in flows {
        out.extend((flow.bytes() as u32 + 9).to_be_bytes());
        out.push(flow.dscp);
        for connection in &flow.connections {
            out.extend((connection.len() as u32).to_be_bytes());
            out.extend(connection);
        }
    }
    out
}

impl FlowOffer {
    /// Unit: bytes. The states of both connections.
    pub fn bytes(&self) -> usize {
        self.connections.iter().map(Vec::len).sum()
    }

    fn decode(bytes: &[u8]) -> Result<Self, RelocationError> {
        let (dscp, rest) = bytes.split_first().ok_or(RelocationError::Malformed)?;
        let (client, rest) = connection(rest)?;
        let (server, rest) = connection(rest)?;
        if !rest.is_empty() || *dscp > 63 {
            return Err(RelocationError::Malformed);
        }
        Ok(Self { dscp: *dscp, connections: [client.to_vec(), server.to_vec()] })
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
    /// How many flows are offered, once that is known.
    count: Option<usize>,
    flows: Vec<FlowOffer>,
    /// Unit: bytes. What they take.
    taken: usize,
}

impl MessageReader {
    /// Takes the next bytes of the stream.
    pub fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Unit: bytes. What is held.
    pub fn held(&self) -> usize {
        self.bytes.len() + self.taken
    }

    /// Message 1, once it is complete. To be called after each piece.
    ///
    /// # Errors
    /// When it is malformed or beyond a limit.
    pub fn offers(&mut self) -> Result<Option<Vec<FlowOffer>>, RelocationError> {
        let count = match self.count {
            Some(count) => count,
            None => {
                let Some(count) = self.bytes.first_chunk() else { return Ok(None) };
                let count = usize::from(u16::from_be_bytes(*count));
                if !(1..=FLOWS_MAX).contains(&count) {
                    return Err(RelocationError::Count(count));
                }
                self.bytes.drain(..2);
                *self.count.insert(count)
            }
        };
        while self.flows.len() < count {
            let Some(length) = self.bytes.first_chunk() else { return Ok(None) };
            let length = u32::from_be_bytes(*length) as usize;
            let total = self.taken.saturating_add(length);
            if length > FLOW_BYTES_MAX || total > OFFER_BYTES_MAX {
                return Err(RelocationError::TooLong(length.max(total)));
            }
            let Some(flow) = self.bytes.get(4..4 + length) else { return Ok(None) };
            self.flows.push(FlowOffer::decode(flow)?);
            self.taken = total;
            self.bytes.drain(..4 + length);
        }
        (self.count, self.taken) = (None, 0);
        Ok(Some(std::mem::take(&mut self.flows)))
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

    fn offer(dscp: u8, client: usize, server: usize) -> FlowOffer {
        FlowOffer { dscp, connections: [vec![1; client], vec![2; server]] }
    }

    #[test]
    fn a_count_is_bounded_before_anything_is_read() {
        for count in [0, FLOWS_MAX + 1, 0xffff] {
            let mut reader = MessageReader::default();
            reader.put(&(count as u16).to_be_bytes());
            assert_eq!(reader.offers(), Err(RelocationError::Count(count)));
        }
    }

    #[test]
    fn a_length_is_bounded_before_its_bytes_have_arrived() {
        let mut reader = MessageReader::default();
        reader.put(&[0, 1, 0xff, 0xff, 0xff, 0xff]);
        assert!(matches!(reader.offers(), Err(RelocationError::TooLong(_))));
        // Each is within its limit, and all are not.
        let mut reader = MessageReader::default();
        let flow = offer(0, FLOW_BYTES_MAX - 9, 0);
        let one = encode_offers(&[flow]);
        reader.put(&(FLOWS_MAX as u16).to_be_bytes());
        let beyond = OFFER_BYTES_MAX / FLOW_BYTES_MAX;
        for number in 0..=beyond {
            reader.put(&one[2..]);
            let read = reader.offers();
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
            flows in proptest::collection::vec((0..64_u8, 0..300_usize, 0..300_usize), 1..6),
            piece in 1..200_usize,
        ) {
            let flows: Vec<_> = flows.into_iter().map(|(d, c, s)| offer(d, c, s)).collect();
            let commits: Vec<_> = (0..flows.len()).map(|at| Commit::VALUES[at % 2]).collect();
            let mut sent = encode_offers(&flows);
            sent.extend(encode_values(&commits));
            let mut reader = MessageReader::default();
            let mut received = None;
            for piece in sent.chunks(piece) {
                reader.put(piece);
                if received.is_none() {
                    received = reader.offers().expect("sound");
                }
            }
            prop_assert_eq!(received.expect("all"), flows);
            prop_assert_eq!(reader.values(commits.len()), Ok(Some(commits)));
        }

        #[test]
        fn no_bytes_can_hurt(bytes in proptest::collection::vec(any::<u8>(), 0..300), piece in 1..50_usize) {
            let mut reader = MessageReader::default();
            for piece in bytes.chunks(piece) {
                reader.put(piece);
                if reader.offers().is_err() || reader.values::<Arrival>(3).is_err() {
                    break;
                }
            }
        }
    }
}
