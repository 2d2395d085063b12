// SPDX-License-Identifier: GPL-2.0-only
/* midhop_hybla: the law of laws/hybla.h as a congestion control of the kernel. */
#include "kernel.h"
#include "laws/hybla.h"

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
};

SEC(".rodata.settings") const volatile struct hybla_parameters settings = {
	.rtt0_us = 25000,
	.growth_max_q10 = 4 * HYBLA_ONE_Q10,
	.initial_window = 10,
	.window_max = 65535,
	.window_bdp_max_q10 = 2 * HYBLA_ONE_Q10,
	.min_rtt_window_ms = 60000,
	.exit_on_delay = 1,
};

struct flow {
	struct hybla_min_rtt min_rtt;
	u32 rtt_us;
	u32 rho_q10;
	u32 gain_q10;
	u32 fraction_q20;
	u32 window_max;
	u32 round_end;
	u32 round_min_us;
	u32 round_samples;
};

LAW u32 now_ms(const struct tcp_sock *tp)
{
	return (u32)(tp->tcp_mstamp / 1000);
}

/* What a change of the path's RTT changes: rho, and with a known rate the bounds. */
LAW void take_rtt(struct sock *sk, struct flow *flow, u32 rtt_us)
{
	struct tcp_sock *tp = tcp_of(sk);
	u64 rate = sk->sk_max_pacing_rate;

	flow->rtt_us = rtt_us;
	flow->rho_q10 = hybla_rho_q10(rtt_us, settings.rtt0_us);
	flow->gain_q10 = hybla_gain_q10(flow->rho_q10, settings.growth_max_q10);
	flow->window_max = settings.window_max;
	if (rate == RATE_UNLIMITED || rate == 0xffffffffUL)
		rate = settings.rate;
	if (rate) {
		u32 bdp = most(hybla_bdp(rate, rtt_us, tp->mss_cache), settings.initial_window);
		u64 bound = ((u64)bdp * settings.window_bdp_max_q10) >> 10;

		flow->window_max = most(least(saturated(bound), settings.window_max), bdp);
		/* Only the first slow start: later thresholds come from losses. */
		if (tp->snd_ssthresh >= SSTHRESH_INFINITE)
			tp->snd_ssthresh = bdp;
	}
}

void MEMBER(hybla_init)(u64 *ctx)
{
	struct sock *sk = sock_of(ctx);
	struct tcp_sock *tp = tcp_of(sk);
	struct flow *flow = state_of(sk, struct flow);
	u32 rtt_us = tp->srtt_us >> 3;

	hybla_min_rtt_clear(&flow->min_rtt, now_ms(tp));
	flow->fraction_q20 = 0;
	flow->round_end = tp->snd_nxt;
	flow->round_min_us = HYBLA_RTT_NONE;
	flow->round_samples = 0;
	flow->rho_q10 = HYBLA_ONE_Q10;
	flow->gain_q10 = HYBLA_ONE_Q10;
	flow->rtt_us = HYBLA_RTT_NONE;
	flow->window_max = settings.window_max;
	if (rtt_us)
		take_rtt(sk, flow,
			 hybla_min_rtt_update(&flow->min_rtt, rtt_us, now_ms(tp),
					      settings.min_rtt_window_ms));
	/* The paper starts with rho segments. A live connection keeps what it has reached. */
	tp->snd_cwnd = most(tp->snd_cwnd,
			    least(most(settings.initial_window, flow->rho_q10 >> 10),
				  flow->window_max));
	if (sk->sk_pacing_status == PACING_NONE)
		sk->sk_pacing_status = PACING_NEEDED;
	if (rtt_us) {
		u64 rate = 2ULL * tp->snd_cwnd * tp->mss_cache * 1000000 / rtt_us;

		if (rate < sk->sk_pacing_rate)
			sk->sk_pacing_rate = rate;
	}
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

	if (!settings.exit_on_delay || !in_slow_start(tp))
		return;
	if (sequence_after(tp->snd_una, flow->round_end)) {
		flow->round_end = tp->snd_nxt;
		flow->round_min_us = HYBLA_RTT_NONE;
		flow->round_samples = 0;
	}
	flow->round_min_us = least(flow->round_min_us, (u32)sample->rtt_us);
	flow->round_samples++;
	if (flow->round_samples >= HYBLA_ROUND_SAMPLES_MIN &&
	    hybla_queue_seen(flow->rtt_us, flow->round_min_us))
		tp->snd_ssthresh = tp->snd_cwnd;
}

void MEMBER(hybla_cong_avoid)(u64 *ctx)
{
	struct sock *sk = sock_of(ctx);
	struct tcp_sock *tp = tcp_of(sk);
	struct flow *flow = state_of(sk, struct flow);
	struct hybla_window window;

	if (!cwnd_limited(tp))
		return;
	window.cwnd = tp->snd_cwnd;
	window.ssthresh = tp->snd_ssthresh;
	window.cwnd_max = flow->window_max;
	window.fraction_q20 = flow->fraction_q20;
	window.rho_q10 = flow->rho_q10;
	window.gain_q10 = flow->gain_q10;
	hybla_grow(&window, (u32)ctx[2]);
	tp->snd_cwnd = window.cwnd;
	flow->fraction_q20 = window.fraction_q20;
}

u32 MEMBER(hybla_ssthresh)(u64 *ctx)
{
	return hybla_after_loss(tcp_of(sock_of(ctx))->snd_cwnd);
}

void MEMBER(hybla_cwnd_event)(u64 *ctx)
{
	struct sock *sk = sock_of(ctx);
	struct flow *flow = state_of(sk, struct flow);

	if ((u32)ctx[1] != EVENT_LOSS)
		return;
	/* After a timeout the path may be another one: the next samples decide afresh. */
	hybla_min_rtt_clear(&flow->min_rtt, now_ms(tcp_of(sk)));
	flow->fraction_q20 = 0;
}

u32 MEMBER(hybla_undo_cwnd)(u64 *ctx)
{
	return tcp_reno_undo_cwnd(sock_of(ctx));
}

/* The send buffer must hold what the next round may ask for, and the round in flight. */
u32 MEMBER(hybla_sndbuf_expand)(u64 *ctx)
{
	return 1 + ((settings.growth_max_q10 + HYBLA_ONE_Q10 - 1) >> 10);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops midhop_hybla = {
	.init = (void *)hybla_init,
	.ssthresh = (void *)hybla_ssthresh,
	.cong_avoid = (void *)hybla_cong_avoid,
	.pkts_acked = (void *)hybla_pkts_acked,
	.cwnd_event = (void *)hybla_cwnd_event,
	.undo_cwnd = (void *)hybla_undo_cwnd,
	.sndbuf_expand = (void *)hybla_sndbuf_expand,
	.name = "midhop_hybla",
};

char LICENSE[] SEC("license") = "GPL";
