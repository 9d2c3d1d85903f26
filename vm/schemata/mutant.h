/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _NET_MUTANT_H
#define _NET_MUTANT_H

#include <linux/compiler.h>
#include <linux/types.h>

/* Faults made by perpatch from a series.  All are compiled in, at most one is
 * active: the kernel parameter mutant.active=NAME, or the file
 * /sys/module/mutant/parameters/active; "none" is none.
 */
#define MUTANTS(M) \
@LIST@

#define MUTANT_ID(name) MUTANT_##name,
enum {
	MUTANT_none,
	MUTANTS(MUTANT_ID)
};

extern int active_mutant;

/* A bool: it is added to constants, and must not change their type. */
#define MUTANT(name) \
	((bool)unlikely(READ_ONCE(active_mutant) == MUTANT_##name))

#endif /* _NET_MUTANT_H */
