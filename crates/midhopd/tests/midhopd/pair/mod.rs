//! Both ends of a tunnel as programs of their own, with the congestion control that is meant for them.
use crate::ends::{Authority, far_config, near_config};
use crate::program::{Desk, Running, log_of};
use crate::stage::{Family, Stage};

pub const EARLY: &str = "accept = \"early\"\n";
/// The rule of a near end without whose tunnel nothing passes.
pub const REJECT: &str = "otherwise = \"reject\"\n";

/// What the two begin with.
pub struct Pair {
    pub near: Desk,
    pub far: Desk,
    _authority: Authority,
}

impl Pair {
    /// `near` and `far` add to each one's table of its peer, `rule` to the near one's rule.
    pub fn new(near: &str, far: &str, rule: &str) -> Self {
        let authority = Authority::new(&["near", "far"]);
        let far = Desk::new(&far_config(Family::V4, &authority, far));
        let near = Desk::new(&near_config(Family::V4, &authority, EARLY, near, rule));
        Self { near, far, _authority: authority }
    }

    /// Starts both: the near one, the far one.
    pub fn start(&self, stage: &Stage) -> [Running; 2] {
        let far = self.start_far(stage);
        [self.start_near(stage), far]
    }

    pub fn start_far(&self, stage: &Stage) -> Running {
        Running::start_in(&stage.server, &self.far)
    }

    pub fn start_near(&self, stage: &Stage) -> Running {
        Running::start(stage, &self.near)
    }

    /// Whether the near end's log has it.
    pub fn has_said(&self, what: &str) -> bool {
        log_of(&self.near).contains(what)
    }
}
