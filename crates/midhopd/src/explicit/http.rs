//! HTTP/1.1 CONNECT.
//!
//! Source: RFC 9110 §9.3.6 (the method), RFC 9112 §3.2.3 (authority-form), RFC 9209 (Proxy-Status).

use super::handshake::{DialOutcome, Parsed, Target};

/// The longest request head that is read.
pub(super) const HEAD_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;

/// Parses a request head at the start of `input`. The last call has searched `scanned` bytes of it,
/// so a client that sends byte by byte costs no more than another, and gets the same response.
pub(super) fn parse(input: &[u8], scanned: usize) -> Parsed<Target> {
    let head = &input[..input.len().min(HEAD_BYTES_MAX)];
    let too_long_or_more = || if input.len() > HEAD_BYTES_MAX { too_long() } else { Parsed::More };
    // Empty lines before the request line do not end a head (RFC 9112 §2.2).
    let begin = head.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    let fresh = scanned.saturating_sub(3).clamp(begin, head.len());
    if !ends_head(&head[fresh..]) {
        return too_long_or_more();
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(head) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return too_long_or_more(),
        Err(httparse::Error::TooManyHeaders) => return too_long(),
        Err(_) => return wrong("400 Bad Request", "http_request_error", ""),
    };
    if request.method != Some("CONNECT") {
        return wrong("405 Method Not Allowed", "http_request_denied", "Allow: CONNECT\r\n");
    }
    let has_body = request.headers.iter().any(|header| {
        header.name.eq_ignore_ascii_case("transfer-encoding")
            || (header.name.eq_ignore_ascii_case("content-length")
                && header.value.trim_ascii() != b"0")
    });
    let host_missing = request.version == Some(1)
        && !request.headers.iter().any(|header| header.name.eq_ignore_ascii_case("host"));
    let target = request.path.and_then(Target::parse);
    match target {
        Some(target) if !has_body && !host_missing => Parsed::Done(target, length),
        _ => wrong("400 Bad Request", "http_request_error", ""),
    }
}

/// The response head for `outcome`.
pub(super) fn answer(outcome: DialOutcome) -> Vec<u8> {
    match outcome {
        Ok(_) => b"HTTP/1.1 200 Connection Established\r\n\r\n".to_vec(),
        Err(cause) => refusal(line(cause.status()), cause.error(), ""),
    }
}

/// A status with its reason phrase.
fn line(status: u16) -> &'static str {
    match status {
        400 => "400 Bad Request",
        403 => "403 Forbidden",
        502 => "502 Bad Gateway",
        503 => "503 Service Unavailable",
        504 => "504 Gateway Timeout",
        _ => "500 Internal Server Error",
    }
}

/// The response to a client that did not finish its request.
pub(super) fn too_late() -> Vec<u8> {
    refusal("408 Request Timeout", "http_request_error", "")
}

/// Whether an empty line ends in `bytes`: bare line feeds count, as httparse accepts them.
fn ends_head(bytes: &[u8]) -> bool {
    bytes.windows(2).any(|pair| pair == b"\n\n") || bytes.windows(3).any(|three| three == b"\n\r\n")
}

fn too_long() -> Parsed<Target> {
    wrong("431 Request Header Fields Too Large", "http_request_error", "")
}

fn wrong(status: &str, error: &str, headers: &str) -> Parsed<Target> {
    Parsed::Wrong(refusal(status, error, headers))
}

fn refusal(status: &str, error: &str, headers: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nProxy-Status: midhopd; error={error}\r\n{headers}\
         Content-Length: 0\r\nConnection: close\r\n\r\n"
    )
    .into_bytes()
}
