//! The request that opens a flow, and the response that grants or denies it.
//!
//! There are two forms. The classic form names only the target. The templated form names the target in a path, and
//! carries the flow's bytes in capsules.
//!
//! Source: RFC 9114 §4.4 (CONNECT), §4.1.2 (malformed messages), RFC 9220 (`:protocol`),
//! draft-ietf-httpbis-connect-tcp-18 (templates), RFC 9297 §3 (capsules), RFC 9209 (`Proxy-Status`).

use crate::{
    cause::Cause,
    http3::{Field, field, frame},
    payload::Payload,
    target::Target,
    template,
};
use std::net::SocketAddr;

/// The name of this software in `Proxy-Status` and `server`.
const OWN_NAME: &str = "midhopd";
/// Header field: address and port of the client for which a proxy sends the request. Sent only to a proxy that
/// trusts it.
const CLIENT: &str = "midhop-client";
/// Header field: the name of the flow's class. The receiving proxy uses it if it has a class of that name.
const CLASS: &str = "midhop-class";
/// Header field: how many proxies have forwarded the request before the sender.
const HOPS: &str = "midhop-hops";
/// A request may be forwarded at most so many times.
const HOPS_MAX: u8 = 8;
/// The longest name of a class. Unit: bytes.
const CLASS_BYTES_MAX: usize = 32;
/// Which trial of connect-tcp this software implements, in the numbering of the draft. The capsule types in
/// [`payload`](crate::payload) belong to it. Plain `connect-tcp` stands for capsule types that are not assigned
/// yet: its capsules would be skipped as unknown.
pub const TRIAL: u64 = 12;
/// That trial as a `:protocol`.
const PROTOCOL: &str = "connect-tcp-12";
const CAPSULE_PROTOCOL: &str = "capsule-protocol";

/// How a flow is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form<'a> {
    /// By its target alone. Every proxy supports this.
    Classic,
    /// By the default template of a proxy.
    Template {
        /// The proxy's name and port.
        authority: &'a str,
    },
}

impl Form<'_> {
    /// How the bytes of a flow requested in this form are carried.
    pub const fn payload(&self) -> Payload {
        match self {
            Self::Classic => Payload::Raw,
            Self::Template { .. } => Payload::Capsules,
        }
    }
}

/// A request for a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The destination.
    pub target: Target,
    /// The client, if the requesting proxy names it.
    pub client: Option<SocketAddr>,
    /// The name of its class, if the requesting proxy names one.
    pub class: Option<String>,
    /// How many proxies have forwarded the request before the requesting one.
    pub hops: u8,
}

impl Request {
    /// As the frame that opens its stream.
    pub fn encode(&self, form: Form<'_>) -> Vec<u8> {
        headers(&self.fields(form))
    }

    /// As header fields.
    pub fn fields(&self, form: Form<'_>) -> Vec<Field> {
        let mut fields = vec![Field::new(":method", "CONNECT")];
        match form {
            // A plain CONNECT has neither scheme nor path.
            Form::Classic => fields.push(Field::new(":authority", self.target.to_string())),
            Form::Template { authority } => fields.extend([
                Field::new(":protocol", PROTOCOL),
                Field::new(":scheme", "https"),
                Field::new(":authority", authority.to_owned()),
                Field::new(":path", template::path_of(&self.target)),
                Field::new(CAPSULE_PROTOCOL, "?1"),
            ]),
        }
        if let Some(client) = self.client {
            fields.push(Field::new(CLIENT, client.to_string()));
        }
        if let Some(class) = &self.class {
            fields.push(Field::new(CLASS, class.clone()));
        }
        if self.hops > 0 {
            fields.push(Field::new(HOPS, self.hops.to_string()));
        }
        fields
    }

