//! Limits how often the log warns of peers that are refused.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Minimum interval between two warnings about one peer, or about unknown clients, whose attempts
/// are unlimited.
const PAUSE: Duration = Duration::from_secs(10);

/// Times of the last warnings.
#[derive(Debug, Default)]
pub struct Warnings(Mutex<BTreeMap<String, (Instant, u64)>>);

impl Warnings {
    /// Whether to warn about `whom` now, and how many warnings were omitted before this one.
    pub fn due(&self, whom: &str) -> Option<u64> {
        let now = Instant::now();
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Known peers and "" only: a configuration bounds them.
        match last.get_mut(whom) {
            Some((at, omitted)) if now - *at < PAUSE => {
                *omitted += 1;
                None
            }
            Some(entry) => Some(std::mem::replace(entry, (now, 0)).1),
            None => {
                last.insert(whom.to_owned(), (now, 0));
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_warning_is_not_repeated_at_will() {
        let warnings = Warnings::default();
        assert_eq!(
            (warnings.due("near"), warnings.due("near"), warnings.due("")),
            (Some(0), None, Some(0))
        );
        tokio::time::advance(PAUSE).await;
        assert_eq!((warnings.due("near"), warnings.due("near")), (Some(1), None));
    }
}
