//! The destination of a flow as the path of a URI, by the template that is registered for TCP.
//!
//! Source: draft-ietf-httpbis-connect-tcp-18 (the default template), RFC 9298 §2 (its variables), RFC 6570
//! §3.2.2 (simple expansion), RFC 3986 §2.

use crate::target::Target;
use std::fmt::Write;

/// Before the variables `{target_host}/{target_port}/`.
const PREFIX: &str = "/.well-known/masque/tcp/";

/// Why a path is not a valid target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateError {
    /// It does not match this template.
    Elsewhere,
    /// Its host or port is malformed.
    Malformed,
}

/// The path for `target`.
pub fn path_of(target: &Target) -> String {
    let (host, port) = match target {
        Target::Address(address) => (address.ip().to_string(), address.port()),
        Target::Name(name, port) => (name.clone(), *port),
    };
    let mut path = PREFIX.to_owned();
    for byte in host.bytes() {
        if is_unreserved(byte) {
            path.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(path, "%{byte:02X}");
        }
    }
    let _ = write!(path, "/{port}/");
    path
}

/// The target in a path.
///
/// # Errors
/// Why the path is not valid.
pub fn target_of(path: &str) -> Result<Target, TemplateError> {
    let variables = path.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix('/'));
    let (host, port) =
        variables.and_then(|it| it.split_once('/')).ok_or(TemplateError::Elsewhere)?;
    if port.contains('/') {
        return Err(TemplateError::Elsewhere);
    }
    let host = decode(host).ok_or(TemplateError::Malformed)?;
    let port = decode(port).ok_or(TemplateError::Malformed)?;
    // No sign, and no more digits than a port can have.
    let is_number = (1..=5).contains(&port.len()) && port.bytes().all(|b| b.is_ascii_digit());
    let port = port.parse().ok().filter(|_| is_number).ok_or(TemplateError::Malformed)?;
    Target::of(&host, port).ok_or(TemplateError::Malformed)
}

const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Decodes percent-encoding; none: it is malformed, or the result is not UTF-8.
fn decode(text: &str) -> Option<String> {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let digit = |byte: u8| char::from(byte).to_digit(16);
        out.push(u8::try_from(digit(digits[0])? << 4 | digit(digits[1])?).ok()?);
        rest = after;
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn targets_are_written_as_the_template_wants() {
        for (target, path) in [
            ("192.0.2.1:80", "/.well-known/masque/tcp/192.0.2.1/80/"),
            ("[2001:db8::1]:443", "/.well-known/masque/tcp/2001%3Adb8%3A%3A1/443/"),
            ("server_1.example:65535", "/.well-known/masque/tcp/server_1.example/65535/"),
        ] {
            let target = Target::parse(target).expect("a target");
            assert_eq!(path_of(&target), path);
            assert_eq!(target_of(path), Ok(target));
        }
    }

    #[test]
    fn other_ways_to_write_the_same_are_read() {
        for (variables, target) in [
            ("2001%3adb8%3A:1/443", "[2001:db8::1]:443"),
            ("2001:db8::1/443", "[2001:db8::1]:443"),
            ("%73erver.example/%38%30", "server.example:80"),
            ("::ffff:192.0.2.1/80", "192.0.2.1:80"),
        ] {
            let path = format!("{PREFIX}{variables}/");
            assert_eq!(target_of(&path), Ok(Target::parse(target).expect("a target")), "{path}");
        }
    }

    #[test]
    fn what_names_no_target_is_not_taken_for_what_is_elsewhere() {
        for (path, wrong) in [
            ("/", TemplateError::Elsewhere),
            ("", TemplateError::Elsewhere),
            ("*", TemplateError::Elsewhere),
            ("/.well-known/masque/udp/192.0.2.1/80/", TemplateError::Elsewhere),
            ("/.well-known/masque/tcp/192.0.2.1/80", TemplateError::Elsewhere),
            ("/.well-known/masque/tcp/192.0.2.1/80/?x=1", TemplateError::Elsewhere),
            ("/.well-known/masque/tcp/192.0.2.1/", TemplateError::Elsewhere),
            ("/.well-known/masque/tcp/192.0.2.1/80/x/", TemplateError::Elsewhere),
            ("/.well-known/masque/tcp//80/", TemplateError::Malformed),
            ("/.well-known/masque/tcp/192.0.2.1//", TemplateError::Malformed),
            ("/.well-known/masque/tcp/192.0.2.1/0/", TemplateError::Malformed),
            ("/.well-known/masque/tcp/192.0.2.1/65536/", TemplateError::Malformed),
            ("/.well-known/masque/tcp/192.0.2.1/+80/", TemplateError::Malformed),
            ("/.well-known/masque/tcp/192.0.2.1/000080/", TemplateError::Malformed),
            ("/.well-known/masque/tcp/a%2/80/", TemplateError::Malformed),
            ("/.well-known/masque/tcp/a%zz/80/", TemplateError::Malformed),
            ("/.well-known/masque/tcp/a%2Fb/80/", TemplateError::Malformed),
            ("/.well-known/masque/tcp/a%00b/80/", TemplateError::Malformed),
            ("/.well-known/masque/tcp/%ff/80/", TemplateError::Malformed),
            ("/.well-known/masque/tcp/%5B::1%5D/80/", TemplateError::Malformed),
            ("/.well-known/masque/tcp/fe80::1%25eth0/80/", TemplateError::Malformed),
            ("/.well-known/masque/tcp/192.0.2.1,192.0.2.2/80/", TemplateError::Malformed),
        ] {
            assert_eq!(target_of(path), Err(wrong), "{path}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(host in "[a-zA-Z0-9_.-]{1,60}", port in 1_u16..) {
            if let Some(target) = Target::of(&host, port) {
                prop_assert_eq!(target_of(&path_of(&target)), Ok(target));
            }
        }

        #[test]
        fn no_path_panics(rest: String) {
            let _ = (target_of(&rest), target_of(&format!("{PREFIX}{rest}/")));
        }
    }
}
