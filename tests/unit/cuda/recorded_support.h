/* Executions that are timed by CUPTI's records, over a stand-in of CUPTI. */
#ifndef KOPS_TEST_CUDA_RECORDED_SUPPORT_H
#define KOPS_TEST_CUDA_RECORDED_SUPPORT_H

#include "kernel_support.h"

/* What the backend has said of jobs with TIMING_STATISTIC since setup_with_cupti(). */
struct told {
    unsigned count;
    uint64_t token; /* the last one's */
    struct backend_times times;
};

extern struct told told;

int setup_with_cupti(void **state);

/* A kernel of a user's, which does not know its own times. */
struct custom {
    struct backend_memory *memory;
    struct backend_stream *stream;
    struct backend_code *code;
    const struct backend_function *function;
};

struct custom open_custom(void);
/* A job that runs it once. The token of a statistic is 77. */
void make_custom(const struct custom *c, struct test_job *t, enum backend_timing timing);

#endif
