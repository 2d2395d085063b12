// SPDX-License-Identifier: GPL-2.0-only
/*
 * The law of laws/hybla.h as a congestion control of the kernel: with the settings below as its paper has it, with
 * others the bounded and tolerant one that configurations call hybla-plus.
 */
#include "kernel.h"
#include "laws/hybla.h"
#include "laws/prr.h"

/* Written by the loader before the program is loaded; `Parameters` in Rust has the same layout. */
struct hybla_parameters {
	/* Bytes per second that the leg carries, 0 when unknown; a socket's own
	 * SO_MAX_PACING_RATE goes before it. */
	u64 rate;
	u32 rtt0_us;
	/* How many times the window may grow per round trip in slow start. */
	u32 growth_max_q10;
	u32 initial_window;
	u32 window_max;
	/* With a known rate: window at most this many bandwidth-delay products. */
	u32 window_bdp_max_q10;
	u32 min_rtt_window_ms;
	/* Whether a queue seen by its delay ends slow start. */
	u32 exit_on_delay;
	/* The share of segments that may be lost without the window being halved. */
	u32 loss_tolerance_q16;
	/* Whether a socket's own SO_MAX_PACING_RATE is its share of the leg: what it starts at. */
	u32 start_at_rate;
	/* Whether the kernel is asked to pace. */
	u32 paces;
};

SEC(".rodata.settings") const volatile struct hybla_parameters settings = {
	.rtt0_us = 25000,
	.growth_max_q10 = 0xffffffffU,
	.initial_window = 10,
	.window_max = 65535,
	.window_bdp_max_q10 = 3 * HYBLA_ONE_Q10 / 2,
	.min_rtt_window_ms = 60000,
};

struct flow {
	struct hybla_min_rtt min_rtt;
	struct hybla_carried carried;
	u32 carried_max;
	u32 rtt_us;
	u32 rho_q10;
	u32 gain_q10;
	u32 fraction_q20;
	u32 window_max;
	u32 round;
	u32 round_end;
	u32 delivered;
	/* RTT samples in a row, and the smallest of them. */
	u32 samples;
	u32 samples_min_us;
	/* When the recovery began: the window, and the kernel's counts of lost and delivered. */
	u32 loss_window;
	u32 loss_lost;
	u32 loss_delivered;
	/* The last cumulative acknowledgement and count of losses. */
	u32 una;
	u32 lost;
	u32 recovery;
	/* The socket's share in bytes per second and its segments per round trip; 0: not known. */
	u32 share;
	u32 bdp;
	/* Whether the path has been seen to carry less. */
	u32 doubted;
};

/* What a loss has come to, by `flow.recovery`. */
enum {
	NO_RECOVERY,
	/* So far no more is lost than the path may lose: the window is kept, and grows. */
	TOLERATED,
	/* The window is on its way to half. */
	REDUCING,
};

LAW u32 now_ms(const struct tcp_sock *tp)
{
	return (u32)(tp->tcp_mstamp / 1000);
}

/* What a socket may send at most, in bytes per second; 0: no bound. */
LAW u32 own_rate(const struct sock *sk)
{
	u64 rate = sk->sk_max_pacing_rate;

	return rate == RATE_UNLIMITED || rate >= 0xffffffffUL ? 0 : (u32)rate;
}

/* What a change of the path's RTT or of the socket's share changes: rho, and with a known rate the bounds. */
LAW void take_rtt(struct sock *sk, struct flow *flow, u32 rtt_us)
{
	struct tcp_sock *tp = tcp_of(sk);
	u64 rate = own_rate(sk);

	flow->rtt_us = rtt_us;
	flow->rho_q10 = hybla_rho_q10(rtt_us, settings.rtt0_us);
	flow->gain_q10 = hybla_gain_q10(flow->rho_q10, settings.growth_max_q10);
	flow->window_max = settings.window_max;
	flow->share = (u32)rate;
	flow->bdp = 0;
	if (!rate)
		rate = settings.rate;
	if (rate) {
		u32 bdp = most(hybla_bdp(rate, rtt_us, tp->mss_cache), settings.initial_window);
		u64 bound = ((u64)bdp * settings.window_bdp_max_q10) >> 10;

		flow->bdp = bdp;
		flow->window_max = most(least(saturated(bound), settings.window_max), bdp);
		/* Only the first slow start: later thresholds come from losses. */
		if (tp->snd_ssthresh >= SSTHRESH_INFINITE)
			tp->snd_ssthresh = bdp;
	}
}

