/* A session: CUPTI's range profiler on one device, opened once for many series of passes. The profiler is disabled
 * after each series: otherwise no other process could use the counters. Enabling it takes 0.17 s (H100). Thread: any,
 * one at a time, the device's context current. */
#ifndef KOPS_CUDA_SESSION_H
#define KOPS_CUDA_SESSION_H

#include "core/counters.h"
#include "profiler.h"

/* Executions of a pass. The last is counted; the others warm up caches, which the beginning of a pass empties. */
enum { SESSION_EXECUTIONS = 2 };

enum { METRICS_MAX = (int)COUNTER_COUNT + (int)STALL_COUNT };

struct cuda_metric {
    const char *name;
    double scale; /* factor of the metric's value */
};

/* Returns CUPTI's metric of counter i, or of stall i - COUNTER_COUNT. i < METRICS_MAX */
const struct cuda_metric *cuda_metric(unsigned i);

struct cuda_session {
    const struct cupti_profiling *cupti; /* NULL: not loaded */
    void *host;
    const char *chip;
    void *profiler;        /* exists during a series of passes; NULL: none */
    uint8_t *availability; /* freed with the session, since CUPTI reads it until then */
    uint8_t *config, *counters;
    size_t config_size, counters_size;
    unsigned n; /* the device's metrics */
    const char *names[METRICS_MAX];
    unsigned which[METRICS_MAX]; /* numbers for cuda_metric() */
};

/* Loads and initialises the library, for which no privilege is needed. Harmless on a session that is loaded or open. */
int cuda_session_load(struct cuda_session *s, const struct cuda_device *d, struct error *e);
/* Opens the session. Harmless on an open session. After a failure the session is not open. */
int cuda_session_open(struct cuda_session *s, const struct cuda_device *d, struct error *e);

/* Begins a series of passes. No other profiler can use the counters until cuda_session_end(). Harmless during a series.
 * The driver checks the calling thread's privilege here and at no other call. */
int cuda_session_begin(struct cuda_session *s, const struct cuda_device *d, struct error *e);
/* Ends the series, also in the middle of a pass. Harmless without a series. */
void cuda_session_end(struct cuda_session *s);
/* A pass: call pass_begin(), execute the work SESSION_EXECUTIONS times and wait for its end, call pass_end().
 * *ret_more: another pass is needed. */
int cuda_session_pass_begin(struct cuda_session *s, struct error *e);
int cuda_session_pass_end(struct cuda_session *s, bool *ret_more, struct error *e);
/* Reads the counters after the last pass: those of the last execution's longest kernel, and the number of its kernels.
 * *ret_longest: which kernel that is, from 0. */
int cuda_session_read(struct cuda_session *s, struct backend_counters *ret, unsigned *ret_longest, struct error *e);

#endif
