//! Why a proxy did not connect, and the response that reports it.
//!
//! The status code serves any client. The error of `Proxy-Status` names the cause, so that the proxy that asked can
//! show its client the same failure.
//!
//! Source: RFC 9209 §2.3.

/// Why a proxy did not connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The policy forbids this client or this target.
    NotAllowed,
    /// The request is malformed.
    Malformed,
    /// The target refused the connection.
    Refused,
    /// The network of the target reports that the host is unreachable.
    HostUnreachable,
    /// No route to the target's network.
    NetworkUnreachable,
    /// The target did not answer in time.
    TimedOut,
    /// The name does not resolve.
    NameUnknown,
    /// This proxy does not resolve names.
    NamesOff,
    /// The request has passed more proxies than a chain may have.
    Loop,
    /// The proxy accepts no more flows.
    Full,
    /// The proxy failed, or reported no cause.
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

    /// The cause that a failure response reports: from its `Proxy-Status`, or else from its status alone.
    pub fn reported(status: u16, proxy_status: Option<&str>) -> Self {
        let error = proxy_status.and_then(error_of);
        let by_error = TABLE.iter().find(|(_, _, name)| Some(*name) == error);
        match (by_error, error, status) {
            (Some((cause, ..)), ..) => *cause,
            (None, Some("connection_read_timeout" | "dns_timeout"), _) => Self::TimedOut,
            (None, Some("connection_terminated"), _) => Self::Refused,
            (None, Some("destination_not_found"), _) => Self::NameUnknown,
            (None, _, 400) => Self::Malformed,
            (None, _, 401 | 403 | 407) => Self::NotAllowed,
            // A stock proxy responds 502 when the target did not accept, whatever the cause.
            (None, None, 502) => Self::Refused,
            (None, None, 504) => Self::TimedOut,
            (None, ..) => Self::Failed,
        }
    }

    fn row(self) -> &'static (Self, u16, &'static str) {
        // The table has every cause: a test proves it.
        TABLE.iter().find(|(cause, ..)| *cause == self).unwrap_or(&TABLE[TABLE.len() - 1])
    }
}

/// The error of the proxy nearest to the target. That is the first list member with an error: each proxy appends
/// itself behind the members that it received.
///
/// Source: RFC 9209 §2.
///
/// Does not parse quoted strings or commas inside them: no proxy that we know writes those together with an
/// error that we know.
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
    fn every_cause_survives_being_reported() {
        for cause in Cause::all() {
            assert_eq!(cause.row().0, cause);
            let proxy_status = format!("proxy; error={}", cause.error());
            assert_eq!(Cause::reported(cause.status(), Some(&proxy_status)), cause);
        }
        let names: BTreeSet<&str> = TABLE.iter().map(|row| row.2).collect();
        assert_eq!(names.len(), TABLE.len(), "two causes have one name");
    }

    #[test]
    fn the_proxy_nearest_to_the_server_knows_best() {
        let proxy_status =
            "far ; details=\"x\"; error=connection_refused, near; error=http_protocol_error";
        assert_eq!(Cause::reported(502, Some(proxy_status)), Cause::Refused);
        assert_eq!(Cause::reported(504, Some("far")), Cause::TimedOut);
        assert_eq!(Cause::reported(502, Some("far; error=tls_protocol_error")), Cause::Failed);
        assert_eq!(Cause::reported(502, None), Cause::Refused);
        assert_eq!(Cause::reported(418, Some(";;;error,=")), Cause::Failed);
    }
}
