//! A direction's part in the rate of the leg that it feeds, where that is known: a [`Member`] of the leg's pool, in
//! virtual time.

use super::leg::Model;
use midhop_pep::rate_share::Member;
use midhop_tcp::Endpoint;
use midhop_units::{Bytes, Instant, Rate};

/// One direction's part in a pool.
#[derive(Debug)]
pub(super) struct Share {
    member: Member,
    look: Instant,
}

impl Share {
    /// A direction that feeds `leg`; `None` where no rate is divided.
    pub fn of(leg: &Model) -> Option<Self> {
        let member = Member::new(leg.pool.clone()?, leg.rtt, leg.pacing);
        Some(Self { member, look: Instant::NEVER })
    }

    /// The time of the next [`Share::follow`].
    pub fn due(&self) -> Instant {
        self.look
    }

    /// Call before `bytes` are written.
    pub fn before_write(&mut self, now: Instant, bytes: u64, to: &mut Endpoint) {
        pace(self.member.before_write(Bytes::new(bytes)), to);
        if self.look == Instant::NEVER {
            self.look = now + self.member.period();
        }
    }

    /// Updates, if it is time to. `staged` bytes wait between the legs, `sent` have left.
    pub fn follow(&mut self, now: Instant, staged: u64, sent: u64, to: &mut Endpoint) {
        if self.look > now {
            return;
        }
        if to.unsent() == 0 && staged == 0 {
            return self.withdraw();
        }
        self.look = now + self.member.period();
        pace(self.member.look(now, Bytes::new(sent)), to);
    }

    /// No data waits to be sent any more.
    pub fn withdraw(&mut self) {
        self.member.withdraw();
        self.look = Instant::NEVER;
    }
}

/// Sets a connection's pacing, where it changes.
fn pace(rate: Option<Rate>, to: &mut Endpoint) {
    if let Some(rate) = rate {
        let control = to.congestion_control();
        control.on_share(rate);
        control.cap(Some(rate));
    }
}
