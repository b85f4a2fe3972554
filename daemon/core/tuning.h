/* Choices of tuning: a table in shared memory, which the daemon writes and every process that owns GPUs reads; and the
 * request and the result of a tuning.
 *
 * A problem is all that a choice depends on: an op with its sizes, layouts, dtypes and alignments, as the device's
 * backend sees it. The table compares problems as bytes; only the backend reads them. */
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
    TUNING_PROBES = 32, /* slots that a problem can be in */
    TUNING_CANDIDATES_MAX = 96,
    TUNING_TEXT_BYTES = 96,
};

/* A problem on a kind of device. Every byte is set, since keys are hashed and compared as bytes. */
struct tuning_key {
    uint64_t machine; /* a hash of tuning_result.machine: kind of GPU, driver, libraries, our kernels */
    unsigned char problem[TUNING_PROBLEM_BYTES];
};

/* A choice for a problem. Every byte is set, so that choices compare as bytes. */
struct tuning_choice {
    char variant[STEP_VARIANT_BYTES];
    uint32_t workspace_bytes;
    uint32_t has_algorithm;                          /* 0: the variant's own choice */
    unsigned char algorithm[TUNING_ALGORITHM_BYTES]; /* the library's algorithm, for this machine only */
};

/* ---- the table ---- */

struct tuning_table;

/* Makes an empty table. *ret_fd, the caller's, maps it in other processes, which cannot write to it. Thread: any. */
int tuning_table_new(struct tuning_table **ret_table, int *ret_fd, struct error *e);
/* Maps the table of another process, for reading. */
int tuning_table_map(int fd, const struct tuning_table **ret_table, struct error *e);
/* NULL is allowed. */
void tuning_table_free(struct tuning_table *t);

/* Sets the choice for a problem. Where the table has no room, it drops the choice of another problem. One thread at a
 * time. */
void tuning_table_put(struct tuning_table *t, const struct tuning_key *key, const struct tuning_choice *choice);
/* Forgets all choices. One thread at a time, the thread of tuning_table_put(). */
void tuning_table_clear(struct tuning_table *t);

/* Finds the choice for a problem. Thread: any, of any process. A NULL table has no choices. */
bool tuning_table_find(const struct tuning_table *t, const struct tuning_key *key, struct tuning_choice *ret_choice);
/* Changes with every put and clear. */
uint32_t tuning_table_generation(const struct tuning_table *t);

/* ---- one tuning ---- */

struct tuning_request {
    struct step step;                      /* a step with its plan; memory is the tuner's own */
    uint32_t alignment[STEP_MAX_OPERANDS]; /* operands' addresses modulo 256 */
    uint32_t budget_ms;                    /* time from the beginning to the last measurement */
    uint64_t until_ns; /* CLOCK_MONOTONIC: no measurement begins after this; 0, or in the past: none */
    bool patient;      /* no request waits: pauses do not count against the budget */
};

enum tuning_state {
    TUNING_LEFT_OUT, /* not measured, for want of time; `us` is NAN, or an earlier tuning's time */
    TUNING_MEASURED,
    TUNING_SLOWER, /* dropped after its first measurement, in this tuning or an earlier one; `us` is that measurement */
    TUNING_FAILED, /* cannot run this problem; `us` is NAN */
};

struct tuning_candidate {
    struct tuning_choice choice;
    char text[48];          /* description, for people */
    double us;              /* median of its measurements */
    double low_us, high_us; /* quartiles of its measurements */
    uint32_t state, n;      /* `n`: measurements in the median `us`; 0: `us` is the time of the first execution */
    uint32_t tried;         /* 1: measured, or failed, in this tuning or an earlier one */
};

struct tuning_result {
    struct tuning_key key;
    char machine[TUNING_TEXT_BYTES * 2]; /* "NVIDIA H200 sm_90 132; driver 580.1; …": choices hold on equal machines */
    char problem[TUNING_TEXT_BYTES];     /* description of the key, for people */
    struct tuning_candidate candidates[TUNING_CANDIDATES_MAX];
    uint32_t n;
    uint32_t n_new; /* candidates that were tried for the first time */
    /* Indices of candidates: the one that runs untuned, the one that ran before this tuning, and the one to run. `best`
     * is `before` unless another is faster beyond noise: its upper quartile lies below the lower quartile of `before`,
     * and its median is lower by 1 % and 0.1 us. */
    uint32_t usual, before, best;
    double noise; /* the wider interquartile spread of `best` and `before`, as a fraction of the median */
};

/* Functions that the tuner calls between its measurements. */
struct tuning_pace {
    /* Waits between two measurements, each of which takes the device some milliseconds at most or runs one kernel once,
     * until the tuner may go on. Returns 0, or -1: the tuning must end with *e. */
    int (*wait)(struct tuning_pace *pace, struct error *e);
    /* Called when the candidates are listed, and nothing is measured yet. Candidates that an earlier tuning of the
     * problem has tried get `tried`, `us`, and the state `slower` or `failed`. -1: the tuning must end with *e. */
    int (*listed)(struct tuning_pace *pace, struct tuning_result *result, struct error *e);
};

/* Returns the number of candidates that were tried. */
uint32_t tuning_tried(const struct tuning_result *r);

/* A hash of any bytes; never 0. */
uint64_t tuning_hash(const void *bytes, size_t size);

#endif
