//! Addresses and networks as people write them, with error messages and hints.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Why a text is not an address.
///
/// Displayed as the message, with the hint on a second line: [`ConfigError`](crate::ConfigError)
/// uses that line as its hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressError {
    /// What is wrong.
    pub message: String,
    /// What to write.
    pub hint: String,
}

impl AddressError {
    fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into() }
    }

    /// Both on one line, as in a command line's error.
    pub fn one_line(&self) -> String {
        format!("{}: {}", self.message, self.hint)
    }
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.message, self.hint)
    }
}

impl std::error::Error for AddressError {}

/// Reads an address with a port.
///
/// # Errors
/// When it is not an address with a port.
pub fn endpoint(text: &str) -> Result<SocketAddr, AddressError> {
    text.parse().map_err(|_| endpoint_error(text))
}

fn endpoint_error(text: &str) -> AddressError {
    if let Some(error) = spaces(text, |it| it.parse::<SocketAddr>().is_ok()) {
        return error;
    }
    let text = text.trim();
    if text.parse::<Ipv4Addr>().is_ok() {
        return AddressError::new(
            "the port is missing",
            format!("write {text}:PORT, such as {text}:443"),
        );
    }
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if bracketed.is_some_and(|inner| inner.parse::<Ipv6Addr>().is_ok()) {
        return AddressError::new(
            "the port is missing",
            format!("write {text}:PORT, such as {text}:443"),
        );
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        // Without brackets, it is unknown whether the last group is the port.
        let port = text.rsplit_once(':').filter(|(head, tail)| {
            head.parse::<Ipv6Addr>().is_ok() && tail.parse::<u16>().is_ok_and(|port| port > 0)
        });
        let hint = match port {
            Some((head, tail)) => {
                format!("write [{head}]:{tail}, or [{text}]:PORT if the port is missing")
            }
            None => format!("write [{text}]:PORT, such as [{text}]:443"),
        };
        return AddressError::new("an IPv6 address with a port stands in brackets", hint);
    }
    let split = text.rsplit_once(':');
    if let Some((head, tail)) = split {
        let is_address = head.parse::<Ipv4Addr>().is_ok()
            || head.trim_matches(['[', ']']).parse::<Ipv6Addr>().is_ok();
        if is_address {
            let head = if head.contains(':') {
                format!("[{}]", head.trim_matches(['[', ']']))
            } else {
                head.to_owned()
            };
            return AddressError::new(
                format!("\"{tail}\" is not a port"),
                format!("a port is a number from 0 to 65535: write {head}:443"),
            );
        }
    }
    const WRITE: &str = "write 192.0.2.1:443, or [2001:db8::1]:443 for IPv6";
    if text.contains('/') {
        return AddressError::new("this is a network, and an address with a port is needed", WRITE);
    }
    let host = split.map_or(text, |(host, _)| host);
    if host.contains(|c: char| c.is_ascii_alphabetic()) && !host.contains(':') {
        let message =
            format!("\"{host}\" is a name, and an address is needed: no name is looked up here");
        return AddressError::new(message, WRITE);
    }
    AddressError::new(format!("\"{text}\" is not an address with a port"), WRITE)
}

/// Reads an address without a port.
///
/// # Errors
/// When it is not an address.
pub fn address(text: &str) -> Result<IpAddr, AddressError> {
    text.parse().map_err(|_| {
        if let Some(error) = spaces(text, |it| it.parse::<IpAddr>().is_ok()) {
            return error;
        }
        if let Ok(endpoint) = text.parse::<SocketAddr>() {
            return AddressError::new("there is no port here", format!("write {}", endpoint.ip()));
        }
        let bare = text.trim_matches(['[', ']']);
        if bare.parse::<Ipv6Addr>().is_ok() {
            return AddressError::new("there are no brackets here", format!("write {bare}"));
        }
        AddressError::new(
            format!("\"{text}\" is not an address"),
            "write 192.0.2.1, or 2001:db8::1 for IPv6",
        )
    })
}

