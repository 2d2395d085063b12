//! A connection, as tasks of any thread use it.

use super::state::{EndpointShared, EndpointState};
use crate::tunnel::reorder::ReorderRoom;
use crate::tunnel::windows::Windowed;
use midhop_congestion::BuildError;
use midhop_pep::config::PeerPlan;
use midhop_tunnel::control::Steering;
use midhop_tunnel::fec::Stats;
use midhop_tunnel::http3::{Code, Settings};
use midhop_tunnel::quic::{Carrier, CarrierEvent, ConnectionError, Opening, StreamId};
use midhop_units::Instant;
use quinn_proto::ConnectionStats;
use rustls::pki_types::CertificateDer;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// A connection. It is closed when its last handle is dropped.
#[derive(Debug, Clone)]
pub struct QuicConnection(Arc<ConnectionShared>);

/// The part that needs no lock.
#[derive(Debug)]
pub struct ConnectionShared {
    pub shared: Arc<EndpointShared>,
    pub number: u64,
    /// Whether its handshake is over.
    connected: watch::Sender<bool>,
    /// Whether the peer has accepted this end's certificates, if this end began the handshake.
    confirmed: watch::Sender<bool>,
    /// The peer's settings, once they have arrived.
    settings: watch::Sender<Option<Settings>>,
    /// Whether one of the ends accepts no more flows.
    leaving: watch::Sender<bool>,
    /// How long the peer has had more to send than the path carries, and when it reported this.
    backlog: watch::Sender<Option<(tokio::time::Instant, Duration)>>,
    /// Why it is gone, once it is.
    lost: watch::Sender<Option<ConnectionError>>,
    /// Whether its peer violated the protocol in a way that concerns the connection as a whole.
    is_broken: AtomicBool,
    /// Notifies that the peer has opened a stream.
    pub came: Notify,
    /// Notifies that the peer accepts more flows than before.
    available: Notify,
}

impl ConnectionShared {
    /// Handles an event that no single stream waits for.
    pub fn on_event(&self, event: &CarrierEvent, settings: Option<Settings>) {
        match event {
            CarrierEvent::Connected => drop(self.connected.send_replace(true)),
            CarrierEvent::Confirmed => drop(self.confirmed.send_replace(true)),
            CarrierEvent::Settled => drop(self.settings.send_replace(settings)),
            CarrierEvent::Available => self.available.notify_waiters(),
            CarrierEvent::Leaving => drop(self.leaving.send_replace(true)),
            CarrierEvent::Backlog(lasted) => {
                let lasted = (tokio::time::Instant::now(), Duration::from(*lasted));
                self.backlog.send_replace(Some(lasted));
            }
            _ => {}
        }
    }

    /// To be called when the connection is gone, perhaps because its peer, at that address, violated
    /// the protocol.
    pub fn on_lost(&self, why: ConnectionError, rule: Option<(SocketAddr, Code)>) {
        if let Some((peer, code)) = rule
            && !self.is_broken.swap(true, Relaxed)
        {
            tracing::warn!(%peer, %code, "a tunnel is closed: its peer violated the protocol");
        }
        self.lost.send_if_modified(|lost| {
            let is_new = lost.is_none();
            lost.get_or_insert(why);
            is_new
        });
        self.came.notify_one();
        self.available.notify_waiters();
    }

    /// Why it is gone. None: it is open.
    pub fn lost(&self) -> Option<ConnectionError> {
        self.lost.borrow().clone()
    }
}

impl Drop for ConnectionShared {
    fn drop(&mut self) {
        // The task that has just woken the last user may hold the state's lock, so the lock is not
        // taken here.
        self.shared.drop_connection(self.number);
    }
}

impl QuicConnection {
    /// Creates the connection of this handle.
    pub(super) fn new(
        shared: &Arc<EndpointShared>,
        state: &mut EndpointState,
        handle: midhop_tunnel::quic::ConnectionHandle,
    ) -> Self {
        Self(Arc::new_cyclic(|inner| ConnectionShared {
            shared: shared.clone(),
            number: state.add(handle, inner.clone()),
            connected: watch::Sender::new(false),
            confirmed: watch::Sender::new(false),
            settings: watch::Sender::new(None),
            leaving: watch::Sender::new(false),
            backlog: watch::Sender::new(None),
            lost: watch::Sender::new(None),
            is_broken: AtomicBool::new(false),
            came: Notify::new(),
            available: Notify::new(),
        }))
    }

