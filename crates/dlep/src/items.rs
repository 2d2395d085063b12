//! Data items: types, lengths, values.
//!
//! Source: RFC 8175 §11.3 and §13.

use crate::{Mac, Refusal, Status};
use midhop_units::{Duration, Rate};

/// The types (§15.4).
const STATUS: u16 = 1;
const PEER_TYPE: u16 = 4;
const HEARTBEAT_INTERVAL: u16 = 5;
const EXTENSIONS_SUPPORTED: u16 = 6;
const MAC_ADDRESS: u16 = 7;
const MAXIMUM_RATE_RECEIVE: u16 = 12;
const MAXIMUM_RATE_TRANSMIT: u16 = 13;
const CURRENT_RATE_RECEIVE: u16 = 14;
const CURRENT_RATE_TRANSMIT: u16 = 15;
const LATENCY: u16 = 16;
const RESOURCES: u16 = 17;
const QUALITY_RECEIVE: u16 = 18;
const QUALITY_TRANSMIT: u16 = 19;
const MTU: u16 = 20;

/// The header of each value: its type and its length.
const HEADER: usize = 4;

/// The description of an end, as it reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerType {
    /// Whether it has the medium secured.
    pub is_secured: bool,
    /// A text for people.
    pub description: String,
}

/// One data item. "Receive" and "transmit" are from the modem's side: what it transmits leaves this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// The response to a request, or why a session ends, and a text for people.
    Status(Status, String),
    /// The description of the sender.
    PeerType(PeerType),
    /// How often the sender sends a message; zero: it need not.
    HeartbeatInterval(Duration),
    /// The extensions that the sender supports.
    ExtensionsSupported(Vec<u16>),
    /// The destination that a message is about.
    Mac(Mac),
    /// The largest rate that the link may have towards the modem.
    MaximumRateReceive(Rate),
    /// The largest rate that the link may have away from the modem.
    MaximumRateTransmit(Rate),
    /// The rate that the link has towards the modem.
    CurrentRateReceive(Rate),
    /// The rate that the link has away from the modem.
    CurrentRateTransmit(Rate),
    /// The latency of the link.
    Latency(Duration),
    /// How much of the modem's resources is left. Unit: percent.
    Resources(u8),
    /// How good the link is towards the modem. Unit: percent.
    QualityReceive(u8),
    /// How good the link is away from the modem. Unit: percent.
    QualityTransmit(u8),
    /// The largest frame that the link carries. Unit: bytes.
    Mtu(u16),
    /// An address, a network or a point of connection, whose meaning is not needed here.
    Address(u16, Vec<u8>),
}

/// The lengths that an item of addresses may have.
fn address_lengths(kind: u16) -> Option<&'static [usize]> {
    Some(match kind {
        2 => &[5, 7],
        3 => &[17, 19],
        8 => &[5],
        9 => &[17],
        10 => &[6],
        11 => &[18],
        _ => return None,
    })
}

impl Item {
    /// Its type.
    pub fn kind(&self) -> u16 {
        match self {
            Self::Status(..) => STATUS,
            Self::PeerType(_) => PEER_TYPE,
            Self::HeartbeatInterval(_) => HEARTBEAT_INTERVAL,
            Self::ExtensionsSupported(_) => EXTENSIONS_SUPPORTED,
            Self::Mac(_) => MAC_ADDRESS,
            Self::MaximumRateReceive(_) => MAXIMUM_RATE_RECEIVE,
            Self::MaximumRateTransmit(_) => MAXIMUM_RATE_TRANSMIT,
            Self::CurrentRateReceive(_) => CURRENT_RATE_RECEIVE,
            Self::CurrentRateTransmit(_) => CURRENT_RATE_TRANSMIT,
            Self::Latency(_) => LATENCY,
            Self::Resources(_) => RESOURCES,
            Self::QualityReceive(_) => QUALITY_RECEIVE,
            Self::QualityTransmit(_) => QUALITY_TRANSMIT,
            Self::Mtu(_) => MTU,
            Self::Address(kind, _) => *kind,
        }
    }

    /// Whether a message may have several of this type.
    pub fn may_repeat(&self) -> bool {
        matches!(self, Self::Address(..))
    }

