/* How long runs wait, compute and take in all: for a connection, and for an op, dtype and device together.
 *
 * A connection's histograms are made when its first run ends (some 4 KB). Those by op are kept for as long as the
 * daemon runs; there are at most as many as the ops and kinds of runs below times the dtypes times the devices. Thread:
 * loop. */
#ifndef KOPS_SERVER_OBSERVE_LATENCY_H
#define KOPS_SERVER_OBSERVE_LATENCY_H

#include "server/exec/run.h"
#include "util/histogram.h"

enum latency_part { LATENCY_QUEUE, LATENCY_DEVICE, LATENCY_TOTAL, LATENCY_PARTS };

/* µs; NAN: not measured. See Timings in PROTOCOL.md. */
struct latency {
    double part[LATENCY_PARTS];
    uint64_t ns[LATENCY_PARTS];     /* the same; 0 for NAN */
    unsigned bucket[LATENCY_PARTS]; /* of a struct histogram */
};

/* What is recent counts more: every minute halves what was before. */
struct latencies {
    struct histogram part[LATENCY_PARTS];
    uint64_t faded_ns; /* when that was last done */
};

/* What a run counts as: its op, or one of these. */
enum { LATENCY_USER_KERNEL = OP_COUNT, LATENCY_SEQUENCE, LATENCY_PROGRAM, LATENCY_KINDS };
const char *latency_kind_name(unsigned kind);

enum { LATENCY_BOUNDS = 22, LATENCY_DTYPES = 16 };
/* Upper ends of the buckets, ns. */
extern const uint64_t latency_bounds_ns[LATENCY_BOUNDS];

struct latency_op {
    uint64_t buckets[LATENCY_PARTS][LATENCY_BOUNDS + 1]; /* the last: longer than every bound */
    uint64_t sum_ns[LATENCY_PARTS];
};

/* By device, kind and dtype (0: none, or several); NULL: nothing yet. */
struct latency_table {
    unsigned char first_bound[64]; /* the first that is no less than that power of two */
    struct latency_op *ops[BACKEND_MAX_DEVICES][LATENCY_KINDS][LATENCY_DTYPES];
};

struct latency_table *latency_table_new(void);
struct latency_table *latency_table_free(struct latency_table *table); /* NULL is allowed; returns NULL */

/* The times of a run that ended well. */
void latency_of(const struct request *r, double total_us, struct latency *ret);
/* Counts them for its connection and its op. */
void latency_note(const struct request *r, const struct latency *latency, uint64_t now_ns);

#endif
