//! Openings: what a connection sends before its path has told it anything.
//!
//! An opening stands around a controller and sets its window; once it is over, the controller goes on
//! alone.

pub mod resume;
mod spread;

pub use resume::{Jump, Observer, Record, Saved};

pub(crate) use resume::Resume;
pub(crate) use spread::Spread;

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
    /// A window known from elsewhere: from an earlier connection over the same path (Careful Resume,
    /// RFC 9959), or from the rate that a modem is configured to. The transport must pace.
    Jump(Jump),
}
