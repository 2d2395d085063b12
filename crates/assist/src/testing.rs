//! Packets for the agents' own tests.

use crate::{Carried, Way};
use midhop_tcp::{Flags, Segment};

/// A direction of a flow, by the flow's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Line(pub u32, pub bool);

impl Way for Line {
    fn back(self) -> Self {
        Self(self.0, !self.1)
    }
}

/// A packet without bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    pub line: Line,
    pub segment: Segment,
}

impl Carried for Sample {
    type Way = Line;

    fn way(&self) -> Line {
        self.line
    }

    fn segment(&self) -> &Segment {
        &self.segment
    }

    fn with(self, segment: Segment) -> Self {
        Self { segment, ..self }
    }

    fn size(&self) -> u32 {
        20 + self.segment.size()
    }
}

/// A pure acknowledgement.
pub(crate) fn sample(acknowledgment: u32, window: u16) -> Sample {
    let segment = Segment { acknowledgment, window, flags: Flags::ACK, ..Segment::default() };
    Sample { line: Line(5, true), segment }
}
