//! Reads the rate of a link from a trace in the form of the emulator Mahimahi.
//!
//! Each line is a millisecond at which a packet of 1504 bytes (1500 and the tunnel's header) may leave;
//! several equal lines are several packets. The last millisecond is the trace's length, after which it
//! starts again. Source: Netravali et al., "Mahimahi: Accurate Record-and-Replay for HTTP", USENIX ATC
//! 2015, and its manual, mm-link(1).
//!
//! Here opportunities become a rate in steps of [`BIN`], with as many bits as the packets of a
//! step. A link of ours serves bits and not opportunities, so a packet may use parts of two steps;
//! over more than a step the same bytes pass. Differs: in Mahimahi, an opportunity is lost when the
//! queue is empty; here, the rate of an idle link is lost.

use crate::trace::Trace;
use midhop_units::{Duration, Rate};

/// The bytes of an opportunity.
const PACKET_BYTES: u64 = 1504;
/// How long a step lasts. Unit: ms.
const BIN_MS: u64 = 20;
/// How long a step lasts.
pub const BIN: Duration = Duration::from_ms(BIN_MS);
/// The longest trace: an hour.
const LENGTH_MS_MAX: u64 = 3_600_000;

/// Why a text is no trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MahimahiError {
    /// A line is no whole number of milliseconds.
    #[error(
        "line {line} of the trace, \"{text}\", is no whole number of milliseconds up to an hour"
    )]
    Line {
        /// The line, from 1.
        line: usize,
        /// The line as it stands.
        text: String,
    },
    /// Time goes backwards.
    #[error("line {line} of the trace is earlier than the line before it")]
    Backwards {
        /// The line, from 1.
        line: usize,
    },
    /// There is no opportunity after the first millisecond, so nothing that could be repeated.
    #[error("the trace has no length: its last line must be later than 0")]
    Empty,
}

/// Reads a trace.
///
/// # Errors
/// When a line is no number, time goes backwards, or the trace has no length.
pub fn read(text: &str) -> Result<Trace<Rate>, MahimahiError> {
    let mut opportunities: Vec<u64> = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let line_number = number + 1;
        let at = line.trim().parse().ok().filter(|at| *at <= LENGTH_MS_MAX);
        let at = at.ok_or_else(|| MahimahiError::Line {
            line: line_number,
            text: line.chars().take(40).collect(),
        })?;
        if opportunities.last().is_some_and(|last| *last > at) {
            return Err(MahimahiError::Backwards { line: line_number });
        }
        opportunities.push(at);
    }
    let length_ms = opportunities.last().copied().filter(|last| *last > 0);
    let length_ms = length_ms.ok_or(MahimahiError::Empty)?;
    let bins = length_ms.div_ceil(BIN_MS);
    let mut packets = vec![0u64; bins as usize];
    for at in opportunities {
        // The opportunity at the very end of the trace belongs to its last step, not to the next
        // repetition.
        packets[(at / BIN_MS).min(bins - 1) as usize] += 1;
    }
    let mut steps: Vec<(Duration, Rate)> = Vec::new();
    for (bin, packets) in (0..bins).zip(packets) {
        let begin_ms = bin * BIN_MS;
        let span_ms = (length_ms - begin_ms).min(BIN_MS);
        let bits_per_s = u128::from(packets * PACKET_BYTES * 8) * 1000 / u128::from(span_ms);
        let rate = Rate::from_bits_per_s(u64::try_from(bits_per_s).unwrap_or(u64::MAX));
        if steps.last().is_none_or(|(_, last)| *last != rate) {
            steps.push((Duration::from_ms(begin_ms), rate));
        }
    }
    Ok(Trace { steps, repeat: Some(Duration::from_ms(length_ms)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn opportunities_become_rates() {
        // One packet per millisecond for 20 ms, none for 20 ms, five at the end; the trace repeats
        // after 50 ms.
        let mut text: String = (0..20).map(|ms| format!("{ms}\n")).collect();
        text.push_str("50\n50\n50\n50\n50\n");
        let trace = read(&text).expect("a trace");
        let rate = Rate::from_bits_per_s;
        assert_eq!(
            trace.steps,
            [
                (Duration::ZERO, rate(12_032_000)),
                (BIN, rate(0)),
                (BIN * 2, rate(5 * 12_032_000 / 10)),
            ]
        );
        assert_eq!(trace.repeat, Some(Duration::from_ms(50)));
        assert!(trace.check("rate").is_ok());
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        assert_eq!(read(""), Err(MahimahiError::Empty));
        assert_eq!(read("0\n0\n"), Err(MahimahiError::Empty));
        assert_eq!(read("3\n2\n"), Err(MahimahiError::Backwards { line: 2 }));
        assert!(matches!(read("1\n2.5"), Err(MahimahiError::Line { line: 2, .. })));
        assert!(matches!(read("9999999999"), Err(MahimahiError::Line { line: 1, .. })));
    }

    proptest! {
        #[test]
        fn no_byte_is_lost_or_made(gaps in prop::collection::vec(0u64..40, 1..200)) {
            let mut at = 0;
            let text: String = gaps.iter().map(|gap| { at += gap; format!("{at}\n") }).collect();
            prop_assume!(at > 0);
            let trace = read(&text).expect("a trace");
            let ends = trace.steps.iter().skip(1).map(|step| step.0).chain(trace.repeat);
            let bits: f64 = trace.steps.iter().zip(ends)
                .map(|((begin, rate), end)| {
                    rate.bits_per_s() as f64 * (end.as_s_f64() - begin.as_s_f64())
                })
                .sum();
            let expected = (gaps.len() as u64 * PACKET_BYTES * 8) as f64;
            prop_assert!((bits - expected).abs() < 10.0 * trace.steps.len() as f64);
        }
    }
}
