//! Samples of a link's description: its draws as rates, and probes sent over it.

use super::portrait::{PROBE_S, RATE_BIN_S, Seen};
use midhop_path::recorded::LossSample;
use midhop_path::{Direction, DirectionSpec, Drawn, Link, ResolveError};
use midhop_units::{Bytes, Duration, Instant, Seed};

/// The size of a probe, as in irtt. Unit: bytes.
const PROBE_BYTES: Bytes = Bytes::new(88);
/// Links are sampled from this time after their start on: their first slot is cut short. Unit:
/// seconds.
const BEGINS_S: u64 = 30;

/// The samples of a link for `seeds` seeds, each as long as `span`; rates, delays and losses only
/// where requested.
pub(super) fn realisations(
    spec: &DirectionSpec,
    direction: Direction,
    span: Duration,
    seeds: u32,
    [rate, delay, loss]: [bool; 3],
) -> Result<Vec<Seen>, ResolveError> {
    let plan = spec.resolve(spec.delay_min() * 2)?;
    let begin = Instant::START + Duration::from_s(BEGINS_S);
    let seen = |seed: u32| {
        let seed = Seed(u64::from(seed));
        let mut seen = Seen::default();
        if rate {
            let bins = (span.as_s_f64() / RATE_BIN_S) as usize;
            seen.rate = rates(Drawn::new(&plan, direction, seed), begin, bins);
        }
        if delay || loss {
            let mut link = Link::new(&plan, direction, seed, Instant::START);
            let probes = (span.as_s_f64() / PROBE_S) as u64;
            probe(&mut link, begin, probes, &mut seen);
        }
        if !delay {
            seen.delay.clear();
        }
        if !loss {
            seen.losses.clear();
        }
        seen
    };
    Ok((1..=seeds).map(seen).collect())
}

/// The rate of arrivals in each bin. Unit: bit/s.
fn rates(mut drawn: Drawn, begin: Instant, bins: usize) -> Vec<f64> {
    let bin = Duration::from_s_f64(RATE_BIN_S);
    drawn.seek(begin);
    let mut stretch = drawn.advance();
    let (mut rates, mut at) = (Vec::with_capacity(bins), begin);
    while rates.len() < bins {
        let until = at + bin;
        let mut bits = 0.0;
        let mut now = at;
        while now < until {
            let end = stretch.end.min(until);
            bits += stretch.carries(end.saturating_since(now));
            now = end;
            if stretch.end <= now && now < until {
                stretch = drawn.advance();
            }
        }
        if stretch.end <= until {
            stretch = drawn.advance();
        }
        rates.push(bits / RATE_BIN_S);
        at = until;
    }
    rates
}

/// Sends a probe each [`PROBE_S`]; a lost one counts with the delay of the one before it.
fn probe(link: &mut Link<u64>, begin: Instant, probes: u64, seen: &mut Seen) {
    let every = Duration::from_s_f64(PROBE_S);
    let mut arrived: Vec<Option<f64>> = vec![None; probes as usize];
    let take = |link: &mut Link<u64>, now: Instant, arrived: &mut Vec<Option<f64>>| {
        link.handle_timeout(now);
        while let Some(arrival) = link.poll_output(now) {
            let sent = begin + every * arrival.packet;
            if let Some(place) = arrived.get_mut(arrival.packet as usize) {
                *place = Some(arrival.due.saturating_since(sent).as_s_f64());
            }
        }
    };
    for number in 0..probes {
        let now = begin + every * number;
        take(link, now, &mut arrived);
        link.handle_input(now, PROBE_BYTES, number);
    }
    take(link, begin + every * probes + Duration::from_s(10), &mut arrived);
    let mut last = arrived.iter().flatten().next().copied().unwrap_or(0.0);
    for (number, delay) in (0..).zip(&arrived) {
        last = delay.unwrap_or(last);
        seen.delay.push(last);
        let lost = u64::from(delay.is_none());
        seen.losses.push(LossSample { at: every * number, sent: 1, lost });
    }
}
