// SPDX-License-Identifier: GPL-2.0-only
/* midhop_westwood: the law of laws/westwood.h as a congestion control of the kernel. */
#include "kernel.h"
#include "laws/westwood.h"

struct flow {
	struct westwood_filter filter;
	struct westwood_count count;
	u32 sample_bytes;
	u32 sample_started_ms;
	u32 rtt_ms;
	u32 rtt_min_ms;
	u32 first_ack;
	u32 rtt_min_reset;
};

LAW u32 now_ms(const struct tcp_sock *tp)
{
	return (u32)(tp->tcp_mstamp / 1000);
}

/* Closes the running sample when it is long enough. */
LAW void sample(const struct tcp_sock *tp, struct flow *flow)
{
	u32 span_ms = now_ms(tp) - flow->sample_started_ms;

	if (flow->first_ack) {
		flow->count.una = tp->snd_una;
		flow->first_ack = 0;
	}
	if (westwood_sample_due(span_ms, flow->rtt_ms)) {
		struct westwood_filter filter = flow->filter;

		westwood_filter_update(&filter, westwood_sampled(flow->sample_bytes, span_ms));
		flow->filter = filter;
		flow->sample_bytes = 0;
		flow->sample_started_ms = now_ms(tp);
	}
}

LAW u32 window(const struct tcp_sock *tp, struct flow *flow)
{
	struct westwood_filter filter = flow->filter;

	return westwood_window(&filter, flow->rtt_min_ms, tp->mss_cache);
}

void MEMBER(westwood_init)(u64 *ctx)
{
	struct tcp_sock *tp = tcp_of(sock_of(ctx));
	struct flow *flow = state_of(sock_of(ctx), struct flow);

	flow->filter.once = 0;
	flow->filter.twice = 0;
	flow->count.una = tp->snd_una;
	flow->count.accounted = 0;
	flow->sample_bytes = 0;
	flow->sample_started_ms = now_ms(tp);
	flow->rtt_ms = WESTWOOD_RTT_INITIAL_MS;
	flow->rtt_min_ms = WESTWOOD_RTT_INITIAL_MS;
	flow->first_ack = 1;
	flow->rtt_min_reset = 1;
}

void MEMBER(westwood_in_ack_event)(u64 *ctx)
{
	struct tcp_sock *tp = tcp_of(sock_of(ctx));
	struct flow *flow = state_of(sock_of(ctx), struct flow);

	sample(tp, flow);
	if ((u32)ctx[1] & ACK_SLOWPATH) {
		struct westwood_count count = flow->count;

		flow->sample_bytes += westwood_delivered(&count, tp->snd_una, tp->mss_cache);
		flow->count = count;
	} else {
		flow->sample_bytes += tp->snd_una - flow->count.una;
		flow->count.una = tp->snd_una;
	}
	if (flow->rtt_min_reset) {
		flow->rtt_min_ms = flow->rtt_ms;
		flow->rtt_min_reset = 0;
	} else {
		flow->rtt_min_ms = least(flow->rtt_min_ms, flow->rtt_ms);
	}
}

void MEMBER(westwood_pkts_acked)(u64 *ctx)
{
	const struct ack_sample *acked = (const struct ack_sample *)ctx[1];
	struct flow *flow = state_of(sock_of(ctx), struct flow);

	if (acked->rtt_us > 0)
		flow->rtt_ms = ((u32)acked->rtt_us + 999) / 1000;
}

void MEMBER(westwood_cwnd_event)(u64 *ctx)
{
	struct tcp_sock *tp = tcp_of(sock_of(ctx));
	struct flow *flow = state_of(sock_of(ctx), struct flow);

	switch ((u32)ctx[1]) {
	case EVENT_COMPLETE_CWR:
		tp->snd_ssthresh = window(tp, flow);
		tp->snd_cwnd = tp->snd_ssthresh;
		break;
	case EVENT_LOSS:
		tp->snd_ssthresh = window(tp, flow);
		/* After a timeout the path may be a longer one. */
		flow->rtt_min_reset = 1;
		break;
	}
}

void MEMBER(westwood_cong_avoid)(u64 *ctx)
{
	tcp_reno_cong_avoid(sock_of(ctx), (u32)ctx[1], (u32)ctx[2]);
}

u32 MEMBER(westwood_ssthresh)(u64 *ctx)
{
	return tcp_reno_ssthresh(sock_of(ctx));
}

u32 MEMBER(westwood_undo_cwnd)(u64 *ctx)
{
	return tcp_reno_undo_cwnd(sock_of(ctx));
}

SEC(".struct_ops.link")
struct tcp_congestion_ops midhop_westwood = {
	.init = (void *)westwood_init,
	.ssthresh = (void *)westwood_ssthresh,
	.cong_avoid = (void *)westwood_cong_avoid,
	.in_ack_event = (void *)westwood_in_ack_event,
	.pkts_acked = (void *)westwood_pkts_acked,
	.cwnd_event = (void *)westwood_cwnd_event,
	.undo_cwnd = (void *)westwood_undo_cwnd,
	.name = "midhop_westwood",
};

char LICENSE[] SEC("license") = "GPL";