    /// The part that needs no lock.
    pub(super) fn inner(&self) -> &Arc<ConnectionShared> {
        &self.0
    }

    fn look<T>(&self, look: impl FnOnce(&Carrier) -> T) -> Option<T> {
        self.0.shared.lock().carrier(self.0.number).map(look)
    }

    fn ask<T>(&self, ask: impl FnOnce(Instant, &mut Carrier) -> T) -> Option<T> {
        let now = self.0.shared.now();
        let mut state = self.0.shared.lock();
        let asked = state.carrier_mut(self.0.number).map(|carrier| ask(now, carrier));
        // Its consequences, such as an end, are handled at once.
        state.settle();
        drop(state);
        self.0.shared.call();
        asked
    }

    /// Waits until its handshake is over.
    ///
    /// # Errors
    /// Why there is no connection.
    pub async fn connected(&self) -> Result<(), ConnectionError> {
        self.is_true(&self.0.connected).await
    }

    /// Waits until the peer has accepted this end's certificates, if this end began the handshake.
    ///
    /// # Errors
    /// The reason why there is no connection.
    pub async fn confirmed(&self) -> Result<(), ConnectionError> {
        self.is_true(&self.0.confirmed).await
    }

    async fn is_true(&self, what: &watch::Sender<bool>) -> Result<(), ConnectionError> {
        let mut what = what.subscribe();
        let mut lost = self.0.lost.subscribe();
        tokio::select! {
            biased;
            // The senders are owned by the same value.
            _ = what.wait_for(|it| *it) => Ok(()),
            why = lost.wait_for(Option::is_some) => {
                Err(why.ok().and_then(|why| why.clone()).unwrap_or(ConnectionError::LocallyClosed))
            }
        }
    }

