//! The validity of peers: checks whether the peer of an open tunnel may stay. As long as the tunnel is open, it checks the peer's table, the
//! validity of its certificates and the revocation lists.

use midhop_pep::config::{PeerPlan, Plan};
use midhop_pki::identity::Identity;
use rustls::pki_types::CertificateDer;
use std::{fmt, sync::Arc, time::Duration};
use time::OffsetDateTime;
use tokio::{sync::watch, time::sleep};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Interval at which the clock is read, which may be set while a tunnel is open.
const LOOK: Duration = Duration::from_secs(30);

/// Why a peer may not stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dismissal {
    /// It is no longer configured.
    Removed,
    /// Its table has changed: a new tunnel starts with the new one.
    Changed,
    /// One of its certificates is revoked.
    Revoked,
    /// One of its certificates has expired.
    Expired,
}

impl fmt::Display for Dismissal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Removed => "it is not configured any more",
            Self::Changed => "its table in the configuration has changed",
            Self::Revoked => "its certificate is revoked",
            Self::Expired => "its certificate has expired",
        })
    }
}

/// The conditions under which a peer may stay.
#[derive(Debug)]
pub struct PeerValidity {
    peer: PeerPlan,
    chain: Vec<CertificateDer<'static>>,
    /// The expiry of the certificate that expires first.
    until: Option<OffsetDateTime>,
    plan: watch::Receiver<Arc<Plan>>,
    identity: watch::Receiver<Arc<Identity>>,
}

impl PeerValidity {
    /// Creates it for `peer`, which has shown `chain`.
    pub fn new(
        peer: &PeerPlan,
        chain: &[CertificateDer<'_>],
        plan: watch::Receiver<Arc<Plan>>,
        identity: watch::Receiver<Arc<Identity>>,
    ) -> Self {
        let end = |one: &CertificateDer<'_>| {
            let (_, read) = X509Certificate::from_der(one).ok()?;
            Some(read.validity().not_after.to_datetime())
        };
        let until = chain.iter().filter_map(end).min();
        let chain = chain.iter().map(|one| one.clone().into_owned()).collect();
        Self { peer: peer.clone(), chain, until, plan, identity }
    }

    /// Unit: seconds since 1970. The expiry of the certificate that expires first.
    pub fn until(&self) -> Option<i64> {
        self.until.map(OffsetDateTime::unix_timestamp)
    }

    /// The configured name of the peer.
    pub fn peer_name(&self) -> &str {
        &self.peer.name
    }

    /// The reason why the peer may not stay, if any.
    pub fn dismissal(&mut self) -> Option<Dismissal> {
        let is_known =
            self.plan.borrow_and_update().peers.iter().find_map(|peer| {
                (peer.name == self.peer.name).then(|| peer.is_written_as(&self.peer))
            });
        match is_known {
            None => return Some(Dismissal::Removed),
            Some(false) => return Some(Dismissal::Changed),
            Some(true) => {}
        }
        if self.identity.borrow_and_update().has_revoked(&self.chain) {
            return Some(Dismissal::Revoked);
        }
        let now = OffsetDateTime::now_utc();
        self.until.is_some_and(|until| now > until).then_some(Dismissal::Expired)
    }

    /// Waits until the peer may not stay any more.
    pub async fn ends(mut self) -> Dismissal {
        loop {
            if let Some(dismissal) = self.dismissal() {
                return dismissal;
            }
            let pause = self.pause();
            tokio::select! {
                // Where the data plane ends, the tunnel ends, too.
                Ok(()) = self.plan.changed() => {}
                Ok(()) = self.identity.changed() => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// The time until the next check.
    fn pause(&self) -> Duration {
        let left = self.until.map(|until| until - OffsetDateTime::now_utc());
        let left = left.and_then(|left| Duration::try_from(left).ok());
        // A certificate is valid for all of its last second.
        left.map_or(LOOK, |left| LOOK.min(left + Duration::from_millis(1)))
    }
}
