//! Compares QUIC and TCP, and follows the [judge](super::judge)'s advice.

use super::{
    Choice, Ending, Watched,
    judge::{Advice, PerDirection, QuicProgress, Seen},
};
use crate::tunnel::{
    fallback, link::OpenTunnel, link::backlog::Backlog, link::probe_carrier::ProbeCarrier,
    session::QuicSession,
};
use crate::worker::Worker;
use midhop_pep::config::Fallback;
use midhop_status::snapshot::Carrier;
use midhop_units::{Bytes, Duration};
use std::{future::pending, rc::Rc};
use tokio::time::{self, Instant};

/// Interval of the measurements.
const LOOK: std::time::Duration = std::time::Duration::from_secs(1);
/// The most flows that a trial sends over TCP: on a lossy link each of them is slow to its end.
const FLOWS_ON_TCP: u32 = 4;
/// The same over QUIC.
const FLOWS_ON_QUIC: u32 = 8;

impl Choice<'_> {
    /// Waits until TCP carries clearly more than an open QUIC tunnel.
    pub(super) async fn weigh(&self, watched: Option<Watched>) -> OpenTunnel {
        let Some(quic) = watched.filter(|_| self.keeper.peer.fallback == Fallback::Tcp) else {
            return pending().await;
        };
        self.judge.borrow_mut().begin_on_quic();
        let mut scale = Scale::default();
        let mut trial = Trial::new(self);
        loop {
            let seen = scale.look(self.worker, Some(&quic), trial.tcp(), &self.probe_carrier).await;
            let advice = self.judge.borrow_mut().look(&seen);
            match advice {
                Some(Advice::TryTcp) => match self.open_tcp().await {
                    Ok(tcp) => {
                        self.report("UDP may be throttled: a few new flows go over TCP to compare");
                        self.worker.ledger.tries_tcp(&self.keeper.peer.name);
                        trial.begin(tcp.session);
                    }
                    Err(error) => {
                        tracing::debug!(peer = self.keeper.peer.name, %error, "a tunnel over TCP could not be opened");
                        self.judge.borrow_mut().fail();
                    }
                },
                Some(Advice::ForgetTcp) => {
                    self.report("UDP is not throttled, by comparison with TCP: flows stay on it");
                    self.worker.ledger.tried_tcp_in_vain(&self.keeper.peer.name);
                    trial.end();
                }
                Some(Advice::GoToTcp) => {
                    let Some((tcp, gone)) = trial.take() else { continue };
                    self.report("UDP is throttled: new flows go over TCP, which carries more");
                    self.kept.replace(Some(quic));
                    return self.follow_tcp(tcp, gone, Carrier::TcpThrottled);
                }
                _ => {}
            }
        }
    }

    /// Waits until QUIC carries what it should again, if it was left because it did not.
    pub(super) async fn long_for_udp(&self, tcp: &Rc<fallback::TcpSession>) -> OpenTunnel {
        let mut scale = Scale::default();
        let _cleared = Cleared(&self.probe_carrier);
        loop {
            let kept = self.kept.borrow().clone().filter(|kept| kept.session.is_open());
            let seen = scale.look(self.worker, kept.as_ref(), Some(tcp), &self.probe_carrier).await;
            let advice = self.judge.borrow_mut().look(&seen);
            match advice {
                Some(Advice::TryQuic) => {
                    let quic = match kept {
                        Some(kept) => Ok(kept),
                        None => self.open_quic().await.map(|opened| self.watch_quic(opened)),
                    };
                    match quic {
                        Ok(quic) => {
                            self.probe_carrier
                                .put(OpenTunnel::Quic(quic.session.clone()), FLOWS_ON_QUIC);
                            self.kept.replace(Some(quic));
                        }
                        Err(error) => {
                            tracing::debug!(peer = self.keeper.peer.name, %error, "a tunnel over QUIC could not be opened");
                            self.judge.borrow_mut().fail();
                        }
                    }
                }
                Some(Advice::ForgetQuic) => drop(self.probe_carrier.clear()),
                Some(Advice::ReturnToQuic) => {
                    self.report("UDP is not throttled any more: new flows go over QUIC");
                    // If it is gone since then, another one is opened.
                    match self.take_kept() {
                        Some(way) => return way,
                        None => return self.return_to_quic().await,
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns the QUIC tunnel that was left because UDP is throttled, if it is still open.
    pub(super) fn take_kept(&self) -> Option<OpenTunnel> {
        let kept = self.kept.take().filter(|kept| kept.session.is_open())?;
        Some(self.follow_quic(kept))
    }
}

/// TCP on trial beside QUIC. However the trial ends, its flows continue to their ends.
struct Trial<'a> {
    choice: &'a Choice<'a>,
    tcp: Option<(Rc<fallback::TcpSession>, Ending)>,
}

impl<'a> Trial<'a> {
    fn new(choice: &'a Choice<'a>) -> Self {
        Self { choice, tcp: None }
    }

    fn tcp(&self) -> Option<&Rc<fallback::TcpSession>> {
        self.tcp.as_ref().map(|(session, _)| session)
    }

    fn begin(&mut self, session: Rc<fallback::TcpSession>) {
        self.choice.probe_carrier.put(OpenTunnel::Tcp(session.clone()), FLOWS_ON_TCP);
        let gone = self.choice.watch_tcp(&session);
        self.tcp = Some((session, gone));
    }

    fn take(&mut self) -> Option<(Rc<fallback::TcpSession>, Ending)> {
        self.choice.probe_carrier.clear();
        self.tcp.take()
    }

    fn end(&mut self) {
        if let Some((session, _)) = self.take() {
            session.leave();
        }
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Removes the second carrier when dropped.
struct Cleared<'a>(&'a ProbeCarrier);

impl Drop for Cleared<'_> {
    fn drop(&mut self) {
        self.0.clear();
    }
}

/// Measures what both carriers have carried.
#[derive(Default)]
struct Scale {
    last: Option<Instant>,
    /// How long the worker had waited for a processor until then.
    waited: std::time::Duration,
    backlog: Backlog,
    /// The QUIC connection of the last measurement, and the bytes that it had received.
    received: Option<(u64, u64)>,
    /// The same for TCP, in both directions.
    tcp: Option<(u64, PerDirection<u64>)>,
}

impl Scale {
    /// Waits for the next measurement.
    async fn look(
        &mut self,
        worker: &Worker,
        quic: Option<&Watched>,
        tcp: Option<&Rc<fallback::TcpSession>>,
        probe_carrier: &ProbeCarrier,
    ) -> Seen {
        let last = self.last.unwrap_or_else(|| {
            self.waited = worker.waited();
            Instant::now()
        });
        time::sleep_until(last + LOOK).await;
        let now = Instant::now();
        self.last = Some(now);
        let waited = worker.waited();
        let waiting = waited.saturating_sub(std::mem::replace(&mut self.waited, waited));
        // If the whole host stood still, the worker has not waited for a processor, but this
        // measurement is late.
        let late = (now - last).saturating_sub(LOOK);
        Seen {
            passed: Duration::from(now - last),
            delayed: Duration::from(waiting.max(late)),
            quic: quic.map_or_else(Default::default, |quic| self.weigh_quic(quic)),
            tcp: tcp.map_or_else(Default::default, |tcp| self.weigh_tcp(tcp)),
            tried: probe_carrier.was_tried(),
        }
    }

    fn weigh_quic(&mut self, quic: &Watched) -> PerDirection<QuicProgress> {
        let session: &QuicSession = &quic.session;
        let connection = session.connection();
        let (number, received) = (connection.number(), connection.stats().udp_rx.bytes);
        let before = self.received.replace((number, received));
        let come = before
            .filter(|(known, _)| *known == number)
            .map_or(0, |it| received.saturating_sub(it.1));
        let (sent, backlogged) = self.backlog.look(quic.session.pace());
        let towards =
            QuicProgress { bytes: Bytes::new(come), backlogged: connection.is_backlogged() };
        [QuicProgress { bytes: sent, backlogged }, towards]
    }

    fn weigh_tcp(&mut self, tcp: &fallback::TcpSession) -> PerDirection<Bytes> {
        let Some(sample) = tcp.sample() else { return [Bytes::ZERO; 2] };
        let now = [sample.sent, sample.received];
        let before = self.tcp.replace((tcp.number(), now));
        let before = before.filter(|(number, _)| *number == tcp.number());
        before.map_or([Bytes::ZERO; 2], |(_, before)| {
            [0, 1].map(|at| Bytes::new(now[at].saturating_sub(before[at])))
        })
    }
}
