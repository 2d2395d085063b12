//! Connects to one of a target's addresses. An unreachable address family does not delay the other.
//!
//! Source: RFC 8305. Differs: addresses are not sorted by RFC 6724, but alternate between the
//! families from the first address on, as `midhop_lookup` returns them. An attempt without a route
//! fails at once, and the next begins.

use crate::leg::{Failure, Opening, Refusal};
use futures_util::{StreamExt, stream::FuturesUnordered};
use std::{collections::VecDeque, io::ErrorKind, pin::pin, time::Duration};
use tokio::{
    net::TcpStream,
    time::{self, Instant},
};

/// Interval between the beginnings of two attempts while the earlier has no response: RFC 8305 §5.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Tries `first`, and the addresses that `later` adds, until one attempt succeeds. Then the others are given up.
///
/// # Errors
/// The failure of the last attempt that failed; none if there was no address.
pub async fn race<C, T, E>(
    first: Vec<C>,
    later: impl Future<Output = Vec<C>>,
    attempt: impl AsyncFn(C) -> Result<T, E>,
) -> Result<T, Option<E>> {
    let mut waiting = VecDeque::from(first);
    let mut later = pin!(later);
    let (mut all_known, mut failed) = (false, None);
    let mut running = FuturesUnordered::new();
    let mut next_at = Instant::now();
    loop {
        if (running.is_empty() || Instant::now() >= next_at)
            && let Some(candidate) = waiting.pop_front()
        {
            running.push(attempt(candidate));
            next_at = Instant::now() + ATTEMPT_DELAY;
        }
        tokio::select! {
            biased;
            Some(answer) = running.next(), if !running.is_empty() => match answer {
                Ok(connected) => return Ok(connected),
                Err(failure) => {
                    failed = Some(failure);
                    next_at = Instant::now();
                }
            },
            more = &mut later, if !all_known => {
                all_known = true;
                waiting.extend(more);
            }
            () = time::sleep_until(next_at), if !waiting.is_empty() => {}
            else => return Err(failed),
        }
    }
}

/// Waits for the response to an attempt, but no longer than `patience`.
///
/// # Errors
/// The far side's error, or its silence.
pub async fn answer(opening: Opening, patience: Duration) -> Result<TcpStream, Failure> {
    time::timeout(patience, opening.finish()).await.unwrap_or_else(|_late| {
        Err(Failure { error: ErrorKind::TimedOut.into(), refusal: Some(Refusal::Silence) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::RefCell, future::pending};

    #[tokio::test(start_paused = true)]
    async fn a_silent_address_delays_the_next_by_a_moment_and_a_refusal_by_nothing() {
        let began = Instant::now();
        let tried = RefCell::new(Vec::new());
        let attempt = async |candidate: &'static str| {
            tried.borrow_mut().push((candidate, began.elapsed()));
            match candidate {
                "silent" => pending().await,
                "refuses" => Err("refused"),
                answers => Ok(answers),
            }
        };
        let later = async { Vec::new() };
        let won = race(vec!["silent", "refuses", "answers", "never tried"], later, attempt).await;
        assert_eq!(won, Ok("answers"));
        let at =
            [("silent", Duration::ZERO), ("refuses", ATTEMPT_DELAY), ("answers", ATTEMPT_DELAY)];
        assert_eq!(*tried.borrow(), at);
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_later_is_tried_too() {
        let later = async {
            time::sleep(Duration::from_secs(1)).await;
            vec!["answers"]
        };
        let attempt = async |candidate| match candidate {
            "answers" => Ok(candidate),
            _ => Err("refused"),
        };
        assert_eq!(race(vec!["refuses"], later, attempt).await, Ok("answers"));
        let nothing = async { Vec::new() };
        assert_eq!(race(vec!["a", "b"], nothing, attempt).await, Err(Some("refused")));
        let nothing = async { Vec::new() };
        assert_eq!(race(vec![], nothing, attempt).await, Err(None));
    }
}
