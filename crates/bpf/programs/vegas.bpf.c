// SPDX-License-Identifier: GPL-2.0-only
/* midhop_vegas: the law of laws/vegas.h as a congestion control of the kernel. */
#include "kernel.h"
#include "laws/vegas.h"

/* Written by the loader before the program is loaded; `Parameters` in Rust has the same layout. */
SEC(".rodata.settings") const volatile struct vegas_thresholds settings = {
	.alpha = 2,
	.beta = 4,
	.gamma = 1,
};

struct flow {
	u32 active;
	u32 round_end;
	u32 samples;
	u32 rtt_min_us;
	u32 base_us;
};

/* A new round of measuring, as when the connection begins or has recovered. */
LAW void begin(const struct tcp_sock *tp, struct flow *flow)
{
	flow->active = 1;
	flow->round_end = tp->snd_nxt;
	flow->samples = 0;
	flow->rtt_min_us = VEGAS_RTT_NONE;
}

void MEMBER(vegas_init)(u64 *ctx)
{
	struct flow *flow = state_of(sock_of(ctx), struct flow);

	flow->base_us = VEGAS_RTT_NONE;
	begin(tcp_of(sock_of(ctx)), flow);
}

void MEMBER(vegas_pkts_acked)(u64 *ctx)
{
	const struct ack_sample *acked = (const struct ack_sample *)ctx[1];
	struct flow *flow = state_of(sock_of(ctx), struct flow);
	u32 rtt_us;

	if (acked->rtt_us < 0)
		return;
	/* Never zero, as it divides. */
	rtt_us = (u32)acked->rtt_us + 1;
	flow->base_us = least(flow->base_us, rtt_us);
	flow->rtt_min_us = least(flow->rtt_min_us, rtt_us);
	flow->samples++;
}

void MEMBER(vegas_set_state)(u64 *ctx)
{
	struct flow *flow = state_of(sock_of(ctx), struct flow);

	if ((u8)ctx[1] == CA_OPEN)
		begin(tcp_of(sock_of(ctx)), flow);
	else
		flow->active = 0;
}

/* After idling the path may have changed, so what was the smallest RTT is forgotten. */
void MEMBER(vegas_cwnd_event)(u64 *ctx)
{
	struct flow *flow = state_of(sock_of(ctx), struct flow);
	u32 event = (u32)ctx[1];

	if (event != EVENT_CWND_RESTART && event != EVENT_TX_START)
		return;
	flow->base_us = VEGAS_RTT_NONE;
	begin(tcp_of(sock_of(ctx)), flow);
}

void MEMBER(vegas_cong_avoid)(u64 *ctx)
{
	struct sock *sk = sock_of(ctx);
	struct tcp_sock *tp = tcp_of(sk);
	struct flow *flow = state_of(sk, struct flow);
	u32 ack = (u32)ctx[1];
	u32 acked = (u32)ctx[2];

	if (!flow->active) {
		tcp_reno_cong_avoid(sk, ack, acked);
		return;
	}
	if (!sequence_after(ack, flow->round_end)) {
		if (in_slow_start(tp))
			tcp_slow_start(tp, acked);
		return;
	}
	flow->round_end = tp->snd_nxt;
	if (flow->samples < VEGAS_SAMPLES_MIN) {
		tcp_reno_cong_avoid(sk, ack, acked);
	} else {
		struct vegas_thresholds thresholds;
		struct vegas_window window;

		thresholds.alpha = settings.alpha;
		thresholds.beta = settings.beta;
		thresholds.gamma = settings.gamma;
		window.cwnd = tp->snd_cwnd;
		window.ssthresh = tp->snd_ssthresh;
		vegas_decide(&window, &thresholds, flow->base_us, flow->rtt_min_us);
		if (window.slow_start) {
			tcp_slow_start(tp, acked);
			window.cwnd = tp->snd_cwnd;
		}
		tp->snd_cwnd = window.cwnd;
		tp->snd_ssthresh = vegas_threshold(window.cwnd, window.ssthresh);
	}
	flow->samples = 0;
	flow->rtt_min_us = VEGAS_RTT_NONE;
}

u32 MEMBER(vegas_ssthresh)(u64 *ctx)
{
	return tcp_reno_ssthresh(sock_of(ctx));
}

u32 MEMBER(vegas_undo_cwnd)(u64 *ctx)
{
	return tcp_reno_undo_cwnd(sock_of(ctx));
}

SEC(".struct_ops.link")
struct tcp_congestion_ops midhop_vegas = {
	.init = (void *)vegas_init,
	.ssthresh = (void *)vegas_ssthresh,
	.cong_avoid = (void *)vegas_cong_avoid,
	.set_state = (void *)vegas_set_state,
	.pkts_acked = (void *)vegas_pkts_acked,
	.cwnd_event = (void *)vegas_cwnd_event,
	.undo_cwnd = (void *)vegas_undo_cwnd,
	.name = "midhop_vegas",
};

char LICENSE[] SEC("license") = "GPL";