/* Leaves the rate alone while no RTT is known. */
LAW void pace(struct sock *sk, const struct flow *flow)
{
	struct tcp_sock *tp = tcp_of(sk);
	u32 srtt_us = tp->srtt_us >> 3;
	u64 bytes = (u64)most(tp->snd_cwnd, tp->packets_out) * tp->mss_cache;
	u64 rate;

	if (!settings.paces || srtt_us == 0)
		return;
	bytes = bytes * hybla_pacing_q10(tp->snd_cwnd, tp->snd_ssthresh, flow->rho_q10) >> 10;
	rate = bytes * 1000000 / srtt_us;
	sk->sk_pacing_rate = rate < sk->sk_max_pacing_rate ? rate : sk->sk_max_pacing_rate;
}

/* Whether the window follows the share: it is known, and the path has not been seen to carry less. */
LAW int guided(const struct flow *flow)
{
	return settings.start_at_rate && flow->share && flow->bdp && !flow->doubted;
}

/* Takes the share as it is now: a window of its size at once, which leaves paced by it. */
LAW void guide(struct sock *sk, struct flow *flow)
{
	struct tcp_sock *tp = tcp_of(sk);

	if (flow->rtt_us == HYBLA_RTT_NONE)
		return;
	take_rtt(sk, flow, flow->rtt_us);
	if (!flow->share)
		return;
	tp->snd_cwnd = hybla_fit(tp->snd_cwnd, flow->bdp, flow->window_max, !flow->doubted);
	if (!flow->doubted)
		tp->snd_ssthresh = tp->snd_cwnd;
	pace(sk, flow);
}

void MEMBER(hybla_init)(u64 *ctx)
{
	struct sock *sk = sock_of(ctx);
	struct tcp_sock *tp = tcp_of(sk);
	struct flow *flow = state_of(sk, struct flow);
	u32 rtt_us = tp->srtt_us >> 3;

	hybla_min_rtt_clear(&flow->min_rtt, now_ms(tp));
	flow->fraction_q20 = 0;
	flow->carried.current = 0;
	flow->carried.previous = 0;
	flow->carried.started_round = 0;
	flow->carried_max = 0;
	flow->round = 0;
	flow->round_end = tp->snd_nxt;
	flow->delivered = tp->delivered;
	flow->samples = 0;
	flow->samples_min_us = HYBLA_RTT_NONE;
	flow->una = tp->snd_una;
	flow->lost = tp->lost;
	flow->recovery = NO_RECOVERY;
	flow->rho_q10 = HYBLA_ONE_Q10;
	flow->gain_q10 = HYBLA_ONE_Q10;
	flow->rtt_us = HYBLA_RTT_NONE;
	flow->window_max = settings.window_max;
	flow->share = 0;
	flow->bdp = 0;
	flow->doubted = 0;
	if (rtt_us)
		take_rtt(sk, flow,
			 hybla_min_rtt_update(&flow->min_rtt, rtt_us, now_ms(tp),
					      settings.min_rtt_window_ms));
	/* The paper starts with rho segments. A live connection keeps what it has reached. */
	tp->snd_cwnd = most(tp->snd_cwnd,
			    least(most(settings.initial_window, flow->rho_q10 >> 10),
				  flow->window_max));
	if (settings.paces && sk->sk_pacing_status == PACING_NONE)
		sk->sk_pacing_status = PACING_NEEDED;
	pace(sk, flow);
}

/* Counts `acked` segments into a window, which is the congestion window or, in recovery, its goal. */
LAW u32 grown(struct flow *flow, u32 cwnd, u32 ssthresh, u32 acked)
{
	struct hybla_window window;

	window.cwnd = cwnd;
	window.ssthresh = ssthresh;
	window.cwnd_max = flow->window_max;
	window.fraction_q20 = flow->fraction_q20;
	window.rho_q10 = flow->rho_q10;
	window.gain_q10 = flow->gain_q10;
	hybla_grow(&window, acked);
	flow->fraction_q20 = window.fraction_q20;
	return window.cwnd;
}

/* Where more losses than a radio's leave the window. */
LAW u32 fallen(struct flow *flow)
{
	u32 window = guided(flow) ? hybla_retreat(flow->loss_window, flow->carried_max)
				  : hybla_after_loss(flow->loss_window);

	flow->doubted = 1;
	return window;
}

