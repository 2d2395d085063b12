//! Both ends of a tunnel as separate programs, with the congestion control that is meant for them.
use crate::ends::{Authority, far_config, near_config};
use crate::pages::{ADMIN, page};
use crate::program::{Running, Setup};
use crate::stage::{Family, Stage};
use midhop_status::control::answer::PeerStatus;
use midhop_testbed::namespace::Namespace;

pub const EARLY: &str = "accept = \"early\"\n";
/// The rule of a near end that lets nothing pass without its tunnel.
pub const REJECT: &str = "otherwise = \"reject\"\n";

/// The configurations of both ends.
pub struct Pair {
    pub near: Setup,
    pub far: Setup,
    _authority: Authority,
}

impl Pair {
    /// `near` and `far` add to each end's table of its peer, `rule` to the near end's rule.
    pub fn new(near: &str, far: &str, rule: &str) -> Self {
        Self::over(Family::V4, near, far, rule)
    }

    /// The same; the tunnel is to an address of this family.
    pub fn over(family: Family, near: &str, far: &str, rule: &str) -> Self {
        let authority = Authority::new(&["near", "far"]);
        let admin = format!("[admin]\nlisten = \"127.0.0.1:{}\"\n", ADMIN.1);
        let setup = |config: String| Setup::new(&(admin.clone() + &config));
        let far = setup(far_config(family, &authority, far));
        let near = setup(near_config(family, &authority, EARLY, near, rule));
        Self { near, far, _authority: authority }
    }

    /// Starts both. Returns the near end and the far end.
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

    /// Whether new flows of the near end use this carrier.
    pub fn goes_by(&self, stage: &Stage, carrier: &str) -> bool {
        let wanted = format!("midhop_peer_carrier{{peer=\"far\",carrier=\"{carrier}\"}} 1");
        page(&stage.gateway, "/metrics").lines().any(|line| line == wanted)
    }

    /// The near end's open tunnels, and those of them over TCP.
    pub fn tunnels_of_near(&self, stage: &Stage) -> [u64; 2] {
        tunnels(&stage.gateway, "far")
    }

    /// The far end's open tunnels, and those of them over TCP.
    pub fn tunnels_of_far(&self, stage: &Stage) -> [u64; 2] {
        tunnels(&stage.server, "near")
    }

    /// What the near end reports of the far end.
    pub fn far_seen(&self) -> PeerStatus {
        self.near.peer("far")
    }
}

fn tunnels(host: &Namespace, peer: &str) -> [u64; 2] {
    let page = page(host, "/metrics");
    ["tunnels", "tcp_tunnels"].map(|of| {
        let name = format!("midhop_peer_{of}{{peer=\"{peer}\"}} ");
        let count = page.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok());
        count.unwrap_or_default()
    })
}
