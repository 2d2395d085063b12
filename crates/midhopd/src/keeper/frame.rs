//! Frames on a stream between the two processes: a length, and JSON of that length.

use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, Read, Write};

/// Unit: bytes. The longest frame. A frame contains at most a configuration as text, and never the
/// plan that it resolves to.
const LENGTH_MAX: u32 = 16 << 20;

/// Writes one frame.
///
/// # Errors
/// When the other end is gone, or the value is larger than any frame.
pub fn write(mut stream: impl Write, value: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(value)?;
    let length = u32::try_from(body.len()).ok().filter(|length| *length <= LENGTH_MAX);
    let length = length.ok_or(io::ErrorKind::InvalidInput)?;
    let mut frame = length.to_le_bytes().to_vec();
    frame.extend(body);
    stream.write_all(&frame)
}

/// Reads one frame. None: the other end is gone.
///
/// # Errors
/// When the stream ends within it, it is longer than any frame, or its JSON is not such a value.
pub fn read<T: DeserializeOwned>(mut stream: impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match stream.read(&mut length[..1])? {
        0 => return Ok(None),
        _ => stream.read_exact(&mut length[1..])?,
    }
    let length = u32::from_le_bytes(length);
    if length > LENGTH_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // Memory grows with the bytes that arrive, not with the length that the frame claims.
    let mut body = Vec::new();
    stream.take(length.into()).read_to_end(&mut body)?;
    if body.len() as u64 != u64::from(length) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(serde_json::from_slice(&body)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keeper::Request;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = Vec::new();
        let requests = [
            Request::Begin {
                name: "a.toml".to_owned(),
                text: "[intercept]\n".to_owned(),
                before: Some("# \u{e9}".to_owned()),
            },
            Request::Install { queues: 3 },
            Request::Reload { fingerprint: u64::MAX },
            Request::End,
        ];
        for request in &requests {
            write(&mut bytes, request).expect("a frame");
        }
        let mut rest = &bytes[..];
        for request in requests {
            assert_eq!(read::<Request>(&mut rest).expect("a frame"), Some(request));
        }
        assert_eq!(read::<Request>(&mut rest).expect("an end"), None);
    }

    #[test]
    fn what_breaks_off_or_is_too_long_is_refused() {
        let mut whole = Vec::new();
        write(&mut whole, &Request::Passed).expect("a frame");
        for length in 1..whole.len() {
            assert!(read::<Request>(&whole[..length]).is_err(), "{length} bytes");
        }
        let claimed = (LENGTH_MAX + 1).to_le_bytes();
        assert!(read::<Request>(&claimed[..]).is_err());
    }

    #[test]
    fn what_nobody_may_ask_for_is_refused() {
        for body in [
            r#"{"Apply":{"text":"flush ruleset"}}"#,
            r#"{"Install":{"queues":65536}}"#,
            r#"{"Install":{"queues":-1}}"#,
            r#"{"Install":{"queues":1,"table":"filter"}}"#,
            r#"{"Reload":{"fingerprint":1,"config":"/tmp/mine"}}"#,
            r#"["End","End"]"#,
            "",
        ] {
            let mut frame = u32::try_from(body.len()).expect("a length").to_le_bytes().to_vec();
            frame.extend(body.as_bytes());
            assert!(read::<Request>(&frame[..]).is_err(), "{body}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_can_hurt(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            framed in any::<bool>(),
        ) {
            let length = u32::try_from(bytes.len()).expect("a length").to_le_bytes();
            let frame = if framed { [&length[..], &bytes].concat() } else { bytes };
            let _ = read::<Request>(&frame[..]);
        }
    }
}
