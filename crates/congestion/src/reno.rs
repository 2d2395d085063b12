//! Reno's parts, which other algorithms are composed with: slow start, congestion avoidance, halving.
//!
//! Source: RFC 5681 §3.1 and RFC 3465; whole segments counted as Linux does (net/ipv4/tcp_cong.c).

/// The smallest window after a loss.
///
/// Unit: segments. Source: RFC 5681 §3.1, equation 4.
pub const WINDOW_MIN: u32 = 2;

/// Slow start: the window grows by what was acknowledged, up to the threshold.
///
/// Returns the new window and the segments left over for congestion avoidance.
pub fn slow_start(cwnd: u32, ssthresh: u32, acked: u32) -> (u32, u32) {
    let grown = cwnd.saturating_add(acked).min(ssthresh.max(cwnd));
    (grown, acked - (grown - cwnd))
}

/// Congestion avoidance: one segment per window of acknowledged segments.
///
/// `count` holds the acknowledged segments towards the next. Returns the new window and count.
pub fn avoid(cwnd: u32, count: u32, acked: u32) -> (u32, u32) {
    let (mut grown, mut count) = (cwnd, count);
    let per = cwnd.max(1);
    // The count of a larger window before a reduction is worth one segment, no more.
    if count >= per {
        count = 0;
        grown = grown.saturating_add(1);
    }
    count = count.saturating_add(acked);
    grown = grown.saturating_add(count / per);
    (grown, count % per)
}

/// One acknowledgement: slow start, then avoidance with what is left. Returns window and count.
pub fn grow(cwnd: u32, count: u32, ssthresh: u32, acked: u32) -> (u32, u32) {
    let (cwnd, left) =
        if cwnd < ssthresh { slow_start(cwnd, ssthresh, acked) } else { (cwnd, acked) };
    if left == 0 { (cwnd, count) } else { avoid(cwnd, count, left) }
}

/// The threshold after a loss: half the window.
pub fn halve(cwnd: u32) -> u32 {
    (cwnd / 2).max(WINDOW_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_start_doubles_and_stops_at_the_threshold() {
        assert_eq!(slow_start(10, 1000, 10), (20, 0));
        assert_eq!(slow_start(10, 15, 10), (15, 5));
        assert_eq!(slow_start(20, 15, 10), (20, 10));
        assert_eq!(grow(10, 0, 15, 10), (15, 5));
    }

    #[test]
    fn avoidance_adds_one_per_window() {
        let (mut cwnd, mut count) = (100, 0);
        for _ in 0..50 {
            (cwnd, count) = avoid(cwnd, count, 2);
        }
        assert_eq!((cwnd, count), (101, 0));
        assert_eq!(avoid(10, 25, 0), (11, 0));
        assert_eq!(halve(3), 2);
        assert_eq!(halve(100), 50);
    }
}