    /// Parses the header fields of a request. Returns it, and how the flow's bytes are to be carried.
    ///
    /// # Errors
    /// The response to send if this request is not served: it is malformed, or no CONNECT.
    pub fn decode(fields: &[Field]) -> Result<(Self, Payload), Response> {
        let denied = |status| Response::Denied { status, cause: Cause::Malformed };
        let (pseudo, others) = split(fields).ok_or(denied(400))?;
        let value = |name| pseudo.iter().find(|it| it.name == name).map(|it| it.value.as_ref());
        match value(":method") {
            Some("CONNECT") => {}
            Some(_) => return Err(denied(405)),
            None => return Err(denied(400)),
        }
        let (target, payload) = match value(":protocol") {
            None => {
                let authority = value(":authority").filter(|_| pseudo.len() == 2);
                (authority.and_then(Target::parse).ok_or(denied(400))?, Payload::Raw)
            }
            Some(PROTOCOL) => {
                let known = pseudo.len() == 5
                    && value(":scheme") == Some("https")
                    && value(":authority").is_some_and(|authority| !authority.is_empty());
                let path = value(":path").filter(|_| known).ok_or(denied(400))?;
                let target = template::target_of(path).map_err(|wrong| match wrong {
                    template::TemplateError::Elsewhere => denied(404),
                    template::TemplateError::Malformed => denied(400),
                })?;
                (target, Payload::Capsules)
            }
            Some(_) => return Err(denied(501)),
        };
        let other = |name| others.iter().find(|it| it.name == name).map(|it| it.value.as_ref());
        let client = other(CLIENT).and_then(|value: &str| value.parse().ok());
        let class = other(CLASS).filter(|name| is_class(name)).map(str::to_owned);
        // An invalid or too large number counts as a loop.
        let hops = other(HOPS).map_or(0, |value: &str| value.parse().unwrap_or(u8::MAX));
        Ok((Self { target, client, class, hops }, payload))
    }

    /// The same request, to be forwarded to the next proxy; none: it is in a loop.
    #[must_use]
    pub fn onwards(&self, target: Target, class: Option<String>) -> Option<Self> {
        let hops = self.hops.checked_add(1).filter(|hops| *hops <= HOPS_MAX)?;
        Some(Self { target, client: self.client, class, hops })
    }
}

/// Whether a class may have this name.
fn is_class(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=CLASS_BYTES_MAX).contains(&name.len()) && name.bytes().all(plain)
}

/// The response to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response {
    /// The target has accepted.
    Granted,
    /// The target has not accepted.
    Denied {
        /// The status of the response.
        status: u16,
        /// Why.
        cause: Cause,
    },
}

impl From<Cause> for Response {
    fn from(cause: Cause) -> Self {
        Self::Denied { status: cause.status(), cause }
    }
}

impl Response {
    /// As a HEADERS frame for a stream that carries the flow's bytes in this way.
    pub fn encode(&self, payload: Payload) -> Vec<u8> {
        headers(&self.fields(payload))
    }

    /// As header fields, for a response that the proxy `next` sent to a forwarded request.
    pub fn fields_of(&self, next: &str) -> Vec<Field> {
        match self {
            Self::Granted => self.fields(Payload::Raw),
            Self::Denied { status, cause } => {
                let name = next.replace(|c: char| !c.is_ascii_graphic() || "\"\\".contains(c), "_");
                let value = format!("\"{name}\"; error={}, {OWN_NAME}", cause.error());
                vec![Field::new(":status", status.to_string()), Field::new("proxy-status", value)]
            }
        }
    }

    /// As header fields.
    pub fn fields(&self, payload: Payload) -> Vec<Field> {
        match (self, payload) {
            (Self::Granted, Payload::Raw) => vec![Field::new(":status", "200")],
            (Self::Granted, Payload::Capsules) => vec![
                Field::new(":status", "200"),
                Field::new(CAPSULE_PROTOCOL, "?1"),
                Field::new("proxy-status", OWN_NAME),
            ],
            (Self::Denied { status, cause }, _) => {
                let error = format!("{OWN_NAME}; error={}", cause.error());
                vec![Field::new(":status", status.to_string()), Field::new("proxy-status", error)]
            }
        }
    }

    /// Parses the header fields of the response to a request for a flow that is carried in this way; none: the
    /// response is provisional, and another one follows.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn decode(fields: &[Field], payload: Payload) -> Result<Option<Self>, Malformed> {
        let (pseudo, others) = split(fields).ok_or(Malformed)?;
        let [status] = pseudo else { return Err(Malformed) };
        let digits = status.value.len() == 3 && status.value.bytes().all(|b| b.is_ascii_digit());
        if status.name != ":status" || !digits {
            return Err(Malformed);
        }
        let status: u16 = status.value.parse().map_err(|_| Malformed)?;
        match (status, payload) {
            // No valid status, or that of an upgrade, which HTTP/3 does not have.
            (0..100 | 101, _) => Err(Malformed),
            (100..200, _) => Ok(None),
            // These statuses have no content or partial content, and a capsule would be content.
            (204..=206, Payload::Capsules) => Err(Malformed),
            (200..300, _) => Ok(Some(Self::Granted)),
            _ => {
                let reported = others.iter().rfind(|it| it.name == "proxy-status");
                let cause = Cause::reported(status, reported.map(|it| it.value.as_ref()));
                Ok(Some(Self::Denied { status, cause }))
            }
        }
    }
}

/// A malformed message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the message is malformed")]
pub struct Malformed;

