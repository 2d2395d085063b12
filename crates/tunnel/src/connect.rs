//! The request that asks for a flow, and the response that grants or denies it.
//!
//! Source: RFC 9114 §4.4 (CONNECT), §4.1.2 (malformed messages), RFC 9209 (`Proxy-Status`).

use crate::{
    cause::Cause,
    http3::{Field, field, frame},
    target::Target,
};
use std::net::SocketAddr;

/// The name by which this software speaks of itself in `Proxy-Status` and `server`.
const OWN_NAME: &str = "midhopd";
/// Names the client on whose behalf a proxy asks, address and port, to a proxy that trusts it.
const CLIENT: &str = "midhop-client";
/// Names the class of a flow to a proxy that has classes of that name.
const CLASS: &str = "midhop-class";
/// The longest name of a class. Unit: bytes.
const CLASS_BYTES_MAX: usize = 32;

/// A request for a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Where it wants to go.
    pub target: Target,
    /// Whose flow it is, where the asking proxy tells.
    pub client: Option<SocketAddr>,
    /// The name of its class, where the asking proxy tells.
    pub class: Option<String>,
}

impl Request {
    /// As the frame that opens its stream.
    pub fn encode(&self) -> Vec<u8> {
        headers(&self.fields())
    }

    /// As header fields.
    pub fn fields(&self) -> Vec<Field> {
        // A plain CONNECT has neither scheme nor path.
        let mut fields = vec![
            Field::new(":method", "CONNECT"),
            Field::new(":authority", self.target.to_string()),
        ];
        if let Some(client) = self.client {
            fields.push(Field::new(CLIENT, client.to_string()));
        }
        if let Some(class) = &self.class {
            fields.push(Field::new(CLASS, class.clone()));
        }
        fields
    }

    /// Reads a packed section of header fields.
    ///
    /// # Errors
    /// What to answer where it is no request that is served here: it is malformed, or no CONNECT.
    pub fn decode(fields: &[Field]) -> Result<Self, Response> {
        let malformed = || Response::Denied { status: 400, cause: Cause::Malformed };
        let (pseudo, others) = split(fields).ok_or_else(malformed)?;
        let value = |name| pseudo.iter().find(|it| it.name == name).map(|it| it.value.as_ref());
        match value(":method") {
            Some("CONNECT") => {}
            Some(_) => return Err(Response::Denied { status: 405, cause: Cause::Malformed }),
            None => return Err(malformed()),
        }
        if value(":protocol").is_some() {
            return Err(Response::Denied { status: 501, cause: Cause::Malformed });
        }
        if pseudo.len() != 2 {
            return Err(malformed());
        }
        let target = value(":authority").and_then(Target::parse).ok_or_else(malformed)?;
        let other = |name| others.iter().find(|it| it.name == name).map(|it| it.value.as_ref());
        let client = other(CLIENT).and_then(|value: &str| value.parse().ok());
        let class = other(CLASS).filter(|name| is_class(name)).map(str::to_owned);
        Ok(Self { target, client, class })
    }
}

/// Whether a class may have this name.
fn is_class(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=CLASS_BYTES_MAX).contains(&name.len()) && name.bytes().all(plain)
}

/// The answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response {
    /// The far side has accepted.
    Granted,
    /// It has not.
    Denied {
        /// The status that says so.
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
    /// As the frame that answers a stream.
    pub fn encode(&self) -> Vec<u8> {
        headers(&self.fields())
    }

    /// As header fields.
    pub fn fields(&self) -> Vec<Field> {
        match self {
            Self::Granted => vec![Field::new(":status", "200")],
            Self::Denied { status, cause } => {
                let error = format!("{OWN_NAME}; error={}", cause.error());
                vec![Field::new(":status", status.to_string()), Field::new("proxy-status", error)]
            }
        }
    }

    /// Reads a packed section of header fields; none: it is only provisional, and another follows.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn decode(fields: &[Field]) -> Result<Option<Self>, Malformed> {
        let (pseudo, others) = split(fields).ok_or(Malformed)?;
        let [status] = pseudo else { return Err(Malformed) };
        let digits = status.value.len() == 3 && status.value.bytes().all(|b| b.is_ascii_digit());
        if status.name != ":status" || !digits {
            return Err(Malformed);
        }
        let status: u16 = status.value.parse().map_err(|_| Malformed)?;
        match status {
            // No status at all, and that of an upgrade, which HTTP/3 has none of.
            0..100 | 101 => Err(Malformed),
            100..200 => Ok(None),
            200..300 => Ok(Some(Self::Granted)),
            _ => {
                let said = others.iter().rfind(|it| it.name == "proxy-status");
                let cause = Cause::told(status, said.map(|it| it.value.as_ref()));
                Ok(Some(Self::Denied { status, cause }))
            }
        }
    }
}

/// A message that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the message is malformed")]
pub struct Malformed;

fn headers(fields: &[Field]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::write(frame::HEADERS, &field::encode(fields), &mut out);
    out
}

/// Pseudo-header fields, which come first and once each, and the others; none if that is not so, or a
/// name or value has what it may not have.
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
            let request = Request { target, client, class };
            let sent = fields_of(request.encode());
            assert!(sent.iter().all(|it| it.name != ":scheme" && it.name != ":path"));
            assert_eq!(Request::decode(&sent), Ok(request));
        }
    }

    #[test]
    fn what_is_no_request_for_a_flow_is_denied() {
        let connect = (":method", "CONNECT");
        let authority = (":authority", "192.0.2.1:80");
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
        ] {
            match Request::decode(&fields(pairs)) {
                Err(Response::Denied { status: said, .. }) => assert_eq!(said, status, "{pairs:?}"),
                other => panic!("{pairs:?}: {other:?}"),
            }
        }
        let padded = [connect, authority, ("user-agent", "curl"), ("midhop-client", "nonsense")];
        let request = Request::decode(&fields(&padded)).expect("a request");
        assert_eq!(request.client, None);
        for class in ["", "a b", "A", "a-name-that-is-longer-than-a-class-may-have"] {
            let padded = [connect, authority, (CLASS, class)];
            let request = Request::decode(&fields(&padded)).expect("a request");
            assert_eq!(request.class, None, "{class}");
        }
    }

    #[test]
    fn a_response_survives_being_sent() {
        let causes = Cause::all().map(Response::from);
        for response in causes.chain([Response::Granted]) {
            assert_eq!(Response::decode(&fields_of(response.encode())), Ok(Some(response)));
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
            assert_eq!(Response::decode(&fields(pairs)), meant, "{pairs:?}");
        }
    }

    proptest! {
        #[test]
        fn no_fields_panic(pairs in proptest::collection::vec((":?[a-zA-Z-]{0,12}", ".*"), 0..8)) {
            let fields: Vec<Field> =
                pairs.into_iter().map(|(name, value)| Field::new(name, value)).collect();
            let _ = (Request::decode(&fields), Response::decode(&fields));
        }
    }
}
