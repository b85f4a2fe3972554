/* Chooses the source that is compiled next when more wait than are compiled at one time: users take turns, and the
 * connections of one user take turns among themselves. Next is the user with the fewest compiles running, of several
 * the one whose last compile began longest ago; of that user's connections, the one that is next by the same rule. So a
 * connection with many requests delays the others only by its running compiles.
 *
 * A running compile may have to make room for a user who waits, so that no user's long compiles hold what another one
 * has a share of: see turn_may_take().
 *
 * A place is one connection's; references keep it while the connection has sources that wait or are compiled. Thread:
 * the caller's only. */
#ifndef KOPS_COMPILE_TURNS_H
#define KOPS_COMPILE_TURNS_H

#include <stdbool.h>
#include <stdint.h>

#include "util/list.h"

struct turns {
    struct list users;
    uint64_t begun; /* compiles, so far */
};

struct turn_place;

/* No place may be left when the turns are given up. */
void turns_init(struct turns *turns);

/* A reference to the place of that connection. NULL: memory is short. */
struct turn_place *turn_place_get(struct turns *turns, uint64_t user, uint64_t connection);
struct turn_place *turn_place_ref(struct turn_place *place);
void turn_place_unref(struct turn_place *place); /* NULL: nothing */

/* Whether `a` is served before `b`; neither is before the other when both are the same. */
bool turn_is_before(const struct turn_place *a, const struct turn_place *b);

/* A compile that nobody interrupts has so long where users can only take turns. */
enum { TURN_SLICE_MS = 500 };

/* Whether a source of `waiting` is compiled in place of one of `running`, another user's, which has been compiled
 * without a break for `ran_ms`: at once when the waiting user has fewer compiles running even with this one, after
 * TURN_SLICE_MS when that only swaps the two numbers. */
bool turn_may_take(const struct turn_place *waiting, const struct turn_place *running, uint64_t ran_ms);

/* How many compiles of that place's user run. */
unsigned turn_running(const struct turn_place *place);

/* A compile begins or goes on, and ends or is interrupted, on account of that place. */
void turn_begin(struct turn_place *place);
void turn_end(struct turn_place *place);

#endif
