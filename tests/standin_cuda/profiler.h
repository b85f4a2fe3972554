/* What the stand-in of CUPTI sees of the stand-in driver. */
#ifndef KOPS_STANDIN_PROFILER_H
#define KOPS_STANDIN_PROFILER_H

#include <stdbool.h>
#include <stdint.h>

enum standin_launch { STANDIN_LAUNCH_KERNEL, STANDIN_LAUNCH_GRAPH };

struct standin_profiler {
    /* In the launching thread, before the work is queued. Returns the call's number; 0: no record is wanted of it. */
    uint32_t (*launching)(enum standin_launch what);
    /* The calling thread begins to load code, or has done so. */
    void (*loading)(bool begins);
    /* A kernel of that call ran, CLOCK_MONOTONIC. `name` stays. `last`: of the call. Thread: the stream's. */
    void (*ran)(uint32_t call, enum standin_launch what, const char *name, uint64_t begin_ns, uint64_t end_ns,
                bool last);
};

/* From now on; it stays. NULL: none. */
__attribute__((visibility("default"))) void standin_set_profiler(const struct standin_profiler *profiler);

/* What loading code does besides, of a library that stands for one that loads kernels. */
__attribute__((visibility("default"))) void standin_load_takes_time(void);

#endif
