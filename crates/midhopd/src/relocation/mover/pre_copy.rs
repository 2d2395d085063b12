//! Pre-copy: sends copies of what flows hold before they stand still, as live migration does.

use super::{Candidate, FLOW, Mover, PEER, ask};
use crate::relocation::copy::{CopyRequest, LEAST, Positions, StreamCopy};
use crate::relocation::exchange::{Exchange, ExchangeError};
use crate::relocation::order::FlowRequest;
use crate::tunnel::session::QuicSession;
use midhop_tunnel::relocation::copies::Advance;
use midhop_tunnel::relocation::{OFFER_BYTES_MAX, Readiness};
use std::pin::pin;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};

/// How long a stream waits for others to end their copies; after that it sends none.
const TURN: Duration = Duration::from_secs(3);
/// How long copies are sent: with the turns, less than the time for which the peer waits for a state.
const TIME: Duration = Duration::from_secs(6);
/// How often what has come is copied while flows are to go on.
const STEP: Duration = Duration::from_millis(200);
/// Unit: bytes. The most of all copies of a stream. What is left of its limit is for the states.
const COPIES_MAX: usize = OFFER_BYTES_MAX / 3 * 2;
/// Unit: bytes. Of one copy.
const PIECE: usize = 64 << 10;
/// Unit: bytes. What the peer confirms at once: the first time and at least, and at most. More is confirmed at once as
/// long as that is quick, so that little is on its way when flows stand still.
const WINDOWS: [usize; 2] = [128 << 10, 4 << 20];
/// A peer that sends datagrams and takes no step counts as silent after so many times as one that sends nothing.
const SILENCES_MAX: usize = 3;
/// A confirmation that takes longer, beside two round trips, has fewer bytes confirmed at once.
const QUICK: Duration = Duration::from_millis(500);

/// How copies are sent.
struct Pace {
    until: Instant,
    /// Unit: bytes. What all copies may still have.
    left: usize,
    /// Unit: bytes. Sent, and not confirmed.
    unconfirmed: usize,
    window: usize,
    /// When the first of these was sent.
    begun: Instant,
    /// More is confirmed at once if a confirmation takes less.
    quick: Duration,
}

impl Pace {
    fn is_over(&self) -> bool {
        self.left == 0 || Instant::now() >= self.until
    }
}

impl Mover<'_> {
    /// Copies to the peer what flows hold that it would take. Returns what it has of each direction of each flow, whether it
    /// has confirmed that or not. `session` is the tunnel to it.
    ///
    /// # Errors
    /// When the peer receives no more of it; none: it was silent.
    pub(super) async fn pre_copy(
        &self,
        exchange: &mut Exchange,
        some: &[Candidate],
        readiness: &[Readiness],
        session: &QuicSession,
    ) -> Result<Vec<[Positions; 2]>, Option<ExchangeError>> {
        let mut copied = vec![[0..0, 0..0]; some.len()];
        let mut pace = None;
        let mut again = false;
        loop {
            let mut turn = None;
            // The last time, what has come meanwhile: less than half of what came before, or it would never end.
            let is_last = again && Instant::now() >= self.still_at;
            for (flow, (candidate, ready)) in some.iter().zip(readiness).enumerate() {
                let before = &mut copied[flow];
                let least = before.each_ref().map(|it| worth(it, is_last));
                if *ready != Readiness::Ready || least == [usize::MAX; 2] {
                    continue;
                }
                let copies = copies_of(candidate, before.clone(), least).await;
                for (direction, copy) in copies.into_iter().enumerate() {
                    let Some(copy) = copy.filter(|it| is_less(it, &before[direction], is_last))
                    else {
                        continue;
                    };
                    if turn.is_none() {
                        let Ok(mine) = timeout(TURN, self.copying.lock()).await else {
                            return self.states_follow(exchange, session, copied).await;
                        };
                        turn = Some(mine);
                    }
                    let pace = pace.get_or_insert_with(|| Pace {
                        until: self.until(),
                        left: COPIES_MAX,
                        unconfirmed: 0,
                        window: WINDOWS[0],
                        begun: Instant::now(),
                        quick: QUICK + 2 * session.connection().rtt(),
                    });
                    let sent =
                        self.send_copy(exchange, (flow, direction), &copy, (session, pace)).await?;
                    let before = &mut before[direction];
                    let begin = if before.is_empty() { copy.begin } else { before.start };
                    *before = begin..copy.begin + sent as i64;
                }
                if pace.as_ref().is_some_and(Pace::is_over) {
                    break;
                }
            }
            // All that was sent is there before the next look at it, or before flows stand still.
            if let Some(pace) = pace.as_mut().filter(|pace| pace.unconfirmed > 0) {
                confirm(exchange, session, pace).await?;
            }
            drop(turn);
            if is_last || (again && Instant::now() >= self.still_at) {
                return self.states_follow(exchange, session, copied).await;
            }
            sleep_until(self.still_at.min(Instant::now() + STEP)).await;
            again = true;
        }
    }

    /// When copies end: at the moment at which flows are to stand still, if it is to come.
    fn until(&self) -> Instant {
        let now = Instant::now();
        if self.still_at > now { self.still_at } else { now + TIME }
    }

    async fn states_follow(
        &self,
        exchange: &mut Exchange,
        session: &QuicSession,
        copied: Vec<[Positions; 2]>,
    ) -> Result<Vec<[Positions; 2]>, Option<ExchangeError>> {
        send(exchange, session, &Advance::States).await?;
        Ok(copied)
    }

    /// Sends a copy, or its beginning. Returns how many bytes it has sent.
    async fn send_copy(
        &self,
        exchange: &mut Exchange,
        (flow, direction): (usize, usize),
        copy: &StreamCopy,
        (session, pace): (&QuicSession, &mut Pace),
    ) -> Result<usize, Option<ExchangeError>> {
        let mut sent = 0;
        for piece in copy.bytes.chunks(PIECE) {
            let bytes = piece[..piece.len().min(pace.left)].to_vec();
            if pace.is_over() {
                break;
            }
            let length = bytes.len();
            if pace.unconfirmed == 0 {
                pace.begun = Instant::now();
            }
            send(exchange, session, &Advance::Copy { flow, direction, bytes }).await?;
            self.tally.borrow_mut().state_bytes += length as u64;
            pace.left -= length;
            pace.unconfirmed += length;
            sent += length;
            if pace.unconfirmed >= pace.window {
                confirm(exchange, session, pace).await?;
            }
        }
        Ok(sent)
    }
}

