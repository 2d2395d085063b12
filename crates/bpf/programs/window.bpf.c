// SPDX-License-Identifier: GPL-2.0-only
/*
 * midhop_window: gives a connection the congestion window that it had at another place. A socket has it for a moment,
 * after it was restored and before it has its own congestion control, whose init keeps the window that it finds.
 * A congestion control has no arguments. What this one sets is in two options of the socket, which its caller
 * changes back.
 */
#include "kernel.h"

/* In segments: what a window of 1 GiB takes. */
#define WINDOW_MAX (1U << 20)
#define THRESHOLD_MIN 2U

void MEMBER(window_init)(u64 *ctx)
{
	struct tcp_sock *tp = tcp_of(sock_of(ctx));
	u32 window = tp->notsent_lowat;
	u32 threshold = tp->inet_conn.icsk_user_timeout;

	if (!window)
		return;
	tp->snd_cwnd = least(window, WINDOW_MAX);
	tp->snd_ssthresh = most(least(threshold, SSTHRESH_INFINITE), THRESHOLD_MIN);
}

u32 MEMBER(window_ssthresh)(u64 *ctx)
{
	return tcp_reno_ssthresh(sock_of(ctx));
}

void MEMBER(window_cong_avoid)(u64 *ctx)
{
	tcp_reno_cong_avoid(sock_of(ctx), (u32)ctx[1], (u32)ctx[2]);
}

u32 MEMBER(window_undo_cwnd)(u64 *ctx)
{
	return tcp_reno_undo_cwnd(sock_of(ctx));
}

SEC(".struct_ops.link")
struct tcp_congestion_ops midhop_window = {
	.init = (void *)window_init,
	.ssthresh = (void *)window_ssthresh,
	.cong_avoid = (void *)window_cong_avoid,
	.undo_cwnd = (void *)window_undo_cwnd,
	.name = "midhop_window",
};

char LICENSE[] SEC("license") = "GPL";