    /// Appends its encoding.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let value = match self {
            Self::Status(status, text) => [&[status.code()], text.as_bytes()].concat(),
            Self::PeerType(PeerType { is_secured, description }) => {
                [&[u8::from(*is_secured)], description.as_bytes()].concat()
            }
            Self::HeartbeatInterval(every) => {
                let ms = every.as_ns() / 1_000_000;
                u32::try_from(ms).unwrap_or(u32::MAX).to_be_bytes().to_vec()
            }
            Self::ExtensionsSupported(known) => {
                known.iter().flat_map(|extension| extension.to_be_bytes()).collect()
            }
            Self::Mac(mac) => mac.bytes().to_vec(),
            Self::MaximumRateReceive(rate)
            | Self::MaximumRateTransmit(rate)
            | Self::CurrentRateReceive(rate)
            | Self::CurrentRateTransmit(rate) => rate.bits_per_s().to_be_bytes().to_vec(),
            Self::Latency(time) => (time.as_ns() / 1_000).to_be_bytes().to_vec(),
            Self::Resources(percent)
            | Self::QualityReceive(percent)
            | Self::QualityTransmit(percent) => vec![*percent],
            Self::Mtu(bytes) => bytes.to_be_bytes().to_vec(),
            Self::Address(_, value) => value.clone(),
        };
        // Only texts could be longer; they are truncated.
        let length = value.len().min(usize::from(u16::MAX));
        out.extend_from_slice(&self.kind().to_be_bytes());
        out.extend_from_slice(&u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes());
        out.extend_from_slice(&value[..length]);
    }

    /// Reads the item that `bytes` begin with. Returns it and what follows.
    pub(crate) fn read(bytes: &[u8]) -> Result<(Self, &[u8]), Refusal> {
        let header: [u8; HEADER] = bytes
            .get(..HEADER)
            .and_then(|header| header.try_into().ok())
            .ok_or_else(|| Refusal::data("a message ends within a data item"))?;
        let kind = u16::from_be_bytes([header[0], header[1]]);
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let value = bytes
            .get(HEADER..HEADER + length)
            .ok_or_else(|| Refusal::data(format!("a message ends within data item {kind}")))?;
        Ok((Self::of(kind, value)?, &bytes[HEADER + length..]))
    }

    fn of(kind: u16, value: &[u8]) -> Result<Self, Refusal> {
        let refused = || Refusal::data(format!("data item {kind} of {} bytes", value.len()));
        let rate = || {
            integer(value)
                .map(|bits| Rate::from_bits_per_s(u64::from_be_bytes(bits)))
                .ok_or_else(refused)
        };
        let percent = || match value {
            [percent @ 0..=100] => Ok(*percent),
            [_] => Err(Refusal::data(format!("data item {kind} of more than 100 %"))),
            _ => Err(refused()),
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(match kind {
            STATUS => {
                let (code, words) = value.split_first().ok_or_else(refused)?;
                Self::Status(Status::from_code(*code), text(words))
            }
            PEER_TYPE => {
                let (flags, words) = value.split_first().ok_or_else(refused)?;
                Self::PeerType(PeerType { is_secured: flags & 1 != 0, description: text(words) })
            }
            HEARTBEAT_INTERVAL => {
                let ms = u32::from_be_bytes(integer(value).ok_or_else(refused)?);
                Self::HeartbeatInterval(Duration::from_ms(u64::from(ms)))
            }
            EXTENSIONS_SUPPORTED => {
                if !value.len().is_multiple_of(2) {
                    return Err(refused());
                }
                let pairs = value.chunks_exact(2);
                Self::ExtensionsSupported(
                    pairs.map(|it| u16::from_be_bytes([it[0], it[1]])).collect(),
                )
            }
            MAC_ADDRESS => Self::Mac(Mac::new(value).ok_or_else(refused)?),
            MAXIMUM_RATE_RECEIVE => Self::MaximumRateReceive(rate()?),
            MAXIMUM_RATE_TRANSMIT => Self::MaximumRateTransmit(rate()?),
            CURRENT_RATE_RECEIVE => Self::CurrentRateReceive(rate()?),
            CURRENT_RATE_TRANSMIT => Self::CurrentRateTransmit(rate()?),
            LATENCY => {
                let us = u64::from_be_bytes(integer(value).ok_or_else(refused)?);
                Self::Latency(Duration::from_ns(us.saturating_mul(1_000)))
            }
            RESOURCES => Self::Resources(percent()?),
            QUALITY_RECEIVE => Self::QualityReceive(percent()?),
            QUALITY_TRANSMIT => Self::QualityTransmit(percent()?),
            MTU => Self::Mtu(u16::from_be_bytes(integer(value).ok_or_else(refused)?)),
            _ => match address_lengths(kind) {
                Some(lengths) if lengths.contains(&value.len()) => {
                    Self::Address(kind, value.to_vec())
                }
                Some(_) => return Err(refused()),
                None => {
                    return Err(Refusal::data(format!(
                        "data item {kind}, which was not negotiated"
                    )));
                }
            },
        })
    }
}

fn integer<const N: usize>(value: &[u8]) -> Option<[u8; N]> {
    value.try_into().ok()
}