    /// The certificates that the peer has shown.
    pub fn peer_certificates(&self) -> Vec<CertificateDer<'static>> {
        let shown = self.look(Carrier::peer_identity).flatten();
        shown.and_then(|it| it.downcast().ok()).map_or_else(Vec::new, |shown| *shown)
    }

    /// To be called when the peer is identified: the session with it begins.
    pub fn begin(&self, peer: &PeerPlan, opening: Opening) {
        self.ask(|now, carrier| carrier.begin(now, peer, opening));
    }

    /// From now on, the bytes that its streams store are counted in `room`.
    pub fn count_in(&self, room: Arc<ReorderRoom>) {
        self.0.shared.lock().count_in(self.0.number, room);
    }

    /// Applies a peer's settings, except the windows, to a connection that this peer has opened.
    ///
    /// # Errors
    /// When the congestion control is not available.
    pub fn adapt(&self, steering: &Steering, peer: &PeerPlan) -> Result<(), BuildError> {
        self.ask(|now, carrier| carrier.adapt(now, peer, steering)).unwrap_or(Ok(()))
    }

    /// Whether both are handles of the same connection.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Its number in the endpoint.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Address of the peer.
    pub fn remote_address(&self) -> SocketAddr {
        let unknown = SocketAddr::from(([0; 4], 0));
        self.look(Carrier::remote_address).unwrap_or(unknown)
    }

    /// QUIC's counters.
    pub fn stats(&self) -> ConnectionStats {
        self.look(Carrier::quic_stats).unwrap_or_default()
    }

    /// The smoothed round-trip time.
    pub fn rtt(&self) -> Duration {
        self.stats().path.rtt
    }

    /// Costs and gains of repairs, and the part of sent datagrams that the peer has not received
    /// before repairs.
    pub fn repaired(&self) -> Option<(Stats, f64)> {
        self.look(|carrier| (carrier.stats().repairs, carrier.loss()))
    }

    /// Number of its flows.
    pub fn flows(&self) -> u64 {
        self.look(Carrier::flows).unwrap_or(0) as u64
    }

    /// Whether the flows have written as much as may be unacknowledged.
    pub fn is_full(&self) -> bool {
        self.look(Carrier::is_full).unwrap_or(false)
    }

    /// Whether it ended because its peer violated the protocol in a way that concerns it as a whole.
    pub fn is_broken(&self) -> bool {
        self.0.is_broken.load(Relaxed)
    }

    /// Closes it because its peer violated the protocol.
    pub fn break_off(&self, code: Code) {
        self.0.is_broken.store(true, Relaxed);
        self.close(code);
    }

    /// Closes it and all of its flows. The reason of an earlier close is kept.
    pub fn close(&self, code: Code) {
        self.ask(|now, carrier| carrier.close(now, code));
    }

    /// Why it is gone. None: it is open.
    pub fn close_reason(&self) -> Option<ConnectionError> {
        self.0.lost()
    }

    /// Waits until it is gone. Returns the reason.
    pub async fn closed(&self) -> ConnectionError {
        let mut lost = self.0.lost.subscribe();
        let why = lost.wait_for(Option::is_some).await;
        // The sender is owned by the same value.
        why.ok().and_then(|why| why.clone()).unwrap_or(ConnectionError::LocallyClosed)
    }

    /// The peer's settings, once they have arrived.
    pub fn settings(&self) -> watch::Receiver<Option<Settings>> {
        self.0.settings.subscribe()
    }

    /// Whether one of the ends accepts no more flows.
    pub fn leaving(&self) -> watch::Receiver<bool> {
        self.0.leaving.subscribe()
    }

    /// Accepts no more flows, and announces that.
    pub fn leave(&self) {
        if !self.0.leaving.send_replace(true) {
            self.ask(|now, carrier| carrier.leave(now));
        }
    }

    /// Reports to the peer for how long this end has had more to send than the path carries.
    pub fn report_backlog(&self, lasted: Duration) {
        self.ask(|now, carrier| carrier.report_backlog(now, lasted.into()));
    }

    /// Whether the peer has more to send than the path carries, by its own reports.
    pub fn is_backlogged(&self) -> bool {
        // A report is repeated after the time that it covers, and may be late.
        self.0.backlog.borrow().is_some_and(|(at, lasted)| at.elapsed() < lasted * 5 / 2)
    }

    /// Asks the peer for a sign of life.
    pub fn ping(&self) {
        self.ask(|_, carrier| carrier.ping());
    }

    /// Opens a stream for a flow. Waits while the peer's limit of flows is reached.
    ///
    /// # Errors
    /// Why no more flows can be opened.
    pub async fn open_flow(&self) -> Result<StreamId, ConnectionError> {
        loop {
            let available = self.0.available.notified();
            tokio::pin!(available);
            // Notifications from here on are not missed.
            available.as_mut().enable();
            if let Some(why) = self.close_reason() {
                return Err(why);
            }
            if *self.0.leaving.borrow() {
                return Err(ConnectionError::LocallyClosed);
            }
            if let Some(id) = self.ask(|now, carrier| carrier.open_flow(now)).flatten() {
                return Ok(id);
            }
            let mut leaving = self.0.leaving.subscribe();
            tokio::select! {
                () = available => {}
                _ = leaving.wait_for(|it| *it) => {}
            }
        }
    }

    /// Waits for the next stream that the peer opens for a flow.
    ///
    /// # Errors
    /// Why no more flows will arrive.
    pub async fn accept_flow(&self) -> Result<StreamId, ConnectionError> {
        loop {
            let opened = self.0.shared.lock().next_opened(self.0.number);
            if let Some(id) = opened {
                return Ok(id);
            }
            if let Some(why) = self.close_reason() {
                return Err(why);
            }
            self.0.came.notified().await;
        }
    }
}

impl Windowed for QuicConnection {
    fn set(&self, send: midhop_units::Bytes, receive: midhop_units::Bytes) {
        self.ask(|_, carrier| carrier.set_windows(send.get(), receive.get()));
    }
}