/*
 * A recovery whose losses are tolerable so far: what arrives counts as it would without them, because
 * on a path that loses one segment in a hundred there is hardly a round trip without a recovery.
 */
LAW void tolerate(struct tcp_sock *tp, struct flow *flow, u32 acked)
{
	u32 judged = flow->loss_window + (tp->delivered - flow->loss_delivered);

	if (!hybla_tolerated(tp->lost - flow->loss_lost, judged, settings.loss_tolerance_q16)) {
		flow->recovery = REDUCING;
		tp->snd_ssthresh = fallen(flow);
		return;
	}
	if (acked && tcp_sock_is_cwnd_limited(tp))
		tp->snd_ssthresh = grown(flow, tp->snd_ssthresh, 0, acked);
	tp->snd_cwnd = tp->snd_ssthresh;
}

LAW void reduce(struct tcp_sock *tp, struct flow *flow, u32 acked)
{
	int safe = tp->snd_una != flow->una && tp->lost == flow->lost;
	struct prr prr;

	if (!acked && tp->lost == flow->lost)
		return;
	prr.from = flow->loss_window;
	prr.to = tp->snd_ssthresh;
	prr.delivered = tp->delivered - flow->loss_delivered;
	prr.sent = tp->prr_out;
	tp->snd_cwnd = most(prr_window(&prr, acked, in_flight(tp), safe), 1);
}

/* The kernel calls this after every acknowledgement, its own window control being off. */
void MEMBER(hybla_cong_control)(u64 *ctx)
{
	struct sock *sk = sock_of(ctx);
	struct tcp_sock *tp = tcp_of(sk);
	struct flow *flow = state_of(sk, struct flow);
	u32 state = (u32)inet_connection_sock_icsk_ca_state(&tp->inet_conn);
	u32 acked = tp->delivered - flow->delivered;

	flow->delivered = tp->delivered;
	if (sequence_after(tp->snd_una, flow->round_end)) {
		flow->round_end = tp->snd_nxt;
		flow->round++;
	}
	if (tp->rate_interval_us && flow->rtt_us != HYBLA_RTT_NONE) {
		struct hybla_carried carried = flow->carried;

		flow->carried_max = hybla_carried_update(
			&carried,
			hybla_carried(tp->rate_delivered, tp->rate_interval_us, flow->rtt_us),
			flow->round);
		flow->carried = carried;
	}
	if (state == CA_RECOVERY || state == CA_CWR) {
		if (flow->recovery == TOLERATED)
			tolerate(tp, flow, acked);
		if (flow->recovery == REDUCING)
			reduce(tp, flow, acked);
	} else {
		if (flow->recovery != NO_RECOVERY) {
			tp->snd_cwnd = least(tp->snd_ssthresh,
					     most(tp->snd_cwnd, flow->loss_window));
			flow->recovery = NO_RECOVERY;
		}
		if (acked && cwnd_limited(tp))
			tp->snd_cwnd = grown(flow, tp->snd_cwnd, tp->snd_ssthresh, acked);
		/* A window that has grown back has shown that the path carries it. */
		if (flow->doubted && tp->snd_cwnd >= flow->bdp)
			flow->doubted = 0;
		if (settings.start_at_rate && flow->share != own_rate(sk))
			guide(sk, flow);
	}
	flow->una = tp->snd_una;
	flow->lost = tp->lost;
	pace(sk, flow);
}

/* Slow start ends where a queue begins, at what the path has been seen to carry. */
LAW void look_for_a_queue(struct tcp_sock *tp, struct flow *flow, u32 rtt_us)
{
	flow->samples_min_us = least(flow->samples_min_us, rtt_us);
	flow->samples++;
	if (flow->samples < HYBLA_QUEUE_SAMPLES)
		return;
	if (hybla_queue_seen(flow->rtt_us, flow->samples_min_us)) {
		tp->snd_cwnd = hybla_kept(tp->snd_cwnd, flow->carried_max);
		tp->snd_ssthresh = tp->snd_cwnd;
	}
	flow->samples = 0;
	flow->samples_min_us = HYBLA_RTT_NONE;
}

