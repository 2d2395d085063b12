//! A direction's share of the rate of the leg that it is sent into, if that rate is known. It is a
//! [`Member`] of the leg's [`Pool`], with the worker's clock and the socket's backlog. The socket
//! is paced at the share.

use crate::leg::SendBacklog;
use midhop_linux::sockopt;
use midhop_pep::config::LegPlan;
use midhop_pep::rate_share::{Member, Pool};
use midhop_units::{self as units, Bytes, Rate};
use nix::libc;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Context;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// The pools of all legs, by name.
#[derive(Debug, Default)]
pub struct Pools(Mutex<BTreeMap<String, Arc<Pool>>>);

impl Pools {
    /// Every leg's pool that was ever used.
    pub fn all(&self) -> BTreeMap<String, Arc<Pool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The pool of a leg whose flows divide its rate.
    pub fn of(&self, leg: &LegPlan) -> Option<Arc<Pool>> {
        let rate = leg.rate.filter(|_| leg.share)?;
        let mut pools = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = match pools.get(&leg.name) {
            Some(pool) => pool.clone(),
            None => pools.entry(leg.name.clone()).or_default().clone(),
        };
        // A leg that was reloaded keeps its flows, and has the new rate.
        pool.set_rate(rate, leg.rtt);
        Some(pool)
    }
}

/// One direction's share in a pool.
#[derive(Debug)]
pub struct RateShare {
    member: Member,
    begun: Instant,
    look: Option<Pin<Box<Sleep>>>,
}

impl RateShare {
    /// Creates it for a direction into `leg`; none if the leg's rate is not divided.
    pub fn of(leg: &LegPlan, pools: &Pools) -> Option<Box<Self>> {
        let member = Member::new(pools.of(leg)?, leg.rtt, leg.pacing);
        Some(Box::new(Self { member, begun: Instant::now(), look: None }))
    }

    /// To be called before `bytes` are written.
    pub fn before_write(&mut self, bytes: usize, to: &TcpStream) {
        pace(self.member.before_write(Bytes::new(bytes as u64)), to);
    }

    /// Checks the socket if that is due, and returns whether it was. `staged` bytes wait between
    /// the sockets.
    pub fn look(&mut self, cx: &mut Context<'_>, staged: usize, to: &TcpStream) -> bool {
        let due = self.look.as_mut().is_some_and(|look| look.as_mut().poll(cx).is_ready());
        if due {
            self.look = None;
            self.judge(SendBacklog::of(to), staged, Instant::now(), to);
        }
        due
    }

    /// Evaluates the socket's backlog at `now`.
    fn judge(&mut self, backlog: Option<SendBacklog>, staged: usize, now: Instant, to: &TcpStream) {
        match backlog.filter(|backlog| backlog.unsent > 0 || staged > 0) {
            Some(backlog) => {
                let now = units::Instant::START + now.duration_since(self.begun).into();
                pace(self.member.look(now, Bytes::new(backlog.sent)), to);
            }
            None => {
                self.member.withdraw();
                self.look = None;
            }
        }
    }

    /// Schedules the next check, while the direction is not idle.
    pub fn rest(&mut self, cx: &mut Context<'_>) {
        if self.look.is_some() || self.member.is_idle() {
            return;
        }
        let look = self.look.insert(Box::pin(sleep(self.member.period().into())));
        // Polled once, to register the waker. If the timer has expired already, the flow is woken
        // at once.
        if look.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }
}

/// Paces a socket, if the rate has changed.
fn pace(rate: Option<Rate>, to: &TcpStream) {
    if let Some(rate) = rate {
        let bytes = rate.bits_per_s() / 8;
        // If setting it fails, the socket is gone, which the next write reports.
        let _ = sockopt::set_u64(to, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, bytes);
    }
}

#[cfg(test)]
mod tests;
