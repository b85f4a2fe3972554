/* A trace as JSON in the Trace Event Format, which Perfetto and chrome://tracing show.
 *
 * The events are gathered in memory, 100 bytes for each, and written at the end: the names of rows come first. */
#ifndef KOPS_CTL_CHROME_H
#define KOPS_CTL_CHROME_H

#include <stdio.h>

#include <kops/kops.h>

struct chrome;

/* `devices`, NULL-terminated, have the names of those that the trace has UUIDs of. NULL: there is no memory. */
struct chrome *chrome_new(const struct kops_device *const *devices);

/* Takes a copy of what the daemon replied. Returns 0, -ENOMEM, -EBADMSG (the reply is wrong) or -E2BIG: the rest of it
 * was left out, and so would be all that comes later. */
int chrome_add(struct chrome *c, const struct kops_trace *part);

size_t chrome_events(const struct chrome *c);
size_t chrome_clients(const struct chrome *c);
uint64_t chrome_dropped(const struct chrome *c);

/* Writes all of it, once; ferror(to) tells whether that failed. Returns 0 or -ENOMEM. */
int chrome_write(struct chrome *c, FILE *to);

/* NULL is allowed. Returns NULL. */
struct chrome *chrome_free(struct chrome *c);

#endif
