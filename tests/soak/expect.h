/* Which errors a call may end with: what libkops and the protocol promise, given what the simulator did meanwhile.
 * Without a simulator nothing is known of that, and every error may be right. Thread: any. */
#ifndef SOAK_EXPECT_H
#define SOAK_EXPECT_H

#include <kops/kops.h>

#include "happened.h"

/* What a call promises when others end under it. */
enum expect_kind {
    EXPECT_ONCE = 0,       /* it blocks: made again only where no daemon has read it */
    EXPECT_AGAIN = 1,      /* libkops makes it again when the daemon ends: it asks, defines, or twice is as once */
    EXPECT_BEGUN_ANEW = 2, /* the daemon begins its job anew when an executor ends */
    EXPECT_TICKET = 4,     /* submitted: never made again by libkops */
    EXPECT_FIRST = 8,      /* it connects: whoever comes between two daemons finds none */
    EXPECT_LATER = 16,     /* an error comes with a later call */
    EXPECT_ORDERED = EXPECT_TICKET | EXPECT_LATER
};

/* The moment before a call. */
struct expect {
    uint64_t begun[HAPPENED_KINDS], over[HAPPENED_KINDS], last_ns[HAPPENED_KINDS], ns;
};

/* `small_quotas`: others may have all of a quota. `slow_starts`: of executors, for which a daemon waits at its start.
 */
void expect_open(bool small_quotas, bool slow_starts);
struct expect expect_now(void);

/* How often it has happened since then, or had in the time before it that is given, or was going on then. */
unsigned expect_times(const struct expect *from, enum happened_what what, uint64_t before_ns);

/* Whether nothing was slow since then, nor shortly before. */
bool expect_steady(const struct expect *from);

/* Whether nothing but ends of processes has happened since then, nor shortly before. */
bool expect_only_ends(const struct expect *from);

/* Whether nothing at all has happened since then. */
bool expect_nothing(const struct expect *from);

/* `kind`: of enum expect_kind. NULL: the error may be. Otherwise why it may not. */
const char *expect_wrong(const struct expect *from, unsigned kind, const struct kops_error *e);

/* Whether the call surely has not run. */
bool expect_not_run(const struct kops_error *e);

#endif
