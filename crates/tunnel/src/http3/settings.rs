//! The settings that each end of a connection announces first.
//!
//! Source: RFC 9114 §7.2.4, RFC 9204 §5, RFC 9220 §3, `SPEC-fec.md`.
//!
//! Decision 0017.

use super::{Code, field::SECTION_BYTES_MAX, frame};
use crate::{connect::TRIAL, credit, fec, resumption, varint};

/// The settings of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    /// Unit: bytes. The largest section of header fields that it reads; none: it announced no limit.
    pub field_section_bytes_max: Option<u64>,
    /// Whether it serves CONNECT with a `:protocol`.
    pub extended_connect: bool,
    /// Which trial of connect-tcp it serves, as [`TRIAL`] counts; zero: none.
    pub connect_tcp: u64,
    /// The largest window of a repair of [`fec`] that it reads; zero: it does not support repairs. Unit: datagrams.
    pub repair_window: u64,
    /// Whether it wants [`Backlog`](super::Frame::Backlog) frames.
    pub wants_backlog: bool,
    /// The initial [`credit`] that it gives each stream; zero: it does not use this credit. Unit: bytes.
    pub stream_credit: u64,
    /// How long it keeps a flow whose carrier is gone, for its [`resumption`]; zero: it keeps none. Unit: seconds.
    pub resume_s: u64,
}

const QPACK_MAX_TABLE_CAPACITY: u64 = 0x01;
const MAX_FIELD_SECTION_SIZE: u64 = 0x06;
const QPACK_BLOCKED_STREAMS: u64 = 0x07;
const ENABLE_CONNECT_PROTOCOL: u64 = 0x08;
/// Announces which trial of connect-tcp an end serves.
const MIDHOP_CONNECT_TCP: u64 = 0x2fec_0002;
/// Announces whether an end wants reports that the peer has more to send than the path takes.
const MIDHOP_BACKLOG: u64 = 0x2fec_0003;
/// Settings of HTTP/2 that have no meaning here and are refused.
const RESERVED: [u64; 4] = [0x02, 0x03, 0x04, 0x05];
/// No peer needs more settings than this.
const SETTINGS_MAX: usize = 64;

impl Settings {
    /// The settings of this software.
    pub const fn own() -> Self {
        Self {
            field_section_bytes_max: Some(SECTION_BYTES_MAX as u64),
            extended_connect: true,
            connect_tcp: TRIAL,
            repair_window: 0,
            wants_backlog: false,
            stream_credit: 0,
            resume_s: 0,
        }
    }

    /// Whether an end with these settings accepts requests by a template, with the bytes in capsules.
    ///
    /// CONNECT with a `:protocol` alone is not enough: quic-go announces it even if its handlers do not support
    /// such requests.
    pub const fn serves_templates(&self) -> bool {
        self.extended_connect && self.connect_tcp == TRIAL
    }

    /// As a frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        let mut put = |identifier, value| {
            varint::write(identifier, &mut payload);
            varint::write(value, &mut payload);
        };
        // No dynamic table; without the setting the value would be the same.
        put(QPACK_MAX_TABLE_CAPACITY, 0);
        put(QPACK_BLOCKED_STREAMS, 0);
        if let Some(bytes) = self.field_section_bytes_max {
            put(MAX_FIELD_SECTION_SIZE, bytes);
        }
        if self.extended_connect {
            put(ENABLE_CONNECT_PROTOCOL, 1);
        }
        if self.connect_tcp > 0 {
            put(MIDHOP_CONNECT_TCP, self.connect_tcp);
        }
        if self.repair_window > 0 {
            put(fec::SETTING, self.repair_window);
        }
        if self.wants_backlog {
            put(MIDHOP_BACKLOG, 1);
        }
        if self.stream_credit > 0 {
            put(credit::SETTING, self.stream_credit);
        }
        if self.resume_s > 0 {
            put(resumption::SETTING, self.resume_s);
        }
        let mut frame = Vec::new();
        frame::write(frame::SETTINGS, &payload, &mut frame);
        frame
    }

    /// Reads a frame's payload.
    ///
    /// # Errors
    /// [`Code::FRAME_ERROR`] when it is truncated, [`Code::SETTINGS_ERROR`] when a setting is repeated, reserved or
    /// has an invalid value, [`Code::EXCESSIVE_LOAD`] when there are too many.
    pub fn decode(mut payload: &[u8]) -> Result<Self, Code> {
        let mut settings = Self::default();
        let mut seen = Vec::new();
        while !payload.is_empty() {
            let mut number = || {
                let (value, length) = varint::read(payload).ok_or(Code::FRAME_ERROR)?;
                payload = payload.get(length..).unwrap_or_default();
                Ok(value)
            };
            let (identifier, value) = (number()?, number()?);
            if RESERVED.contains(&identifier) || seen.contains(&identifier) {
                return Err(Code::SETTINGS_ERROR);
            }
            if seen.len() == SETTINGS_MAX {
                return Err(Code::EXCESSIVE_LOAD);
            }
            seen.push(identifier);
            match (identifier, value) {
                (MAX_FIELD_SECTION_SIZE, bytes) => settings.field_section_bytes_max = Some(bytes),
                (ENABLE_CONNECT_PROTOCOL, 0) => settings.extended_connect = false,
                (ENABLE_CONNECT_PROTOCOL, 1) => settings.extended_connect = true,
                (ENABLE_CONNECT_PROTOCOL, _) => return Err(Code::SETTINGS_ERROR),
                (MIDHOP_CONNECT_TCP, trial) => settings.connect_tcp = trial,
                (MIDHOP_BACKLOG, value) => settings.wants_backlog = value == 1,
                (fec::SETTING, datagrams) => settings.repair_window = datagrams,
                (credit::SETTING, bytes) => settings.stream_credit = bytes,
                (resumption::SETTING, seconds) => settings.resume_s = seconds,
                // Limits of dynamic tables that the peer would allow, and unknown settings.
                _ => {}
            }
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http3::{Frame, FrameReader};
    use bytes::Bytes;
    use proptest::prelude::*;

    #[test]
    fn what_is_encoded_is_understood() {
        let repairs = Settings { repair_window: 128, ..Settings::own() };
        let backlog = Settings { wants_backlog: true, ..Settings::own() };
        let credit = Settings { stream_credit: 63_000_000, ..Settings::own() };
        let resumption = Settings { resume_s: 300, ..Settings::own() };
        for settings in [Settings::own(), Settings::default(), repairs, backlog, credit, resumption]
        {
            let mut input = Bytes::from(settings.encode());
            let frame = FrameReader::default().read(&mut input).expect("a frame");
            let Some(Frame::Settings(payload)) = frame else { panic!("{frame:?}") };
            assert_eq!(Settings::decode(&payload), Ok(settings));
        }
    }

    #[test]
    fn what_may_not_be_is_refused() {
        for (payload, code) in [
            (&[0x06][..], Code::FRAME_ERROR),
            (&[0x06, 0x01, 0x06, 0x02], Code::SETTINGS_ERROR),
            (&[0x02, 0x00], Code::SETTINGS_ERROR),
            (&[0x08, 0x02], Code::SETTINGS_ERROR),
        ] {
            assert_eq!(Settings::decode(payload), Err(code), "{payload:x?}");
        }
        let many: Vec<u8> = (0x40u16..0x90).flat_map(|it| [0x40, it as u8, 0]).collect();
        assert_eq!(Settings::decode(&many), Err(Code::EXCESSIVE_LOAD));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(payload: Vec<u8>) {
            let _ = Settings::decode(&payload);
        }
    }
}
