//! Files that a scenario's links and orbits name: traces of rates, elements of satellites, another
//! simulator's networks.

use midhop_path::orbit::hypatia::GroundStation;
use midhop_path::orbit::{Constellation, hypatia};
use midhop_path::recorded::{self, RecordedFormat};
use midhop_path::{mahimahi, trace};
use midhop_units::Duration;

/// Two-line elements: any text gives satellites that have a position or are decayed, or one error with a
/// message.
pub fn elements(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Constellation::from_elements("fuzz", text, None, 10.0) {
        Ok(constellation) => {
            assert!(!constellation.is_empty());
            for time_s in [0.0, 5400.0, 1e6] {
                let positions = constellation.positions(time_s);
                assert_eq!(positions.len(), constellation.len());
                for place in positions.into_iter().flatten() {
                    let size = place.length();
                    assert!(size.is_finite(), "{place:?} after {time_s} s");
                }
            }
            let _ = constellation.figure();
            assert!(!constellation.latitude_max_deg(10.0).is_nan());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A trace of Mahimahi: any text gives rates that pass the bytes of its opportunities, or one error.
pub fn mahimahi(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let rates = match mahimahi::read(text) {
        Ok(rates) => rates,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(rates.steps.first().is_some_and(|(begin, _)| begin.is_zero()));
    assert!(rates.steps.is_sorted_by(|one, other| one.0 < other.0));
    assert!(rates.steps.last().map(|(begin, _)| *begin) < rates.repeat);
    let opportunities = text.lines().filter(|line| !line.trim().is_empty()).count();
    let (passed, written) = (bits(&rates), opportunities as f64 * 1504.0 * 8.0);
    // Rates are rounded down to whole bits a second; the rest is that of floating point.
    let lost = rates.repeat.map_or(0.0, Duration::as_s_f64) + 1e-9 * written;
    assert!(passed <= written + 1e-9 * written, "{passed} of {written}");
    assert!(passed >= written - lost, "{passed} of {written}");
}

/// A recording of a link: any text, as the format that its first byte names or as it seems to be, gives samples in the order
/// of time from which a link can be made, or one error with a hint.
pub fn recording(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (kind, text) = text.split_at(text.chars().next().map_or(0, char::len_utf8));
    let format = match kind {
        "m" => Some(RecordedFormat::Mahimahi),
        "d" => Some(RecordedFormat::DelayLines),
        "i" => Some(RecordedFormat::Irtt),
        "p" => Some(RecordedFormat::Ping),
        "3" => Some(RecordedFormat::Iperf3),
        "w" => Some(RecordedFormat::WetLinks),
        "c" => Some(RecordedFormat::Csv),
        _ => None,
    };
    let recording = match recorded::read(text, format) {
        Ok(recording) => recording,
        Err(error) => return assert!(!error.what.is_empty() && !error.hint.is_empty()),
    };
    assert!(recording.delays.is_sorted_by(|one, other| one.0 < other.0));
    assert!(recording.losses.iter().all(|sample| sample.lost <= sample.sent));
    for samples in [&recording.down, &recording.up] {
        assert!(samples.iter().all(|it| it.begin < it.end && it.bit_per_s.is_finite()));
        assert!(samples.is_sorted_by(|one, other| one.begin <= other.begin));
    }
    let traces = [recording.rate_trace(false), recording.rate_trace(true)];
    for trace in traces.into_iter().flatten() {
        assert!(
            trace.steps[0].0.is_zero() && trace.steps.is_sorted_by(|one, other| one.0 < other.0)
        );
        assert!(trace.repeat.is_some_and(|length| trace.steps.iter().all(|step| step.0 < length)));
    }
    if let Ok(trace) = recording.delay_trace() {
        assert!(
            trace.steps[0].0.is_zero() && trace.steps.is_sorted_by(|one, other| one.0 < other.0)
        );
        assert!(trace.repeat.is_some_and(|length| trace.steps.iter().all(|step| step.0 < length)));
    }
}

/// The bits that a trace passes in one round.
fn bits(rates: &trace::Trace<midhop_units::Rate>) -> f64 {
    let length = rates.repeat.unwrap_or(Duration::ZERO);
    let ends = rates.steps.iter().skip(1).map(|step| step.0).chain([length]);
    let spans = rates.steps.iter().zip(ends);
    spans.map(|((begin, rate), end)| rate.bits_per_s() as f64 * (end - *begin).as_s_f64()).sum()
}

/// The satellites of the network whose state is read; as many ground stations follow them.
const SATELLITES: u32 = 8;

/// A file of Hypatia's, selected by the first byte: `t` its elements, `i` its links, `g` the ground, `d` the
/// description, everything else its forwarding state, in pieces that end with an empty line.
pub fn hypatia(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (kind, text) = text.split_at(text.chars().next().map_or(0, char::len_utf8));
    let fault = match kind {
        "t" => hypatia::elements(text).map(drop).err(),
        "i" => hypatia::isls(text)
            .map(|pairs| assert!(pairs.iter().all(|[one, other]| one != other)))
            .err(),
        "g" => hypatia::ground_stations(text)
            .map(|all| {
                let degrees = |it: &GroundStation| it.site.latitude_deg.abs() <= 90.0;
                assert!(all.iter().all(|it| degrees(it) && it.site.altitude_m.is_finite()));
            })
            .err(),
        "d" => hypatia::description(text)
            .map(|it| {
                let lengths = [it.ground_link_km_max, it.isl_km_max];
                assert!(lengths.iter().all(|km| *km > 0.0 && km.is_finite()), "{it:?}");
            })
            .err(),
        _ => forwarded(text).err(),
    };
    if let Some(error) = fault {
        assert!(!error.to_string().is_empty());
    }
}

/// Whatever the state is, a path has an end, and no satellite twice.
fn forwarded(text: &str) -> Result<(), hypatia::HypatiaError> {
    let mut state = hypatia::ForwardingState::default();
    for changes in text.split("\n\n") {
        state.apply(changes, 2 * SATELLITES)?;
        for (from, to) in (0..SATELLITES).flat_map(|from| (0..SATELLITES).map(move |to| (from, to)))
        {
            let Some(way) = state.way(SATELLITES, from, to) else { continue };
            let mut seen = way.satellites.clone();
            seen.sort_unstable();
            seen.dedup();
            assert!(seen.len() == way.satellites.len() && !seen.is_empty(), "{way:?}");
            assert!(seen.iter().all(|satellite| *satellite < SATELLITES), "{way:?}");
        }
    }
    Ok(())
}
