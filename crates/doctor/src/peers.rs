//! The certificate of this host, and its peers as the running daemon sees them.

use crate::{CheckState, Finding};
use midhop_pep::config::Plan;
use midhop_pki::identity::Identity;
use midhop_status::console;
use midhop_status::control::answer::PeerStatus;

/// Checks what a plan's tunnels depend on. Without a daemon that runs, only the files can be checked.
pub(crate) fn examine(plan: &Plan) -> Vec<Finding> {
    let Some(credentials) = &plan.tunnel.credentials else { return Vec::new() };
    let mut findings = Vec::new();
    findings.push(match Identity::load(credentials, &plan.peers) {
        Ok(identity) => match identity.doubt {
            Some(doubt) => Finding::of(
                "certificate",
                CheckState::Could,
                doubt.to_string(),
                "`midhopd pki issue` makes another, and `midhopd reload` has the daemon read it",
            ),
            None => Finding::yes("certificate", identity.own),
        },
        Err(error) => {
            Finding::of("certificate", CheckState::Could, error.to_string(), error.hint())
        }
    });
    match console::status_of(plan) {
        Some(Ok(status)) => {
            findings.extend(status.peers.iter().map(|(name, at)| peer(name, at)));
            if let Some(last) = status.last_refusal {
                let detail = format!("{}: {}", last.address, last.message);
                let hint = last.hint.unwrap_or_default();
                findings.push(Finding::of("last refused", CheckState::Could, detail, &hint));
            }
        }
        Some(Err(error)) => findings.push(Finding::of(
            "peers",
            CheckState::Unknown,
            error.to_string(),
            error.hint_text().unwrap_or_default(),
        )),
        None => findings.push(Finding::of(
            "peers",
            CheckState::Unknown,
            "the daemon does not run, or has no control socket",
            "start it, and ask again: `midhopd peers` shows the same",
        )),
    }
    findings
}

fn peer(name: &str, at: &PeerStatus) -> Finding {
    let subject = format!("peer {name}");
    match (at.tunnels, &at.failure) {
        (0, Some(failure)) => Finding::of(
            &subject,
            CheckState::Could,
            format!("{}: {}", failure.address, failure.message),
            failure.hint.as_deref().unwrap_or("is the peer up, and does UDP or TCP reach it?"),
        ),
        (0, None) => Finding::of(
            &subject,
            CheckState::Could,
            "no tunnel is open",
            "the end with `address` in the peer's table opens it: is that daemon running?",
        ),
        (1, _) => Finding::yes(&subject, "a tunnel is open"),
        (count, _) => Finding::yes(&subject, format!("{count} tunnels are open")),
    }
}
