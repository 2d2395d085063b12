//! This end's unidirectional streams: its control stream and the credit that it grants.

use super::Session;
use crate::http3::{StreamKind, frame};
use crate::{credit, varint};
use midhop_units::{Duration, Instant};
use quinn_proto::{Connection, Dir, StreamId};

/// How long a peer may take to allow a control stream: longer than any satellite link needs.
const PATIENCE: Duration = Duration::from_s(10);

/// A unidirectional stream of this end.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub id: StreamId,
    waiting: Vec<u8>,
}

impl Outgoing {
    /// Writes what fits. Returns how many bytes did.
    pub fn flush(&mut self, connection: &mut Connection) -> u64 {
        let mut all = 0;
        while !self.waiting.is_empty() {
            // QUIC reports new room only after a write that it refused, and not after one that it accepted in part.
            let Ok(written) = connection.send_stream(self.id).write(&self.waiting) else { break };
            self.waiting.drain(..written);
            all += written as u64;
        }
        all
    }
}

impl Session {
    /// Begins HTTP/3.
    pub fn begin(&mut self, now: Instant, connection: &mut Connection) {
        self.silent_until = Some(now + PATIENCE);
        self.open_control(connection);
    }

    /// Opens the control stream, as soon as the peer allows it.
    pub(super) fn open_control(&mut self, connection: &mut Connection) {
        if self.silent_until.is_none() {
            return;
        }
        let Some(id) = connection.streams().open(Dir::Uni) else { return };
        self.silent_until = None;
        let mut waiting = Vec::new();
        varint::write(StreamKind::CONTROL, &mut waiting);
        waiting.extend(self.own.encode());
        self.written += self.control.insert(Outgoing { id, waiting }).flush(connection);
        if self.leaving[0] {
            self.send_goaway(connection);
        }
    }

    /// Accepts no more flows than have arrived, and announces that.
    pub fn leave(&mut self, connection: &mut Connection) {
        if !std::mem::replace(&mut self.leaving[0], true) {
            self.send_goaway(connection);
        }
    }

    fn send_goaway(&mut self, connection: &mut Connection) {
        let mut next = Vec::new();
        varint::write(self.next, &mut next);
        self.send_control(frame::GOAWAY, &next, connection);
    }

    /// Reports that this end has had more to send than the path takes.
    pub fn report_backlog(&mut self, lasted: Duration, connection: &mut Connection) {
        if !self.peer.is_some_and(|it| it.wants_backlog) {
            return;
        }
        // An earlier report that has not left yet is enough.
        if self.control.as_ref().is_some_and(|own| !own.waiting.is_empty()) {
            return;
        }
        let mut number = Vec::new();
        varint::write(lasted.as_ns() / 1_000_000, &mut number);
        // The flows' pool is full then: doubling it makes room for the report.
        connection.set_send_window(self.pool.saturating_mul(2));
        self.send_control(frame::BACKLOG, &number, connection);
        connection.set_send_window(self.pool);
    }

    fn send_control(&mut self, kind: u64, payload: &[u8], connection: &mut Connection) {
        if let Some(own) = &mut self.control {
            frame::write(kind, payload, &mut own.waiting);
            self.written += own.flush(connection);
        }
    }

    /// Sends the grants. While the peer allows no stream for them, only the newest grant of each stream is kept.
    pub(super) fn grant(&mut self, connection: &mut Connection) {
        if self.grants.as_ref().is_some_and(|own| !own.waiting.is_empty()) {
            return;
        }
        let grants = self.credit.take_grants();
        if self.grants.is_none() && self.credit.is_understood() {
            let Some(id) = connection.streams().open(Dir::Uni) else { return };
            let mut waiting = Vec::new();
            varint::write(credit::STREAM, &mut waiting);
            self.grants = Some(Outgoing { id, waiting });
        } else if grants.is_empty() {
            return;
        }
        if let Some(own) = &mut self.grants {
            grants.into_iter().for_each(|(id, limit)| credit::write(id, limit, &mut own.waiting));
            self.written += own.flush(connection);
        }
    }
}
