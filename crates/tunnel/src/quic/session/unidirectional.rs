//! The peer's unidirectional streams: its control stream, its credit, and QPACK streams, which are not used.

use super::Session;
use crate::http3::{Code, Frame, FrameReader, Settings, StreamKind};
use crate::quic::event::CarrierEvent;
use crate::{credit, varint};
use bytes::Bytes;
use midhop_units::Duration;
use quinn_proto::{Connection, ReadError, StreamId, VarInt};

/// A report of a backlog covers at most this much time.
const BACKLOG_MAX: Duration = Duration::from_s(10);

/// The kind of a peer's stream, and its reader.
#[derive(Debug)]
pub(super) enum PeerStream {
    /// Its first number has not arrived completely.
    Unknown(Vec<u8>),
    Control(FrameReader),
    Credit(credit::CreditReader),
    /// QPACK encoder instructions; there is no dynamic table.
    Encoder,
    Decoder,
}

impl Session {
    /// Reads what has arrived on such a stream.
    pub(super) fn read_uni(&mut self, id: StreamId, connection: &mut Connection) {
        loop {
            let mut receiving = connection.recv_stream(id);
            let Ok(mut chunks) = receiving.read(true) else { return };
            let next = chunks.next(usize::MAX);
            let _ = chunks.finalize();
            let outcome = match next {
                Ok(Some(chunk)) => self.read_piece(id, chunk.bytes, connection),
                Err(ReadError::Blocked) => return,
                Ok(None) | Err(ReadError::Reset(_)) => {
                    let critical =
                        !matches!(self.uni.remove(&id), None | Some(PeerStream::Unknown(_)));
                    if critical {
                        self.fault.get_or_insert(Code::CLOSED_CRITICAL_STREAM);
                    }
                    return;
                }
            };
            if let Err(code) = outcome {
                self.fault.get_or_insert(code);
                return;
            }
        }
    }

    /// Reads a piece of such a stream.
    fn read_piece(
        &mut self,
        id: StreamId,
        mut bytes: Bytes,
        connection: &mut Connection,
    ) -> Result<(), Code> {
        let Some(side) = self.uni.get_mut(&id) else { return Ok(()) };
        if let PeerStream::Unknown(head) = side {
            head.extend_from_slice(&bytes);
            let Some((number, length)) = varint::read(head) else { return Ok(()) };
            bytes = Bytes::copy_from_slice(head.get(length..).unwrap_or_default());
            let kind = StreamKind::of(number);
            let side = match kind {
                StreamKind::Unknown => {
                    self.uni.remove(&id);
                    let code = VarInt::from_u64(Code::STREAM_CREATION_ERROR.0).unwrap_or_default();
                    let _ = connection.recv_stream(id).stop(code);
                    return Ok(());
                }
                StreamKind::Push => return Err(Code::STREAM_CREATION_ERROR),
                StreamKind::Control => PeerStream::Control(FrameReader::default()),
                StreamKind::Credit => PeerStream::Credit(credit::CreditReader::default()),
                StreamKind::Encoder => PeerStream::Encoder,
                StreamKind::Decoder => PeerStream::Decoder,
            };
            if self.seen.contains(&kind) {
                return Err(Code::STREAM_CREATION_ERROR);
            }
            self.seen.push(kind);
            if kind == StreamKind::Credit {
                self.credit.answer();
            }
            self.uni.insert(id, side);
        }
        match self.uni.get_mut(&id) {
            Some(PeerStream::Control(reader)) => {
                let mut frames = Vec::new();
                while let Some(frame) = reader.read(&mut bytes)? {
                    frames.push(frame);
                }
                frames.into_iter().try_for_each(|frame| self.control_frame(frame))
            }
            Some(PeerStream::Credit(reader)) => {
                while let Some((stream, limit)) = reader.read(&mut bytes) {
                    self.ready.extend(self.credit.raise(stream, limit));
                }
                Ok(())
            }
            // "Set Dynamic Table Capacity" to 0, RFC 9204 §4.3.1.
            Some(PeerStream::Encoder) if bytes.iter().any(|byte| *byte != 0b0010_0000) => {
                Err(Code::ENCODER_STREAM_ERROR)
            }
            _ => Ok(()),
        }
    }

    fn control_frame(&mut self, frame: Frame) -> Result<(), Code> {
        match (frame, self.peer) {
            (Frame::Settings(packed), None) => {
                let settings = Settings::decode(&packed)?;
                self.credit.begin(settings.stream_credit);
                self.peer = Some(settings);
                self.events.push_back(CarrierEvent::Settled);
                Ok(())
            }
            (_, None) => Err(Code::MISSING_SETTINGS),
            (Frame::GoAway(_), Some(_)) => {
                if !std::mem::replace(&mut self.leaving[1], true) {
                    self.events.push_back(CarrierEvent::Leaving);
                }
                Ok(())
            }
            (Frame::Backlog(ms), Some(_)) => {
                let lasted = Duration::from_ms(ms.min(BACKLOG_MAX.as_ns() / 1_000_000));
                self.events.push_back(CarrierEvent::Backlog(lasted));
                Ok(())
            }
            (Frame::Push, Some(_)) => Ok(()),
            (_, Some(_)) => Err(Code::FRAME_UNEXPECTED),
        }
    }
}
