/* CUPTI's range profiler on one device: what is made once, and one series of passes after the other. After each series
 * it is disabled. To keep it would save 0.17 s of the next series (H100), but nobody else, not even another user's
 * process, could count meanwhile. Thread: any, one at a time, the device's context current. */
#ifndef KOPS_CUDA_SESSION_H
#define KOPS_CUDA_SESSION_H

#include "core/counters.h"
#include "profiler.h"

/* Executions of a pass, of which the last is read: the others leave code, page tables and data where a GPU that works
 * has them. The beginning of a pass empties all caches. */
enum { SESSION_EXECUTIONS = 2 };

enum { METRICS_MAX = (int)COUNTER_COUNT + (int)STALL_COUNT };

struct cuda_metric {
    const char *name;
    double scale; /* what the metric's value is multiplied with */
};

/* CUPTI's metric of a counter, or, behind COUNTER_COUNT, of a stall. i < METRICS_MAX */
const struct cuda_metric *cuda_metric(unsigned i);

struct cuda_session {
    const struct cupti_profiling *cupti; /* NULL: not loaded */
    void *host;
    const char *chip;
    void *profiler;        /* of a series of passes; NULL: there is none */
    uint8_t *availability; /* the host side reads it for as long as it is open */
    uint8_t *config, *counters;
    size_t config_size, counters_size;
    unsigned n; /* metrics that the device has */
    const char *names[METRICS_MAX];
    unsigned which[METRICS_MAX]; /* their numbers */
};

/* Loads the library and has it initialise itself: what needs no privilege, wherever counters are the administrator's.
 * Harmless on a session that is loaded or open. */
int cuda_session_load(struct cuda_session *s, const struct cuda_device *d, struct error *e);
/* Makes what is made once. Harmless on an open session. After a failure it is not open. */
int cuda_session_open(struct cuda_session *s, const struct cuda_device *d, struct error *e);

/* Begins a series of passes. Until cuda_session_end() no other profiler can have the counters. Harmless where one has
 * begun. The driver asks here, and not later, whether the calling thread may read counters. */
int cuda_session_begin(struct cuda_session *s, const struct cuda_device *d, struct error *e);
/* Also in the middle of a pass. Harmless without a series. */
void cuda_session_end(struct cuda_session *s);
/* Around the executions of one pass, SESSION_EXECUTIONS of the same work, which have ended before pass_end().
 * *ret_more: another pass is needed. */
int cuda_session_pass_begin(struct cuda_session *s, struct error *e);
int cuda_session_pass_end(struct cuda_session *s, bool *ret_more, struct error *e);
/* After the last pass: the figures of the kernel that took longest in the last execution, and how many kernels that
 * launched. *ret_longest: its number among them. */
int cuda_session_read(struct cuda_session *s, struct backend_counters *ret, unsigned *ret_longest, struct error *e);

#endif
