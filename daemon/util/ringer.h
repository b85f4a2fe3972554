/* A thread that rings bells (writes 8 bytes to pipes or eventfds) for a loop that has more of them to ring than it has
 * time: waking a process costs whoever does it one to two microseconds.
 *
 * Thread: all functions are the owner's. Descriptors stay the caller's, who must call ringer_settle() before closing
 * one. */
#ifndef KOPS_UTIL_RINGER_H
#define KOPS_UTIL_RINGER_H

#include "util/error.h"

struct ringer;

/* The thread starts at the first turn that is busy enough. */
int ringer_new(struct ringer **ret_ringer, struct error *e);
/* NULL is allowed; returns NULL. */
struct ringer *ringer_free(struct ringer *ringer);

/* Rings, now or soon. NULL: now. */
void ringer_ring(struct ringer *ringer, int fd);

/* A turn of the loop begins: the first few bells of a turn are rung at once, if the thread sleeps. */
void ringer_turn(struct ringer *ringer);

/* Returns once everything asked for so far is rung. NULL is allowed. */
void ringer_settle(struct ringer *ringer);

#endif
