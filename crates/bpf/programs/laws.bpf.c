// SPDX-License-Identifier: GPL-2.0-only
/*
 * Every law as a program of its own, so that test vectors run through the verifier, the JIT and the
 * same header that the congestion controls include. Never loaded by the daemon.
 */
#include "kernel.h"
#include "laws/hybla.h"
#include "laws/hybla_linux.h"
#include "laws/prr.h"
#include "laws/vegas.h"
#include "laws/westwood.h"

struct vector {
	u32 in[8];
	u32 out[8];
};

#define LAW_PROGRAM(law) SEC("syscall") int law_##law(struct vector *v)
#define IN(n) (v->in[n])
#define OUT(n) (v->out[n])

LAW_PROGRAM(hybla_rho)
{
	OUT(0) = hybla_rho_q10(IN(0), IN(1));
	return 1;
}

LAW_PROGRAM(hybla_power)
{
	OUT(0) = hybla_power_of_two_q16(IN(0));
	return 1;
}

LAW_PROGRAM(hybla_gain)
{
	OUT(0) = hybla_gain_q10(IN(0), IN(1));
	return 1;
}

LAW_PROGRAM(hybla_grow)
{
	struct hybla_window w = {
		.cwnd = IN(0),
		.ssthresh = IN(1),
		.cwnd_max = IN(2),
		.fraction_q20 = IN(3),
		.rho_q10 = IN(4),
		.gain_q10 = IN(5),
	};

	hybla_grow(&w, IN(6));
	OUT(0) = w.cwnd;
	OUT(1) = w.fraction_q20;
	return 2;
}

LAW_PROGRAM(hybla_after_loss)
{
	OUT(0) = hybla_after_loss(IN(0));
	return 1;
}

LAW_PROGRAM(hybla_bdp)
{
	OUT(0) = hybla_bdp(IN(0), IN(1), IN(2));
	return 1;
}

LAW_PROGRAM(hybla_queue_seen)
{
	OUT(0) = hybla_queue_seen(IN(0), IN(1));
	return 1;
}

LAW_PROGRAM(hybla_min_rtt)
{
	struct hybla_min_rtt m = { .current_us = IN(0), .previous_us = IN(1), .started_ms = IN(2) };

	OUT(0) = hybla_min_rtt_update(&m, IN(3), IN(4), IN(5));
	OUT(1) = m.current_us;
	OUT(2) = m.previous_us;
	OUT(3) = m.started_ms;
	return 4;
}

LAW_PROGRAM(hybla_carried)
{
	OUT(0) = hybla_carried(IN(0), IN(1), IN(2));
	return 1;
}

LAW_PROGRAM(hybla_carried_update)
{
	struct hybla_carried c = { .current = IN(0), .previous = IN(1), .started_round = IN(2) };

	OUT(0) = hybla_carried_update(&c, IN(3), IN(4));
	OUT(1) = c.current;
	OUT(2) = c.previous;
	OUT(3) = c.started_round;
	return 4;
}

LAW_PROGRAM(hybla_kept)
{
	OUT(0) = hybla_kept(IN(0), IN(1));
	return 1;
}

LAW_PROGRAM(hybla_fit)
{
	OUT(0) = hybla_fit(IN(0), IN(1), IN(2), IN(3));
	return 1;
}

LAW_PROGRAM(hybla_retreat)
{
	OUT(0) = hybla_retreat(IN(0), IN(1));
	return 1;
}

LAW_PROGRAM(hybla_tolerated)
{
	OUT(0) = hybla_tolerated(IN(0), IN(1), IN(2));
	return 1;
}

LAW_PROGRAM(hybla_pacing)
{
	OUT(0) = hybla_pacing_q10(IN(0), IN(1), IN(2));
	return 1;
}

LAW_PROGRAM(prr_window)
{
	struct prr p = { .from = IN(0), .to = IN(1), .delivered = IN(2), .sent = IN(3) };

	OUT(0) = prr_window(&p, IN(4), IN(5), IN(6) != 0);
	return 1;
}

LAW_PROGRAM(hybla_linux_rho)
{
	struct hybla_linux_rho r;

	hybla_linux_set_rho(&r, IN(0), IN(1));
	OUT(0) = r.rho_3ls;
	OUT(1) = r.rho;
	OUT(2) = r.rho2_7ls;
	return 3;
}

LAW_PROGRAM(hybla_linux_slow_start)
{
	struct hybla_linux_rho r;

	hybla_linux_set_rho(&r, IN(0), IN(1));
	OUT(0) = hybla_linux_slow_start_increment(&r);
	return 1;
}

LAW_PROGRAM(hybla_linux_avoidance)
{
	struct hybla_linux_rho r;

	hybla_linux_set_rho(&r, IN(0), IN(1));
	OUT(0) = hybla_linux_avoidance_increment(&r, IN(2));
	return 1;
}

LAW_PROGRAM(hybla_linux_grow)
{
	struct hybla_linux_window w = {
		.cwnd = IN(2),
		.cwnd_cnt = IN(3),
		.ssthresh = IN(4),
		.cents = IN(5),
	};
	struct hybla_linux_rho r;

	hybla_linux_set_rho(&r, IN(0), IN(1));
	hybla_linux_grow(&w, &r);
	OUT(0) = w.cwnd;
	OUT(1) = w.cwnd_cnt;
	OUT(2) = w.cents;
	return 3;
}

LAW_PROGRAM(vegas_queued)
{
	OUT(0) = vegas_queued(IN(0), IN(1), IN(2));
	return 1;
}

LAW_PROGRAM(vegas_decide)
{
	struct vegas_window w = { .cwnd = IN(0), .ssthresh = IN(1) };
	struct vegas_thresholds t = { .alpha = IN(2), .beta = IN(3), .gamma = IN(4) };

	vegas_decide(&w, &t, IN(5), IN(6));
	OUT(0) = w.cwnd;
	OUT(1) = w.ssthresh;
	OUT(2) = w.slow_start;
	return 3;
}

LAW_PROGRAM(vegas_threshold)
{
	OUT(0) = vegas_threshold(IN(0), IN(1));
	return 1;
}

LAW_PROGRAM(westwood_filter)
{
	struct westwood_filter f = { .once = IN(0), .twice = IN(1) };

	westwood_filter_update(&f, IN(2));
	OUT(0) = f.once;
	OUT(1) = f.twice;
	return 2;
}

LAW_PROGRAM(westwood_sample_due)
{
	OUT(0) = westwood_sample_due(IN(0), IN(1));
	return 1;
}

LAW_PROGRAM(westwood_delivered)
{
	struct westwood_count c = { .una = IN(0), .accounted = IN(1) };

	OUT(0) = westwood_delivered(&c, IN(2), IN(3));
	OUT(1) = c.una;
	OUT(2) = c.accounted;
	return 3;
}

LAW_PROGRAM(westwood_window)
{
	struct westwood_filter f = { .twice = IN(0) };

	OUT(0) = westwood_window(&f, IN(1), IN(2));
	return 1;
}

char LICENSE[] SEC("license") = "GPL";
