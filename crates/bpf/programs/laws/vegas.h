/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Vegas: keeps a few segments in the bottleneck's queue, seen by the delay they add.
 *
 * Source: L. Brakmo, L. Peterson, "TCP Vegas: end to end congestion avoidance on a global Internet",
 * IEEE JSAC 13(8), 1995, decided once per round trip as in Linux (net/ipv4/tcp_vegas.c). The same in
 * Rust is the module `vegas` of midhop-congestion.
 */
#ifndef MIDHOP_VEGAS_H
#define MIDHOP_VEGAS_H

#include "integers.h"

#define VEGAS_WINDOW_MIN 2U
#define VEGAS_RTT_NONE 0x7fffffffU
/* Fewer RTT samples in a round say nothing (delayed acknowledgements); Reno decides then. */
#define VEGAS_SAMPLES_MIN 3U

struct vegas_thresholds {
	u32 alpha;
	u32 beta;
	u32 gamma;
};

struct vegas_window {
	u32 cwnd;
	u32 ssthresh;
	/* Set when the round ended in slow start below gamma: growth is slow start's. */
	u32 slow_start;
};

/* Segments of ours that wait in a queue. */
LAW u32 vegas_queued(u32 cwnd, u32 base_us, u32 rtt_us)
{
	return saturated((u64)cwnd * (rtt_us - base_us) / most(base_us, 1));
}

/* The decision at the end of a round with enough samples; `rtt_us`, its smallest, is >= base_us. */
LAW void vegas_decide(struct vegas_window *w, const struct vegas_thresholds *t, u32 base_us,
		      u32 rtt_us)
{
	u32 queued = vegas_queued(w->cwnd, base_us, rtt_us);
	int slow_start = w->cwnd < w->ssthresh;

	w->slow_start = 0;
	if (slow_start && queued > t->gamma) {
		u32 target = saturated((u64)w->cwnd * base_us / most(rtt_us, 1));

		w->cwnd = least(w->cwnd, target + 1);
		w->ssthresh = least(w->ssthresh, w->cwnd);
	} else if (slow_start) {
		w->slow_start = 1;
	} else if (queued > t->beta) {
		w->cwnd--;
		w->ssthresh = least(w->ssthresh, w->cwnd);
	} else if (queued < t->alpha) {
		w->cwnd++;
	}
	w->cwnd = most(w->cwnd, VEGAS_WINDOW_MIN);
}

/* Outside recovery the threshold follows the window at three quarters. */
LAW u32 vegas_threshold(u32 cwnd, u32 ssthresh)
{
	return most(ssthresh, (cwnd >> 1) + (cwnd >> 2));
}

#endif
