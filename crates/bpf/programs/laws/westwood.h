/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Westwood+: after a loss the window becomes what the path has been seen to carry.
 *
 * Source: S. Mascolo et al., "TCP Westwood: bandwidth estimation for enhanced transport over wireless
 * links", MobiCom 2001, and the Westwood+ sampling once per RTT; filter and accounting as in Linux
 * (net/ipv4/tcp_westwood.c). Differs: time is counted in milliseconds, not jiffies, and the filter has
 * eight binary places, so that the estimate does not depend on how the kernel was built: in whole bytes
 * per jiffy each of its stages stays up to seven of them below. The same in Rust is the module `westwood` of
 * midhop-congestion.
 */
#ifndef MIDHOP_WESTWOOD_H
#define MIDHOP_WESTWOOD_H

#include "integers.h"

/* A sample spans at least this. */
#define WESTWOOD_SPAN_MIN_MS 50U
/* The RTT taken for granted before one was measured. */
#define WESTWOOD_RTT_INITIAL_MS 20000U
#define WESTWOOD_WINDOW_MIN 2U

/* Binary places of the filter. */
#define WESTWOOD_PLACES 8

/* Bytes per 256 ms after one low-pass stage and after both. */
struct westwood_filter {
	u32 once;
	u32 twice;
};

/* What the cumulative acknowledgement has said, and what duplicate ones have said before it. */
struct westwood_count {
	u32 una;
	u32 accounted;
};

LAW u32 westwood_low_pass(u32 old, u32 sample)
{
	return saturated((7ULL * old + sample) >> 3);
}

LAW void westwood_filter_update(struct westwood_filter *f, u32 sample)
{
	if (f->once == 0 && f->twice == 0) {
		f->once = sample;
		f->twice = sample;
	} else {
		f->once = westwood_low_pass(f->once, sample);
		f->twice = westwood_low_pass(f->twice, f->once);
	}
}

/* A sample of bytes that arrived within a span, as the filter takes it. */
LAW u32 westwood_sampled(u32 bytes, u32 span_ms)
{
	return saturated(((u64)bytes << WESTWOOD_PLACES) / most(span_ms, 1));
}

/* Whether the running sample is long enough to close. */
LAW int westwood_sample_due(u32 span_ms, u32 rtt_ms)
{
	return rtt_ms && span_ms > most(rtt_ms, WESTWOOD_SPAN_MIN_MS);
}

/*
 * Bytes that this acknowledgement shows to have arrived. A duplicate one counts a segment at once;
 * the cumulative one that later covers it must not count it again.
 */
LAW u32 westwood_delivered(struct westwood_count *c, u32 una, u32 mss)
{
	u32 delivered = una - c->una;

	if (delivered == 0) {
		c->accounted += mss;
		delivered = mss;
	} else if (delivered > mss) {
		if (c->accounted >= delivered) {
			c->accounted -= delivered;
			delivered = mss;
		} else {
			delivered -= c->accounted;
			c->accounted = 0;
		}
	}
	c->una = una;
	return delivered;
}

/* The window that fills the path and no queue. */
LAW u32 westwood_window(const struct westwood_filter *f, u32 rtt_min_ms, u32 mss)
{
	u64 bytes = ((u64)f->twice * rtt_min_ms) >> WESTWOOD_PLACES;

	return most(saturated(bytes / most(mss, 1)), WESTWOOD_WINDOW_MIN);
}

#endif