/// Reads a network: its address, and the number of bits that all of its addresses share.
///
/// # Errors
/// When it is not a network, or its address has bits set beyond the prefix.
pub fn network(text: &str) -> Result<(IpAddr, u8), AddressError> {
    if let Some(error) = spaces(text, |it| network(it).is_ok()) {
        return Err(error);
    }
    let Some((address, length)) = text.split_once('/') else { return Err(no_length(text)) };
    let bare = address.trim_matches(['[', ']']);
    if bare != address && bare.parse::<Ipv6Addr>().is_ok() {
        return Err(AddressError::new(
            "a network has no brackets",
            format!("write {bare}/{length}"),
        ));
    }
    let Ok(address) = address.parse::<IpAddr>() else {
        return Err(AddressError::new(format!("\"{text}\" is not a network"), NETWORKS));
    };
    let (family, most) = if address.is_ipv4() { ("IPv4", 32) } else { ("IPv6", 128) };
    if let (IpAddr::V4(_), Ok(mask)) = (address, length.parse::<Ipv4Addr>()) {
        let mask = u32::from(mask);
        let bits = mask.leading_ones();
        let hint = if mask.count_ones() == bits {
            format!("write {}/{bits}", first_of(address, u8::try_from(bits).unwrap_or(32)))
        } else {
            NETWORKS.to_owned()
        };
        return Err(AddressError::new("a network has the number of its bits, not a mask", hint));
    }
    let bits = length.parse::<u8>().ok().filter(|bits| *bits <= most);
    let is_number = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
    let Some(bits) = bits.filter(|_| is_number) else {
        let message = if is_number {
            format!("an {family} network has at most {most} bits, not {length}")
        } else {
            format!("\"{length}\" is not a number of bits")
        };
        return Err(AddressError::new(
            message,
            format!(
                "write {address}/{most} for this address alone, or fewer bits for more of them"
            ),
        ));
    };
    let first = first_of(address, bits);
    if first == address {
        return Ok((address, bits));
    }
    Err(AddressError::new(
        format!("{address} has bits behind the first {bits}"),
        format!("write {first}/{bits} for the network, or {address}/{most} for this address alone"),
    ))
}

const NETWORKS: &str = "write 10.0.0.0/8, or 2001:db8::/32 for IPv6";

fn no_length(text: &str) -> AddressError {
    let bare = text.trim_matches(['[', ']']);
    match bare.parse::<IpAddr>() {
        Ok(address) => {
            let (most, some) = if address.is_ipv4() { (32, 24) } else { (128, 64) };
            let network = first_of(address, some);
            AddressError::new(
                "the number of bits is missing",
                format!(
                    "write {address}/{most} for this address alone, or {network}/{some} for its network"
                ),
            )
        }
        Err(_) => AddressError::new(format!("\"{text}\" is not a network"), NETWORKS),
    }
}

/// The first address of the network with so many bits.
fn first_of(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
            Ipv4Addr::from(u32::from(address) & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0);
            Ipv6Addr::from(u128::from(address) & mask).into()
        }
    }
}

