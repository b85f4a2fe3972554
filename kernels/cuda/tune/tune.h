/* Tuning: measures the candidates for a step, and chooses.
 *
 * Operands are the tuner's own, with the layouts and alignments of the request and random values. There are several
 * sets, used in turn, so that small operands do not stay in the GPU's cache. Thread: one at a time, in a process that
 * does nothing else with the device. */
#ifndef KOPS_CUDA_TUNE_H
#define KOPS_CUDA_TUNE_H

#include "compute/work.h"
#include "core/tuning.h"
#include "driver/device.h"

struct cuda_kernels;

/* tune() and tunes() of struct backend. */
int cuda_tune(const struct cuda_kernels *k, const struct tuning_request *request, struct tuning_pace *pace,
              struct tuning_result *ret, struct error *e);
bool cuda_tunes(const struct step *step);

/* ---- measure.c ---- */

enum { TUNE_SETS_MAX = 64 };

struct tune_operands {
    struct cuda_device *device;
    CUdeviceptr memory;
    unsigned n_sets, n_operands, next;
    uint64_t addresses[TUNE_SETS_MAX][STEP_MAX_OPERANDS]; /* addresses of first elements */
};

struct tune_bench {
    const struct cuda_kernels *kernels;
    struct cuda_queue queue;
    struct tune_operands operands;
    const struct tuning_request *request;
    struct tuning_pace *pace;
    uint64_t paused_ns;
    unsigned pauses;
    atomic_ullong *go; /* word of host memory that opens gates; NULL: there are no gates */
    CUdeviceptr go_address;
    CUfunction gate;
    uint64_t gates;
    CUevent begin, end;
};

int tune_bench_open(struct tune_bench *b, const struct cuda_kernels *k, const struct tuning_request *request,
                    struct tuning_pace *pace, struct error *e);
void tune_bench_close(struct tune_bench *b);

/* Functions of struct tournament; the context is the bench. A candidate that cannot run does not break the device. */
int tune_measure_first(void *bench, const struct tuning_choice *choice, double slice_us, double *ret_us,
                       bool *ret_rough, struct error *e);
int tune_measure(void *bench, const struct tuning_choice *choice, double guess_us, double slice_us, double *ret_us,
                 struct error *e);

#endif
