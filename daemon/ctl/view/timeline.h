/* A trace as a timeline: JSON in the Trace Event Format, which Perfetto and chrome://tracing show.
 *
 * A row of the timeline has no two events at a time. Calls of one connection and stream that overlap go to different
 * rows, each to the first one that is free when the call was received. A process has its compilations in rows of its
 * own, and a device its work. The events are gathered in memory, 130 bytes for each, and written at the end, since the
 * names of rows come first. */
#ifndef KOPS_CTL_TIMELINE_H
#define KOPS_CTL_TIMELINE_H

#include <stdio.h>

#include <kops/kops.h>

struct timeline;

/* `devices`, NULL-terminated, have the names of the trace's devices. NULL: there is no memory. */
struct timeline *timeline_new(const struct kops_device *const *devices);

/* Takes over what the daemon replied. Returns 0, -ENOMEM, -EBADMSG (an event has a kind that the daemon did not tell)
 * or -E2BIG: the rest of the reply was left out, and so would be all that comes later. */
int timeline_add(struct timeline *t, struct kops_trace *part);

struct timeline_sums {
    size_t events, clients;
    uint64_t dropped;
};

struct timeline_sums timeline_sums(const struct timeline *t);

/* Writes all of it, once; ferror(to) tells whether that failed. Returns 0 or -ENOMEM. */
int timeline_write(struct timeline *t, FILE *to);

/* NULL is allowed. Returns NULL. */
struct timeline *timeline_free(struct timeline *t);

#endif
