//! Addresses and networks in the file, with errors in the words of [`midhop_config::address`].

use super::list::OneOrMany;
use ipnet::IpNet;
use midhop_config::address;
use serde::{Deserialize, Deserializer, de};
use std::{fmt, net::SocketAddr};

struct Endpoint(SocketAddr);

struct Network(IpNet);

/// Reads a value that is always text.
macro_rules! text {
    ($type:ident, $expected:literal, $read:expr) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Reader;

                impl de::Visitor<'_> for Reader {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        $read(text).map($type).map_err(E::custom)
                    }
                }

                deserializer.deserialize_str(Reader)
            }
        }
    };
}
text!(Endpoint, "an address with a port such as \"192.0.2.1:443\"", address::endpoint);
text!(Network, "a network such as \"10.0.0.0/8\"", network);

fn network(text: &str) -> Result<IpNet, address::AddressError> {
    let (address, bits) = address::network(text)?;
    // The number of bits was checked with the address.
    Ok(IpNet::new(address, bits).unwrap_or_else(|_| IpNet::from(address)))
}

fn many<T, U>(read: OneOrMany<T>, of: impl Fn(T) -> U) -> OneOrMany<U> {
    OneOrMany(read.0.into_iter().map(of).collect())
}

/// An address with a port.
pub fn endpoint<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    Endpoint::deserialize(deserializer).map(|read| read.0)
}

/// The same, where it may be left out.
pub fn endpoint_if_any<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SocketAddr>, D::Error> {
    Option::<Endpoint>::deserialize(deserializer).map(|read| read.map(|it| it.0))
}

/// Several, or one.
pub fn endpoints<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<OneOrMany<SocketAddr>, D::Error> {
    OneOrMany::<Endpoint>::deserialize(deserializer).map(|read| many(read, |it| it.0))
}

/// Networks.
pub fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<OneOrMany<IpNet>, D::Error> {
    OneOrMany::<Network>::deserialize(deserializer).map(|read| many(read, |it| it.0))
}

/// The same, where they may be left out.
pub fn networks_if_any<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<OneOrMany<IpNet>>, D::Error> {
    Option::<OneOrMany<Network>>::deserialize(deserializer)
        .map(|read| read.map(|read| many(read, |it| it.0)))
}
