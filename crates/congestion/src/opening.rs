//! Openings: how much a connection sends before it has measured its path.
//!
//! An opening sets the window of a law; after it the law continues alone.

pub mod resume;
mod spread;

pub use resume::{Jump, Observer, Record, Saved};

use self::resume::Resume;
use self::spread::Spread;
use crate::segments::Segmented;
use crate::{Ack, Established, Handover, Loss, LostSegment};
use midhop_units::{Bytes, Rate};

/// How a connection begins.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Opening {
    /// The initial window at once, as every stack does.
    #[default]
    Burst,
    /// The initial window spread over the first round trip. The transport must pace.
    ///
    /// Source: R. Sallantin et al., "Initial Spreading: a fast Start-Up TCP mechanism", IEEE LCN 2013.
    Spread,
    /// A window known from another source: from an earlier connection over the same path (Careful Resume,
    /// RFC 9959), or from the configured rate of a modem. The transport must pace.
    Jump(Jump),
}

/// An opening of a connection, and its progress.
#[derive(Debug)]
pub(crate) enum ActiveOpening {
    Burst,
    Spread(Spread),
    /// Boxed: few have one.
    Jump(Box<Resume>),
}

impl ActiveOpening {
    /// The opening of a connection that begins with `window`.
    pub fn new(opening: &Opening, window: Bytes) -> Self {
        match opening {
            Opening::Burst => Self::Burst,
            Opening::Spread => Self::Spread(Spread::default()),
            Opening::Jump(jump) => Self::Jump(Box::new(Resume::new(jump.clone(), window))),
        }
    }

    /// The law has processed it already.
    pub fn on_established(&mut self, law: &mut dyn Segmented, established: &Established) {
        match self {
            Self::Burst => {}
            Self::Spread(spread) => spread.begin(established),
            Self::Jump(resume) => resume.on_established(law, established),
        }
    }

    /// Whether the law may grow by `ack`.
    pub fn on_ack(&mut self, law: &mut dyn Segmented, ack: &Ack) -> bool {
        match self {
            Self::Burst => true,
            Self::Spread(spread) => {
                spread.end();
                true
            }
            Self::Jump(resume) => resume.on_ack(law, ack),
        }
    }

    /// Whether the law handles the loss itself.
    pub fn on_loss(&mut self, law: &mut dyn Segmented, loss: &Loss) -> bool {
        match self {
            Self::Burst => true,
            Self::Spread(spread) => {
                spread.end();
                true
            }
            Self::Jump(resume) => resume.on_loss(law, loss),
        }
    }

    /// The law handles it next.
    pub fn on_rto(&mut self, law: &mut dyn Segmented) {
        match self {
            Self::Burst => {}
            Self::Spread(spread) => spread.end(),
            Self::Jump(resume) => resume.on_rto(law),
        }
    }

    /// The law handles it next.
    pub fn on_spurious(&mut self, law: &mut dyn Segmented) {
        if let Self::Jump(resume) = self {
            resume.on_spurious(law);
        }
    }

    /// The law has processed it already.
    pub fn on_handover(&mut self, law: &mut dyn Segmented, handover: &Handover) {
        if let Self::Jump(resume) = self {
            resume.on_handover(law, handover);
        }
    }

    pub fn on_lost_segment(&mut self, segment: &LostSegment) {
        if let Self::Jump(resume) = self {
            resume.on_lost_segment(segment);
        }
    }

    pub fn governs_recovery(&self) -> bool {
        matches!(self, Self::Jump(resume) if resume.governs_recovery())
    }

    /// The pacing rate for `window`; `None`: the law's.
    pub fn pacing_rate(&self, window: Bytes) -> Option<Rate> {
        match self {
            Self::Burst => None,
            Self::Spread(spread) => spread.pacing_rate(window),
            Self::Jump(resume) => resume.pacing_rate(window),
        }
    }

    /// Whether each segment keeps to [`pacing_rate`](Self::pacing_rate) from the first on.
    pub fn spreads(&self) -> bool {
        matches!(self, Self::Spread(spread) if spread.is_on())
    }

    /// Memory on the heap. Unit: bytes.
    pub fn memory(&self) -> usize {
        match self {
            Self::Burst | Self::Spread(_) => 0,
            Self::Jump(resume) => size_of_val(&**resume),
        }
    }
}
