/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The few kernel fields these programs touch. Offsets are not taken from here: every access is
 * relocated against the running kernel's BTF when the object is loaded (CO-RE).
 */
#ifndef MIDHOP_KERNEL_H
#define MIDHOP_KERNEL_H

#include "laws/integers.h"

#define SEC(name) __attribute__((section(name), used))
#define RELOCATED __attribute__((preserve_access_index))
#define KERNEL_FUNCTION extern __attribute__((section(".ksyms")))
/* A struct_ops member: the kernel passes its arguments as an array of 64-bit words. */
#define MEMBER(name) SEC("struct_ops") name

#define CA_PRIVATE_BYTES 104
#define PACING_NONE 0
#define PACING_NEEDED 1
#define RATE_UNLIMITED (~0UL)
#define SSTHRESH_INFINITE 0x7fffffffU

enum { CA_OPEN, CA_DISORDER, CA_CWR, CA_RECOVERY, CA_LOSS };
enum { EVENT_TX_START, EVENT_CWND_RESTART, EVENT_COMPLETE_CWR, EVENT_LOSS };
enum { ACK_SLOWPATH = 1 };

struct sock {
	u32 sk_pacing_status;
	unsigned long sk_pacing_rate;
	unsigned long sk_max_pacing_rate;
} RELOCATED;

struct inet_connection_sock {
	u8 icsk_ca_state : 5;
	u32 icsk_user_timeout;
	u64 icsk_ca_priv[CA_PRIVATE_BYTES / 8];
} RELOCATED;

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u32 snd_cwnd;
	u32 snd_cwnd_cnt;
	u32 snd_ssthresh;
	u32 snd_una;
	u32 snd_nxt;
	u32 srtt_us;
	u32 mss_cache;
	u32 max_packets_out;
	u32 notsent_lowat;
	u32 lost;
	u32 lost_out;
	u32 sacked_out;
	u32 retrans_out;
	u32 packets_out;
	u32 prr_out;
	u32 delivered;
	u32 rate_delivered;
	u32 rate_interval_us;
	u64 tcp_mstamp;
	u8 is_cwnd_limited : 1;
} RELOCATED;

struct ack_sample {
	u32 pkts_acked;
	s32 rtt_us;
	u32 in_flight;
} RELOCATED;

enum tcp_ca_event { TCP_CA_EVENT_UNUSED };
struct rate_sample;
union tcp_cc_info;
struct module;

struct tcp_congestion_ops {
	u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, u32 ack, u32 acked);
	void (*set_state)(struct sock *sk, u8 state);
	void (*cwnd_event)(struct sock *sk, enum tcp_ca_event event);
	void (*in_ack_event)(struct sock *sk, u32 flags);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	/* Its further arguments differ between kernels; only the first may be used. */
	void (*cong_control)(struct sock *sk);
	u32 (*undo_cwnd)(struct sock *sk);
	u32 (*sndbuf_expand)(struct sock *sk);
	void (*init)(struct sock *sk);
	char name[16];
};

#define sock_of(ctx) ((struct sock *)(ctx)[0])
#define tcp_of(sk) ((struct tcp_sock *)(sk))
/* The flow's own state. A type larger than the kernel gives does not compile. */
#define state_of(sk, type)                                                                       \
	({                                                                                       \
		_Static_assert(sizeof(type) <= CA_PRIVATE_BYTES, "state exceeds icsk_ca_priv");  \
		(type *)&tcp_of(sk)->inet_conn.icsk_ca_priv[0];                                  \
	})

/* A bit field cannot be read directly: its place is relocated too. */
#define BITS_FIELD(type, field)                                                                  \
	LAW u64 type##_##field(struct type *s)                                                   \
	{                                                                                        \
		const void *at = (const char *)s + __builtin_preserve_field_info(s->field, 0);   \
		u64 word = 0;                                                                    \
		switch (__builtin_preserve_field_info(s->field, 1)) {                            \
		case 1: word = *(const u8 *)at; break;                                           \
		case 2: word = *(const u16 *)at; break;                                          \
		case 4: word = *(const u32 *)at; break;                                          \
		case 8: word = *(const u64 *)at; break;                                          \
		}                                                                                \
		word <<= __builtin_preserve_field_info(s->field, 4);                             \
		return word >> __builtin_preserve_field_info(s->field, 5);                       \
	}

BITS_FIELD(tcp_sock, is_cwnd_limited)
BITS_FIELD(inet_connection_sock, icsk_ca_state)

LAW u32 in_flight(const struct tcp_sock *tp)
{
	return tp->packets_out - tp->sacked_out - tp->lost_out + tp->retrans_out;
}

LAW int in_slow_start(const struct tcp_sock *tp)
{
	return tp->snd_cwnd < tp->snd_ssthresh;
}

/*
 * Whether the window is what holds the sender back; one that is not must not grow. In slow start a
 * window counts as used when half of it was in flight, as in the kernel.
 */
LAW int cwnd_limited(struct tcp_sock *tp)
{
	if (tcp_sock_is_cwnd_limited(tp))
		return 1;
	return in_slow_start(tp) && tp->snd_cwnd < 2 * tp->max_packets_out;
}

KERNEL_FUNCTION u32 tcp_reno_ssthresh(struct sock *sk);
KERNEL_FUNCTION void tcp_reno_cong_avoid(struct sock *sk, u32 ack, u32 acked);
KERNEL_FUNCTION u32 tcp_reno_undo_cwnd(struct sock *sk);
KERNEL_FUNCTION u32 tcp_slow_start(struct tcp_sock *tp, u32 acked);

#endif
