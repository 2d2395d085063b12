//! The destination of a flow, in HTTP's notation.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

/// The longest name in DNS. Unit: bytes.
const NAME_BYTES_MAX: usize = 253;

/// The destination of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// An address.
    Address(SocketAddr),
    /// A name to resolve, and a port.
    Name(String, u16),
}

impl Target {
    /// The target `host`, a name or an address, if it is valid.
    pub fn of(host: &str, port: u16) -> Option<Self> {
        if port == 0 {
            return None;
        }
        if let Ok(address) = host.parse::<IpAddr>() {
            return Some(Self::Address(SocketAddr::new(address.to_canonical(), port)));
        }
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        let is_name = !host.is_empty() && host.len() <= NAME_BYTES_MAX && host.bytes().all(plain);
        is_name.then(|| Self::Name(host.to_owned(), port))
    }

    /// Reads `host:port`, with IPv6 addresses in brackets.
    ///
    /// Source: RFC 9110 §9.3.6, RFC 3986 §3.2.2.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        if port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let port = port.parse().ok()?;
        match host.strip_prefix('[') {
            Some(bracketed) => {
                let address: Ipv6Addr = bracketed.strip_suffix(']')?.parse().ok()?;
                Self::of(&address.to_string(), port)
            }
            None if host.contains(':') => None,
            None => Self::of(host, port),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn targets_are_read_as_http_writes_them() {
        for (text, printed) in [
            ("192.0.2.1:80", "192.0.2.1:80"),
            ("[2001:DB8::1]:443", "[2001:db8::1]:443"),
            ("[::ffff:192.0.2.1]:443", "192.0.2.1:443"),
            ("server.example:8080", "server.example:8080"),
        ] {
            let target = Target::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(target.to_string(), printed);
        }
        for wrong in [
            "",
            "server",
            "server:",
            "server:0",
            ":80",
            "2001:db8::1:80",
            "[::1]",
            "a b:80",
            "x:+80",
        ] {
            assert_eq!(Target::parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_printed_and_read_again(text: String) {
            if let Some(target) = Target::parse(&text) {
                prop_assert_eq!(Target::parse(&target.to_string()), Some(target));
            }
        }
    }
}
