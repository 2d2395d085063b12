//! One tunnel over QUIC, as used by those who request flows and those who serve them.
//!
//! [`midhop_tunnel::quic`] implements HTTP/3 and the scheduling of streams. This module provides what a task waits
//! for.

use super::carrier::{Connection, Receiver, Sender};
use super::quic::{self, QuicConnection};
use super::resumable_flows;
use super::stream::kept::Offer;
use super::stream::resumable::SessionSeat;
use super::stream::{Stream, StreamError};
use midhop_pep::config::{ClassPlan, PeerPlan, RequestForm};
use midhop_tunnel::connect::{Form, Request};
use midhop_tunnel::control::Pace;
use midhop_tunnel::http3::{Code, Settings};
use midhop_tunnel::payload::Payload;
use midhop_tunnel::quic::{ConnectionError, StreamId};
use midhop_tunnel::relocation;
use midhop_tunnel::resumption::Resumption;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{self, Instant};

/// An open tunnel.
#[derive(Debug)]
pub struct QuicSession {
    connection: QuicConnection,
    /// The pace at which its datagrams leave.
    pace: Pace,
    /// Held by each flow.
    seats: Arc<SessionSeat>,
    /// Unit: bytes. The most that its flows may have written and the peer has not acknowledged.
    pool: u64,
    /// The form of requests.
    form: RequestForm,
    /// Whether flows are kept when their carrier is gone.
    resumes: bool,
    /// Until when flows wait for the peer's announcement.
    patient_until: Instant,
    /// Whether the log has reported that nothing was announced until then.
    logged: Cell<bool>,
    /// The peer's name and port, as an authority.
    authority: String,
}

impl QuicSession {
    /// The session on a connection to `peer`, whose datagrams leave at `pace`.
    pub fn new(connection: QuicConnection, peer: &PeerPlan, pace: Pace) -> Rc<Self> {
        Rc::new(Self {
            pace,
            seats: Arc::default(),
            pool: peer.send_window.get(),
            form: peer.request,
            resumes: peer.resume > midhop_units::Duration::ZERO,
            patient_until: Instant::now() + Duration::from_nanos(peer.timeout.as_ns()),
            logged: Cell::new(false),
            authority: format!("{}:{}", peer.identity, connection.remote_address().port()),
            connection,
        })
    }

    /// The connection below.
    pub fn connection(&self) -> &QuicConnection {
        &self.connection
    }

    /// The pace that its datagrams keep.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// The peer's settings, once it has announced them.
    pub async fn settings(&self) -> Settings {
        let mut settings = self.connection.settings();
        // The sender is owned by the same value.
        let known = settings.wait_for(Option::is_some).await.ok().and_then(|known| *known);
        known.unwrap_or_default()
    }

    /// Whether the connection ended because the peer violated the protocol in a way that concerns it
    /// as a whole.
    pub fn is_broken(&self) -> bool {
        self.connection.is_broken()
    }

    /// Whether it accepts new flows.
    pub fn is_open(&self) -> bool {
        !*self.connection.leaving().borrow() && self.connection.close_reason().is_none()
    }

    /// Waits until one of the ends accepts no more requests.
    pub async fn left(&self) {
        // The sender is owned by the same value.
        let _ = self.connection.leaving().wait_for(|leaving| *leaving).await;
    }

    /// Whether it has no flows.
    pub fn is_idle(&self) -> bool {
        Arc::strong_count(&self.seats) == 1
    }

    /// Requests a flow of the given class. The response arrives on the stream. Waits while the peer's limit of flows
    /// is reached.
    ///
    /// # Errors
    /// When the tunnel is gone.
    pub async fn ask(&self, request: &Request, class: &ClassPlan) -> Result<Stream, StreamError> {
        let form = self.form().await?;
        let mut stream = self.open(form.payload(), class).await?;
        let mut fields = request.fields(form);
        // A proxy in the middle of a chain keeps no bytes for the next one.
        if request.hops == 0 && self.can_resume(form) {
            let id = resumable_flows::new_id();
            let (request, class) = (Some(request.clone()), class.clone());
            stream.keep(Offer { id, request, class }, resumable_flows::most_kept(self.pool));
            fields.extend(Resumption::Offered(id).fields());
        }
        stream.output.send_fields(&fields).await?;
        Ok(stream)
    }

