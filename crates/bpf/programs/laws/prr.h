/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Proportional Rate Reduction: how a window is reduced over the round trip after a loss.
 *
 * Source: RFC 9937 §6, counted in segments; differs: the reduction is in proportion to the window
 * when the loss was found, as in Linux, not to RecoverFS. The same in Rust is the module `prr` of
 * midhop-congestion.
 */
#ifndef MIDHOP_PRR_H
#define MIDHOP_PRR_H

#include "integers.h"

struct prr {
	/* The window when the recovery began, and where it is to end. */
	u32 from;
	u32 to;
	/* Segments delivered and sent since then. */
	u32 delivered;
	u32 sent;
};

/*
 * The window after an acknowledgement that delivered `acked` while `pipe` segments are in flight.
 * `safe`: the cumulative acknowledgement has advanced and no further loss was found.
 */
LAW u32 prr_window(const struct prr *p, u32 acked, u32 pipe, int safe)
{
	u32 owed, more;

	if (pipe > p->to) {
		u32 due = saturated(((u64)p->delivered * p->to + most(p->from, 1) - 1) /
				    most(p->from, 1));

		more = due > p->sent ? due - p->sent : 0;
	} else {
		owed = p->delivered > p->sent ? p->delivered - p->sent : 0;
		more = saturated((u64)most(owed, acked) + (safe ? 1 : 0));
		more = least(p->to - pipe, more);
	}
	/* The first retransmission always leaves. */
	if (p->sent == 0)
		more = most(more, 1);
	return saturated((u64)pipe + more);
}

#endif