fn spaces(text: &str, is_good: impl Fn(&str) -> bool) -> Option<AddressError> {
    let bare = text.trim();
    let found = bare != text && is_good(bare);
    found.then(|| AddressError::new("there are spaces around it", format!("write \"{bare}\"")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_meant_is_read() {
        assert_eq!(endpoint("192.0.2.1:443").map(|it| it.port()), Ok(443));
        assert_eq!(network("10.0.0.0/8"), Ok((IpAddr::from([10, 0, 0, 0]), 8)));
        for whole in ["0.0.0.0/0", "::/0", "10.1.2.3/32", "2001:db8::1/128", "fd00::/8"] {
            assert!(network(whole).is_ok(), "{whole}");
        }
    }

    #[test]
    fn each_mistake_has_its_words() {
        for (text, message, hint) in [
            ("192.0.2.1", "the port is missing", "write 192.0.2.1:PORT, such as 192.0.2.1:443"),
            (
                "[2001:db8::1]",
                "the port is missing",
                "write [2001:db8::1]:PORT, such as [2001:db8::1]:443",
            ),
            (
                "2001:db8::1",
                "an IPv6 address with a port stands in brackets",
                "write [2001:db8::1]:PORT, such as [2001:db8::1]:443",
            ),
            (
                "2001:db8::ab",
                "an IPv6 address with a port stands in brackets",
                "write [2001:db8::ab]:PORT, such as [2001:db8::ab]:443",
            ),
            (
                "2001:db8::1:443",
                "an IPv6 address with a port stands in brackets",
                "write [2001:db8::1]:443, or [2001:db8::1:443]:PORT if the port is missing",
            ),
            (
                "192.0.2.1:70000",
                "\"70000\" is not a port",
                "a port is a number from 0 to 65535: write 192.0.2.1:443",
            ),
            (" 192.0.2.1:443", "there are spaces around it", "write \"192.0.2.1:443\""),
            (
                "10.0.0.0/8",
                "this is a network, and an address with a port is needed",
                "write 192.0.2.1:443, or [2001:db8::1]:443 for IPv6",
            ),
            (
                "ground:443",
                "\"ground\" is a name, and an address is needed: no name is looked up here",
                "write 192.0.2.1:443, or [2001:db8::1]:443 for IPv6",
            ),
            (
                "?",
                "\"?\" is not an address with a port",
                "write 192.0.2.1:443, or [2001:db8::1]:443 for IPv6",
            ),
        ] {
            assert_eq!(endpoint(text), Err(AddressError::new(message, hint)), "{text}");
        }
        for (text, message, hint) in [
            (
                "10.0.0.0/33",
                "an IPv4 network has at most 32 bits, not 33",
                "write 10.0.0.0/32 for this address alone, or fewer bits for more of them",
            ),
            (
                "2001:db8::/129",
                "an IPv6 network has at most 128 bits, not 129",
                "write 2001:db8::/128 for this address alone, or fewer bits for more of them",
            ),
            (
                "10.1.2.3/8",
                "10.1.2.3 has bits behind the first 8",
                "write 10.0.0.0/8 for the network, or 10.1.2.3/32 for this address alone",
            ),
            ("10.0.0.0/8 ", "there are spaces around it", "write \"10.0.0.0/8\""),
            (
                "10.0.0.1",
                "the number of bits is missing",
                "write 10.0.0.1/32 for this address alone, or 10.0.0.0/24 for its network",
            ),
            ("[2001:db8::]/32", "a network has no brackets", "write 2001:db8::/32"),
            (
                "10.0.0.0/255.0.0.0",
                "a network has the number of its bits, not a mask",
                "write 10.0.0.0/8",
            ),
            (
                "10.0.0.0/eight",
                "\"eight\" is not a number of bits",
                "write 10.0.0.0/32 for this address alone, or fewer bits for more of them",
            ),
            ("lan", "\"lan\" is not a network", "write 10.0.0.0/8, or 2001:db8::/32 for IPv6"),
        ] {
            assert_eq!(network(text), Err(AddressError::new(message, hint)), "{text}");
        }
        for (text, hint) in [
            ("192.0.2.1:443", "write 192.0.2.1"),
            ("[2001:db8::1]", "write 2001:db8::1"),
            ("192.0.2.1 ", "write \"192.0.2.1\""),
        ] {
            assert_eq!(address(text).map_err(|error| error.hint), Err(hint.to_owned()), "{text}");
        }
    }

    proptest! {
        /// No text panics, and a hint that is quoted completely is valid input.
        #[test]
        fn hints_can_be_typed(bytes: [u8; 4], bits in 0u8..=40, port: u16, text: String) {
            let _ = (endpoint(&text), network(&text), address(&text));
            let v4 = Ipv4Addr::from(bytes);
            if let Err(error) = network(&format!("{v4}/{bits}")) {
                let typed = error.hint.split(' ').nth(1).expect("what to write");
                prop_assert!(network(typed).is_ok(), "{}", error.hint);
            }
            prop_assert_eq!(endpoint(&format!("{v4}:{port}")).map(|it| it.port()), Ok(port));
        }
    }
}