    /// Requests that a flow continues here. `again` has how much of it this end has received.
    ///
    /// # Errors
    /// When the tunnel is gone, or its other end resumes no flows.
    pub async fn ask_again(
        &self,
        request: &Request,
        class: &ClassPlan,
        again: Resumption,
    ) -> Result<Stream, StreamError> {
        self.settings().await;
        let form = self.form().await?;
        if !self.can_resume(form) {
            return Err(StreamError::Unable);
        }
        let mut stream = self.open(form.payload(), class).await?;
        let mut fields = request.fields(form);
        fields.extend(again.fields());
        stream.output.send_fields(&fields).await?;
        Ok(stream)
    }

    /// Opens a stream by which flows move to the peer. The response arrives on it.
    ///
    /// # Errors
    /// When the tunnel is gone, or the peer serves no such requests.
    pub async fn ask_to_relocate(&self, class: &ClassPlan) -> Result<Stream, StreamError> {
        if !self.settings().await.extended_connect {
            return Err(StreamError::Unable);
        }
        let mut stream = self.open(Payload::Raw, class).await?;
        stream.output.send_fields(&relocation::request(&self.authority)).await?;
        Ok(stream)
    }

    /// Opens a stream for a request.
    async fn open(&self, payload: Payload, class: &ClassPlan) -> Result<Stream, StreamError> {
        let id = self.connection.open_flow().await?;
        let (sender, receiver) = self.halves(id);
        let mut stream = Stream::to_ask(self.carrier(), sender, receiver);
        stream.output.join(class);
        stream.seat = Some(self.seats.clone());
        stream.carry_in(payload);
        Ok(stream)
    }

    /// Whether both ends keep flows that are requested in this form.
    fn can_resume(&self, form: Form<'_>) -> bool {
        let peer = *self.connection.settings().borrow();
        self.resumes
            && form.payload() == Payload::Capsules
            && peer.is_some_and(|settings| settings.resume_s > 0)
    }

    /// Selects the form of a request. Waits for the peer to announce what it serves only if that was configured.
    /// Until the peer has announced it, requests have the form that every proxy serves.
    async fn form(&self) -> Result<Form<'_>, StreamError> {
        let template = Form::Template { authority: &self.authority };
        match self.form {
            RequestForm::Classic => Ok(Form::Classic),
            RequestForm::Auto => {
                let known = *self.connection.settings().borrow();
                Ok(if known.is_some_and(|it| it.serves_templates()) {
                    template
                } else {
                    Form::Classic
                })
            }
            RequestForm::Template => tokio::select! {
                biased;
                known = self.settings() => {
                    if known.extended_connect { Ok(template) } else { Err(StreamError::Unable) }
                }
                lost = self.connection.closed() => Err(lost.into()),
                () = time::sleep_until(self.patient_until) => {
                    if !self.logged.replace(true) {
                        tracing::warn!(
                            peer = self.authority,
                            "a peer has not announced which requests it serves: no flows go there while \
                             peers.NAME.request is \"template\""
                        );
                    }
                    Err(StreamError::Unannounced)
                }
            },
        }
    }

    /// Waits for the next request.
    ///
    /// # Errors
    /// When the tunnel is gone.
    pub async fn asked(&self) -> Result<Stream, ConnectionError> {
        let id = self.connection.accept_flow().await?;
        let (sender, receiver) = self.halves(id);
        let mut stream = Stream::to_answer(self.carrier(), sender, receiver);
        stream.seat = Some(self.seats.clone());
        Ok(stream)
    }

    fn halves(&self, id: StreamId) -> (Sender, Receiver) {
        let (sender, receiver) = quic::halves(&self.connection, id);
        (Sender::Quic(sender), Receiver::Quic(receiver))
    }

    /// The connection, as its streams refer to it.
    pub fn carrier(&self) -> Connection {
        Connection::Quic(self.connection.clone())
    }

    /// Unit: bytes. What its flows have written and the peer has not acknowledged, as far as QUIC
    /// reports that: QUIC only reports `in_flight`.
    pub fn held(&self, in_flight: u64) -> u64 {
        let written = if self.connection.is_full() { self.pool } else { in_flight.min(self.pool) };
        // Bytes that the peer has acknowledged and not passed on are kept as well.
        written.max(self.seats.kept())
    }

    /// Closes the connection and all of its flows. The reason of an earlier close is kept.
    pub fn close(&self, code: Code) {
        self.seats.close();
        self.connection.close(code);
    }
}

impl From<ConnectionError> for StreamError {
    fn from(error: ConnectionError) -> Self {
        Self::Lost(error.into())
    }
}
