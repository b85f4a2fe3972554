/* A trace as a timeline: JSON in the Trace Event Format, which Perfetto and chrome://tracing show.
 *
 * A row of the timeline has no two events at a time. Calls of one connection and stream that overlap go to different
 * rows, each to the first row that is free when the call was received. A process has rows of its own for its
 * compilations, and a device for its work. The events are kept in memory, 130 bytes for each, and written at the end,
 * since the names of rows come first. */
#ifndef KOPS_CTL_TIMELINE_H
#define KOPS_CTL_TIMELINE_H

#include <stdio.h>

#include <kops/kops.h>

struct timeline;

/* Makes a timeline. `devices`, NULL-terminated, have the names of the trace's devices. NULL: there is no memory. */
struct timeline *timeline_new(const struct kops_device *const *devices);

/* Adds a reply of the daemon, and takes it over. Returns 0, -ENOMEM, -EBADMSG (an event has a kind that the daemon did
 * not describe) or -E2BIG: the rest of the reply was left out, and all later replies would be, too. */
int timeline_add(struct timeline *t, struct kops_trace *part);

struct timeline_sums {
    size_t events, clients;
    uint64_t dropped;
};

struct timeline_sums timeline_sums(const struct timeline *t);

/* Writes the timeline, once; ferror(to) tells whether that failed. Returns 0 or -ENOMEM. */
int timeline_write(struct timeline *t, FILE *to);

/* NULL is allowed. Returns NULL. */
struct timeline *timeline_free(struct timeline *t);

#endif
