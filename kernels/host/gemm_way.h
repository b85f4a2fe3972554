/* The ways to multiply on this device: which there are, what clients call them, and which one a step takes. Where the
 * client does not say and both libraries are there, they are measured while they serve (choice.h). */
#ifndef KOPS_HOST_GEMM_WAY_H
#define KOPS_HOST_GEMM_WAY_H

#include "choice.h"
#include "execute.h"

enum gemm_ways_number { GEMM_BLAS, GEMM_ONEDNN, GEMM_OWN, GEMM_WAYS };

struct gemm_ways {
    const char *names[GEMM_WAYS];                     /* NULL: the device has none */
    const char *variants[DTYPE_SLOTS][GEMM_WAYS + 1]; /* by dtype, best first; each list ends with NULL */
    struct choices choices;
};

/* After the libraries were looked for. `choose`: by measured times; else the first library that is there. */
void gemm_ways_init(struct host_device *device, bool choose);
void gemm_ways_deinit(struct gemm_ways *ways);

/* Whether the step is not for the loop's thread: it may load a library, which takes long, or is oneDNN's. */
bool gemm_needs_worker(struct host_device *device, const struct step *step);

/* Resolves the way, and loads its library. Error: unsupported. */
int gemm_begin(struct host_device *device, const struct thread_context *context, const struct step *step,
               struct execution *ret_execution, struct error *e);

/* Computes the step's product. Errors: out_of_memory, unsupported. */
int gemm_run(struct host_device *device, const struct thread_context *context, const struct step *step,
             unsigned char *const *pointers, const struct execution *x, struct error *e);

#endif