/// Unit: bytes. What a further copy of a direction must have at least. `usize::MAX`: none is wanted.
fn worth(before: &Positions, is_last: bool) -> usize {
    if is_last && before.is_empty() { usize::MAX } else { LEAST }
}

/// Whether the last copy is smaller than half of those before, so that copying comes to an end.
fn is_less(copy: &StreamCopy, before: &Positions, is_last: bool) -> bool {
    !is_last || (copy.bytes.len() as i64) < (before.end - before.start) / 2
}

async fn copies_of(
    candidate: &Candidate,
    copied: [Positions; 2],
    least: [usize; 2],
) -> [Option<StreamCopy>; 2] {
    let (answer, answered) = oneshot::channel();
    ask(candidate, FlowRequest::Copy(CopyRequest { copied, least, answer }));
    timeout(FLOW, answered).await.ok().and_then(Result::ok).unwrap_or_default()
}

async fn send(
    exchange: &mut Exchange,
    session: &QuicSession,
    advance: &Advance,
) -> Result<(), Option<ExchangeError>> {
    let sent = unless_silent(session, exchange.send(advance.encode())).await.ok_or(None)?;
    sent.map_err(|error| Some(error.into()))
}

/// Waits until the peer has all copies.
async fn confirm(
    exchange: &mut Exchange,
    session: &QuicSession,
    pace: &mut Pace,
) -> Result<(), Option<ExchangeError>> {
    send(exchange, session, &Advance::Confirm).await?;
    let confirmed = unless_silent(session, exchange.values::<Readiness>(1)).await.ok_or(None)?;
    confirmed.map_err(Some)?;
    let [least, most] = WINDOWS;
    let window = if pace.begun.elapsed() < pace.quick { pace.window * 2 } else { pace.window / 2 };
    (pace.window, pace.unconfirmed) = (window.clamp(least, most), 0);
    Ok(())
}

/// Waits for a step of the peer. None: it was silent. On a slow link or a busy host a step takes long, and datagrams come
/// all the while: flows go on meanwhile, so that nobody waits for it.
async fn unless_silent<T>(session: &QuicSession, step: impl Future<Output = T>) -> Option<T> {
    let received = || session.connection().stats().udp_rx.datagrams;
    let (mut step, mut before) = (pin!(step), received());
    for _ in 0..SILENCES_MAX {
        if let Ok(done) = timeout(PEER, &mut step).await {
            return Some(done);
        }
        let now = received();
        if now == before {
            return None;
        }
        before = now;
    }
    None
}
