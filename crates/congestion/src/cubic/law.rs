//! CUBIC's curve as integer functions (RFC 9438 §4.2 to §4.7).
//!
//! Windows are in segments with twenty binary places (`_q20`), times in seconds with sixteen (`_q16`).

use midhop_units::Duration;

/// One segment.
pub const ONE_Q20: u64 = 1 << 20;
/// C = 0.4 segments per cubic second, with 32 binary places.
const C_Q32: u128 = 1_717_986_918;
/// α = 3 (1 − β) / (1 + β) with β = 0.7.
pub const ALPHA_Q20: u64 = ONE_Q20 * 9 / 17;
/// Times are cut at 8192 s, where the curve stands at 2·10¹¹ segments.
const TIME_MAX_Q16: u64 = 8192 << 16;

fn q16(time: Duration) -> u64 {
    // In two parts, as a division of 128 bits costs ten times one of 64.
    let (seconds, ns) = (time.as_ns() / 1_000_000_000, time.as_ns() % 1_000_000_000);
    ((seconds << 16) + (ns << 16) / 1_000_000_000).min(TIME_MAX_Q16)
}

/// W(t) = C (t − K)³ + W_max, not below zero.
pub fn curve_q20(time: Duration, period_q16: u64, origin_q20: u64) -> u64 {
    let time_q16 = q16(time);
    let distance = u128::from(time_q16.abs_diff(period_q16.min(TIME_MAX_Q16)));
    // 3 · 16 places of the cube and 32 of C are 60 more than the window's 20.
    let rise = u64::try_from((distance * distance * distance * C_Q32) >> 60).unwrap_or(u64::MAX);
    if time_q16 >= period_q16 {
        origin_q20.saturating_add(rise)
    } else {
        origin_q20.saturating_sub(rise)
    }
}

/// K = ∛(fallen / C): how long the curve takes to return to W_max from `fallen` below it.
pub fn period_q16(fallen_q20: u64) -> u64 {
    // fallen · 2.5, its 20 places made 48, which a cube root makes 16.
    cube_root((u128::from(fallen_q20) * 5) << 27)
}

/// ∛`x_q48`, rounded down.
pub fn cube_root_q16(x_q48: u128) -> u64 {
    cube_root(x_q48)
}

fn cube_root(x: u128) -> u64 {
    let mut root: u128 = 0;
    for bit in (0..42).rev() {
        let larger = root | (1 << bit);
        if larger * larger * larger <= x {
            root = larger;
        }
    }
    u64::try_from(root).unwrap_or(u64::MAX)
}

/// W_max after a loss at `window`; less where the window had not returned to the last one, to leave
/// room for other flows (fast convergence, §4.7).
pub fn maximum_q20(window_q20: u64, last_q20: u64) -> u64 {
    if window_q20 < last_q20 { window_q20.saturating_mul(17) / 20 } else { window_q20 }
}

/// The window after a loss: 0.7 of it, at least two segments.
pub fn after_loss(cwnd: u32) -> u32 {
    let kept = u64::from(cwnd) * 7 / 10;
    u32::try_from(kept).unwrap_or(u32::MAX).max(2)
}

/// What `segments` arrived add to W_est while the window is `per`: Reno's growth, slower while W_est is
/// below the window of the last loss because it fell less than Reno's (§4.3).
pub fn friendly_step_q20(friendly_q20: u64, prior_q20: u64, segments: u64, per: u64) -> u64 {
    let alpha_q20 = if friendly_q20 < prior_q20 { ALPHA_Q20 } else { ONE_Q20 };
    alpha_q20.saturating_mul(segments) / per.max(1)
}
