/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hybla as Linux computes it (net/ipv4/tcp_hybla.c, 6.12), integer for integer, with what differs
 * from the paper kept: one growth step per acknowledgement whatever it covers, rho from the smallest
 * smoothed RTT, the initial window set to rho, 2^rho cut at rho = 16.
 *
 * rho_3ls has 3 binary places, rho2_7ls 7, cents are 1/128 segments. The same in Rust is the module
 * `hybla_linux` of midhop-congestion.
 */
#ifndef MIDHOP_HYBLA_LINUX_H
#define MIDHOP_HYBLA_LINUX_H

#include "integers.h"

#define HYBLA_LINUX_WINDOW_MAX 65535U
#define HYBLA_LINUX_EXPONENT_MAX 16U

struct hybla_linux_rho {
	u32 rho_3ls;
	u32 rho;
	u32 rho2_7ls;
};

struct hybla_linux_window {
	u32 cwnd;
	u32 cwnd_cnt;
	u32 ssthresh;
	u32 cents;
};

/* 128 * 2^(eighths / 8), for 0 to 7: the eight values as the bytes of one word, as an array would
 * need a map of its own. */
LAW u32 hybla_linux_fraction(u32 eighths)
{
	return (u32)(0xead7c5b5a5988b80ULL >> (8 * (eighths & 7))) & 0xff;
}

/* `srtt_8us`: eight times the smoothed RTT in microseconds, as the kernel keeps it. */
LAW void hybla_linux_set_rho(struct hybla_linux_rho *r, u32 srtt_8us, u32 rtt0_us)
{
	r->rho_3ls = most(srtt_8us / most(rtt0_us, 1), 8);
	r->rho = r->rho_3ls >> 3;
	r->rho2_7ls = (r->rho_3ls * r->rho_3ls) << 1;
}

LAW u32 hybla_linux_slow_start_increment(const struct hybla_linux_rho *r)
{
	return (1U << least(r->rho, HYBLA_LINUX_EXPONENT_MAX)) * hybla_linux_fraction(r->rho_3ls) -
	       128;
}

LAW u32 hybla_linux_avoidance_increment(const struct hybla_linux_rho *r, u32 cwnd)
{
	return r->rho2_7ls / most(cwnd, 1);
}

/* One acknowledgement in the open state. */
LAW void hybla_linux_grow(struct hybla_linux_window *w, const struct hybla_linux_rho *r)
{
	int slow_start = w->cwnd < w->ssthresh;
	u32 increment, odd;

	if (slow_start) {
		increment = hybla_linux_slow_start_increment(r);
	} else {
		increment = hybla_linux_avoidance_increment(r, w->cwnd);
		if (increment < 128)
			w->cwnd_cnt++;
	}
	odd = increment % 128;
	w->cwnd += increment >> 7;
	w->cents += odd;
	/* cents and odd are below 128 each, so this carries at most once. */
	if (w->cents >= 128) {
		w->cwnd++;
		w->cents -= 128;
		w->cwnd_cnt = 0;
	}
	/* Where the integer division gave nothing: Reno's one per window. */
	if (increment == 0 && odd == 0 && w->cwnd_cnt >= w->cwnd) {
		w->cwnd++;
		w->cwnd_cnt = 0;
	}
	if (slow_start)
		w->cwnd = least(w->cwnd, w->ssthresh);
	w->cwnd = least(w->cwnd, HYBLA_LINUX_WINDOW_MAX);
}

#endif
