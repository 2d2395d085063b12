/* SPDX-License-Identifier: GPL-2.0-only */
/* Integers by width, and the arithmetic every law shares. No floats: BPF has none. */
#ifndef MIDHOP_INTEGERS_H
#define MIDHOP_INTEGERS_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;

#define LAW static inline __attribute__((always_inline))

LAW u32 least(u32 a, u32 b)
{
	return a < b ? a : b;
}

LAW u32 most(u32 a, u32 b)
{
	return a > b ? a : b;
}

/* The value in 32 bits, or the largest there is. */
LAW u32 saturated(u64 value)
{
	return value > 0xffffffffULL ? 0xffffffffU : (u32)value;
}

/* Whether sequence number `a` comes after `b` on the 32-bit circle. */
LAW int sequence_after(u32 a, u32 b)
{
	return (s32)(b - a) < 0;
}

#endif
