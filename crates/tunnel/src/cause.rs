//! Why a proxy did not connect, and the response that reports it.
//!
//! The status code serves any client. The error of `Proxy-Status` names the cause, so that the proxy that asked can
//! show its client the same failure.
//!
//! Source: RFC 9209 §2.3.

/// Why a proxy did not connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The client may not, or not there.
    NotAllowed,
    /// The request cannot be understood.
    Malformed,
    /// The far side refused.
    Refused,
    /// The far host does not answer for its network.
    HostUnreachable,
    /// There is no way to its network.
    NetworkUnreachable,
    /// The far side never answered.
    TimedOut,
    /// The name is not known.
    NameUnknown,
    /// Names are not looked up here.
    NamesOff,
    /// The request has come through more proxies than any chain has.
    Loop,
    /// The proxy takes no more flows.
    Full,
    /// The proxy failed, or did not say why.
    Failed,
}

/// Each cause, its status and the name of its error.
const TABLE: [(Cause, u16, &str); 11] = [
    (Cause::NotAllowed, 403, "destination_ip_prohibited"),
    (Cause::Malformed, 400, "http_request_error"),
    (Cause::Refused, 502, "connection_refused"),
    (Cause::HostUnreachable, 502, "destination_unavailable"),
    (Cause::NetworkUnreachable, 502, "destination_ip_unroutable"),
    (Cause::TimedOut, 504, "connection_timeout"),
    (Cause::NameUnknown, 502, "dns_error"),
    (Cause::NamesOff, 403, "http_request_denied"),
    (Cause::Loop, 502, "proxy_loop_detected"),
    (Cause::Full, 503, "connection_limit_reached"),
    (Cause::Failed, 500, "proxy_internal_error"),
];

impl Cause {
    /// Every cause.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|(cause, ..)| *cause)
    }

    /// The status of the response.
    pub fn status(self) -> u16 {
        self.row().1
    }

    /// The error that `Proxy-Status` names.
    pub fn error(self) -> &'static str {
        self.row().2
    }

    /// What a response means that is no success, by its `Proxy-Status`, or else by its status alone.
    pub fn told(status: u16, proxy_status: Option<&str>) -> Self {
        let error = proxy_status.and_then(error_of);
        let by_error = TABLE.iter().find(|(_, _, name)| Some(*name) == error);
        match (by_error, error, status) {
            (Some((cause, ..)), ..) => *cause,
            (None, Some("connection_read_timeout" | "dns_timeout"), _) => Self::TimedOut,
            (None, Some("connection_terminated"), _) => Self::Refused,
            (None, Some("destination_not_found"), _) => Self::NameUnknown,
            (None, _, 400) => Self::Malformed,
            (None, _, 401 | 403 | 407) => Self::NotAllowed,
            // What a stock proxy says of a far side that did not accept, whatever it did instead.
            (None, None, 502) => Self::Refused,
            (None, None, 504) => Self::TimedOut,
            (None, ..) => Self::Failed,
        }
    }

    fn row(self) -> &'static (Self, u16, &'static str) {
        // The table has every cause, which its test proves.
        TABLE.iter().find(|(cause, ..)| *cause == self).unwrap_or(&TABLE[TABLE.len() - 1])
    }
}

/// The error of the proxy nearest to the far side: the first of the list that names one, as each proxy adds
/// itself behind those that it heard.
///
/// Source: RFC 9209 §2.
///
/// A quoted string or a comma within one is not taken apart: whoever writes those writes no error that
/// we know.
fn error_of(proxy_status: &str) -> Option<&str> {
    let mut members = proxy_status.split(',');
    members.find_map(|member| {
        member.split(';').skip(1).find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            (name.trim() == "error").then(|| value.trim())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_cause_survives_being_told() {
        for cause in Cause::all() {
            assert_eq!(cause.row().0, cause);
            let said = format!("proxy; error={}", cause.error());
            assert_eq!(Cause::told(cause.status(), Some(&said)), cause);
        }
        let names: BTreeSet<&str> = TABLE.iter().map(|row| row.2).collect();
        assert_eq!(names.len(), TABLE.len(), "two causes have one name");
    }

    #[test]
    fn the_proxy_nearest_to_the_server_knows_best() {
        let said = "far ; details=\"x\"; error=connection_refused, near; error=http_protocol_error";
        assert_eq!(Cause::told(502, Some(said)), Cause::Refused);
        assert_eq!(Cause::told(504, Some("far")), Cause::TimedOut);
        assert_eq!(Cause::told(502, Some("far; error=tls_protocol_error")), Cause::Failed);
        assert_eq!(Cause::told(502, None), Cause::Refused);
        assert_eq!(Cause::told(418, Some(";;;error,=")), Cause::Failed);
    }
}
