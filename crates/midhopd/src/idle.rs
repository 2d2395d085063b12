//! Waiting for a configuration that asks for something: the one that is shipped asks for nothing.
//!
//! Invariant: this comes before anything else of the process. It has the privileges that it was started with, which the
//! start takes, and reads nothing but its configuration.

use crate::{
    cli, daemon,
    failure::Failure,
    logging::Logging,
    notify::{self, Notice},
};
use midhop_pep::config::Plan;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use std::path::Path;

/// Whether the plan asks for any flow.
fn proxies(plan: &Plan) -> bool {
    let explicit = &plan.explicit;
    let asked = !explicit.http_connect.is_empty() || !explicit.socks5.is_empty();
    !plan.intercept.interfaces.is_empty() || asked || !plan.tunnel.listen.is_empty()
}

/// Waits until the configuration asks for flows: the plan then, which this host can follow, and the text of the file.
/// Nothing, where a signal ends the process before.
///
/// # Errors
/// When the host refuses the first plan, or signals cannot be waited for.
pub fn until_asked(
    config: &Path,
    plan: Plan,
    text: String,
    logging: &Logging,
) -> Result<Option<(Plan, String)>, Failure> {
    if proxies(&plan) {
        daemon::check_host(&plan)?;
        return Ok(Some((plan, text)));
    }
    let failed = |error: nix::Error| Failure::run("signals cannot be waited for").because(error);
    let signals: SigSet = [Signal::SIGHUP, Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
    let before = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK).map_err(failed)?;
    warn();
    notify::send(Notice::Ready);
    let asked = loop {
        match signals.wait().map_err(failed)? {
            Signal::SIGHUP => match follow(config, logging) {
                Ok((plan, text)) if proxies(&plan) => break Some((plan, text)),
                Ok(_) => {
                    tracing::info!("configuration reloaded");
                    warn();
                }
                Err(failure) => drop(daemon::not_reloaded(&failure)),
            },
            _ => break None,
        }
    };
    if asked.is_none() {
        notify::send(Notice::Stopping);
    }
    before.thread_set_mask().map_err(failed)?;
    Ok(asked)
}

fn warn() {
    tracing::warn!(
        hint = "list them in [intercept], then `systemctl reload midhopd`, or send SIGHUP",
        "Nothing is intercepted until you set `interfaces`."
    );
}

/// The configuration as it is now.
fn follow(config: &Path, logging: &Logging) -> Result<(Plan, String), Failure> {
    let (plan, text) = cli::read(config)?;
    if proxies(&plan) {
        daemon::check_host(&plan)?;
    }
    logging.set(&plan.log)?;
    Ok((plan, text))
}
