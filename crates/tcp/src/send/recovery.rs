//! The sender's recovery state, and how much it may have in flight meanwhile.
//!
//! Source: RFC 6675 §5 and RFC 6582 §3.2 for the beginning and end of a recovery, RFC 9937 for the window in
//! between, RFC 5682 and RFC 3522 for spurious ones.

use midhop_congestion::{Phase, prr::Prr};

/// The state of the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Mode {
    #[default]
    Open,
    /// Reducing its window without a loss: the path marked congestion.
    Reduced,
    /// Fast recovery.
    Recovery,
    /// After a timeout.
    Loss,
}

/// The state of a recovery.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recovery {
    pub mode: Mode,
    /// It ends when everything below is acknowledged.
    pub point: u64,
    pub prr: Option<Prr>,
    /// Whether the congestion control has set the window itself so far.
    pub governed: bool,
    /// The limit of data in flight during it, where it sets one. Unit: bytes.
    pub window: Option<u64>,
    /// Duplicate acknowledgements since the last new one, where there are no selective ones.
    pub duplicates: u32,
    /// The part of the unacknowledged data behind duplicates that is reported to the congestion control.
    pub duplicates_reported: u32,
    pub undo: Undo,
    /// Whether the last timeout may still turn out to have been spurious (RFC 5682).
    pub frto: bool,
    /// New data goes before lost data, to see how the receiver responds (RFC 5682 §2.1, 2b).
    pub prefer_new: bool,
    /// Everything below was judged by count (RFC 6675).
    pub judged: u64,
}

/// Detects whether a reduction was spurious.
///
/// A recovery may begin while retransmissions of an earlier one are still in flight. A response to those is
/// no response to an original, so the moment that counts is the first since any retransmission has been
/// outstanding (retrans_stamp in net/ipv4/tcp_input.c).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Undo {
    /// A reduction that can be undone.
    pub armed: bool,
    /// Retransmissions outstanding or received since, less those that the receiver had already.
    pub unproven: i64,
    pub retransmitted: bool,
    /// The timestamp of the first of them.
    pub first_stamp: Option<u32>,
}

impl Undo {
    /// A reduction begins, while so many retransmitted segments are outstanding.
    pub fn arm(&mut self, outstanding: u32) {
        *self = Self {
            armed: true,
            unproven: outstanding.into(),
            retransmitted: outstanding > 0,
            first_stamp: self.first_stamp.filter(|_| outstanding > 0),
        };
    }

    /// Nothing can be undone any more.
    pub fn disarm(&mut self) {
        self.armed = false;
    }

    /// A retransmission leaves, while so many retransmitted segments are outstanding.
    pub fn on_retransmission(&mut self, stamp: Option<u32>, outstanding: u32) {
        if outstanding == 0 {
            self.first_stamp = stamp;
        }
        if self.armed {
            self.unproven += 1;
            self.retransmitted = true;
        }
    }

    pub fn on_duplicate(&mut self) {
        if self.armed && self.retransmitted {
            self.unproven -= 1;
        }
    }

    /// Whether all retransmitted segments had arrived already.
    pub fn all_duplicates(&self) -> bool {
        self.armed && self.retransmitted && self.unproven <= 0
    }

    /// Whether the peer echoes a moment before any retransmission: it responds to an original.
    pub fn is_answered_early(&self, echo: Option<u32>) -> bool {
        let (Some(first), Some(echo)) = (self.first_stamp, echo) else { return false };
        self.armed && (echo.wrapping_sub(first) as i32) < 0
    }
}

impl Recovery {
    /// No repair or reduction is in progress, and no reduction can still be undone.
    pub fn is_at_rest(&self) -> bool {
        self.mode == Mode::Open && !self.undo.armed
    }

    pub fn phase(&self) -> Phase {
        match self.mode {
            Mode::Open => Phase::Open,
            Mode::Reduced | Mode::Recovery => Phase::Recovery,
            Mode::Loss => Phase::Loss,
        }
    }

    /// Begins a reduction from `from` outstanding segments to `to`.
    pub fn begin(&mut self, mode: Mode, point: u64, from: u32, to: u32, prr: bool) {
        self.mode = mode;
        self.point = point;
        self.window = None;
        self.governed = false;
        self.prr = prr.then_some(Prr { from, to, delivered: 0, sent: 0 });
    }

    pub fn end(&mut self) {
        self.mode = Mode::Open;
        self.prr = None;
        self.window = None;
        self.frto = false;
        self.prefer_new = false;
    }

    /// An acknowledgement during a reduction: sets the new limit in flight. While the congestion control
    /// `governs` there is none, but the delivered data counts for a later reduction to its `goal`.
    pub fn on_ack(&mut self, delivered: u32, pipe: Pipe, safe: bool, governs: bool, goal: u32) {
        let Some(prr) = &mut self.prr else { return };
        if std::mem::replace(&mut self.governed, governs) && !governs {
            prr.to = goal;
        }
        prr.delivered = prr.delivered.saturating_add(delivered);
        if governs {
            self.window = None;
            return;
        }
        if delivered == 0 {
            return;
        }
        let more = prr.window(delivered, pipe.segments, safe) - pipe.segments;
        self.window = Some(pipe.bytes + u64::from(more) * u64::from(pipe.mss));
    }

    pub fn on_send(&mut self) {
        if let Some(prr) = &mut self.prr {
            prr.sent = prr.sent.saturating_add(1);
        }
    }
}

/// Data in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pipe {
    pub segments: u32,
    pub bytes: u64,
    pub mss: u32,
}
