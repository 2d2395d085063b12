// SPDX-License-Identifier: GPL-2.0-only
/* midhop_hyblalx: the law of laws/hybla_linux.h as a congestion control of the kernel. */
#include "kernel.h"
#include "laws/hybla_linux.h"

/* Written by the loader before the program is loaded; `Parameters` in Rust has the same layout. */
struct hybla_linux_parameters {
	u32 rtt0_us;
};

SEC(".rodata.settings") const volatile struct hybla_linux_parameters settings = {
	.rtt0_us = 25000,
};

struct flow {
	struct hybla_linux_rho rho;
	u32 srtt_min_8us;
	u32 cents;
	u32 open;
};

LAW void measure(struct tcp_sock *tp, struct flow *flow)
{
	struct hybla_linux_rho rho;

	hybla_linux_set_rho(&rho, tp->srtt_us, settings.rtt0_us);
	flow->rho = rho;
}

void MEMBER(hybla_linux_init)(u64 *ctx)
{
	struct tcp_sock *tp = tcp_of(sock_of(ctx));
	struct flow *flow = state_of(sock_of(ctx), struct flow);

	flow->cents = 0;
	flow->open = 1;
	measure(tp, flow);
	flow->srtt_min_8us = tp->srtt_us;
	tp->snd_cwnd = flow->rho.rho;
}

void MEMBER(hybla_linux_cong_avoid)(u64 *ctx)
{
	struct sock *sk = sock_of(ctx);
	struct tcp_sock *tp = tcp_of(sk);
	struct flow *flow = state_of(sk, struct flow);
	struct hybla_linux_window window;
	struct hybla_linux_rho rho;

	if (tp->srtt_us < flow->srtt_min_8us) {
		measure(tp, flow);
		flow->srtt_min_8us = tp->srtt_us;
	}
	if (!cwnd_limited(tp))
		return;
	if (!flow->open) {
		tcp_reno_cong_avoid(sk, (u32)ctx[1], (u32)ctx[2]);
		return;
	}
	rho = flow->rho;
	window.cwnd = tp->snd_cwnd;
	window.cwnd_cnt = tp->snd_cwnd_cnt;
	window.ssthresh = tp->snd_ssthresh;
	window.cents = flow->cents;
	hybla_linux_grow(&window, &rho);
	tp->snd_cwnd = window.cwnd;
	tp->snd_cwnd_cnt = window.cwnd_cnt;
	flow->cents = window.cents;
}

void MEMBER(hybla_linux_set_state)(u64 *ctx)
{
	state_of(sock_of(ctx), struct flow)->open = (u8)ctx[1] == CA_OPEN;
}

u32 MEMBER(hybla_linux_ssthresh)(u64 *ctx)
{
	return tcp_reno_ssthresh(sock_of(ctx));
}

u32 MEMBER(hybla_linux_undo_cwnd)(u64 *ctx)
{
	return tcp_reno_undo_cwnd(sock_of(ctx));
}

SEC(".struct_ops.link")
struct tcp_congestion_ops midhop_hyblalx = {
	.init = (void *)hybla_linux_init,
	.ssthresh = (void *)hybla_linux_ssthresh,
	.cong_avoid = (void *)hybla_linux_cong_avoid,
	.set_state = (void *)hybla_linux_set_state,
	.undo_cwnd = (void *)hybla_linux_undo_cwnd,
	.name = "midhop_hyblalx",
};

char LICENSE[] SEC("license") = "GPL";