void MEMBER(hybla_pkts_acked)(u64 *ctx)
{
	struct sock *sk = sock_of(ctx);
	const struct ack_sample *sample = (const struct ack_sample *)ctx[1];
	struct tcp_sock *tp = tcp_of(sk);
	struct flow *flow = state_of(sk, struct flow);
	u32 smallest_us;

	if (sample->rtt_us <= 0)
		return;
	smallest_us = hybla_min_rtt_update(&flow->min_rtt, (u32)sample->rtt_us, now_ms(tp),
					   settings.min_rtt_window_ms);
	if (smallest_us != flow->rtt_us)
		take_rtt(sk, flow, smallest_us);
	if (settings.exit_on_delay && in_slow_start(tp) &&
	    inet_connection_sock_icsk_ca_state(&tp->inet_conn) < CA_CWR)
		look_for_a_queue(tp, flow, (u32)sample->rtt_us);
}

/* A recovery begins; the kernel asks where it is to end. */
u32 MEMBER(hybla_ssthresh)(u64 *ctx)
{
	struct tcp_sock *tp = tcp_of(sock_of(ctx));
	struct flow *flow = state_of(sock_of(ctx), struct flow);

	flow->fraction_q20 = 0;
	flow->loss_window = tp->snd_cwnd;
	flow->loss_lost = tp->lost - tp->lost_out;
	flow->loss_delivered = flow->delivered;
	if (settings.loss_tolerance_q16) {
		flow->recovery = TOLERATED;
		if (guided(flow))
			return hybla_fit(hybla_kept(tp->snd_cwnd, flow->carried_max), flow->bdp,
					 flow->window_max, 1);
		return hybla_kept(tp->snd_cwnd, flow->carried_max);
	}
	flow->recovery = REDUCING;
	return fallen(flow);
}

/* Marked packets are no radio's doing: half. */
void MEMBER(hybla_set_state)(u64 *ctx)
{
	struct flow *flow = state_of(sock_of(ctx), struct flow);

	if ((u8)ctx[1] != CA_CWR)
		return;
	flow->recovery = REDUCING;
	tcp_of(sock_of(ctx))->snd_ssthresh = fallen(flow);
}

/*
 * The first segment leaves after nothing was in flight: the flow starts, or starts again. Or the timer
 * has fired, and the kernel has asked for the threshold as for any loss.
 */
void MEMBER(hybla_cwnd_event)(u64 *ctx)
{
	struct sock *sk = sock_of(ctx);
	struct tcp_sock *tp = tcp_of(sk);
	struct flow *flow = state_of(sk, struct flow);
	u32 event = (u32)ctx[1];

	if (event == EVENT_TX_START && settings.start_at_rate &&
	    inet_connection_sock_icsk_ca_state(&tp->inet_conn) < CA_CWR)
		guide(sk, flow);
	if (event != EVENT_LOSS)
		return;
	flow->recovery = NO_RECOVERY;
	tp->snd_ssthresh = fallen(flow);
	/* The path may be another one now: the next samples decide afresh. */
	hybla_min_rtt_clear(&flow->min_rtt, now_ms(tp));
}

u32 MEMBER(hybla_undo_cwnd)(u64 *ctx)
{
	struct tcp_sock *tp = tcp_of(sock_of(ctx));
	struct flow *flow = state_of(sock_of(ctx), struct flow);

	flow->recovery = NO_RECOVERY;
	return most(tp->snd_cwnd, flow->loss_window);
}

/* Windows of a round and the next for which room is made at most. */
#define SNDBUF_ROUNDS_MAX_Q10 (4 * HYBLA_ONE_Q10)

/* The send buffer must hold what the next round may ask for, and the round in flight. */
u32 MEMBER(hybla_sndbuf_expand)(u64 *ctx)
{
	return 1 + ((least(settings.growth_max_q10, SNDBUF_ROUNDS_MAX_Q10) + HYBLA_ONE_Q10 - 1) >> 10);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops midhop_hybla = {
	.init = (void *)hybla_init,
	.ssthresh = (void *)hybla_ssthresh,
	.cong_control = (void *)hybla_cong_control,
	.set_state = (void *)hybla_set_state,
	.pkts_acked = (void *)hybla_pkts_acked,
	.cwnd_event = (void *)hybla_cwnd_event,
	.undo_cwnd = (void *)hybla_undo_cwnd,
	.sndbuf_expand = (void *)hybla_sndbuf_expand,
	.name = "midhop_hybla04",
};

char LICENSE[] SEC("license") = "GPL";