fn headers(fields: &[Field]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::write(frame::HEADERS, &field::encode(fields), &mut out);
    out
}

/// Splits pseudo-header fields, which come first and once each, from the others. None if they are not in that
/// order, or if a name or value has an invalid character.
fn split(fields: &[Field]) -> Option<(&[Field], &[Field])> {
    let count = fields.iter().take_while(|field| field.name.starts_with(':')).count();
    let (pseudo, others) = fields.split_at(count);
    let twice = |(at, field): (usize, &Field)| pseudo[..at].iter().any(|it| it.name == field.name);
    let token = |b: u8| b.is_ascii_graphic() && !b.is_ascii_uppercase() && b != b':';
    let sound = |field: &Field| {
        let name = field.name.strip_prefix(':').unwrap_or(&field.name);
        let value = field.value.bytes().all(|b| !matches!(b, 0 | b'\r' | b'\n'));
        value && !name.is_empty() && name.bytes().all(token)
    };
    let of_connections =
        |it: &Field| matches!(it.name.as_ref(), "connection" | "transfer-encoding" | "upgrade");
    let wrong = pseudo.iter().enumerate().any(twice)
        || others.iter().any(|field| field.name.starts_with(':') || of_connections(field))
        || !fields.iter().all(sound);
    (!wrong).then_some((pseudo, others))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http3::{Frame, FrameReader};
    use bytes::Bytes;
    use proptest::prelude::*;

    fn fields_of(frame: Vec<u8>) -> Vec<Field> {
        let mut input = Bytes::from(frame);
        match FrameReader::default().read(&mut input) {
            Ok(Some(Frame::Headers(section))) => field::decode(&section).expect("fields"),
            other => panic!("{other:?}"),
        }
    }

    fn fields(pairs: &[(&'static str, &'static str)]) -> Vec<Field> {
        pairs.iter().map(|(name, value)| Field::new(*name, *value)).collect()
    }

    #[test]
    fn a_request_survives_being_sent() {
        for (target, client, class) in [
            ("192.0.2.1:80", None, None),
            ("[2001:db8::1]:443", Some("[2001:db8::7]:50000"), None),
            ("server.example:22", Some("198.51.100.7:1024"), Some("interactive")),
        ] {
            let target = Target::parse(target).expect("a target");
            let client = client.map(|client| client.parse().expect("an address"));
            let class = class.map(str::to_owned);
            let request = Request { target, client, class, hops: 3 };
            let sent = fields_of(request.encode(Form::Classic));
            assert!(sent.iter().all(|it| it.name != ":scheme" && it.name != ":path"));
            assert_eq!(Request::decode(&sent), Ok((request.clone(), Payload::Raw)));
            let sent = fields_of(request.encode(Form::Template { authority: "far:443" }));
            assert_eq!(Request::decode(&sent), Ok((request, Payload::Capsules)));
        }
    }

    #[test]
    fn the_draft_s_example_is_understood() {
        let sent = fields(&[
            (":method", "CONNECT"),
            (":scheme", "https"),
            (":authority", "request-proxy.example"),
            (":path", "/.well-known/masque/tcp/2001%3Adb8%3A%3A1/443/"),
            (":protocol", PROTOCOL),
            ("capsule-protocol", "?1"),
        ]);
        let target = Target::parse("[2001:db8::1]:443").expect("a target");
        assert_eq!(
            Request::decode(&sent),
            Ok((Request { target, client: None, class: None, hops: 0 }, Payload::Capsules))
        );
        assert_eq!(PROTOCOL, format!("connect-tcp-{TRIAL}"));
    }

    #[test]
    fn what_is_no_request_for_a_flow_is_denied() {
        let connect = (":method", "CONNECT");
        let authority = (":authority", "192.0.2.1:80");
        let (protocol, scheme) = ((":protocol", PROTOCOL), (":scheme", "https"));
        let path = (":path", "/.well-known/masque/tcp/192.0.2.1/80/");
        for (pairs, status) in [
            (&[(":method", "GET"), (":scheme", "https"), authority, (":path", "/")][..], 405),
            (&[connect], 400),
            (&[authority], 400),
            (&[connect, (":authority", "192.0.2.1")], 400),
            (&[connect, connect, authority], 400),
            (&[connect, authority, (":scheme", "https"), (":path", "/")], 400),
            (&[connect, ("accept", "*/*"), authority], 400),
            (&[connect, authority, ("Accept", "*/*")], 400),
            (&[connect, authority, ("accept", "a\nb")], 400),
            (&[connect, authority, ("connection", "close")], 400),
            (&[connect, authority, (":protocol", "websocket")], 501),
            // The types of its capsules are not assigned yet.
            (&[connect, authority, (":protocol", "connect-tcp")], 501),
            (&[connect, protocol, scheme, authority], 400),
            (&[connect, protocol, scheme, path], 400),
            (&[connect, protocol, authority, path], 400),
            (&[connect, protocol, (":scheme", "http"), authority, path], 400),
            (&[connect, protocol, scheme, (":authority", ""), path], 400),
            (&[connect, protocol, scheme, authority, path, (":odd", "")], 400),
            (&[connect, protocol, scheme, authority, (":path", "/")], 404),
            (
                &[connect, protocol, scheme, authority, (":path", "/.well-known/masque/tcp/a/0/")],
                400,
            ),
            (&[(":method", "GET"), protocol, scheme, authority, path], 405),
        ] {
            match Request::decode(&fields(pairs)) {
                Err(Response::Denied { status: sent, .. }) => assert_eq!(sent, status, "{pairs:?}"),
                other => panic!("{pairs:?}: {other:?}"),
            }
        }
        let padded = [connect, authority, ("user-agent", "curl"), ("midhop-client", "nonsense")];
        let (request, _) = Request::decode(&fields(&padded)).expect("a request");
        assert_eq!(request.client, None);
        for class in ["", "a b", "A", "a-name-that-is-longer-than-a-class-may-have"] {
            let padded = [connect, authority, (CLASS, class)];
            let (request, _) = Request::decode(&fields(&padded)).expect("a request");
            assert_eq!(request.class, None, "{class}");
        }
    }

    #[test]
    fn a_response_survives_being_sent() {
        let causes = Cause::all().map(Response::from);
        for response in causes.chain([Response::Granted]) {
            for payload in [Payload::Raw, Payload::Capsules] {
                let sent = fields_of(response.encode(payload));
                assert_eq!(Response::decode(&sent, payload), Ok(Some(response)));
            }
        }
    }

    #[test]
    fn a_response_of_the_next_proxy_is_passed_on_in_its_name() {
        let refused = Response::from(Cause::Refused);
        let fields = refused.fields_of("a \"hub\", or two");
        assert_eq!(fields[1].value, "\"a__hub_,_or_two\"; error=connection_refused, midhopd");
        for name in ["hub", "a, b"] {
            assert_eq!(
                Response::decode(&refused.fields_of(name), Payload::Raw),
                Ok(Some(refused)),
                "{name}"
            );
        }
    }

    #[test]
    fn a_request_that_goes_round_is_passed_on_no_more() {
        let target = Target::parse("192.0.2.1:80").expect("a target");
        let mut request = Request { target: target.clone(), client: None, class: None, hops: 0 };
        for hops in 1..=HOPS_MAX {
            request = request.onwards(target.clone(), None).expect("a chain");
            assert_eq!(request.hops, hops);
        }
        assert_eq!(request.onwards(target, None), None);
        let connect = [(":method", "CONNECT"), (":authority", "192.0.2.1:80")];
        for hops in ["-1", "256", "x"] {
            let request = Request::decode(&fields(&[connect[0], connect[1], (HOPS, hops)]));
            assert_eq!(request.map(|it| it.0.hops), Ok(u8::MAX), "{hops}");
        }
    }

    #[test]
    fn other_people_s_responses_are_understood() {
        for (pairs, meant) in [
            (&[(":status", "204"), ("server", "x")][..], Ok(Some(Response::Granted))),
            (&[(":status", "103")], Ok(None)),
            (&[(":status", "504")], Ok(Some(Cause::TimedOut.into()))),
            (&[(":status", "101")], Err(Malformed)),
            (&[(":status", "099")], Err(Malformed)),
            (&[(":status", "20")], Err(Malformed)),
            (&[(":status", "+20")], Err(Malformed)),
            (&[("server", "x")], Err(Malformed)),
            (&[(":status", "200"), (":status", "200")], Err(Malformed)),
        ] {
            assert_eq!(Response::decode(&fields(pairs), Payload::Raw), meant, "{pairs:?}");
        }
        let no_content = fields(&[(":status", "204")]);
        assert_eq!(Response::decode(&no_content, Payload::Capsules), Err(Malformed));
    }

    proptest! {
        #[test]
        fn no_fields_panic(pairs in proptest::collection::vec((":?[a-zA-Z-]{0,12}", ".*"), 0..8)) {
            let fields: Vec<Field> =
                pairs.into_iter().map(|(name, value)| Field::new(name, value)).collect();
            let _ = (Request::decode(&fields), Response::decode(&fields, Payload::Capsules));
        }
    }
}
