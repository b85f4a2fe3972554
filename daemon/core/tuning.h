/* What tuning has found to be fastest: a table in shared memory, which the daemon writes and every process that owns
 * GPUs reads; and the request and the result of one tuning.
 *
 * A problem is what a choice depends on: an op with its sizes, layouts, dtypes and alignments, as the device's backend
 * sees it. The table compares problems as bytes; only the backend reads them. */
#ifndef KOPS_CORE_TUNING_H
#define KOPS_CORE_TUNING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/step.h"
#include "util/error.h"

enum {
    TUNING_PROBLEM_BYTES = 168,
    TUNING_ALGORITHM_BYTES = 64,
    TUNING_SLOTS = 8192,
    TUNING_PROBES = 32,         /* slots that a problem may have */
    TUNING_CANDIDATES_MAX = 96, /* of one tuning */
    TUNING_TEXT_BYTES = 96,
};

/* A problem on one kind of device. Every byte is set, since keys are hashed and compared as bytes. */
struct tuning_key {
    uint64_t machine; /* a hash of tuning_result.machine: kind of GPU, driver, libraries, our kernels */
    unsigned char problem[TUNING_PROBLEM_BYTES];
};

/* What runs a problem. Every byte is set, so that choices compare as bytes. */
struct tuning_choice {
    char variant[STEP_VARIANT_BYTES];
    uint32_t workspace_bytes;
    uint32_t has_algorithm;                          /* 0: the variant's own choice */
    unsigned char algorithm[TUNING_ALGORITHM_BYTES]; /* the library's, of this machine alone */
};

/* ---- the table ---- */

struct tuning_table;

/* Makes an empty table. *ret_fd, the caller's, maps it in other processes, which cannot write to it. Thread: any. */
int tuning_table_new(struct tuning_table **ret_table, int *ret_fd, struct error *e);
/* Maps the table of another process, for reading. */
int tuning_table_map(int fd, const struct tuning_table **ret_table, struct error *e);
/* NULL is allowed. */
void tuning_table_free(struct tuning_table *t);

/* Sets the choice for a problem. Where the table has no room for it, the choice of another problem goes. One thread at
 * a time. */
void tuning_table_put(struct tuning_table *t, const struct tuning_key *key, const struct tuning_choice *choice);
/* Forgets all choices. One thread at a time, which is that of tuning_table_put(). */
void tuning_table_clear(struct tuning_table *t);

/* Thread: any, of any process. A NULL table has no choices. */
bool tuning_table_find(const struct tuning_table *t, const struct tuning_key *key, struct tuning_choice *ret_choice);
/* Changes with every put and clear. */
uint32_t tuning_table_generation(const struct tuning_table *t);

/* ---- one tuning ---- */

struct tuning_request {
    struct step step;                      /* its plan; memory is the tuner's own */
    uint32_t alignment[STEP_MAX_OPERANDS]; /* what is left of the operands' addresses modulo 256 */
    uint32_t budget_ms;                    /* from its beginning to its last measurement */
    uint64_t until_ns; /* of CLOCK_MONOTONIC: the last measurement before; 0, or in the past: none */
    bool patient;      /* no request waits: pauses are no part of the budget */
};

enum tuning_state {
    TUNING_LEFT_OUT, /* not measured, for want of time; `us` is NAN, or what an earlier tuning has measured */
    TUNING_MEASURED,
    TUNING_SLOWER, /* left behind after its first measurement, which `us` is, in this tuning or an earlier one */
    TUNING_FAILED, /* it cannot run this; `us` is NAN */
};

struct tuning_candidate {
    struct tuning_choice choice;
    char text[48];          /* its description, to be shown */
    double us;              /* the median of its measurements */
    double low_us, high_us; /* their quartiles */
    uint32_t state, n;      /* `n`: measurements of which `us` is the median; 0: it is that of the first execution */
    uint32_t tried;         /* 1: it was measured, or has failed, in this tuning or an earlier one */
};

struct tuning_result {
    struct tuning_key key;
    char machine[TUNING_TEXT_BYTES * 2]; /* "NVIDIA H200 sm_90 132; driver 580.1; …": choices are for equal ones */
    char problem[TUNING_TEXT_BYTES];     /* description of the key, to be shown */
    struct tuning_candidate candidates[TUNING_CANDIDATES_MAX];
    uint32_t n;
    uint32_t n_new; /* candidates that were tried for the first time */
    /* Indices: what runs without any tuning; what ran before this one; what is to run. `best` is `before` unless
     * another is faster beyond noise: its upper quartile lies below the lower quartile of `before`, and its median by
     * 1 % and 0.1 us. */
    uint32_t usual, before, best;
    double noise; /* the wider of these two's spreads between quartiles, as a part of the median */
};

/* What the tuner calls between its measurements. */
struct tuning_pace {
    /* Between two measurements, each of which takes the device some milliseconds at most or runs one kernel once, the
     * tuner waits until it may go on: 0, or -1: the tuning is to end with *e. */
    int (*wait)(struct tuning_pace *pace, struct error *e);
    /* The candidates are listed, nothing is measured yet. Those of them that an earlier tuning of the problem has tried
     * get `tried`, `us`, and the state `slower` or `failed`. -1: the tuning is to end with *e. */
    int (*listed)(struct tuning_pace *pace, struct tuning_result *result, struct error *e);
};

/* How many of the candidates were tried. */
uint32_t tuning_tried(const struct tuning_result *r);

/* A hash of any bytes; never 0. */
uint64_t tuning_hash(const void *bytes, size_t size);

#endif
