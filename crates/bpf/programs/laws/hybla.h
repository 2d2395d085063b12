/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hybla's law, counted per acknowledged segment, with a bounded slow start.
 *
 * Source: C. Caini, R. Firrincieli, "TCP Hybla: a TCP enhancement for heterogeneous networks",
 * International Journal of Satellite Communications and Networking 22, 2004. With
 * rho = max(RTT / RTT0, 1), each acknowledged segment adds 2^rho - 1 to the window in slow start and
 * rho^2 / W in congestion avoidance, so that the rate W / RTT is that of a flow whose RTT is RTT0.
 *
 * Differs: slow start multiplies the window by no more than a bound per round trip, because 2^24 - 1
 * segments per acknowledgement (600 ms against 25 ms) is not a start but a burst as large as the
 * peer's receive window. And losses as rare as a radio's own (a tolerance, 0 for the paper's halving)
 * cut the window to what the path has been seen to carry, as Westwood does, not to half.
 *
 * Numbers named _q10, _q16, _q20 carry that many binary places. The same law in Rust is the module
 * `hybla` of midhop-congestion; both give the same bits.
 */
#ifndef MIDHOP_HYBLA_H
#define MIDHOP_HYBLA_H

#include "integers.h"

#define HYBLA_ONE_Q10 1024U
#define HYBLA_ONE_Q20 1048576U
/* rho stays below 64: 1.6 s against 25 ms. Its square with 20 places then fits 32 bits. */
#define HYBLA_RHO_MAX_Q10 (64U * HYBLA_ONE_Q10 - 1U)
/* One acknowledgement is counted segment by segment up to this many, in this many shares beyond. */
#define HYBLA_STEPS_MAX 32U
/* No acknowledgement covers more: a window of 1 GiB. Keeps the products below 64 bits. */
#define HYBLA_ACKED_MAX (1U << 20)
#define HYBLA_WINDOW_MIN 2U
#define HYBLA_RTT_NONE 0xffffffffU
/* The smallest of this many RTT samples in a row shows whether there is a queue (RFC 9406). */
#define HYBLA_QUEUE_SAMPLES 8U
/* For how many round trips what the path has carried is remembered. */
#define HYBLA_CARRIED_ROUNDS 10U

struct hybla_window {
	u32 cwnd;
	u32 ssthresh;
	u32 cwnd_max;
	u32 fraction_q20;
	u32 rho_q10;
	u32 gain_q10;
};

/* The smallest RTT over the current and the previous half window. */
struct hybla_min_rtt {
	u32 current_us;
	u32 previous_us;
	u32 started_ms;
};

/* The largest value over the current and the previous five round trips. */
struct hybla_carried {
	u32 current;
	u32 previous;
	u32 started_round;
};

LAW u32 hybla_rho_q10(u32 rtt_us, u32 rtt0_us)
{
	u64 rho = ((u64)rtt_us << 10) / most(rtt0_us, 1);

	return rho < HYBLA_ONE_Q10 ? HYBLA_ONE_Q10 : least(saturated(rho), HYBLA_RHO_MAX_Q10);
}

/* 2^x for 0 <= x < 16, within 2e-4: the fraction by a cubic that is exact at both ends. */
LAW u32 hybla_power_of_two_q16(u32 x_q10)
{
	u64 f = (u64)(x_q10 & 1023U) << 6;
	u64 power = 65536 + ((f * (45584 + ((f * (14822 + ((f * 5130) >> 16))) >> 16))) >> 16);
	u32 whole = x_q10 >> 10;

	return whole > 15 ? 0xffffffffU : saturated(power << whole);
}

/*
 * What one acknowledged segment adds in slow start: 2^rho - 1, bounded so that a whole window of
 * acknowledgements multiplies the window by growth_max_q10 at most, and never slower than Reno's 1.
 */
LAW u32 hybla_gain_q10(u32 rho_q10, u32 growth_max_q10)
{
	u32 growth = hybla_power_of_two_q16(rho_q10) >> 6;

	return most(least(growth, growth_max_q10), 2 * HYBLA_ONE_Q10) - HYBLA_ONE_Q10;
}

/*
 * Counts `acked` segments into the window.
 *
 * The loop has one branch, its end: a second one would double the verifier's work with each turn.
 */
LAW void hybla_grow(struct hybla_window *w, u32 acked)
{
	u64 cwnd = most(w->cwnd, 1);
	u64 fraction = w->fraction_q20;
	u64 rho_q10 = least(w->rho_q10, HYBLA_RHO_MAX_Q10);
	u64 step;
	u32 steps, i;

	acked = least(acked, HYBLA_ACKED_MAX);
	if (cwnd < w->ssthresh && acked) {
		u64 gain_q10 = most(w->gain_q10, 1);
		u64 segments = (((w->ssthresh - cwnd) << 10) + gain_q10 - 1) / gain_q10;

		if (segments <= acked) {
			cwnd = w->ssthresh;
			fraction = 0;
			acked -= (u32)segments;
		} else {
			fraction += (acked * gain_q10) << 10;
			cwnd += fraction >> 20;
			if (cwnd > w->ssthresh)
				cwnd = w->ssthresh;
			fraction &= HYBLA_ONE_Q20 - 1;
			acked = 0;
		}
	}
	steps = least(acked, HYBLA_STEPS_MAX);
	step = rho_q10 * rho_q10 * acked / most(steps, 1);
	for (i = 0; i < HYBLA_STEPS_MAX; i++) {
		if (i >= steps)
			break;
		fraction += step / cwnd;
		cwnd += fraction >> 20;
		fraction &= HYBLA_ONE_Q20 - 1;
	}
	/* A window above its bound already (the bound came later) is held, not cut. */
	if (cwnd > w->cwnd_max) {
		cwnd = most(w->cwnd_max, w->cwnd);
		fraction = 0;
	}
	w->cwnd = saturated(cwnd);
	w->fraction_q20 = (u32)fraction;
}

/* The window after a loss: Reno's half. */
LAW u32 hybla_after_loss(u32 cwnd)
{
	return most(cwnd >> 1, HYBLA_WINDOW_MIN);
}

/* Segments of `mss` bytes on their way at `rate` bytes per second over `rtt_us`, rounded up. */
LAW u32 hybla_bdp(u64 rate, u32 rtt_us, u32 mss)
{
	u64 bytes;

	/* 34 Tbit/s would not fit the product below; it is no rate either. */
	if (rate >= 1ULL << 32)
		rate = (1ULL << 32) - 1;
	bytes = rate * rtt_us / 1000000;
	mss = most(mss, 1);
	return saturated((bytes + mss - 1) / mss);
}

/*
 * Pacing in windows per round trip: twice in slow start; later as much over one as lets the window
 * grow by the law.
 */
LAW u32 hybla_pacing_q10(u32 cwnd, u32 ssthresh, u32 rho_q10)
{
	u32 growth_q10 = saturated((((u64)rho_q10 * rho_q10) >> 10) / most(cwnd, 1));

	if (cwnd < ssthresh)
		return 2 * HYBLA_ONE_Q10;
	return least(HYBLA_ONE_Q10 + HYBLA_ONE_Q10 / 5 + least(growth_q10, HYBLA_ONE_Q10),
		     2 * HYBLA_ONE_Q10);
}

/* Segments that a path carries in `rtt_us` which has delivered `delivered` in `interval_us`. */
LAW u32 hybla_carried(u32 delivered, u32 interval_us, u32 rtt_us)
{
	return saturated((u64)delivered * rtt_us / most(interval_us, 1));
}

LAW u32 hybla_carried_update(struct hybla_carried *c, u32 segments, u32 round)
{
	if (round - c->started_round >= HYBLA_CARRIED_ROUNDS / 2) {
		c->previous = c->current;
		c->current = 0;
		c->started_round = round;
	}
	c->current = most(c->current, segments);
	return most(c->current, c->previous);
}

/* The window when only what the path carries is kept: between half and all of it. */
LAW u32 hybla_kept(u32 cwnd, u32 carried)
{
	return most(least(cwnd, carried), hybla_after_loss(cwnd));
}

/*
 * The window of a flow whose share of the path is known, `bdp` segments per round trip: at least that
 * while the share is believed, and never more than `bound`.
 */
LAW u32 hybla_fit(u32 cwnd, u32 bdp, u32 bound, u32 believed)
{
	return least(believed ? most(cwnd, bdp) : cwnd, bound);
}

/*
 * The window of such a flow after more losses than a radio's: half, and since the window was taken
 * from a configured rate, no more than the path has been seen to carry (RFC 9959's safe retreat).
 */
LAW u32 hybla_retreat(u32 cwnd, u32 carried)
{
	u32 half = hybla_after_loss(cwnd);

	return carried ? most(least(half, carried), HYBLA_WINDOW_MIN) : half;
}

/* Whether `lost` among `segments` is no more than chance and the tolerance explain. */
LAW int hybla_tolerated(u32 lost, u32 segments, u32 tolerance_q16)
{
	return lost <= 1 + (((u64)segments * tolerance_q16) >> 16);
}

/* Whether samples whose smallest RTT is `smallest_us` show a queue over `base_us` (RFC 9406 §4.2). */
LAW int hybla_queue_seen(u32 base_us, u32 smallest_us)
{
	return smallest_us >= base_us && smallest_us - base_us >= most(least(base_us >> 3, 16000), 4000);
}

LAW void hybla_min_rtt_clear(struct hybla_min_rtt *m, u32 now_ms)
{
	m->current_us = HYBLA_RTT_NONE;
	m->previous_us = HYBLA_RTT_NONE;
	m->started_ms = now_ms;
}

/* Takes a sample; the smallest of the last half to whole window_ms. A window of 0 never forgets. */
LAW u32 hybla_min_rtt_update(struct hybla_min_rtt *m, u32 rtt_us, u32 now_ms, u32 window_ms)
{
	if (window_ms && now_ms - m->started_ms >= most(window_ms >> 1, 1)) {
		m->previous_us = m->current_us;
		m->current_us = HYBLA_RTT_NONE;
		m->started_ms = now_ms;
	}
	m->current_us = least(m->current_us, rtt_us);
	return least(m->current_us, m->previous_us);
}

#endif
