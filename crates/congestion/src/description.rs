//! Descriptions of algorithms besides their laws; each algorithm's module has its own.

use crate::SlowStart;
use midhop_units::Rate;

/// The description of an algorithm besides its law.
#[derive(Debug)]
pub struct Description {
    /// Its name.
    pub name: &'static str,
    /// How a kernel's sockets get it.
    pub kernel: InKernel,
    /// Whether a transport under it paces.
    pub pacing: Pacing,
    /// How its first slow start ends.
    pub slow_start: FirstSlowStart,
    /// Whether it takes an [opening](crate::Opening) other than a burst.
    pub opens: bool,
    /// Whether its first window is [`Settings::initial_window`](crate::Settings::initial_window).
    pub initial_window: bool,
    /// Whether it has a window that can have [a committed rate](crate::committed) as its floor.
    pub committed: bool,
    /// Whether it makes random choices.
    pub draws: bool,
    /// The keys in scenarios for it, and for algorithms of its family, only.
    pub keys: &'static [&'static str],
}

impl Description {
    /// A window in segments that begins with the requested size; a program of ours runs it in kernels.
    pub(crate) const WINDOW: Self = Self {
        name: "",
        kernel: InKernel::Program,
        pacing: Pacing::Chosen,
        slow_start: FirstSlowStart::Chosen(SlowStart::Classic),
        opens: true,
        initial_window: true,
        committed: true,
        draws: false,
        keys: &[],
    };

    /// An algorithm that begins and sends by a rule of its own, in simulations and tunnels only.
    pub(crate) const OWN_RULE: Self = Self {
        kernel: InKernel::Never,
        pacing: Pacing::Always,
        slow_start: FirstSlowStart::Own,
        opens: false,
        committed: false,
        ..Self::WINDOW
    };
}

/// How a kernel's sockets get an algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InKernel {
    /// Kernels have it.
    Native,
    /// By a program of ours, where the kernel lacks it or has a different one of that name.
    Program,
    /// Not at all: it exists in simulations and tunnels only.
    Never,
}

/// Whether a transport under an algorithm paces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pacing {
    /// It does: the law is a rate.
    Always,
    /// Yes, by default.
    Usually,
    /// Only where that is chosen.
    Chosen,
}

/// How the first slow start of an algorithm ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstSlowStart {
    /// By a rule of the algorithm's own.
    Own,
    /// By a rule of its own, by default.
    OwnUnlessChosen,
    /// As chosen; this is the default.
    Chosen(SlowStart),
}

impl FirstSlowStart {
    /// The default end; `None`: a rule of the algorithm's own.
    pub const fn usual(self) -> Option<SlowStart> {
        match self {
            Self::Chosen(slow_start) => Some(slow_start),
            Self::Own | Self::OwnUnlessChosen => None,
        }
    }
}

/// Parameters of one algorithm.
pub(crate) trait Parameters: Sized {
    /// The parameters of an algorithm that is requested by its name alone, over a path of `rate`, where that is known.
    /// `None`: it needs a rate.
    fn usual(rate: Option<Rate>) -> Option<Self>;
}
