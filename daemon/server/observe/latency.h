/* Latencies of runs (queue, device and total time): of each connection, and of each op, dtype and device.
 *
 * A connection's histograms are made when its first run ends (some 4 KB). Those of ops are kept for as long as the
 * daemon runs; their number is at most ops and kinds of runs times dtypes times devices. Thread: loop. */
#ifndef KOPS_SERVER_OBSERVE_LATENCY_H
#define KOPS_SERVER_OBSERVE_LATENCY_H

#include "server/exec/run.h"
#include "util/histogram.h"

enum latency_part { LATENCY_QUEUE, LATENCY_DEVICE, LATENCY_TOTAL, LATENCY_PARTS };

/* µs; NAN: not measured. See Timings in PROTOCOL.md. */
struct latency {
    double part[LATENCY_PARTS];
    uint64_t ns[LATENCY_PARTS];     /* the time in ns; 0 for NAN */
    unsigned bucket[LATENCY_PARTS]; /* bucket of a struct histogram */
};

/* A connection's histograms. Recent runs count more: every minute halves the weight of earlier ones. */
struct latencies {
    struct histogram part[LATENCY_PARTS];
    uint64_t faded_ns; /* when the weights were last halved */
};

/* A run's kind: its op, or one of these. */
enum { LATENCY_USER_KERNEL = OP_COUNT, LATENCY_SEQUENCE, LATENCY_PROGRAM, LATENCY_KINDS };
const char *latency_kind_name(unsigned kind);

enum { LATENCY_BOUNDS = 22, LATENCY_DTYPES = 16 };
/* Upper ends of the buckets, ns. */
extern const uint64_t latency_bounds_ns[LATENCY_BOUNDS];

struct latency_op {
    uint64_t buckets[LATENCY_PARTS][LATENCY_BOUNDS + 1]; /* the last one: longer than every bound */
    uint64_t sum_ns[LATENCY_PARTS];
};

/* By device, kind and dtype (0: none, or several); NULL: no run yet. */
struct latency_table {
    unsigned char first_bound[64]; /* the first bound that is not less than that power of two */
    struct latency_op *ops[BACKEND_MAX_DEVICES][LATENCY_KINDS][LATENCY_DTYPES];
};

struct latency_table *latency_table_new(void);
struct latency_table *latency_table_free(struct latency_table *table); /* NULL is allowed; returns NULL. */

/* The latencies of a run that succeeded. */
void latency_of(const struct run *run, double total_us, struct latency *ret);
/* The counters for the run's op; NULL: no memory. */
struct latency_op *latency_op_of(struct server *s, const struct run *run);
/* Adds a time on the device that came later. `c`, `op`: NULL for none. */
void latency_note_device(struct server *s, struct connection *c, struct latency_op *op, double us);
/* Adds them to the run's connection and its op. */
void latency_note(struct connection *c, const struct run *run, const struct latency *latency, uint64_t now_ns);

#endif
